"""Mutable objects: versions, readers, waiting, pushes to other nodes, closing."""

from __future__ import annotations

import pytest

from raysim.raycore.cluster import Cluster
from raysim.raycore.faults import Faults
from raysim.raycore.mutable_objects import MutableObject, RemoteCopies
from raysim.raycore.tasks import Payload
from raysim.units import GB
from tests.raycore_parts import ray_cluster


def payload(number: int, size: int = 100) -> Payload:
    return Payload(size, number)


def times(cluster: Cluster) -> tuple[list[int], object]:
    """When a callback is called, in ns from now."""
    seen: list[int] = []
    t0 = cluster.sim.now_ns
    return seen, lambda _=None: seen.append(cluster.sim.now_ns - t0)


def test_every_reader_reads_every_version_once_and_in_order() -> None:
    shared = MutableObject(ray_cluster().env, 0, readers=2, slots=3)
    for number in range(3):
        shared.write(payload(number))
    assert [shared.read(0).data for _ in range(3)] == [0, 1, 2]
    assert not shared.can_read(0)
    assert [shared.read(1).data for _ in range(3)] == [0, 1, 2]


def test_a_slot_is_free_when_the_slowest_reader_has_read_it() -> None:
    shared = MutableObject(ray_cluster().env, 0, readers=2, slots=2)
    shared.write(payload(0))
    shared.write(payload(1))
    shared.read(0)
    shared.read(0)
    assert not shared.can_write
    shared.read(1)
    assert shared.can_write
    shared.write(payload(2))
    with pytest.raises(AssertionError, match="full channel"):
        shared.write(payload(3))


def test_whoever_waits_is_woken_after_the_wake_up_time() -> None:
    cluster = ray_cluster()
    wake_ns = cluster.env.costs.channel_wake_ns
    shared = MutableObject(cluster.env, 0, readers=1)
    seen, then = times(cluster)
    shared.when_readable(0, then)
    cluster.sim.run("1ms")
    assert seen == []
    cluster.sim.at("2ms", lambda: shared.write(payload(1)))
    cluster.sim.run("3ms")
    assert seen == [2_000_000 + wake_ns]
    shared.when_writable(then)
    cluster.sim.at("4ms", lambda: shared.read(0))
    cluster.sim.run("5ms")
    assert seen[1:] == [4_000_000 + wake_ns]


def test_closing_wakes_everybody_and_drops_what_is_there() -> None:
    cluster = ray_cluster()
    shared = MutableObject(cluster.env, 0, readers=2)
    shared.write(payload(1))
    shared.read(0)
    seen, then = times(cluster)
    shared.when_readable(0, then)
    shared.when_writable(then)
    shared.close()
    cluster.sim.run("1ms")
    assert len(seen) == 2
    with pytest.raises(AssertionError, match="closed channel"):
        shared.write(payload(2))


def pushed(cluster: Cluster) -> tuple[MutableObject, list[MutableObject]]:
    """A buffer on node 0 and its copies on the others."""
    local = MutableObject(cluster.env, 0, readers=1)
    remotes = [MutableObject(cluster.env, n, readers=1) for n in range(1, len(cluster.env.nodes))]
    RemoteCopies(cluster.env, local, 0, remotes)
    return local, remotes


def test_a_version_takes_the_network_and_frees_the_writer_when_all_have_it() -> None:
    cluster = ray_cluster(3)
    local, remotes = pushed(cluster)
    t0 = cluster.sim.now_ns
    local.write(payload(7, GB))
    cluster.sim.run("150ms")
    assert not local.can_write
    cluster.sim.run("300ms")
    assert local.can_write, "1 GB twice through a port of 10 GB/s takes 200 ms"
    assert [r.read(0).data for r in remotes] == [7, 7]
    assert t0 < cluster.sim.now_ns


def test_a_copy_that_is_not_read_holds_up_the_next_version() -> None:
    cluster = ray_cluster(2)
    local, (remote,) = pushed(cluster)
    local.write(payload(1))
    cluster.sim.run("10ms")
    local.write(payload(2))
    cluster.sim.run("20ms")
    assert not local.can_write
    assert remote.read(0).data == 1
    cluster.sim.run("30ms")
    assert local.can_write
    assert remote.read(0).data == 2


def test_a_cut_cable_holds_a_version_back_and_a_dead_raylet_does_not_take_it() -> None:
    cluster = ray_cluster(2)
    faults = Faults(cluster)
    local, (remote,) = pushed(cluster)
    faults.partition(1)
    local.write(payload(1))
    cluster.sim.run("5s")
    assert not remote.can_read(0)
    faults.heal(1)
    cluster.sim.run("6s")
    assert remote.read(0).data == 1
    faults.kill_raylet(1)
    local.write(payload(2))
    cluster.sim.run("7s")
    assert not remote.can_read(0)
