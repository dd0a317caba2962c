"""ZeRO++, MiCS, Twin-Flow and NVMe offload: collectives as DeepSpeed's, groups, buffers, refusals.

The record is of real steps on four CPU ranks, two to a node.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from raysim.errors import ScenarioError
from raysim.hardware import catalog
from raysim.perf.nvme import STRIPE_SHARE, Volume, nvme_volume, transfer_seconds
from raysim.training.layers.sections import Gradient
from raysim.training.memory.host import host_memory
from raysim.training.settings.deepspeed import Aio, OffloadOptimizer, OffloadParam, ZeroConfig
from raysim.training.settings.parallel import Mesh
from raysim.training.states.quantization import gradient_hops, weight_groups
from raysim.training.states.swapping import SubGroup, buffers_needed, place
from raysim.training.states.zero import sub_groups
from raysim.units import MIB
from tests.deepspeed_reference import recorded
from tests.training_parts import cluster, llama, plan, play, programs
from tests.zeropp_reference import compiled, heard, steady

RECORD = recorded("zeropp.json")
MI = 2**20


@pytest.mark.parametrize("case", RECORD, ids=[c["name"] for c in RECORD])
def test_collectives_are_deepspeed_s_in_order_with_their_groups(case: dict[str, Any]) -> None:
    assert compiled(case) == heard(case)


def test_a_sub_group_ends_with_the_shard_that_reaches_its_size() -> None:
    shards = [Gradient(str(i), n) for i, n in enumerate((4, 4, 3, 9, 1))]
    assert [[g.numel for g in group] for group in sub_groups(shards, 8)] == [[4, 4], [3, 9], [1]]
    assert sub_groups([], 8) == []


@pytest.mark.parametrize(
    ("numel", "groups"), [(8000, 1), (16, 1), (8008, 7), (64_000, 8), (4096 * 4096 // 64, 64)]
)
def test_int8_groups_are_the_fewest_of_whole_vectors(numel: int, groups: int) -> None:
    """Worked by hand: 8,008 = 8 x 1,001 = 8 x 7 x 143, so two groups do not divide it."""
    assert weight_groups(numel) == groups


@pytest.mark.parametrize("numel", [12, 7, 4])
def test_shards_that_are_not_whole_vectors_are_refused(numel: int) -> None:
    with pytest.raises(ScenarioError, match="multiple of 8"):
        weight_groups(numel)


def test_gradients_travel_in_half_a_byte_twice() -> None:
    near, far = gradient_hops((64, 32), ranks=4, local=2) or ((0, 0), (0, 0))
    assert near == (1024, 64 * 4)
    assert far == (512, 32 * 4)
    assert gradient_hops((64,), 4, 2) is None
    assert gradient_hops((3, 5), 4, 2) is None


OFFLOADED = OffloadOptimizer(device="cpu", ratio=0.3)


def placed(count: int, **zero: Any) -> tuple[SubGroup, ...]:
    shards = [Gradient(str(i), MI) for i in range(count)]
    settings = ZeroConfig(stage=3, sub_group_size=MI, **zero)
    return place(shards, settings, low_bytes=2, master_bytes=4)


def test_twin_flow_steps_the_first_sub_groups_on_the_gpu() -> None:
    """``i >= int((1 - ratio) * n)`` is on the CPU: of 10 at 0.3 the last three, of one all."""
    where = [g.on_gpu for g in placed(10, offload_optimizer=OFFLOADED)]
    assert where == [True] * 7 + [False] * 3
    assert [g.on_gpu for g in placed(1, offload_optimizer=OFFLOADED)] == [False]
    assert all(g.on_gpu for g in placed(4))


def test_parameters_beyond_max_in_cpu_are_on_nvme_sub_group_by_sub_group() -> None:
    def away(room: int) -> list[bool]:
        offload = OffloadParam(device="nvme", max_in_cpu=room)
        return [bool(g.swapped_parameters) for g in placed(4, offload_param=offload)]

    assert away(4 * MI) == [False] * 4
    assert away(3 * MI) == [False, False, False, True]
    assert away(MI - 1) == [True] * 4


def test_small_tensors_are_never_swapped() -> None:
    nvme = OffloadOptimizer(device="nvme")
    assert all(g.swapped for g in placed(2, offload_optimizer=nvme))
    big_blocks = Aio(block_size=4 * MI + 1)
    assert not any(g.swapped for g in placed(2, offload_optimizer=nvme, aio=big_blocks))


@pytest.mark.parametrize(
    ("read", "write", "groups", "need"),
    [
        (False, False, 5, 4), (True, False, 5, 8), (False, True, 5, 8), (True, True, 5, 12),
        (True, True, 2, 8), (True, True, 1, 4),
    ],
)  # fmt: skip
def test_buffers_in_use_at_once(*, read: bool, write: bool, groups: int, need: int) -> None:
    offload = OffloadOptimizer(device="nvme", pipeline_read=read, pipeline_write=write)
    zero = ZeroConfig(stage=3, offload_optimizer=offload)
    assert buffers_needed(placed(groups, offload_optimizer=offload), zero, 3) == need


SWAPPED = {"offload_optimizer": OffloadOptimizer(device="nvme"), "sub_group_size": 2 * MI}


def big(**zero: Any) -> Any:
    """Four ranks on one node with disks."""
    model = llama(layers=4, hidden=1024, vocab=2048, seq_len=64)
    settings = {"stage3_param_persistence_threshold": 10_000, **zero}
    return plan(model, stage=3, zero=settings, mesh=Mesh(dp=4), gradient_accumulation_steps=1)


def where() -> Any:
    return cluster(nodes=1, node="p4d.24xlarge", gpus=4)


def test_too_few_swap_buffers_are_refused_as_deepspeed_s_swapper_does() -> None:
    offload = OffloadOptimizer(device="nvme", pipeline_read=True)
    with pytest.raises(ScenarioError, match=r"buffer_count: 4 swap buffers, the step needs 8"):
        programs(big(**SWAPPED | {"offload_optimizer": offload}), where())
    param = OffloadParam(device="nvme", max_in_cpu=0, buffer_size=1000)
    with pytest.raises(ScenarioError, match=r"offload_param.buffer_size: a shard of"):
        programs(big(offload_param=param), where())
    param = replace(param, buffer_size=10**8, buffer_count=1)
    with pytest.raises(ScenarioError, match=r"offload_param.buffer_count: 1 buffers"):
        programs(big(offload_param=param), where())


def test_a_node_without_a_disk_cannot_swap() -> None:
    spec = where().groups[0]
    bare = replace(where(), groups=(replace(spec, node=replace(spec.node, disks=())),))
    with pytest.raises(ScenarioError, match="needs a disk"):
        play(big(**SWAPPED), bare)


def test_states_pass_the_disk_once_each_way_and_gradients_too() -> None:
    """Per element, master, two moments and gradient are read, and all four written: 16 B."""
    p = big(**SWAPPED)
    ops = steady(programs(p, where())[0])
    volume = nvme_volume(where().groups[0].node)
    assert volume is not None
    rates = {"read": volume.read_bytes_per_s, "write": volume.write_bytes_per_s}
    own = p.model.num_parameters / 4
    for kind, rate in rates.items():
        busy_s = sum(op.duration_ns for op in ops if op.name.startswith(kind)) * 1e-9
        assert busy_s * rate * STRIPE_SHARE / 4 == pytest.approx(16 * own, rel=0.05), kind


def test_reading_ahead_hides_what_the_cpu_takes() -> None:
    plain = play(big(**SWAPPED), where(), memory=False).steady_step_ns
    ahead = OffloadOptimizer(device="nvme", pipeline_read=True, buffer_count=8)
    hidden = play(big(**SWAPPED | {"offload_optimizer": ahead}), where(), memory=False)
    on_host = OffloadOptimizer(device="cpu")
    host = play(big(**SWAPPED | {"offload_optimizer": on_host}), where(), memory=False)
    assert host.steady_step_ns < hidden.steady_step_ns < plain


def test_parameters_on_nvme_are_read_once_per_gather() -> None:
    param = OffloadParam(device="nvme", max_in_cpu=0, buffer_count=40)
    p = big(offload_param=param, stage3_max_reuse_distance=0, stage3_prefetch_bucket_size=3 * MI)
    program = programs(p, where())[0]
    reads = Counter(op.name.removeprefix("read ") for op in program.ops if op.name[:4] == "read")
    gathered = Counter(
        e.label
        for e in program.memory
        if e.category == "gathered_parameter" and e.delta_bytes >= 4 * MIB
    )
    assert reads == gathered
    assert max(reads.values()) == 2


def test_the_volume_is_a_stripe_of_the_node_s_nvme_disks() -> None:
    node = catalog.node("p4d.24xlarge")
    (disk, count) = next((d, n) for d, n in node.disks if d.kind == "nvme")
    volume = nvme_volume(node)
    assert volume is not None
    assert count > 1
    assert volume.capacity_bytes == count * disk.capacity_bytes
    assert volume.read_bytes_per_s == count * disk.read_bytes_per_s


def test_a_short_queue_keeps_a_fast_volume_waiting() -> None:
    """One block of 1 MiB at a time with 100 us each is 10.5 GB/s, however fast the disks are."""
    volume = Volume(
        read_bytes_per_s=1e12, write_bytes_per_s=1e9, latency_s=1e-4, capacity_bytes=10**12
    )
    taken = transfer_seconds(1e9, volume, "read", 1, block_bytes=MIB, blocks=1)
    assert taken == pytest.approx(1e-4 + 1e9 / (MIB / 1e-4))
    taken = transfer_seconds(1e9, volume, "write", 4, block_bytes=MIB, blocks=8)
    assert taken == pytest.approx(1e-4 + 4e9 / (STRIPE_SHARE * 1e9))


def test_host_and_disk_of_what_is_swapped() -> None:
    """Own 8 Mi elements in tiles of 4: 4 buffers of 16 MiB; flat bf16 gradients, 16 MiB, pinned."""
    zero = {"offload_optimizer": OffloadOptimizer(device="nvme"), "sub_group_size": 4 * MI}
    p = plan(stage=3, zero=zero, mesh=Mesh(dp=4))
    node = catalog.node("p4d.24xlarge")
    need = host_memory(p, 32 * MI, 32 * MI, node, 4)
    assert need.by_category["swap_buffer"] == 4 * 4 * 16 * MIB
    assert need.by_category["optimizer_state"] == 4 * 16 * MIB
    assert need.disk_bytes == 4 * 16 * 8 * MI  # master, two moments, gradients: 4 bytes each
    assert need.fits
    small = replace(node, disks=((replace(node.disks[0][0], capacity_bytes=100 * MIB), 1),))
    assert not host_memory(p, 32 * MI, 32 * MI, small, 4).on_disk


def test_host_memory_of_twin_flow_is_that_of_its_cpu_sub_groups() -> None:
    def states(ratio: float) -> int:
        offload = OffloadOptimizer(device="cpu", ratio=ratio)
        zero = {"offload_optimizer": offload, "sub_group_size": MI}
        p = plan(stage=3, zero=zero, mesh=Mesh(dp=4))
        need = host_memory(p, 16 * MI, 16 * MI, catalog.node("hgx-h100-8"), 1)
        return need.by_category["optimizer_state"]

    flat = 8 * MIB  # low-precision gradients of all sub-groups
    assert states(1.0) - flat == 4 * 16 * MI
    assert states(0.5) - flat == 2 * 16 * MI
    assert states(0.0) == flat
