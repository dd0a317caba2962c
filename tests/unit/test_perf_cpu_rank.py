"""CPU ranks: one thread does everything, and gloo's ring is paid by every rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.calibrate.direct_cpu import cpu_constants
from raysim.errors import ScenarioError
from raysim.hardware import catalog
from raysim.hardware.specs import CpuRankSpec
from raysim.perf.collectives import collective
from raysim.perf.cpu_rank import CpuRankModel
from raysim.scenario.profile import on_cluster
from raysim.training.memory.peaks import fixed_bytes
from raysim.training.program import COMPUTE, Kind
from raysim.training.settings.deepspeed import Optimizer
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome
from raysim.validate.training_cases import host, phase_seconds, play, profile_of
from tests.training_parts import cluster as gpu_cluster
from tests.training_parts import llama
from tests.training_parts import plan as gpu_plan
from tests.training_parts import play as play_plan

MODEL = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip


SCENARIO = """\
raysim: 1
name: on-cpu
cluster: {nodes: 1, node: cpu-ranks-2}
model: {from: config.json}
jobs:
  - train: {workers: 2, seq_len: 32, micro_batch: 2, precision: fp32, engine: ddp, steps: 3}
"""
TABLES = Path(__file__).parents[2] / "validation" / "data" / "intel-xeon-2core" / "2026-11-22"
RANK = catalog.gpu("cpu-rank")
assert isinstance(RANK, CpuRankSpec)


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
    model = CpuRankModel(RANK, gpu_plan().constants)
    arithmetic = 2 * 100 * 200 * 300 / RANK.product_flops_per_s
    packing = 8 * (100 * 300 + 200 * 300 + 100 * 200) / RANK.memory_bytes_per_s
    assert model.gemm_s(100, 200, 300, "fp32") == pytest.approx(arithmetic + packing)


@pytest.mark.parametrize(
    ("op", "through", "staged", "steps"),
    [
        ("all_reduce", 3.0, 0, 6), ("all_gather", 1.5, 1, 3), ("reduce_scatter", 3.0, 1, 6),
        ("broadcast", 1.0, 0, 3),
    ],
)  # fmt: skip
def test_gloo_sends_and_receives_by_turns_and_stages_what_torch_stages(
    op: Any, through: float, staged: int, steps: int
) -> None:
    outcome = play_plan(
        gpu_plan(llama(), mesh=Mesh(dp=4), precision="fp32", optimizer=Optimizer(fused=False)),
        host(4),
    )
    cost = collective(op, 1e6, outcome.comms.shape(range(4)))
    expected = steps * RANK.gloo_latency_s + through * 1e6 / RANK.gloo_bytes_per_s
    assert cost.seconds == pytest.approx(expected + staged * 1e6 / RANK.gloo_staging_bytes_per_s)


def test_everything_takes_turns_on_one_thread() -> None:
    """No stream but one, nothing left to the host, and the step is the sum of its operations."""
    outcome = play(case())
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
    slower = profile_of({constant: getattr(RANK, constant) / 4})
    assert slow(play(case(), slower)) > slow(play(case()))


def test_phases_add_up_and_a_pipeline_has_one() -> None:
    phases = phase_seconds(play(case("ddp")))
    assert sum(phases[p] for p in ("forward", "backward", "step")) == pytest.approx(phases["total"])
    assert phase_seconds(play(case("pipeline", 0, gas=4))).keys() == {"total"}


def test_the_dispatcher_is_paid_once_per_tensor_by_the_optimizers_loop() -> None:
    model = CpuRankModel(RANK, gpu_plan().constants)
    seconds = model.optimizer_host_s("AdamW", 76, fused=False)
    assert seconds == pytest.approx(76 * 8 * model.host.eager_s)


def test_its_constants_say_where_they_are_from() -> None:
    model = CpuRankModel(RANK, gpu_plan().constants)
    assert model.provenance["product_flops_per_s"].basis == "measured"
    assert "h100" not in str(model.provenance).lower()


def test_the_catalogs_rank_is_what_the_tables_of_its_host_say() -> None:
    """A fifth: rates of one thread differ by shape, and caches."""
    said = cpu_constants(TABLES)
    assert said.keys() >= {"product_flops_per_s", "dispatch_s", "gloo_staging_bytes_per_s"}
    for name, constant in said.items():
        assert getattr(RANK, name) == pytest.approx(constant.value, rel=0.2), name


def test_a_profile_of_cpu_ranks_is_refused_on_gpus() -> None:
    with pytest.raises(ScenarioError, match="dispatch_s is of ranks on the CPU"):
        on_cluster(gpu_cluster(), profile_of({"dispatch_s": 1e-6}))


def test_a_scenario_can_ask_for_ranks_on_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    result = raysim.run(raysim.load(tmp_path / "scenario.yaml"))
    assert result.summary["verdict"]
    assert fixed_bytes(RANK, communicators=1) == 0  # neither a context nor NCCL's buffers
