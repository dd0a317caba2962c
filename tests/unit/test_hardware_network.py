from __future__ import annotations

import math

import pytest

from raysim.errors import InvariantViolation
from raysim.hardware.network import ConstantNetwork, FlowNetwork, Loads
from raysim.hardware.topology import Link, Topology
from raysim.kernel.record import ColumnRecorder
from raysim.kernel.simulation import Simulation
from tests.hardware_parts import GB, cluster

S = 1_000_000_000


def play(kind=FlowNetwork, topology=None, **options):
    """A checked simulation, its network, and a list that ``then=log`` fills with (seconds, arg)."""
    sim = Simulation(check=True, **options)
    seen: list[tuple[float, object]] = []
    return sim, kind(sim, topology), seen, lambda arg: seen.append((sim.now_ns / S, arg))


@pytest.mark.parametrize("kind", [FlowNetwork, ConstantNetwork])
def test_an_uncontended_transfer_is_one_event_latency_first(kind):
    sim, net, seen, log = play(kind)
    a, b = Link("a", 4.0), Link("b", 2.0)
    flow = net.start([(a, 1.0), (b, 1.0)], 6.0, latency_ns=S, then=log, arg="x")
    assert flow.size_bytes == 6.0
    before = sim.log.events
    sim.run()
    assert seen == [(4.0, "x")]  # 1 s latency, 6 bytes at 2 bytes/s; no store and forward
    assert sim.log.events - before == 2  # the event, and the note of who was told
    assert [(u.link.name, u.carried_bytes, u.busy_ns) for u in net.uses()] == [
        ("a", 6.0, 3 * S), ("b", 6.0, 3 * S),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [FlowNetwork, ConstantNetwork])
def test_nothing_to_move_or_nowhere_to_move_it_takes_the_latency_or_the_limit(kind):
    sim, net, seen, log = play(kind)
    wire = Link("wire", 1.0)
    net.start([(wire, 1.0)], 0.0, latency_ns=2 * S, then=log, arg="empty")
    net.start([], 5.0, latency_ns=S, then=log, arg="same place")
    net.start([], 6.0, max_bytes_per_s=2.0, then=log, arg="limited")
    net.start([(Link("free", math.inf), 1.0)], 5.0, then=log, arg="free")
    sim.run()
    assert seen == [(0.0, "free"), (1.0, "same place"), (2.0, "empty"), (3.0, "limited")]


def test_latency_of_one_does_not_hold_a_share_from_another():
    sim, net, seen, log = play()
    wire = Link("wire", 1.0)
    net.start([(wire, 1.0)], 1.0, latency_ns=10 * S, then=log, arg="far")
    net.start([(wire, 1.0)], 2.0, then=log, arg="near")
    sim.run()
    assert seen == [(2.0, "near"), (11.0, "far")]
    assert [u.busy_ns for u in net.uses()] == [3 * S]


def test_a_flow_put_off_by_another_starts_when_its_latency_is_over():
    # Both would have the wire to themselves: the second enters before the first's latency is over,
    # leaves at the moment it is, and the first's rate is what it was going to be at once.
    sim, net, seen, log = play()
    wire = Link("wire", 1.0)
    net.start([(wire, 1.0)], 2.0, latency_ns=S, then=log, arg="early")
    net.start([(wire, 1.0)], 1.0, then=log, arg="now")
    sim.run()
    assert seen == [(1.0, "now"), (3.0, "early")]


def test_arriving_and_leaving_changes_only_who_is_reached():
    sim, net, _, log = play()
    left, right = Link("left", 1.0), Link("right", 1.0)
    for _ in range(2):
        net.start([(left, 1.0)], 1.0, then=log)
    far = net.start([(right, 1.0)], 5.0, then=log)
    sim.run(until=S)
    assert net.solves == 1  # the two on the left; the one on the right is alone
    assert far.bytes_per_s == 1.0
    assert far.moved_bytes(sim.now_ns) == 1.0


def test_many_changes_of_one_instant_are_solved_once():
    sim, net, seen, log = play()
    wire = Link("wire", 10.0)
    for k in range(10):
        net.start([(wire, 1.0)], 1.0, then=log, arg=k)
    sim.run()
    assert net.solves == 1
    assert seen == [(1.0, k) for k in range(10)]


