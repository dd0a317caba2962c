"""Programs live in virtual time, and pay what is declared, measured or in a table."""

from __future__ import annotations

import asyncio
import datetime as dt
import time

import pytest

from raysim.perf.ray_core import RayCosts
from raysim.rayapi.compute import Compute, charge, cost
from raysim.rayapi.loader import run_program
from raysim.rayapi.session import ProgramHangs
from tests.rayapi_parts import on_demand, run


def test_a_nap_takes_no_time_of_ours() -> None:
    def main():
        began = time.time(), time.monotonic(), dt.datetime.now()
        time.sleep(3600)
        ended = time.time(), time.monotonic(), dt.datetime.now()
        return began[0], [b - a for a, b in zip(began, ended, strict=True)]

    host = time.perf_counter()
    start, (wall, monotonic, dated) = run(main)
    assert time.perf_counter() - host < 10
    assert start == pytest.approx(1_767_225_600, abs=1)
    assert wall == pytest.approx(3600, abs=1e-3)
    assert monotonic == pytest.approx(3600, abs=1e-3)
    assert dated == pytest.approx(dt.timedelta(hours=1), abs=dt.timedelta(seconds=1))


def test_time_is_the_machines_again_afterwards() -> None:
    run(lambda: time.sleep(1))
    assert abs(time.time() - 1_767_225_600) > 100 or time.sleep.__name__ == "sleep"
    assert isinstance(time.sleep, type(len))


def test_waiting_for_a_moment_ends() -> None:
    def main():
        until = time.time() + 0.5
        while time.time() < until:
            pass
        return time.time() - until

    assert 0 <= run(main) < 0.01


def test_a_drivers_first_value_takes_longer() -> None:
    def main():
        import ray
        from ray.util.placement_group import placement_group

        ray.init()
        taken = []
        for _ in range(2):
            began = time.perf_counter()
            ray.get(placement_group([{"CPU": 1}]).ready())
            taken.append(time.perf_counter() - began)
        ray.get(ray.put(1))
        return taken[0] - taken[1], time.perf_counter() - began - taken[1]

    first, put = run(main, on_demand(costs={"first_value_core_s": 0.1}))
    assert first == pytest.approx(0.1, abs=1e-3)
    assert put < 0.01


def test_a_drivers_first_call_takes_as_long_without_arguments() -> None:
    def main():
        import ray

        ray.init()

        @ray.remote
        def nothing():
            pass

        taken = []
        for _ in range(2):
            began = time.perf_counter()
            nothing.remote()
            taken.append(time.perf_counter() - began)
        return taken[0] - taken[1]

    costs = {"first_value_core_s": 0.1, "export_function_ns": 0}
    assert run(main, on_demand(costs=costs)) == pytest.approx(0.1, abs=1e-3)


def test_retries_are_made_once_a_second_since_the_driver_was_answered() -> None:
    def main():
        import os

        import ray

        ray.init(num_cpus=2)
        began = time.perf_counter()

        @ray.remote(max_retries=1)
        def leaves():
            if time.perf_counter() < began + 0.5:
                os._exit(1)
            return time.perf_counter() - began

        return ray.get(leaves.remote())

    # the driver is answered when its workers are up; its process began 0.7 s before
    costs = {"worker_start_core_s": 0.7, "worker_start_sigma": 0.0}
    assert run(main, on_demand(costs=costs)) == pytest.approx(1.0, abs=0.05)


def test_tasks_that_nap_overlap() -> None:
    def main():
        import ray

        ray.init(num_cpus=4)

        @ray.remote
        def nap():
            time.sleep(10)

        ray.get([nap.remote() for _ in range(4)])
        began = time.time()
        ray.get([nap.remote() for _ in range(8)])
        return time.time() - began

    assert run(main) == pytest.approx(20, abs=0.5)


def test_declared_work_shares_the_cores() -> None:
    def main():
        import ray

        ray.init(num_cpus=2)

        @ray.remote(num_cpus=0)
        @cost(core_seconds=6)
        def work():
            return "done"

        @ray.remote(num_cpus=0)
        def wide():
            charge(core_seconds=3, threads=2)

        ray.get([work.remote() for _ in range(4)])
        began = time.time()
        assert ray.get([work.remote() for _ in range(4)]) == ["done"] * 4
        narrow_s, began = time.time() - began, time.time()
        ray.get(wide.remote())
        return narrow_s, time.time() - began

    narrow_s, wide_s = run(main)
    assert narrow_s == pytest.approx(12, abs=0.2)  # 4 x 6 core-seconds on 2 cores
    assert wide_s == pytest.approx(3, abs=0.2)


def test_a_constructor_in_an_event_loop_takes_its_time() -> None:
    def main():
        import ray

        @ray.remote
        class Actor:
            def __init__(self):
                charge(seconds=2)
                time.sleep(1)

            async def ping(self):
                return 1

        ray.get(Actor.remote().ping.remote())
        began = time.time()
        ray.get(Actor.remote().ping.remote())
        return time.time() - began

    assert run(main) == pytest.approx(3, abs=0.2)


