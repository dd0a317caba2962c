"""Closed forms through the whole training tower: compiled, played and accounted for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from raysim.hardware.network import FlowNetwork
from raysim.hardware.topology import Topology
from raysim.kernel.simulation import Simulation
from raysim.perf.collectives import bus_factor
from raysim.perf.host import SLICE_S
from raysim.training.breakdown import step_breakdown
from raysim.training.communicators import Communicators
from raysim.training.layers.sections import Gradient
from raysim.training.plan import TrainingPlan
from raysim.training.program import COMPUTE, Call, Op, Program
from raysim.training.settings.deepspeed import (
    OffloadOptimizer,
    Optimizer,
    PipelineSettings,
)
from raysim.training.settings.parallel import Mesh
from raysim.training.states.zero import Bucket
from tests.training_parts import cluster, fast_wires, llama, plan, play, programs, wide_stack

GIB = 2**30
SCALAR_BYTES = 8
"""Norms and overflow flags are single numbers; the volume laws count tensors."""


# 1F1B: p stages, m micro-batches, forward f and backward b on every stage. The last stage starts
# after (p - 1) forwards and the first ends (p - 1) backwards after it: T = (m + p - 1)(f + b), of
# which each stage works m(f + b); so the bubble is (p - 1)/(m + p - 1) of the step.


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 8), (4, 4), (4, 12), (8, 16)])
def test_pipeline_bubble_is_stages_minus_one_slots(
    stages: int, micro_batches: int, schedule: str
) -> None:
    p = plan(
        wide_stack(stages * 2),
        mesh=Mesh(pp=stages),
        micro_batch=1 << 17,
        gradient_accumulation_steps=micro_batches,
        precision="bf16",
        gradient_clipping=0.0,
        optimizer=Optimizer(type="SGD"),
        pipeline=PipelineSettings(stages=stages, partition_method="uniform", schedule=schedule),  # type: ignore[arg-type]
    )
    outcome = play(p, fast_wires())
    assert not outcome.extrapolated
    slots = micro_batches + stages - 1
    for line in outcome.timelines:
        parts = step_breakdown(line, 0).parts_ns
        passes = parts["compute"] + parts["bubble"]
        assert passes == pytest.approx(parts["compute"] / micro_batches * slots, rel=0.002)
        assert parts["bubble"] / passes == pytest.approx((stages - 1) / slots, abs=0.002)


# Spec of ZeRO's communication: bytes a rank sends per optimizer step, with K bytes per element, P
# elements, N ranks and g micro-batches, all times (N - 1)/N:
#   DDP, stage 0   2KP            one all-reduce
#   stage 1        3KP            all-reduce, all-gather of the weights
#   stage 2        (2g + 1)KP     all-reduce every micro-batch
#   stage 3        3gKP           two gathers and one reduce-scatter every micro-batch
# Sizes below divide by N, so that padding adds nothing.

RANKS = 8


def second_step(program: Program) -> list[Call]:
    """Calls of the second step: the steady state, not the first gathers."""
    start, end = program.step_ends[0], program.step_ends[1]
    return [op.call for op in program.ops[start:end] if op.call is not None]


def sent_bytes(calls: Iterable[Call], ranks: int = RANKS) -> float:
    """Bytes each rank sends for its calls' tensors, by a ring."""
    big = (c for c in calls if c.size_bytes > SCALAR_BYTES)
    return sum(c.size_bytes * bus_factor(c.op, ranks) for c in big)  # type: ignore[arg-type]


def volume(p: TrainingPlan) -> float:
    """Bytes sent per rank and step, in units of the weights' bytes times (N - 1)/N."""
    (program,) = programs(p, steps=2)
    width = 4 if p.precision == "fp32" else 2
    one = width * p.model.num_parameters * (RANKS - 1) / RANKS
    return sent_bytes(second_step(program)) / one


@pytest.mark.parametrize("g", [1, 3])
@pytest.mark.parametrize("overlap", [False, True])
def test_volume_of_replicas_and_of_stages_1_and_2(g: int, overlap: bool) -> None:
    def of(**options: object) -> float:
        return volume(plan(gradient_accumulation_steps=g, **options))

    assert of(engine="ddp", precision="fp32") == 2
    assert of(stage=0) == 2
    assert of(stage=1, zero={"overlap_comm": overlap}) == 3
    assert of(stage=2, zero={"overlap_comm": overlap}) == 2 * g + 1
    # Small buckets move the same bytes in more calls.
    small = {"overlap_comm": overlap, "reduce_bucket_size": 50_000}
    assert of(stage=2, zero=small) == 2 * g + 1


