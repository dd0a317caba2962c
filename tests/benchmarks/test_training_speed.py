"""What a prediction of a large training job costs; prints ratios, never gates.

    pytest tests/benchmarks/test_training_speed.py -m benchmark --benchmark-enable -s

Llama 3 70B under Megatron-core, tensor parallel over 8, pipelines of 8 or 16 stages, 64
micro-batches per step, on HGX H100. Times are CPU seconds of a warm process.
"""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import Any
from unittest.mock import patch

import pytest

from raysim.kernel.simulation import Simulation
from raysim.models.huggingface import build
from raysim.training.compiler.compile import RankCompiler
from raysim.training.plan import MegatronSettings, TrainingPlan
from raysim.training.settings.deepspeed import PipelineSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import memory_need, simulate
from tests.training_parts import cluster, plan

pytestmark = pytest.mark.benchmark

LLAMA_70B = {
    "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
    "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 80,
    "vocab_size": 128256, "max_position_embeddings": 4096,
}  # fmt: skip


def job(gpus: int, stages: int) -> TrainingPlan:
    return plan(
        build(LLAMA_70B, library="megatron_core", fused_loss=True, vocab_multiple=1024),
        engine="megatron",
        mesh=Mesh(tp=8, pp=stages, dp=gpus // 8 // stages),
        micro_batch=1,
        gradient_accumulation_steps=64,
        megatron=MegatronSettings(sequence_parallel=True, use_distributed_optimizer=True),
        pipeline=PipelineSettings(
            stages=stages, partition_method="type:TransformerLayer",
            pipe_partitioned=False, grad_partitioned=False,
        ),
    )  # fmt: skip


def seconds(run: Callable[[], Any], rounds: int = 3) -> float:
    """CPU seconds of the quickest of some warm runs."""
    run()
    taken = []
    for _ in range(rounds):
        start = process_time()
        run()
        taken.append(process_time() - start)
    return min(taken)


@pytest.mark.parametrize(("gpus", "stages"), [(1024, 8), (16384, 16)])
def test_a_folded_job(benchmark: Any, gpus: int, stages: int) -> None:
    p, where = job(gpus, stages), cluster(gpus // 8)

    def step(*, memory: bool = False) -> None:
        simulate(p, where, simulation=Simulation(), memory=memory)

    step_s, full_s = seconds(step), seconds(lambda: step(memory=True))
    memory_s = seconds(lambda: memory_need(p, where))
    with patch.object(RankCompiler, "_pass", lambda self, do, emit: emit()):
        anew_s = seconds(step, rounds=1)
    print(f"\n{gpus} GPUs: time {step_s:.3f} s, with memory {full_s:.3f} s, memory alone"
          f" {memory_s:.3f} s; every pass compiled anew: {anew_s / step_s:.1f} times")  # fmt: skip
    benchmark.extra_info |= {"time_s": step_s, "full_s": full_s, "memory_s": memory_s}
    benchmark.pedantic(step, rounds=1)


def test_growth_with_replicas(benchmark: Any) -> None:
    """The same pipeline, 16 times the replicas: only links become more."""
    few, many = (
        seconds(lambda g=gpus: simulate(job(g, 8), cluster(g // 8), simulation=Simulation()))
        for gpus in (1024, 16384)
    )
    print(f"\n16 times the GPUs: {many / few:.2f} times the time")
    benchmark.extra_info["times"] = many / few
    benchmark.pedantic(lambda: None, rounds=1)
