from __future__ import annotations

import pytest

from raysim.hardware.network import FlowNetwork
from raysim.hardware.server import SharedServer
from raysim.hardware.storage import Disk, ObjectStorage
from raysim.hardware.topology import Topology
from raysim.kernel.simulation import Simulation
from raysim.units import GIB, KIB, MIB
from tests.hardware_parts import GB, bucket, cluster, disk

S = 1_000_000_000


@pytest.fixture
def sim() -> Simulation:
    return Simulation()


@pytest.fixture
def seen() -> list[tuple[float, object]]:
    return []


@pytest.fixture
def log(sim, seen):
    return lambda arg: seen.append((sim.now_ns / S, arg))


def test_a_lone_job_is_one_event(sim, seen, log):
    SharedServer(sim, "cpu", 4.0).job(8.0, log, "x")
    sim.run()
    assert seen == [(2.0, "x")]
    assert sim.log.events == 2  # the event, and the note of who was told


def test_cores_run_one_thread_each_until_there_are_more_threads(sim, seen, log):
    # 4 cores. "wide" has 3 threads: 6 core-seconds in 2 s while there is room.
    cpu = SharedServer(sim, "cpu", 4.0, max_per_s=1.0)
    cpu.job(6.0, log, "wide", width=3.0)
    cpu.job(2.0, log, "one")
    sim.run()
    assert seen == [(2.0, "wide"), (2.0, "one")]
    # 5 threads on 4 cores: each runs at 0.8.
    cpu.job(6.0, log, "wide", width=3.0)
    cpu.job(6.0, log, "two", width=2.0)
    sim.run()
    # "wide": 2 s / 0.8 = 2.5 s; "two" did 0.8 * 2.5 of its 3 s per thread: 1 s more.
    assert seen[2:] == [(4.5, "wide"), (5.5, "two")]
    assert cpu.busy_ns == 5.5 * S
    assert cpu.done_units == 20.0


def test_cancelling_and_slowing_down(sim, seen, log):
    server = SharedServer(sim, "bus", 2.0)
    server.job(4.0, log, "stays")
    gone = server.job(4.0, log, "goes")
    sim.at("2s", server.cancel, gone)
    sim.at("3s", server.set_capacity, 0.5)
    sim.at("9s", server.cancel, gone)
    sim.run()
    assert seen == [(3.0, "stays")]  # 2 units by 2 s, the other 2 by 3 s
    server.job(1.0, log, "slow")
    sim.run()
    assert seen[1] == (11.0, "slow")
    assert len(server) == 0


def test_failure_ends_jobs_with_the_cause_and_refuses_new_ones(sim, seen, log):
    server = SharedServer(sim, "cpu", 1.0)
    fails: list[object] = []
    server.job(5.0, log, "a", failed=lambda *a: fails.append(a))
    server.job(5.0, log, "nobody asks")
    sim.at("1s", server.fail, "power")
    sim.run()
    assert fails == [("a", "power")]
    late = server.job(1.0, log, "b", failed=lambda *a: fails.append(a))
    assert len(fails) == 1, "nothing is called before job() returns"
    sim.run()
    assert (fails[1], late.failure) == (("b", "power"), "power")
    server.restore()
    server.job(1.0, log, "c")
    sim.run()
    assert seen == [(2.0, "c")]


@pytest.mark.parametrize(("size", "width"), [(-1, 1), (1, 0), (float("inf"), 1), (1, -2)])
def test_nonsense_jobs_are_refused(sim, log, size, width):
    with pytest.raises(ValueError, match="job of size"):
        SharedServer(sim, "cpu", 1.0).job(size, log, width=width)


def test_a_disk_is_bound_by_bytes_or_by_operations(sim, seen, log):
    # 2 GB/s and 100,000 reads/s, 0.1 ms. Large reads: bytes. Small ones: operations.
    drive = Disk(sim, disk(), "d")
    drive.read(2 * GB, log, "large")
    sim.run()
    assert seen == [(pytest.approx(1.0001), "large")]
    drive.read(4 * KIB * 1000, log, "small", operations=1000)
    sim.run()
    assert seen[1][0] - seen[0][0] == pytest.approx(0.01 + 1e-4)
    # A write of 1 GiB is 4,096 operations of 256 KiB, 0.41 s at 10,000/s; its bytes take 1.07 s.
    drive.write(GIB, log, "write")
    sim.run()
    assert seen[2][0] - seen[1][0] == pytest.approx(GIB / GB + 1e-4)
    assert (drive.read_bytes, drive.written_bytes) == (2 * GB + 4 * KIB * 1000, GIB)


def test_readers_and_writers_share_the_device(sim, seen, log):
    drive = Disk(sim, disk(latency_s=0.0), "d")
    drive.read(2 * GB, log, "read")  # 1 s of the device
    drive.write(1 * GB, log, "write")  # 1 s of the device
    sim.run()
    assert seen == [(2.0, "read"), (2.0, "write")]


def objects(sim, **changes):
    topology = Topology.build(cluster(1, bare=1))
    network = FlowNetwork(sim, topology)
    return ObjectStorage(sim, bucket(**changes), network, topology)


def test_an_object_takes_rounds_of_latency_and_its_connections(sim, seen, log):
    # 64 MiB in 8 parts over 4 connections: 2 rounds of 20 ms, then 4 x 100 MB/s.
    # The Ethernet port adds half of its 20 us.
    storage = objects(sim)
    storage.get(("host", 1), 64 * MIB, log, "x", connections=4)
    sim.run()
    assert seen[0][0] == pytest.approx(0.04 + 1e-5 + 64 * MIB / 0.4e9)


def test_a_small_object_uses_one_connection(sim, seen, log):
    storage = objects(sim)
    storage.put(("host", 1), MIB, log, "x")
    sim.run()
    assert seen[0][0] == pytest.approx(0.02 + 1e-5 + MIB / 0.05e9)


def test_many_connections_are_bound_by_the_port(sim, seen, log):
    storage = objects(sim, requests_per_s=1e6)
    for k in range(20):  # 20 GB/s of connections into a 10 GB/s port
        storage.get(("host", 1), 80 * MIB, log, k)
    sim.run()
    assert seen[-1][0] >= 20 * 80 * MIB / (10 * GB)
    assert seen[-1][0] == pytest.approx(20 * 80 * MIB / (10 * GB) + 0.02, rel=0.05)


def test_requests_are_admitted_at_their_rate(sim, seen, log):
    storage = objects(sim, requests_per_s=10.0, latency_s=0.0)
    for k in range(3):
        storage.get(("host", 1), 0, log, k)
    sim.run()
    wire_s = 1e-5
    assert seen == [(pytest.approx(wire_s + k / 10), k) for k in range(3)]