def test_measured_work_of_a_constructor_in_an_event_loop_is_paid_for() -> None:
    def main():
        import ray

        @ray.remote
        class Actor:
            def __init__(self):
                self.took_s = spin()

            async def ping(self):
                return self.took_s

        ray.get(Actor.remote().ping.remote())
        began = time.time()
        took_s = ray.get(Actor.remote().ping.remote())
        return time.time() - began, took_s

    measured = Compute("measured", slowdown=100.0)
    waited_s, took_s = run(main, compute=measured)
    assert waited_s >= took_s > 0.5  # 2 million additions, a hundred times slower


def test_cost_does_nothing_outside_a_program() -> None:
    assert cost(seconds=100)(lambda x: x)(1) == 1
    charge(seconds=100)


def spin():
    began = time.perf_counter()
    sum(range(2_000_000))
    return time.perf_counter() - began


def busy():
    import ray

    ray.init(num_cpus=1)
    seen_s = ray.get(ray.remote(spin).remote())
    began = time.time()
    ray.get(ray.remote(spin).remote())
    return seen_s, time.time() - began


def test_measured_work_takes_what_it_takes_here_and_can_be_replayed(tmp_path) -> None:
    measured = Compute("measured", slowdown=10.0)
    seen_s, outside_s = run(busy, compute=measured)
    assert 0.05 < seen_s < 20
    assert outside_s > seen_s / 3
    table = tmp_path / "compute.csv"
    measured.write(table)
    assert "spin,,0," in table.read_text()
    clusters = []

    def remember(request):
        clusters.append(on_demand()(request))
        return clusters[-1]

    for _ in range(2):
        run_program(busy, remember, compute=Compute("table", table=table))
    assert clusters[0].sim.digest == clusters[1].sim.digest
    assert clusters[0].sim.now_ns > 1e9 + 1e9 * seen_s


def test_what_a_driver_computes_after_its_last_call_is_part_of_the_run(tmp_path) -> None:
    """The second stretch of its code, from a table: 40 s on a core behind ``ray.init()``."""
    table = tmp_path / "compute.csv"
    table.write_text("function,slice,calls,mean_core_s\ndriver,1,1,40.0\n")
    ends_s = []

    def main() -> None:
        import ray

        ray.init()

    for compute in (Compute("table", table=table), Compute()):
        clusters = []

        def remember(request, clusters=clusters):
            clusters.append(on_demand()(request))
            return clusters[-1]

        run_program(main, remember, compute=compute)
        ends_s.append(clusters[0].sim.now_ns / 1e9)
    assert ends_s[0] - ends_s[1] == pytest.approx(40, abs=0.01)


def test_a_program_that_waits_for_ever_says_where() -> None:
    def main():
        import ray

        ray.init(num_cpus=1)

        @ray.remote(num_cpus=100)
        def never():
            return 1

        ray.get(never.remote())

    with pytest.raises(ProgramHangs, match=r"ray.get\(never.remote\(\)\)"):
        run(main, limit_s=30)


def test_asyncio_runs_on_virtual_time() -> None:
    async def both():
        import ray

        @ray.remote
        def nap(seconds):
            time.sleep(seconds)
            return seconds

        await asyncio.gather(nap.remote(0), asyncio.sleep(1))
        began = asyncio.get_running_loop().time()
        found = await asyncio.gather(nap.remote(2), asyncio.sleep(1, "slept"))
        return found, asyncio.get_running_loop().time() - began

    found, took_s = run(lambda: asyncio.run(both()))
    assert found == [2, "slept"]
    assert took_s == pytest.approx(2, abs=0.1)


def test_an_asyncio_actor_interleaves() -> None:
    def main():
        import ray

        @ray.remote
        class Gate:
            def __init__(self):
                self.open = asyncio.Event()

            async def wait(self):
                await self.open.wait()
                return "through"

            async def release(self):
                await asyncio.sleep(5)
                self.open.set()

        gate = Gate.remote()
        waiting = [gate.wait.remote() for _ in range(3)]
        gate.release.remote()
        return ray.get(waiting)

    assert run(main) == ["through"] * 3


def test_a_process_asks_for_a_name_once() -> None:
    def main() -> tuple[float, float]:
        import ray

        @ray.remote(num_cpus=0)
        class Box:
            def here(self) -> int:
                return 1

        box = Box.options(name="box").remote()
        ray.get(box.here.remote())
        took = []
        for _ in range(2):
            start = time.perf_counter()
            ray.get_actor("box")
            took.append(time.perf_counter() - start)
        return took[0], took[1]

    first, second = run(main)
    hop_s = RayCosts().grpc_same_host_ns * 1e-9
    assert first > 2 * hop_s
    assert second < first - 2 * hop_s
