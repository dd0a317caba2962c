"""What crosses nodes under ZeRO++ and MiCS, in closed form; what Twin-Flow and NVMe cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raysim.training.layers.sections import Gradient
from raysim.training.plan import TrainingPlan
from raysim.training.program import Call
from raysim.training.settings.deepspeed import OffloadOptimizer
from raysim.training.settings.parallel import Mesh
from raysim.training.states.swapping import place
from tests.training_parts import cluster, llama, plan, play, programs
from tests.zeropp_reference import steady

LOCAL, NODES = 8, 2
MODEL = llama(layers=3, hidden=1024, vocab=2048, seq_len=64)
PLAIN = {
    "stage3_param_persistence_threshold": 0,
    "stage3_prefetch_bucket_size": 0,
    "stage3_max_reuse_distance": 0,
}


def across_nodes(call: Call) -> float:
    """Bytes that one node sends to others."""
    kind, _, size = call.group.partition(":")
    between = (NODES - 1) / NODES
    if kind == "dp_shard" and int(size) <= LOCAL:
        return 0.0
    if kind == "dp_replicate":  # each GPU with its like on other nodes
        return call.size_bytes * between * LOCAL * (2 if call.op == "all_reduce" else 1)
    return call.size_bytes * between * (2 if call.op == "all_reduce" else 1)


def zeropp(g: int = 1, **zero: Any) -> TrainingPlan:
    """Stage 3 without anything that keeps weights."""
    mesh = Mesh(dp=LOCAL * NODES)
    return plan(MODEL, stage=3, zero=PLAIN | zero, mesh=mesh, gradient_accumulation_steps=g)


def volume(p: TrainingPlan) -> float:
    """Across nodes, in units of the weights' bytes times (nodes - 1) / nodes."""
    ops = steady(programs(p, cluster(nodes=NODES), steps=3)[0])
    sent = sum(across_nodes(op.call) for op in ops if op.call is not None)
    return sent / (2 * MODEL.num_parameters * (NODES - 1) / NODES)


HPZ = {"zero_hpz_partition_size": LOCAL}
QWZ, QGZ = {"zero_quantized_weights": True}, {"zero_quantized_gradients": True}


@pytest.mark.parametrize("g", [1, 3])
def test_volume_of_zeropp(g: int) -> None:
    """Plain 3g; qwZ halves gathers, hpZ leaves the first one, qgZ sends a quarter of gradients.

    Scales and vectors, which qgZ leaves in bf16, are within 2 %.
    """
    assert volume(zeropp(g)) == pytest.approx(3 * g, rel=1e-6)  # and a norm
    assert volume(zeropp(g, **HPZ)) == pytest.approx(1 + g, rel=1e-6)
    assert volume(zeropp(g, **QWZ)) == pytest.approx((0.5 + 0.5 + 1) * g, rel=0.02)
    assert volume(zeropp(g, **QGZ)) == pytest.approx((1 + 1 + 0.25) * g, rel=0.02)
    assert volume(zeropp(g, **HPZ, **QWZ, **QGZ)) == pytest.approx(0.5 + 0.25 * g, rel=0.02)


@pytest.mark.parametrize("g", [1, 3])
def test_mics_crosses_nodes_with_its_gradient_shards_once_a_step(g: int) -> None:
    """Every GPU all-reduces its eighth with one other: twice the weights' bytes in all."""
    assert volume(zeropp(g, mics_shard_size=LOCAL)) == pytest.approx(2, rel=0.001)


def test_mics_over_nodes_gathers_from_other_nodes_first() -> None:
    """Shards of all ranks: an eighth of the weights arrives over each NIC, the rest over NVLink."""
    p = zeropp(mics_shard_size=16, mics_hierarchical_params_gather=True)
    calls = [op.call for op in steady(programs(p, cluster(nodes=NODES))[0]) if op.call is not None]
    far = [c.size_bytes for c in calls if c.group == "dp_across:16:8"]
    near = [c.size_bytes for c in calls if c.group == "dp_shard:8"]
    assert far
    assert [8 * size for size in far] == near


def test_states_of_mics_are_those_of_as_many_ranks() -> None:
    def held(p: TrainingPlan) -> dict[str, int]:
        return programs(p, cluster(nodes=NODES))[0].step_held[-1]

    mics, eight = held(zeropp(mics_shard_size=8)), held(replace(zeropp(), mesh=Mesh(dp=8)))
    assert mics == eight


def test_second_shards_live_from_the_first_release_to_the_end_of_the_step() -> None:
    """At their fullest, the weights' bytes over ``hpz``; none between steps."""
    p = zeropp(**HPZ)
    program = programs(p, cluster(nodes=NODES), steps=2)[0]
    base = programs(zeropp(), cluster(nodes=NODES), steps=2)[0]
    assert program.step_held[-1] == base.step_held[-1]
    peaks = []
    for found in (program, base):
        held, peak = 0, 0
        for event in found.memory:
            held += event.delta_bytes if event.category == "parameter" else 0
            peak = max(peak, held)
        peaks.append(peak)
    assert peaks[0] - peaks[1] == 2 * MODEL.num_parameters // LOCAL


def test_twin_flow_trades_gpu_memory_for_time() -> None:
    def of(ratio: float) -> tuple[TrainingPlan, int, int]:
        offload = OffloadOptimizer(device="cpu", ratio=ratio)
        p = zeropp(offload_optimizer=offload, sub_group_size=100_000)
        outcome = play(p)
        held = sum(outcome.timelines[0].program.step_held[-1].values())
        return p, outcome.steady_step_ns, held

    (p, half_ns, half), (_, whole_ns, whole) = of(0.5), of(1.0)
    assert half_ns < whole_ns
    shards = [Gradient(n, q.numel // (LOCAL * NODES)) for n, q in MODEL.parameters()]
    groups = place(shards, p.zero, low_bytes=2, master_bytes=4)
    # Master weights, gradients and both moments in fp32 of the sub-groups that stay.
    assert half - whole == 16 * sum(g.numel for g in groups if g.on_gpu) > 0