def test_flows_within_the_tolerance_finish_together():
    sim = Simulation()
    net = FlowNetwork(sim, tolerance_ns=S // 2)
    wire, seen = Link("wire", 2.0), []
    net.start([(wire, 1.0)], 1.0, then=lambda a: seen.append((a, sim.now_ns)), arg="a")
    net.start([(wire, 1.0)], 1.2, then=lambda a: seen.append((a, sim.now_ns)), arg="b")
    net.start([(wire, 1.0)], 9.0, then=lambda a: seen.append((a, sim.now_ns)), arg="c")
    sim.run()
    assert seen[0][1] == seen[1][1] == pytest.approx(1.5 * S)
    # c moved 1.0 of its 9 bytes by 1.5 s and has the wire to itself from then on.
    assert seen[2][1] == pytest.approx((1.5 + 4.0) * S)


def test_cancelled_flows_give_their_share_back():
    sim, net, seen, log = play()
    wire = Link("wire", 2.0)
    net.start([(wire, 1.0)], 4.0, then=log, arg="stays")
    gone = net.start([(wire, 1.0)], 4.0, then=log, arg="goes")
    later = net.start([(wire, 1.0)], 4.0, latency_ns=5 * S, then=log, arg="never")
    sim.at("2s", net.cancel, gone)
    sim.at("2s", net.cancel, later)
    sim.at("9s", net.cancel, gone)
    sim.run()
    assert seen == [(3.0, "stays")]  # 2 bytes at 1, then 2 at 2
    assert gone.moved_bytes(sim.now_ns) == 2.0
    assert net.uses()[0].carried_bytes == 6.0


def test_a_cut_link_stalls_and_a_cause_ends():
    sim, net, seen, log = play()
    wire = Link("wire", 1.0)
    net.start([(wire, 1.0)], 2.5, then=log, arg="stalls")
    sim.at("1s", net.fail_link, wire)
    sim.at("5s", net.restore, wire)
    sim.run(until="6s")
    fails = []
    flow = net.start([(wire, 1.0)], 9.0, then=log, failed=lambda *a: fails.append(a), arg="dies")
    sim.at("8s", net.fail_link, wire, "cable pulled")
    sim.run()
    assert seen == [(7.0, "stalls")]
    assert fails == [("dies", "cable pulled")]
    assert flow.failure == "cable pulled"
    assert flow.moved_bytes(sim.now_ns) == 1.5  # half of 6 s to 7 s, all of 7 s to 8 s
    late = net.start([(wire, 1.0)], 1.0, then=log, failed=lambda *a: fails.append(a), arg="late")
    assert len(fails) == 1, "nothing is called before start() returns"
    sim.run()
    assert fails[1:] == [("late", "cable pulled")]
    assert late.state == "failed"
    net.restore(wire)
    net.start([(wire, 1.0)], 1.0, then=log, arg="again")
    sim.run()
    assert seen[-1] == (9.0, "again")


def test_constant_network_does_not_share_and_waits_for_cut_links():
    sim, net, seen, log = play(ConstantNetwork)
    wire = Link("wire", 1.0)
    net.start([(wire, 1.0)], 3.0, then=log, arg="a")
    net.start([(wire, 1.0)], 3.0, then=log, arg="b")
    sim.run()
    assert seen == [(3.0, "a"), (3.0, "b")]
    net.fail_link(wire)
    held = net.start([(wire, 1.0)], 1.0, then=log, arg="held")
    sim.at("10s", net.restore, wire)
    sim.run()
    assert seen[-1] == (11.0, "held")
    assert held.state == "done"
    fails = []
    net.start([(wire, 1.0)], 9.0, then=log, failed=lambda *a: fails.append(a), arg="dies")
    sim.at("12s", net.fail_link, wire, "gone")
    sim.at("13s", lambda: net.start([(wire, 1.0)], 1.0, then=log,
                                    failed=lambda *a: fails.append(a), arg="late"))  # fmt: skip
    sim.run()
    assert fails == [("dies", "gone"), ("late", "gone")]
    assert net.uses()[0].carried_bytes == 3 + 3 + 1 + 1


def test_a_slower_link_slows_what_is_on_it():
    sim, net, seen, log = play()
    wire = Link("wire", 2.0)
    net.start([(wire, 1.0)], 4.0, then=log, arg="x")
    sim.at("1s", net.set_bytes_per_s, wire, 0.5)
    sim.run()
    assert seen == [(5.0, "x")]


def test_loads_are_bytes_per_byte_of_size_whatever_the_unit():
    # The same collective, with sizes in bytes of the buffer or in executions.
    ends = []
    for unit in (1.0, 1e9):
        sim, net, seen, log = play()
        port, nic = Link("port", 400 * GB), Link("nic", 50 * GB)
        net.start([(port, 1.75 / unit), (nic, 0.25 / unit)], 4e9 * unit, then=log, arg="all_reduce")
        net.start([(nic, 1.0)], 1e9, then=log, arg="checkpoint")
        sim.run()
        ends.append(seen)
        assert {u.link.name: u.carried_bytes for u in net.uses()} == pytest.approx(
            {"port": 7e9, "nic": 2e9}
        )
    assert ends[0] == ends[1]
    # Alone the collective takes 4e9 / (400e9 / 1.75) = 17.5 ms on its ports and 20 ms on its NIC:
    # the NIC is its tightest link, which it shares by halves. 1 GB each at 25 GB/s: 40 ms.
    assert ends[0] == [(pytest.approx(0.04), "all_reduce"), (pytest.approx(0.04), "checkpoint")]


def test_a_collective_over_many_links_is_a_handful_of_classes():
    topology = Topology.build(cluster(64, kind="rail_fat_tree"))
    members = [(n, i) for n in range(64) for i in range(8)]
    loads = topology.collective_loads(members, 1.75, 0.5)
    sim, net, _, log = play(topology=topology)
    collective = Loads(loads.items())
    for k in range(3):
        flow = net.start(collective, 1e9, then=log, arg=k)
    assert len(loads) > 3000
    assert len(flow.uses) <= 8
    # A single transfer tells four of those links apart, mid-flight.
    net.send(("gpu", 3, 1), ("gpu", 4, 1), 1e9, log, "p2p")
    assert len(flow.uses) <= 12
    sim.run()
    carried = {use.link: use.carried_bytes for use in net.uses()}
    on_route = set(topology.path(("gpu", 3, 1), ("gpu", 4, 1)))
    assert len(on_route) == 4
    for link, load in loads.items():
        assert carried[link] == pytest.approx(3e9 * load + (1e9 if link in on_route else 0))


def test_watched_links_are_recorded_when_their_rate_changes():
    recorder = ColumnRecorder()
    sim, net, _, log = play(recorder=recorder)
    wire = Link("node-0/nic-0/out", 2.0)
    net.watch([wire])
    net.start([(wire, 1.0)], 2.0, then=log)
    net.start([(wire, 1.0)], 2.0, max_bytes_per_s=0.5, then=log)
    sim.run()
    samples = [(c.t_ns / S, c.value) for c in recorder.counters()]
    # Alone for no time (2.0), then 1.5 + 0.5 = 2.0 until 4/3 s, then 0.5 until 4 s.
    assert samples == [(0.0, 2.0), (pytest.approx(4 / 3), 0.5), (4.0, 0.0)]
    assert {(c.track, c.name) for c in recorder.counters()} == {
        (("node-0", "nic-0"), "link/out")
    }  # fmt: skip


def test_checking_notices_a_link_over_capacity():
    sim, net, _, log = play()
    wire = Link("wire", 1.0)
    flow = net.start([(wire, 1.0)], 10.0, then=log)

    def cheat(_):
        flow.rate = 2.0

    sim.call_at(S, cheat)
    with pytest.raises(InvariantViolation, match=r"wire carries 2\.0 of 1\.0"):
        sim.run()


@pytest.mark.parametrize(
    "bad",
    [
        {"size_bytes": -1.0}, {"size_bytes": math.nan}, {"size_bytes": math.inf},
        {"size_bytes": 1.0, "latency_ns": -1}, {"size_bytes": 1.0, "max_bytes_per_s": 0.0},
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [FlowNetwork, ConstantNetwork])
def test_nonsense_is_refused(kind, bad):
    _, net, _, log = play(kind)
    with pytest.raises(ValueError, match="must be"):
        net.start([(Link("wire", 1.0), 1.0)], then=log, **bad)
    with pytest.raises(ValueError, match="load on wire"):
        net.start([(Link("wire", 1.0), -1.0)], 1.0, then=log)


@pytest.mark.parametrize("kind", [FlowNetwork, ConstantNetwork])
def test_messages_keep_order_take_their_time_and_die_with_the_node(kind):
    topology = Topology.build(cluster(2, bare=1))
    sim, net, seen, log = play(kind, topology)
    net.messages.place("gcs", ("host", 2))
    net.deliver("node-0/raylet", "gcs", 60_000, log, "first")
    net.deliver("node-0/raylet", "gcs", 0, log, "second")
    net.deliver("node-1/raylet", "node-1/plasma", 100, log, "local")
    sim.run()
    # 1 us of an InfiniBand port, 10 us of an Ethernet one, and the 0.5 us of a PCIe switch;
    # 60 kB at 10 GB/s are 6 us more.
    assert [arg for _, arg in seen] == ["local", "first", "second"]
    assert seen[1][0] == seen[2][0] == pytest.approx(17.5e-6)
    net.deliver("node-0/raylet", "gcs", 10**9, log, "bulk")
    sim.run()
    assert seen[3][0] == pytest.approx(17.5e-6 + 11.5e-6 + 0.1)
    assert net.uses()[-1].carried_bytes == 1e9
    for link in topology.node_links(2):
        net.fail_link(link, "dead")
    net.deliver("node-0/raylet", "gcs", 10, log, "lost")
    sim.run()
    assert len(seen) == 4
    with pytest.raises(ValueError, match="place"):
        net.deliver("dashboard", "gcs", 0, log, None)


def test_recording_and_watching_change_nothing():
    digests = []
    for recorder in (None, ColumnRecorder()):
        topology = Topology.build(cluster(4, kind="rail_fat_tree", nodes_per_leaf=2))
        sim = Simulation(seed=5, recorder=recorder)
        net = FlowNetwork(sim, topology)
        net.watch(topology.links)
        rng = sim.rng("traffic")
        members = [(n, i) for n in range(4) for i in range(8)]
        collective = Loads(topology.collective_loads(members, 1.75, 0.5).items())

        def again(_, net=net, rng=rng, sim=sim):
            if sim.now_ns < S // 100:
                src, dst = (("gpu", *rng.integers([4, 8]).tolist()) for _ in range(2))
                net.send(src, dst, float(rng.uniform(1e6, 1e8)), again)

        for _ in range(20):
            again(None)
        for _ in range(3):
            net.start(collective, 1e8, latency_ns=S // 1000, then=str)
        sim.run()
        digests.append((sim.digest, net.solves))
    assert digests[0] == digests[1]
    assert digests[0][1] > 20


def all_to_all(flows: int, *, settle_frac: float = 0.0) -> tuple[list[float], FlowNetwork]:
    """Seconds that transfers between twenty hosts take which begin one after the other."""
    sim = Simulation(check=True)
    net = FlowNetwork(sim, settle_frac=settle_frac)
    out = [Link(f"out-{i}", 1.0) for i in range(20)]
    into = [Link(f"in-{i}", 1.0) for i in range(20)]
    took = [0.0] * flows

    def start(k: int) -> None:
        began_ns = sim.now_ns
        path = [(out[k % 20], 1.0), (into[(k * 7 + k // 20) % 20], 1.0)]

        def ended(_: object) -> None:
            took[k] = (sim.now_ns - began_ns) / S

        net.start(path, 1.0 + k % 3, then=ended)

    for k in range(flows):
        sim.at(k * S // 100, start, k)
    sim.run()
    return took, net


def test_in_a_crowd_one_solve_does_for_many_changes_and_times_are_nearly_the_same():
    at_once, exact = all_to_all(800)
    settled, net = all_to_all(800, settle_frac=0.01)
    assert net.solves < exact.solves / 2
    assert settled == pytest.approx(at_once, rel=0.03)
    assert sum(settled) == pytest.approx(sum(at_once), rel=0.005)
    assert settled != at_once
    assert not net.active


def test_without_a_crowd_nothing_settles():
    assert all_to_all(200, settle_frac=0.01)[0] == all_to_all(200)[0]
