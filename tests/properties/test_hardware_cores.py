"""What two threads of a core do: never less for one more, never above the yield, nothing lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.hardware.cores import SMT_YIELD, Capacity, capacity_of, together
from raysim.hardware.server import SharedServer
from raysim.kernel.simulation import Simulation
from raysim.units import NS_PER_S, to_ns
from tests.hardware_parts import bare_node

CORES = st.integers(1, 128)
JOBS = st.lists(
    st.tuples(st.floats(0.0, 5.0), st.floats(0.01, 5.0), st.sampled_from([1.0, 1.0, 2.0, 4.0])),
    min_size=1,
    max_size=30,
)
"""When each begins, its work, its threads."""


def of_two(cores: int) -> Capacity:
    return Capacity(vcpus=2.0 * cores, cores=float(cores), most=cores * SMT_YIELD)


def played(jobs: list[tuple[float, float, float]], server: SharedServer) -> list[float]:
    """When each ends, in seconds."""
    sim, ends = server.sim, [0.0] * len(jobs)

    def end(number: int) -> None:
        ends[number] = sim.now_ns / NS_PER_S

    for number, (at_s, size, width) in enumerate(jobs):
        sim.call_at(
            to_ns(at_s),
            lambda n, s=size, w=width: server.job(s, end, n, width=w),
            number,
        )
    sim.run()
    return ends


def server(capacity: Capacity) -> SharedServer:
    return SharedServer(
        Simulation(), "cpu", capacity.most, max_per_s=1.0, doubling=capacity.doubling
    )


@given(cores=CORES, threads=st.floats(0.0, 1000.0), more=st.floats(0.0, 100.0))
def test_a_thread_more_never_does_harm_and_a_core_never_does_more_than_the_yield(
    cores: int, threads: float, more: float
) -> None:
    machine = of_two(cores)
    done, then = machine.of(threads), machine.of(threads + more)
    assert done <= then + 1e-9
    assert then <= done + more + 1e-9
    assert done <= min(threads, cores * SMT_YIELD) + 1e-9
    assert done >= min(threads, cores) - 1e-9


@given(jobs=JOBS, cores=st.integers(1, 8))
def test_a_core_of_one_thread_is_what_it_was(
    jobs: list[tuple[float, float, float]], cores: int
) -> None:
    machine = together([Capacity(vcpus=1.0, cores=1.0, most=1.0)] * cores)
    before = SharedServer(Simulation(), "cpu", float(cores), max_per_s=1.0)
    assert played(jobs, server(machine)) == played(jobs, before)


@given(jobs=JOBS, cores=st.integers(1, 8))
def test_work_is_conserved_and_lies_between_that_of_cores_and_of_twice_as_many(
    jobs: list[tuple[float, float, float]], cores: int
) -> None:
    shared = server(of_two(cores))
    ends = played(jobs, shared)
    assert shared.done_units == pytest.approx(sum(size for _, size, _ in jobs))
    fewer = played(jobs, SharedServer(Simulation(), "cpu", float(cores), max_per_s=1.0))
    many = played(jobs, SharedServer(Simulation(), "cpu", 2.0 * cores, max_per_s=1.0))
    for most, end, least in zip(fewer, ends, many, strict=True):
        assert least - 1e-6 <= end <= most + 1e-6


@given(cores=st.integers(1, 16), threads=st.integers(1, 64))
def test_equal_threads_take_as_long_as_all_of_them_do_together(cores: int, threads: int) -> None:
    # Up to a thread per core 1 s each; from two per core on, what the threads are over 1.3 cores.
    (end, *_) = played([(0.0, 1.0, 1.0)] * threads, server(of_two(cores)))
    if threads <= cores:
        assert end == pytest.approx(1.0)
    elif threads >= 2 * cores:
        assert end == pytest.approx(threads / (SMT_YIELD * cores))
    else:
        doubled = threads - cores
        assert end == pytest.approx(threads / (cores + doubled * (SMT_YIELD - 1.0)))


def test_a_node_says_what_its_vcpus_are() -> None:
    plain = bare_node(vcpus=16)
    doubled = replace(plain, cpu=replace(plain.cpu, threads_per_core=2))
    machine = capacity_of(doubled)
    assert str(machine) == (
        "16 vCPUs are 8 cores of 2 threads: 10.4 cores' worth when all are busy"
    )
    assert capacity_of(plain).doubling is None
