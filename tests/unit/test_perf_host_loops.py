"""Operators of the CPU against hosts of H100 and H200 (host_data.csv, 2026-11-27, 16 threads)."""

from __future__ import annotations

import pytest

from raysim.perf.host_loops import GRAIN, LARGEST_REUSED, CpuOperator, Work

HOST = 0.9
"""Of the reference host."""
MANY = 10_000_000


def whole(name: str, *, value_bytes: int = 4, given_bytes: int = 0) -> CpuOperator:
    return CpuOperator(
        name=name, elements=MANY, tensors=bool(given_bytes), made_bytes=value_bytes * MANY,
        moved_bytes=(value_bytes + given_bytes) * MANY,
    )  # fmt: skip


def stack(samples: int, values: int) -> CpuOperator:
    size_bytes = 4 * samples * values
    return CpuOperator(
        name="stack", elements=samples * values, tensors=samples, made_bytes=size_bytes,
        moved_bytes=2 * size_bytes,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "measured_s"),
    [
        (whole("randn"), 0.0557),
        (whole("rand"), 0.0529),
        (whole("randint", value_bytes=8), 0.0829),
        (whole("randn", value_bytes=8), 0.2538),
        (whole("clone", given_bytes=4), 0.00346),
        (stack(128, 12_288), 0.000684),
        (stack(32, 150_528), 0.000764),
        (stack(4096, 30), 0.00141),
    ],
)
def test_operators_take_what_they_were_measured_to(
    operator: CpuOperator, measured_s: float
) -> None:
    work = operator.work
    if operator.made_bytes > LARGEST_REUSED:
        work += operator.fresh
    assert work.total_s == pytest.approx(HOST * measured_s, rel=0.5)


def test_one_thread_takes_longer_but_for_what_is_drawn_anyway() -> None:
    for name, alike in (("clone", False), ("randn", True)):
        one, many = (
            CpuOperator(name=name, elements=MANY, moved_bytes=8 * MANY, threads=t).work
            for t in (1, None)
        )
        assert (one == many) is alike
    small = CpuOperator(name="add", elements=GRAIN - 1, moved_bytes=4 * GRAIN)
    assert small.work == CpuOperator(
        name="add", elements=GRAIN - 1, moved_bytes=4 * GRAIN, threads=1
    ).work  # fmt: skip


def test_a_view_is_a_call_alone() -> None:
    assert CpuOperator(name="select", is_view=True, moved_bytes=2**30).work.loops_s == 0


def test_work_adds_up() -> None:
    assert (Work(1.0, 2.0) + Work(3.0, 4.0)) * 2 == Work(8.0, 12.0)
    assert Work(1.0, 2.0).total_s == 3.0
