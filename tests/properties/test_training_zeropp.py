"""ZeRO++, MiCS, Twin-Flow and NVMe over random settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.hardware.cluster import ClusterSpec
from raysim.training.compiler.compile import RankCompiler
from raysim.training.executor import Timeline
from raysim.training.layers.sections import Gradient
from raysim.training.settings.deepspeed import Aio, OffloadOptimizer, OffloadParam, ZeroConfig
from raysim.training.settings.parallel import Mesh
from raysim.training.states.quantization import LANES, TARGET_GROUP, weight_groups
from raysim.training.states.swapping import place
from raysim.training.tower import StepOutcome
from tests.laws.test_training_zeropp import across_nodes
from tests.training_parts import cluster, emitted, llama, plan, play, programs
from tests.zeropp_reference import steady

MODEL = llama(layers=2, hidden=256, vocab=512, seq_len=32)
FEW = settings(max_examples=10, deadline=None)


@st.composite
def stage_3(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "reduce_bucket_size": draw(st.sampled_from([50_000, 10**6])),
        "stage3_prefetch_bucket_size": draw(st.sampled_from([0, 100_000, 10**6])),
        "stage3_param_persistence_threshold": draw(st.sampled_from([0, 1000])),
        "stage3_max_reuse_distance": draw(st.sampled_from([0, 300_000, 10**9])),
        "sub_group_size": draw(st.sampled_from([20_000, 10**9])),
    }


def job(zero: dict[str, Any], g: int = 2, **options: Any) -> Any:
    mesh = options.pop("mesh", Mesh(dp=16))
    return plan(MODEL, stage=3, zero=zero, mesh=mesh, gradient_accumulation_steps=g, **options)


def times(outcome: StepOutcome) -> list[Timeline]:
    return [(line.start_ns, line.end_ns) for line in outcome.timelines]  # type: ignore[misc]


@FEW
@given(stage_3(), st.integers(1, 3))
def test_what_is_switched_off_changes_nothing(zero: dict[str, Any], g: int) -> None:
    off = {
        "zero_hpz_partition_size": 1, "mics_shard_size": -1, "aio": Aio(queue_depth=1),
        "mics_hierarchical_params_gather": True,
        "offload_optimizer": OffloadOptimizer(device="none", ratio=0.5, pipeline_read=True),
        "offload_param": OffloadParam(device="none", buffer_count=0),
    }  # fmt: skip
    assert times(play(job(zero, g))) == times(play(job(zero | off, g)))


def crossing(zero: dict[str, Any], g: int) -> float:
    ops = steady(programs(job(zero, g), cluster(nodes=2), steps=2)[0])
    return sum(across_nodes(op.call) for op in ops if op.call is not None)


@FEW
@given(stage_3(), st.integers(1, 3), st.sampled_from([2, 4, 8]))
def test_second_shards_never_send_more_across_nodes(zero: dict[str, Any], g: int, hpz: int) -> None:
    assert crossing(zero | {"zero_hpz_partition_size": hpz}, g) <= crossing(zero, g)


@st.composite
def any_way(draw: st.DrawFn) -> dict[str, Any]:
    """With one of ZeRO++'s, MiCS' and the offloads' ways, or none."""
    quantized = {"zero_quantized_weights": True, "zero_quantized_gradients": draw(st.booleans())}
    ways: list[dict[str, Any]] = [
        {}, {}, {"zero_hpz_partition_size": draw(st.sampled_from([2, 8]))}, quantized,
        {"zero_hpz_partition_size": 8} | quantized,
        {"mics_shard_size": draw(st.sampled_from([2, 8]))},
        {"offload_optimizer": OffloadOptimizer(device="cpu")},
        {"offload_param": OffloadParam(device="cpu")},
    ]  # fmt: skip
    live = {
        "stage3_max_live_parameters": draw(st.sampled_from([100_000, 10**9])),
        "overlap_comm": draw(st.sampled_from([None, False])),
    }
    way: dict[str, Any] = draw(st.sampled_from(ways))
    return draw(stage_3()) | live | way


@settings(max_examples=40, deadline=None)
@given(any_way(), st.integers(1, 5), st.integers(1, 3), st.sampled_from(["none", "full"]))
def test_passes_issued_again_are_those_compiled_anew(
    zero: dict[str, Any], g: int, steps: int, recomputed: str
) -> None:
    p = job(zero, g, activation_checkpointing=recomputed)
    again = emitted(p, steps)
    with patch.object(RankCompiler, "_pass", lambda self, do, emit: emit()):
        assert emitted(p, steps) == again


@FEW
@given(stage_3(), st.booleans(), st.booleans(), st.sampled_from([1, 8]))
def test_any_zeropp_plays_to_the_end(
    zero: dict[str, Any],
    weights: bool,
    gradients: bool,
    hpz: int,
) -> None:
    features = {"zero_quantized_weights": weights, "zero_quantized_gradients": gradients}
    played = play(job(zero | features | {"zero_hpz_partition_size": hpz}), cluster(nodes=2))
    breakdown = played.breakdown
    assert sum(breakdown.parts_ns.values()) == breakdown.step_ns


@FEW
@given(stage_3())
def test_states_shrink_with_the_shard_size(zero: dict[str, Any]) -> None:
    held = [
        sum(programs(job(zero | {"mics_shard_size": p}))[0].step_held[-1].values())
        for p in (2, 4, 8, 16)
    ]
    assert held == sorted(held, reverse=True)


def with_disk(rate: float) -> ClusterSpec:
    where = cluster(nodes=2, node="p4d.24xlarge")
    (group,) = where.groups
    disk = replace(group.node.disks[0][0], read_bytes_per_s=rate, write_bytes_per_s=rate)
    return replace(where, groups=(replace(group, node=replace(group.node, disks=((disk, 1),))),))


@FEW
@given(st.booleans(), st.booleans(), st.sampled_from([1e8, 1e9]), st.floats(1.1, 10.0))
def test_a_faster_disk_never_takes_longer(
    read: bool,
    write: bool,
    rate: float,
    factor: float,
) -> None:
    offload = OffloadOptimizer(
        device="nvme", pipeline_read=read, pipeline_write=write, buffer_count=12
    )
    p = job({"offload_optimizer": offload, "sub_group_size": 300_000}, mesh=Mesh(dp=4))
    slow, fast = (play(p, with_disk(r), memory=False).steady_step_ns for r in (rate, rate * factor))
    assert fast <= slow


@given(st.integers(1, 10**7))
def test_int8_groups_hold_at_most_their_target(vectors: int) -> None:
    numel = LANES * vectors
    if vectors == 1:
        return
    groups = weight_groups(numel)
    assert numel % (LANES * groups) == 0
    assert numel / groups <= TARGET_GROUP


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=30), st.integers(1, 10**6),
    st.floats(0, 1),
)  # fmt: skip
def test_sub_groups_keep_every_shard_once_and_cpu_ones_come_last(
    sizes: list[int], size: int, ratio: float
) -> None:
    offload = OffloadOptimizer(device="cpu", ratio=ratio)
    zero = ZeroConfig(stage=3, sub_group_size=size, offload_optimizer=offload)
    shards = [Gradient(str(i), n) for i, n in enumerate(sizes)]
    groups = place(shards, zero, low_bytes=2, master_bytes=4)
    assert [s for g in groups for s in g.shards] == shards
    assert all(g.numel >= size for g in groups[:-1])
    on_gpu = [g.on_gpu for g in groups]
    assert on_gpu == sorted(on_gpu, reverse=True)
    assert sum(on_gpu) == int((1 - ratio) * len(groups))
