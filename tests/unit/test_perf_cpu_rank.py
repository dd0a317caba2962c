"""CPU ranks: one thread does everything, and gloo's ring is paid by every rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raysim.perf.collectives import collective
from raysim.perf.cpu_rank import CpuRankModel
from raysim.training.deepspeed import Optimizer
from raysim.training.parallel import Mesh
from raysim.training.program import COMPUTE, Kind
from raysim.training.tower import StepOutcome
from raysim.validate.training_cases import PRIORS, host, phase_seconds, play, rank_of
from tests.training_parts import llama
from tests.training_parts import plan as gpu_plan
from tests.training_parts import play as play_plan

MODEL = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip


def case(engine: str = "deepspeed", stage: int = 1, gas: int = 1, ranks: int = 2) -> dict[str, Any]:
    config = {
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": gas,
        "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": stage},
    }  # fmt: skip
    named = {"name": "case", "engine": engine, "ranks": ranks, "model": MODEL, "seq": 32}
    return named | {"config": config}


def slow(outcome: StepOutcome) -> float:
    return phase_seconds(outcome)["total"]


def test_a_product_is_arithmetic_and_packing() -> None:
    rank = rank_of(PRIORS)
    model = CpuRankModel(rank, gpu_plan().constants)
    arithmetic = 2 * 100 * 200 * 300 / rank.product_flops_per_s
    packing = 8 * (100 * 300 + 200 * 300 + 100 * 200) / rank.memory_bytes_per_s
    assert model.gemm_s(100, 200, 300, "fp32") == pytest.approx(arithmetic + packing)


@pytest.mark.parametrize(
    ("op", "factor", "steps"), [("all_reduce", 1.5, 6), ("all_gather", 0.75, 3)]
)
def test_gloo_is_a_ring(op: Any, factor: float, steps: int) -> None:
    rank = rank_of(PRIORS)
    outcome = play_plan(
        gpu_plan(llama(), mesh=Mesh(dp=4), precision="fp32", optimizer=Optimizer(fused=False)),
        host(rank, 4),
    )
    shape = outcome.comms.shape(range(4))
    cost = collective(op, 1e6, shape)
    expected = steps * rank.gloo.latency_s + factor * 1e6 / rank.gloo.bytes_per_s
    assert cost.seconds == pytest.approx(expected)


def test_everything_takes_turns_on_one_thread() -> None:
    """No stream but one, nothing left to the host, and the step is the sum of its operations."""
    outcome = play(case(), PRIORS)
    line = outcome.timelines[0]
    ops = [op for op in line.program.ops if op.kind != Kind.SYNC]
    assert {op.stream for op in ops} == {COMPUTE}
    assert all(op.host_ns == op.before_ns == 0 for op in ops)
    busy = sum(
        end - start
        for op, start, end in zip(line.program.ops, line.start_ns, line.end_ns, strict=True)
        if op.kind != Kind.SYNC
    )
    assert busy == max(line.end_ns)


@pytest.mark.parametrize(
    "constant", ["product_flops_per_s", "memory_bytes_per_s", "gloo_bytes_per_s"]
)
def test_slower_parts_make_slower_steps(constant: str) -> None:
    slower = PRIORS | {constant: PRIORS[constant] / 4}
    assert slow(play(case(), slower)) > slow(play(case(), PRIORS))


def test_phases_add_up_and_a_pipeline_has_one() -> None:
    phases = phase_seconds(play(case("ddp"), PRIORS))
    assert sum(phases[p] for p in ("forward", "backward", "step")) == pytest.approx(phases["total"])
    assert phase_seconds(play(case("pipeline", 0, gas=4), PRIORS)).keys() == {"total"}


def test_the_dispatcher_is_paid_once_per_tensor_by_the_optimizers_loop() -> None:
    model = CpuRankModel(replace(rank_of(PRIORS)), gpu_plan().constants)
    assert model.optimizer_launches("AdamW", 76, fused=False) == 76 * 8