PLAIN = {
    "stage3_param_persistence_threshold": 0,
    "stage3_prefetch_bucket_size": 0,
    "stage3_max_reuse_distance": 0,
}


@pytest.mark.parametrize("g", [1, 3])
def test_volume_of_stage_3(g: int) -> None:
    def of(checkpointing: str = "none", **changes: int) -> float:
        p = plan(
            stage=3,
            zero=PLAIN | changes,
            gradient_accumulation_steps=g,
            activation_checkpointing=checkpointing,
        )
        return volume(p)

    assert of() == 3 * g
    # Weights that are used again within the reuse distance stay: forward to backward, everything.
    assert of(stage3_max_reuse_distance=10**9) == 2 * g
    # Recomputed blocks are gathered a third time unless recompute and backward share a gather.
    model = llama()
    blocks = sum(la.body.numel for la in model.layers if la.kind == "block")
    assert of("full") == pytest.approx((3 + blocks / model.num_parameters) * g)
    block = max(la.body.numel for la in model.layers if la.kind == "block")
    shared = of("full", stage3_max_reuse_distance=2 * block)
    kept = 2 * block / model.num_parameters
    assert (3 - kept) * g <= shared < 3 * g


def test_persistent_parameters_are_gathered_once_a_step() -> None:
    """Norms (numel = hidden) stay: no gathers in passes, one after the step."""
    model, g = llama(), 3
    hidden = model.hidden_size
    p = plan(
        model,
        stage=3,
        gradient_accumulation_steps=g,
        zero=PLAIN | {"stage3_param_persistence_threshold": hidden},
    )
    kept = sum(q.numel for _, q in model.parameters() if q.numel <= hidden) / model.num_parameters
    assert 0 < kept < 0.01
    assert volume(p) == pytest.approx(3 * g - 2 * g * kept + kept)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_one_rank_sends_nothing(stage: int) -> None:
    (program,) = programs(plan(stage=stage, mesh=Mesh(dp=1)))
    assert program.calls() == []


# A ring all-reduce of S bytes over n ranks sends 2(n - 1)/n S from each, in that many bytes over
# the slowest link. Played as one flow, it must take what the cost model says and load the links
# with what the ring sends.


