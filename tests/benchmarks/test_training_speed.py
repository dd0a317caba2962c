"""What a prediction of a large training job costs; prints ratios, never gates.

    pytest tests/benchmarks/test_training_speed.py -m benchmark --benchmark-enable -s

Llama 3 70B under Megatron-core, tensor parallel over 8, pipelines of 2 to 16 stages, 64
micro-batches per step, on HGX H100. Times are CPU seconds of a warm process.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import process_time
from typing import Any

import numpy as np
import pytest
import simpy

from raysim.hardware.network import FlowNetwork
from raysim.kernel.simulation import Simulation
from raysim.models.huggingface import build
from raysim.training import prepared
from raysim.training.communicators import Communicators
from raysim.training.compiler.feed import Feed
from raysim.training.drawn_step import drawn_step_ns
from raysim.training.executor import Executor
from raysim.training.graph.recosting import Costs, Recosting
from raysim.training.graph.step_graph import StepGraph
from raysim.training.memory.need import memory_need
from raysim.training.noise import Noise
from raysim.training.on_links import communicators_alone
from raysim.training.plan import MegatronSettings, TrainingPlan
from raysim.training.program import Program
from raysim.training.settings.deepspeed import PipelineSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import simulate
from tests.benchmarks.table import cpu_s, law, row
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


SIZES = {16: 2, 128: 4, 1024: 8, 16384: 16, 102400: 16}
"""GPUs, and stages of their pipelines."""
JITTER = Noise(gpu_cv=0.02, kernel_cv=0.03)


def first_s(run: Callable[[], Any]) -> float:
    """CPU seconds where nothing is known of the cluster yet."""
    prepared._communicators.cache_clear()
    prepared._topology.cache_clear()
    gc.collect()
    return cpu_s(run)


def by_simpy(programs: Sequence[Program]) -> float:
    """CPU seconds of a SimPy process per rank that waits out each operation: no rule at all."""

    def rank(env: simpy.Environment, program: Program) -> Any:
        for op in program.ops:
            yield env.timeout(op.duration_ns + op.host_ns)

    env = simpy.Environment()
    for program in programs:
        env.process(rank(env, program))
    return cpu_s(env.run)


def compiled(p: TrainingPlan, gpus: int) -> tuple[tuple[Program, ...], Communicators]:
    costs, stages, comms = prepared.prepare(p, cluster(gpus // 8), folded=True)
    return prepared.compile_programs(
        p, comms, stages, costs, feed=Feed(), steps=1, memory=False
    ), comms  # fmt: skip


def test_folded_jobs(benchmark: Any) -> None:
    """A prediction of a job that nothing is known of, then of one on the same cluster."""
    first, again, full = [], [], []
    for gpus, stages in SIZES.items():
        p, where = job(gpus, stages), cluster(gpus // 8)

        def step(p: TrainingPlan = p, where: Any = where, *, memory: bool = False) -> None:
            simulate(p, where, simulation=Simulation(), memory=memory)

        first.append((gpus, first_s(step)))
        again.append((gpus, seconds(step, rounds=2)))
        full.append((gpus, seconds(lambda step=step: step(memory=True), rounds=2)))
        programs, _ = compiled(prepared.shortened(p, min(64, prepared.enough(p))), gpus)
        events_s = by_simpy(programs)
        row("training, folded", f"{gpus:>7,} GPUs, first", first[-1][1], f"{first[-1][1]:.2f} s",
            events_s / first[-1][1], "SimPy processes, a timeout per operation")  # fmt: skip
        row("training, folded", f"{gpus:>7,} GPUs, again", again[-1][1], f"{again[-1][1]:.2f} s",
            events_s / again[-1][1], "SimPy processes, a timeout per operation")  # fmt: skip
    law("CPU seconds of a first prediction, 70 B on n GPUs", first, "links of the cluster")
    law("CPU seconds of a prediction on a known cluster, 70 B on n GPUs", again)
    law("CPU seconds of a prediction with memory, 70 B on n GPUs", full)
    benchmark.pedantic(lambda: None, rounds=1)


def test_memory_alone(benchmark: Any) -> None:
    points = []
    for gpus, stages in SIZES.items():
        p, where = job(gpus, stages), cluster(gpus // 8)
        points.append((gpus, seconds(lambda p=p, where=where: memory_need(p, where), rounds=5)))
        row("training, memory alone", f"{gpus:>7,} GPUs", points[-1][1],
            f"{1 / points[-1][1]:.0f} answers/s")  # fmt: skip
    law("CPU seconds of a memory answer, 70 B on n GPUs", points, "stages: 2 to 16")
    benchmark.pedantic(lambda: None, rounds=1)


def test_costs_of_a_known_step(benchmark: Any) -> None:
    """1F1B of 16 stages and 128 micro-batches under a thousand costs at once."""
    p = replace(job(16384, 16), gradient_accumulation_steps=128)
    programs, comms = compiled(p, 16384)
    executor_s = seconds(lambda: played(programs, comms), rounds=1)
    start_s = process_time()
    found = Recosting(StepGraph(programs, comms, communicators_alone(programs, comms)))
    found.ends(found.costs)
    built_s = process_time() - start_s
    rng, base = np.random.default_rng(0), found.costs
    times = rng.lognormal(0, 0.1, (len(found.ops), 1024))
    costs = Costs(np.rint(base.duration_ns * times).astype(np.int64), base.host, base.before)
    spent_s = seconds(lambda: found.ends(costs))
    ops = sum(len(program.ops) for program in programs)
    row("training, costs again", f"1,024 costs of one 1F1B step, p 16, m 128, {ops:,} operations"
        f" (graph made in {built_s:.2f} s)", spent_s, f"{1024 / spent_s:,.0f} steps/s",
        1024 * executor_s / spent_s, "the executor, step by step")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)


def test_every_rank(benchmark: Any) -> None:
    """Every rank and every launch with its own draw."""
    points = []
    for gpus, stages in SIZES.items():
        p, where = job(gpus, stages), cluster(gpus // 8)
        points.append((gpus, seconds(lambda p=p, where=where: drawn_step_ns(p, where, JITTER), 2)))
        row("training, every rank", f"{gpus:>7,} GPUs, a draw per launch and GPU", points[-1][1],
            f"{gpus / points[-1][1]:,.0f} GPUs/s")  # fmt: skip
    law("CPU seconds of a step with every rank drawn, 70 B on n GPUs", points)
    benchmark.pedantic(lambda: None, rounds=1)


def played(programs: Sequence[Program], comms: Communicators) -> None:
    simulation = Simulation()
    Executor(simulation, FlowNetwork(simulation, comms.topology), comms).play(programs)
