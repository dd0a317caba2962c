"""Nodes that share a machine: its cores and disks, and threads that contend for few cores."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raysim.hardware.cluster import ClusterSpec, NodeGroup
from raysim.hardware.cores import Capacity
from raysim.hardware.host import MIN_SHARE, NICE_WEIGHT, SLICE_NS, WINDOW_NS, CoreLoad
from raysim.hardware.server import Share, SharedServer
from raysim.kernel.simulation import Simulation
from raysim.perf.ray_core import RayCosts
from raysim.raycore.cluster import Cluster
from raysim.units import NS_PER_S
from tests.hardware_parts import bare_node
from tests.rayapi_parts import printed


def server(cores: float = 2.0) -> tuple[Simulation, SharedServer]:
    sim = Simulation()
    return sim, SharedServer(sim, "cpu", cores, max_per_s=1.0)


def test_a_thread_alone_takes_what_its_work_is() -> None:
    sim, cpu = server()
    load = CoreLoad(sim, cpu)
    assert load.takes("a", 0, 1000) == 1000
    assert load.takes("b", 0, 1000) == 1000  # a core each


def test_more_threads_than_cores_take_turns() -> None:
    sim, cpu = server()
    load = CoreLoad(sim, cpu)
    load.takes("a", 0, 1000)
    load.takes("b", 0, 1000)
    assert load.takes("c", 0, 1000) == 2000
    assert load.takes("a", 1000, 1000) == 1000  # b is through, c is not
    assert load.takes("d", 1000, 1000) == 2000


def test_a_thread_keeps_its_core_for_a_slice_while_others_wait() -> None:
    sim, cpu = server()
    load = CoreLoad(sim, cpu)
    load.nice["worker"] = None
    load.takes("a", 0, 1000)
    assert load.slice_ns("driver", 0) == 0  # nobody waits: a core is free
    load.takes("b", 0, 1000)
    assert load.slice_ns("driver", 0) == 2 * SLICE_NS  # two cores
    assert load.slice_ns("worker", 0) == 0
    assert load.slice_ns("driver", 1000) == 0


CALLS = """
import time
import ray

@ray.remote(num_cpus=0)
class Server:
    def no_op(self):
        return b"ok"

ray.init()
for n in (1, 8):
    servers = [Server.remote() for _ in range(n)]
    ray.get([server.no_op.remote() for server in servers])
    start = time.perf_counter()
    ray.get([servers[i % n].no_op.remote() for i in range(800)])
    print(time.perf_counter() - start)
"""


def test_calls_of_many_actors_come_to_each_in_batches(tmp_path: Path) -> None:
    script = tmp_path / "calls.py"
    script.write_text(CALLS)
    one, eight = map(float, printed(script, lambda _: machine((0, 0), RayCosts(cold_factor=4.0))))
    assert eight < 1.3 * one  # one by one each call finds a thread that has slept


def test_a_thread_that_was_awake_a_window_ago_is_no_colder_than_it_slept() -> None:
    sim, cpu = server()
    load = CoreLoad(sim, cpu)
    load.cold_factor, load.cold_ns = 3.0, 10 * WINDOW_NS
    load.takes("a", 0, WINDOW_NS - 1000)
    sim.run(until=WINDOW_NS + 1)
    slept = 1001 / load.cold_ns
    assert load.takes("a", WINDOW_NS + 1, 100_000) == pytest.approx(100_000 * (1 + 2 * slept), 1e-3)


def test_a_thread_that_slept_works_longer() -> None:
    sim, cpu = server()
    load = CoreLoad(sim, cpu)
    load.cold_factor, load.cold_ns = 3.0, 1000
    long_ns = 10**6
    assert load.serve("a", long_ns, 1000) == long_ns + 3000
    assert load.serve("a", long_ns + 3000, 1000) == long_ns + 4000  # it was awake still
    a_while = load.takes("a", long_ns + 5000, 1000)
    assert a_while == pytest.approx(1000 + 2000 * (1 - math.exp(-1)), abs=1)
    assert load.worked_ns == {"a": 4000 + a_while}


def test_cores_that_others_occupy_are_not_there() -> None:
    sim, cpu = server()
    load = CoreLoad(sim, cpu)
    load.occupy("node-0", 0.25)
    load.occupy("node-1", 0.25)
    assert (load.cores, cpu.capacity_per_s) == (1.5, 1.5)
    load.takes("a", 0, 1000)
    assert load.takes("b", 0, 900) == 1200  # two threads on one core and a half
    load.occupy("node-1", 0.0)
    assert (load.cores, cpu.capacity_per_s) == (1.75, 1.75)
    assert load.worked_ns == {"a": 1000, "b": 900}


def test_two_threads_of_a_core_do_more_than_one_and_less_than_two_cores() -> None:
    # One core of two threads that do 1.3 of one: 1000 each of two take 2000 / 1.3, of one 1000.
    sim = Simulation()
    capacity = Capacity(vcpus=2.0, cores=1.0, most=1.3)
    cpu = SharedServer(sim, "cpu", 1.3, max_per_s=1.0, doubling=capacity.doubling)
    load = CoreLoad(sim, cpu)
    assert load.alone == pytest.approx(1.0)
    assert load.takes("a", 0, 1000) == 1000
    assert load.takes("b", 0, 1000) == 1538
    assert load.takes("c", 0, 1000) == 1000 + 1538  # when a is through


def test_a_thread_serves_one_after_the_other() -> None:
    sim, cpu = server()
    load = CoreLoad(sim, cpu)
    assert load.serve("a", 0, 1000) == 1000
    assert load.serve("a", 500, 1000) == 2000
    assert load.serve("a", 5000, 1000) == 6000


def test_flows_share_the_cores_through_one_link() -> None:
    _, cpu = server()
    load = CoreLoad(Simulation(), cpu)
    link = load.link("copying", 2e-9)
    assert link.bytes_per_s == pytest.approx(1e9)
    assert load.link("copying", 2e-9) is link


def test_jobs_on_the_cores_slow_threads_and_threads_slow_jobs() -> None:
    sim, cpu = server()
    load = CoreLoad(sim, cpu)
    ends: list[int] = []
    for _ in range(2):
        cpu.job(1.0, lambda _: ends.append(sim.now_ns))
    assert load.takes("a", 0, 1000) == 1500

    def busy(_: object) -> None:  # one thread at work all the time, at its third of two cores
        if len(ends) < 2:
            sim.call_later(load.takes("a", sim.now_ns, 1_000_000), busy)

    busy(None)
    sim.run()
    assert ends[-1] / NS_PER_S == pytest.approx(1.5, rel=0.02)


def test_jobs_keep_a_share_however_busy_the_threads() -> None:
    sim, cpu = server()
    load = CoreLoad(sim, cpu)
    for k in range(50):
        load.takes(k, 0, WINDOW_NS)
    sim.run(until=WINDOW_NS + 1)
    assert cpu.capacity_per_s == pytest.approx(2 * MIN_SHARE)
    sim.run()
    assert cpu.capacity_per_s == 2.0  # idle again


def test_nodes_of_a_machine_fail_one_by_one() -> None:
    sim, cpu = server(1.0)
    one, other = Share(cpu), Share(cpu)
    seen: list[Any] = []
    one.job(1.0, seen.append, "one", failed=lambda arg, cause: seen.append((arg, cause)))
    other.job(1.0, seen.append, "other")
    sim.call_at(NS_PER_S, lambda _: one.fail("gone"))
    sim.run()
    assert seen == [("one", "gone"), "other"]
    assert sim.now_ns == pytest.approx(1.5 * NS_PER_S, abs=2)
    one.job(1.0, seen.append, "late", failed=lambda arg, cause: seen.append((arg, cause)))
    sim.run()
    assert seen[-1] == ("late", "gone")
    one.restore()
    job = one.job(1.0, seen.append, "cancelled")
    one.job(1.0, seen.append, "after")
    one.cancel(job)
    sim.run()
    assert seen[-1] == "after"
    assert (one.done_units, other.done_units) == (1.0, 1.0)


SCRIPT = """
import time
import ray
import raysim
ray.init()
@ray.remote(num_cpus=1)
def work():
    raysim.charge(core_seconds=1.0)
