"""Fixed-point resources, instances and bundles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.raycore.ids import hex_id
from raysim.raycore.resources import (
    UNIT,
    Allocation,
    NodeResources,
    ResourceSet,
    utilization,
    within_group,
)

GROUP = hex_id("placement_group", 3)


def node(**quantities: float) -> NodeResources:
    return NodeResources(ResourceSet.of(quantities).units)


def take(n: NodeResources, **quantities: float) -> Allocation | None:
    return n.allocate(ResourceSet.of(quantities))


def test_a_tenth_ten_times_is_one() -> None:
    n = node(CPU=1)
    taken = [take(n, CPU=0.1) for _ in range(10)]
    assert all(taken)
    assert take(n, CPU=0.0001) is None
    for allocation in taken:
        assert allocation is not None
        n.free(allocation)
    assert n.available == n.total


def test_a_fraction_of_a_gpu_fits_within_one_and_the_fullest_that_has_room() -> None:
    n = node(GPU=2)
    assert take(n, GPU=0.6) == {"GPU": [6_000, 0]}
    assert take(n, GPU=0.5) == {"GPU": [0, 5_000]}
    assert take(n, GPU=0.5) == {"GPU": [0, 5_000]}
    assert take(n, GPU=0.5) is None
    assert take(n, GPU=0.4) == {"GPU": [4_000, 0]}


def test_whole_gpus_need_whole_instances() -> None:
    n = node(GPU=3)
    take(n, GPU=0.5)
    assert take(n, GPU=3) is None
    assert take(n, GPU=2) == {"GPU": [0, UNIT, UNIT]}


@pytest.mark.parametrize("quantity", [-1.0, 2e14])
def test_quantities_out_of_range_are_refused(quantity: float) -> None:
    with pytest.raises(ValueError, match="x"):
        ResourceSet.of({"x": quantity})


def test_the_gpus_of_a_bundle_are_those_its_tasks_get() -> None:
    n = node(CPU=4, GPU=4)
    take(n, GPU=1)
    held = [take(n, CPU=1, GPU=1), take(n, CPU=1, GPU=2)]
    for index, allocation in enumerate(held):
        assert allocation is not None
        n.add_bundle(allocation, GROUP, index)
    request = within_group(ResourceSet.of({"GPU": 1}), GROUP, 1)
    first = n.allocate_in_group(request, GROUP, 1)
    assert first is not None
    assert first[0][f"GPU_group_1_{GROUP}"] == [0, 0, UNIT, 0]
    assert first[0][f"GPU_group_{GROUP}"] == [0, 0, UNIT, 0]
    anywhere = within_group(ResourceSet.of({"GPU": 1}), GROUP, -1)
    second, third = (n.allocate_in_group(anywhere, GROUP, -1) for _ in range(2))
    assert second is not None
    assert third is not None
    assert (second[1], third[1]) == (0, 1)
    assert third[0][f"GPU_group_{GROUP}"] == [0, 0, 0, UNIT]
    assert n.allocate_in_group(request, GROUP, 1) is None
    for allocation, _ in (first, second, third):
        n.free(allocation)
    for index, allocation in enumerate(held):
        assert allocation is not None
        n.remove_bundle(allocation, GROUP, index)
        n.free(allocation)
    assert n.available == {"CPU": 4 * UNIT, "GPU": 3 * UNIT}
    assert n.total == {"CPU": 4 * UNIT, "GPU": 4 * UNIT}


def test_what_no_bundle_has_whole_is_taken_from_several() -> None:
    """As on real Ray: a worker took the CPU beside the GPU (``group_any_bundle.py``)."""
    n = node(CPU=2, GPU=1)
    for index, allocation in enumerate((take(n, CPU=1, GPU=1), take(n, CPU=1))):
        assert allocation is not None
        n.add_bundle(allocation, GROUP, index)
    worker, trainer = (
        within_group(ResourceSet.of(held), GROUP, -1) for held in ({"CPU": 1}, {"CPU": 1, "GPU": 1})
    )
    first = n.allocate_in_group(worker, GROUP, -1)
    second = n.allocate_in_group(trainer, GROUP, -1)
    assert first is not None
    assert second is not None
    assert {f"CPU_group_1_{GROUP}", f"GPU_group_0_{GROUP}"} <= second[0].keys()
    assert n.allocate_in_group(worker, GROUP, -1) is None
    for allocation, _ in (first, second):
        n.free(allocation)
    assert n.available[f"CPU_group_{GROUP}"] == 2 * UNIT


def test_utilization_is_that_of_the_fullest_of_three() -> None:
    total = {"CPU": 10, "memory": 10, "GPU": 10}
    assert utilization({"CPU": 7, "memory": 5, "GPU": 0}, total) == 0.5


@given(st.lists(st.tuples(st.sampled_from([0.25, 0.5, 1.0, 2.0]), st.booleans())))
def test_what_is_taken_comes_back_whole(steps: list[tuple[float, bool]]) -> None:
    n = node(CPU=4, GPU=4)
    held: list[Allocation] = []
    for quantity, frees in steps:
        taken = take(n, CPU=quantity, GPU=quantity)
        if taken is not None:
            held.append(taken)
        if frees and held:
            n.free(held.pop(0))
        assert sum(n.instances["GPU"]) == n.available["GPU"]
        assert all(0 <= free <= UNIT for free in n.instances["GPU"])
    for allocation in held:
        n.free(allocation)
    assert n.available == n.total
    assert n.instances["GPU"] == [UNIT] * 4
