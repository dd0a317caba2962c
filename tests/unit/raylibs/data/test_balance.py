"""The closed form of what CPUs make, where two of them are threads of one core, and played."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.hardware.cores import SMT_YIELD, Capacity, together
from raysim.raylibs.data.advice import _feeding
from raysim.raylibs.data.balance import Balance, balance
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.specs import Map
from tests.unit.raylibs.data.parts import cluster, data, played, work

ROWS = 32_000


def machines(vcpus: float, threads: int = 2) -> Capacity:
    cores = vcpus / threads
    return Capacity(vcpus=vcpus, cores=cores, most=cores * (SMT_YIELD if threads == 2 else 1.0))


def limits(
    *steps: Map, cpus: float, of: Capacity | None = None, consumers: float = 1e9, **more: Any
) -> Balance:
    return balance(
        data(ROWS, *steps), DataContext(), cpus=cpus, machines=of or machines(cpus), gpus=0.0,
        consumers_per_s=consumers, **more,
    )  # fmt: skip


def test_sixteen_vcpus_make_what_ten_cores_do() -> None:
    # 10 ms of a core: 8 cores make 800 rows/s, their 16 threads 1.3 times that; 12 threads, four
    # of them beside another, 8 + 4 * 0.3 cores' worth.
    assert limits(work(0.01), cpus=8, of=machines(16)).cpu_rows_per_s == pytest.approx(800)
    assert limits(work(0.01), cpus=12, of=machines(16)).cpu_rows_per_s == pytest.approx(920)
    assert limits(work(0.01), cpus=16).cpu_rows_per_s == pytest.approx(1040)
    assert limits(work(0.01), cpus=16, of=machines(16, 1)).cpu_rows_per_s == pytest.approx(1600)


def test_waiting_takes_no_core() -> None:
    # 10 ms of work and 30 ms of waiting: of 16 threads at most 5 work, each on a core of its own.
    slow = Map(core_s_per_row=0.01, io_s_per_row=0.03)
    assert limits(slow, cpus=16).cpu_rows_per_s == pytest.approx(16 / 0.04)


def test_tasks_of_several_threads_and_of_half_a_cpu_have_no_more_cores_than_there_are() -> None:
    four = work(0.04, width=4.0)  # a CPU each, four threads: 16 of them have 8 cores
    assert limits(four, cpus=16).cpu_rows_per_s == pytest.approx(10.4 / 0.04)
    halves = work(0.01, num_cpus=0.5)
    assert limits(halves, cpus=16, of=machines(16, 1)).cpu_rows_per_s == pytest.approx(1600)


def test_cpus_are_advised_only_where_they_are_short() -> None:
    """A stage of two actors starves trainers whatever the CPUs: it was told to have more."""
    assert "Give data 20 CPUs (it has 8)" in _feeding(
        limits(work(0.01), cpus=8, of=machines(8, 1), consumers=2000)
    )
    two = limits(work(0.01, concurrency=2), cpus=8, of=machines(8, 1), consumers=500)
    assert "makes 200 rows/s, with 2 at once at most" in _feeding(two)
    enough = _feeding(limits(work(0.01), cpus=8, of=machines(8, 1), consumers=500))
    assert enough.startswith("CPUs are not short (data has 8, and 5 would keep up)")


@given(cpus=st.integers(1, 64), wanted_frac=st.floats(1.01, 20.0), wait_s=st.floats(0.0, 0.05))
def test_so_many_more_machines_keep_up(cpus: int, wanted_frac: float, wait_s: float) -> None:
    step = Map(core_s_per_row=0.01, io_s_per_row=wait_s)
    made = limits(step, cpus=cpus).cpu_rows_per_s
    wanted = made * wanted_frac
    enough = limits(step, cpus=cpus, consumers=wanted).cpus_to_keep_up
    assert limits(step, cpus=enough).cpu_rows_per_s == pytest.approx(wanted)
    assert limits(step, cpus=cpus, consumers=made * 0.99).cpus_to_keep_up <= cpus


def test_machines_that_have_left_are_not_divided_by() -> None:
    gone = limits(work(0.01), cpus=0, of=together([]), consumers=500.0)
    assert (gone.cpu_rows_per_s, gone.cpus_to_keep_up) == (0.0, 5.0)


@given(cpus=st.floats(1, 64), more=st.floats(0.0, 10.0), threads=st.sampled_from([1, 2]))
def test_more_cpus_make_more_and_none_makes_more_than_a_core(
    cpus: float, more: float, threads: int
) -> None:
    machine = machines(80, threads)
    one, then = (limits(work(0.01), cpus=c, of=machine).cpu_rows_per_s for c in (cpus, cpus + more))
    assert one <= then + 1e-6
    assert then <= one + more / 0.01 + 1e-6
    if threads == 1:
        assert one == pytest.approx(min(cpus, 80) / 0.01)


@pytest.mark.parametrize("threads", [1, 2])
def test_played_it_comes_to_that(threads: int) -> None:
    step = work(0.01)
    at_most = limits(step, cpus=8, of=machines(8, threads)).cpu_rows_per_s
    outcome = played(cluster(cpus=8, threads_per_core=threads), data(ROWS, step))
    assert 0.95 * at_most < ROWS / outcome.took_s <= at_most