@ray.remote
def nothing():
    pass
ray.get([work.options(scheduling_strategy="SPREAD").remote() for _ in range(4)])
start = time.perf_counter()
ray.get([work.options(scheduling_strategy="SPREAD").remote() for _ in range(4)])
print(time.perf_counter() - start)
start = time.perf_counter()
ray.get([nothing.remote() for _ in range(5000)])
print(time.perf_counter() - start)
"""


def machine(host_of: tuple[int, ...] | None, costs: RayCosts | None = None) -> Cluster:
    node = replace(bare_node(vcpus=2), disks=())
    groups = tuple(
        NodeGroup(name=name, node=node, count=1, head=name == "head") for name in ("head", "more")
    )
    return Cluster(Simulation(), ClusterSpec(groups=groups, host_of=host_of), costs=costs)


def test_two_raylets_on_one_machine_share_its_cores(tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.write_text(SCRIPT)

    def seconds(host_of: tuple[int, ...] | None) -> list[float]:
        return [float(line) for line in printed(script, lambda _: machine(host_of))]

    apart, together = seconds((0, 1)), seconds((0, 0))
    assert seconds(None)[0] == pytest.approx(1, rel=0.1)
    assert apart[0] == pytest.approx(1, rel=0.1)
    left = 2 - 2 * RayCosts().node_background_cores
    assert together[0] == pytest.approx(4 / left, rel=0.05)
    assert together[1] > 1.05 * seconds(None)[1]  # Ray's own threads have few cores


def test_who_is_nice_yields_to_processes_that_start() -> None:
    sim, cpu = server()
    load = CoreLoad(sim, cpu)
    load.nice["worker"] = None
    ends: dict[str, float] = {}

    def job(of: SharedServer, core_s: float, name: str) -> None:
        of.job(core_s, lambda _: ends.update({name: sim.now_ns / NS_PER_S}))

    job(load.starting, 1.0, "first")
    assert load.takes("worker", 0, 1000) == 1000  # the other core is free
    assert load.takes("driver", 2000, 1000) == 1000
    job(load.starting, 1.5, "second")
    job(cpu, 0.5, "task")
    assert load.takes("driver", 4000, 1000) == 2000  # four on two cores, beside the task
    # by weight: two of 1 and, with the task, two of 36/1024
    beside = 1000 * (2 / NICE_WEIGHT + 2) / 2
    assert load.takes("worker", 8000, 1000) == pytest.approx(beside, rel=1e-3)
    sim.run()
    assert ends["first"] == pytest.approx(1.0, rel=0.02)
    assert ends["second"] == pytest.approx(1.5, rel=0.02)
    # 1/28 of 2 cores while two start, then a core of its own
    assert ends["task"] == pytest.approx(1.0 + 0.5 - 2 * NICE_WEIGHT, rel=0.02)