def played(op: str, nodes: int, per_node: int, node: str) -> tuple[int, float, FlowNetwork]:
    """Nanoseconds of one collective of a GiB on an idle network, and what the cost model says."""
    simulation = Simulation()
    topology = Topology.build(cluster(nodes=nodes, node=node, gpus=per_node))
    comms = Communicators(Mesh(dp=nodes * per_node), topology, folded=True)
    traffic = comms.traffic(Call(op, "dp", GIB), 0)
    network = FlowNetwork(simulation, topology)
    ends: list[int] = []
    network.start(
        topology.numbers.loads(traffic.ways),
        GIB,
        latency_ns=round(traffic.cost.latency_s * 1e9),
        max_bytes_per_s=traffic.cost.bytes_per_s,
        then=lambda _: ends.append(simulation.now_ns),
    )
    simulation.run()
    (end,) = ends
    return end, traffic.cost.seconds, network


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize(("nodes", "per_node"), [(1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (16, 1)])
@pytest.mark.parametrize("node", ["hgx-h100-8", "dgx-a100-80-8"])
def test_a_collective_alone_takes_what_it_costs(
    op: str, nodes: int, per_node: int, node: str
) -> None:
    end_ns, seconds, _ = played(op, nodes, per_node, node)
    assert end_ns == pytest.approx(seconds * 1e9, rel=1e-6, abs=2)


@pytest.mark.parametrize("per_node", [2, 4, 8])
def test_a_ring_loads_every_link_with_its_share(per_node: int) -> None:
    n = per_node
    _, seconds, network = played("all_reduce", 1, n, "dgx-a100-80-8")
    carried = [use.carried_bytes for use in network.uses() if use.carried_bytes]
    ring = 2 * (n - 1) / n * GIB
    assert carried == pytest.approx([ring] * 2 * n)  # out of and into every GPU
    assert ring / seconds < 300e9  # NVLink 3, one direction


# Without communication nothing waits for anything but the kernel before it.


@pytest.mark.parametrize(
    "engine",
    [
        {"engine": "ddp", "precision": "fp32"},
        {"stage": 0, "precision": "fp32", "throughput_timer": False},
    ],
)
def test_a_step_without_communication_is_the_sum_of_its_kernels(engine: dict[str, object]) -> None:
    p = plan(
        llama(layers=2, hidden=4096, seq_len=2048),
        mesh=Mesh(dp=1),
        gradient_clipping=0.0,
        **engine,
    )
    outcome = play(p, cluster(nodes=1))
    (line,) = outcome.timelines
    start, end = line.program.step_ends
    ops = line.program.ops[start:end]
    assert {op.stream for op in ops} == {COMPUTE}
    assert outcome.steady_step_ns == sum(op.duration_ns for op in ops)
    assert outcome.breakdown.parts_ns["exposed_collectives"] == 0


def _held(program: Program) -> list[Op]:
    return [op for op in program.ops if op.name == "SMs held by NCCL"]


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        (
            "deepspeed",
            {"stage": 3, "zero": {"overlap_comm": True, "stage3_param_persistence_threshold": 0}},
        ),
        ("deepspeed", {"stage": 2, "zero": {"overlap_comm": True}}),
        ("ddp", {}),
    ],
)
def test_what_runs_beside_compute_takes_its_sms(engine: str, options: dict[str, Any]) -> None:
    """Each gather and reduction beside compute; on one rank there is none."""
    given = {"model": wide_stack(4), "engine": engine, "gradient_accumulation_steps": 1}
    (program,) = programs(plan(**given, **options))
    moved = [c for c in program.calls() if c.size_bytes > SCALAR_BYTES and c.op != "broadcast"]
    held = _held(program)
    beside = [c for c in moved if not (c.op == "all_gather" and options.get("stage") == 2)]
    assert len(held) == len(beside)
    assert all(op.stream == COMPUTE and op.duration_ns > 0 for op in held)
    (alone,) = programs(plan(mesh=Mesh(dp=1), **given, **options))
    assert not _held(alone)


def test_zero_3_cuts_every_gradient_for_every_rank() -> None:
    """The host's time to reduce grows with the ranks: DeepSpeed slices in Python."""
    given = {"model": wide_stack(4), "stage": 3, "gradient_accumulation_steps": 1}

    def host_s(ranks: int) -> float:
        (program,) = programs(plan(mesh=Mesh(dp=ranks), **given), cluster(nodes=ranks // 8))
        return sum(op.before_ns + op.host_ns for op in program.ops) / 1e9

    gradients = len(list(wide_stack(4).parameters()))
    assert host_s(64) - host_s(16) == pytest.approx(48 * gradients * SLICE_S, rel=0.01)


def test_a_gradient_beyond_the_bucket_waits_for_the_next() -> None:
    """As any other: ``reduce_independent_p_g_buckets_and_remove_grads`` looks before it adds."""
    bucket = Bucket(10)
    small, large = Gradient("small", 4), Gradient("large", 40)
    assert list(bucket.add(small)) == []
    assert list(bucket.add(large)) == [[small]]
    assert list(bucket.add(small)) == [[large]]
    assert bucket.drain() == [small]


@pytest.mark.parametrize("wide", [False, True])
def test_zero_2_offload_sums_gradients_by_way_of_the_gpu(*, wide: bool) -> None:
    """Down each micro-batch, up from the second on, in fp32 at the end; or summed on the GPU."""
    given = {"model": wide_stack(4), "stage": 2, "gradient_accumulation_steps": 3}
    offload = OffloadOptimizer(device="cpu", pin_memory=True)
    accumulated = {"grad_accum_dtype": "fp32"} if wide else {}
    (program,) = programs(plan(zero={"offload_optimizer": offload}, **given, **accumulated))
    took = {
        name: [op.duration_ns for op in program.ops if op.name == name]
        for name in ("gradients to host and back", "gradients to host")
    }
    buckets = len(took["gradients to host"])
    sums = took["gradients to host and back"]
    assert len(sums) == (0 if wide else 3 * buckets)
    if sums:
        assert sums[buckets] == pytest.approx(2 * sums[0], rel=0.01)
        assert took["gradients to host"][0] == pytest.approx(2 * sums[0], rel=0.02)
