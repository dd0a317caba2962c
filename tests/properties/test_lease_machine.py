"""Any history of requests, returns, cancels, deaths, waits and bundles keeps the books right.

The raylet's own checker (every resource conserved, instance by instance; one lease per worker) runs
after every event; this machine adds what only the owner sees.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raysim.raycore.ids import hex_id
from raysim.raycore.protocol import (
    AsyncGetObjects,
    Bundle,
    CancelResourceReserve,
    CommitBundleResources,
    LeaseCancelled,
    LeaseGranted,
    LeaseRejected,
    LeaseSpillback,
    NotifyWorkerBlocked,
    NotifyWorkerUnblocked,
    PlasmaGet,
    PrepareBundleResources,
    PullStatus,
    object_manager,
    plasma,
    raylet,
)
from raysim.raycore.resources import ResourceSet, within_group
from raysim.raycore.tasks import InPlacementGroup, Payload, Ref, RuntimeEnv, TaskOptions
from tests.unit.raycore.raylet_parts import MS, Owner, S, options, world

GROUP = hex_id("placement_group", 7)
BUNDLE = ResourceSet.of({"CPU": 1, "GPU": 1})
NODES = [{"CPU": 4, "GPU": 2, "object_store_memory": 1_000}, {"CPU": 2, "x": 1}]


def in_group(index: int) -> dict[str, object]:
    return {
        "resources": within_group(
            ResourceSet.of({"CPU": 1, "GPU": 0.5}), GROUP, index
        ).quantities(),
        "strategy": InPlacementGroup(placement_group_id=7, bundle_index=index),
    }


KINDS = [
    options("cpu"),
    options("wide", resources={"CPU": 3}),
    options("none", resources={}),
    options("half", resources={"GPU": 0.5}),
    options("gpu", resources={"CPU": 1, "GPU": 1}),
    options("x", resources={"x": 1}),
    options("nowhere", resources={"y": 1}),
    options("spread", strategy="SPREAD"),
    options("env", runtime_env=RuntimeEnv(key="e", setup_s=0.1)),
    options("bad", runtime_env=RuntimeEnv(key="bad", setup_s=0.1, error="no such package")),
    options("any bundle", **in_group(-1)),
    options("bundle 1", **in_group(1)),
]
ENDS = (LeaseGranted, LeaseCancelled, LeaseRejected)


class LeaseMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = world(NODES, start_ns=30 * MS)
        self.owners = [self.world.owner(0), self.world.owner(1)]
        self.asked: dict[int, Owner] = {}
        self.blocked: list[int] = []
        self.bundles: dict[int, str] = {}
        for node in range(2):  # arguments come when ``pulls`` says so
            self.world.peer(object_manager(node)).hold.add(AsyncGetObjects)
            here = self.world.peer(plasma(node)).answers
            here[PlasmaGet] = lambda m: tuple(Payload(10) for _ in m.object_ids)

    def granted(self) -> list[tuple[Owner, int]]:
        return [(o, i) for o in self.owners if o.state == "up" for i in o.granted]

    @rule(
        kind=st.sampled_from(KINDS),
        owner=st.integers(0, 1),
        local=st.booleans(),
        count=st.sampled_from([1, 1, 3, 12]),
        waits=st.sampled_from([0, 50 * MS, 50 * MS]),
        arguments=st.booleans(),
    )
    def ask(
        self, kind: TaskOptions, owner: int, local: bool, count: int, waits: int, arguments: bool
    ) -> None:
        refs = (Ref(1, self.owners[owner].me),) if arguments else ()
        for _ in range(count):
            lease = self.owners[owner].ask(kind, refs=refs, selected_by_locality=local)
            self.asked[lease] = self.owners[owner]
        self.world.run_for(waits)

    @precondition(lambda self: self.granted())
    @rule(data=st.data(), how=st.sampled_from(["plain", "plain", "exiting", "disconnect"]))
    def give_back(self, data: st.DataObject, how: str) -> None:
        owner, lease = data.draw(st.sampled_from(self.granted()))
        worker = owner.granted[lease].worker.worker_id
        owner.give_back(
            lease, worker_exiting=how == "exiting", disconnect_worker=how == "disconnect"
        )
        if how == "exiting":
            self.world.kill(worker, reason="max_calls", intended=True)

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), node=st.integers(0, 1))
    def cancel(self, data: st.DataObject, node: int) -> None:
        lease = data.draw(st.sampled_from(list(self.asked)))
        waiting = [i for r in range(2) for i in self.world.raylet(r).leases]
        if waiting and data.draw(st.booleans()):
            lease = data.draw(st.sampled_from(waiting))
        if self.asked[lease].state == "up":
            self.asked[lease].cancel(lease, node)

    @precondition(lambda self: self.granted())
    @rule(data=st.data())
    def worker_dies(self, data: st.DataObject) -> None:
        owner, lease = data.draw(st.sampled_from(self.granted()))
        self.world.kill(owner.granted.pop(lease).worker.worker_id, reason="segfault")

    @precondition(lambda self: self.granted())
    @rule(data=st.data(), ends=st.sampled_from(["wakes", "returns", "dies", "still waits"]))
    def blocks(self, data: st.DataObject, ends: str) -> None:
        owner, lease = data.draw(st.sampled_from(self.granted()))
        worker = owner.granted[lease].worker
        owner.send(raylet(worker.node_id), NotifyWorkerBlocked(worker.worker_id))
        self.world.run_for(50 * MS)
        if ends == "wakes":
            owner.send(raylet(worker.node_id), NotifyWorkerUnblocked(worker.worker_id))
        elif ends == "returns":
            owner.give_back(lease)
        elif ends == "dies":
            del owner.granted[lease]
            self.world.kill(worker.worker_id, reason="segfault")

    @rule()
    def group_is_created(self) -> None:
        for step in ("prepare", "commit"):
            for index in range(2):
                self.bundle(index, step)
        self.world.run_for(MS)

    @rule(index=st.integers(0, 1), step=st.sampled_from(["prepare", "commit", "cancel", "both"]))
    def bundle(self, index: int, step: str) -> None:
        if step == "both":  # all or nothing
            message: Any = PrepareBundleResources((Bundle(7, 0, BUNDLE), Bundle(7, 1, BUNDLE)))
            self.world.gcs.call(raylet(0), message, lambda _: None)
            return
        message = {
            "prepare": PrepareBundleResources,
            "commit": CommitBundleResources,
            "cancel": CancelResourceReserve,
        }[step]((Bundle(7, index, BUNDLE),))
        self.world.gcs.call(raylet(0), message, lambda _: None)

    @rule(primary=st.integers(0, 1_000), blocked=st.booleans())
    def store(self, primary: int, blocked: bool) -> None:
        self.world.gcs.send(raylet(0), PullStatus(blocked, primary, primary))

    def pulling(self, node: int) -> list[tuple[int, Any]]:
        """Leases whose arguments are still to come, and how to say that they are here."""
        held = self.world.peer(object_manager(node)).open
        return [(m.request_id[1], reply) for m, reply in held if not reply.answered]

    @rule(
        data=st.data(), node=st.integers(0, 1),
        what=st.sampled_from(["come", "come", "wait for room", "have room"]),
    )  # fmt: skip
    def pulls(self, data: st.DataObject, node: int, what: str) -> None:
        """Arguments of some leases are here, or wait for room in the store, or no longer do."""
        pulling = self.pulling(node)
        some = [p for p in pulling if data.draw(st.booleans())]
        leases = tuple(lease for lease, _ in some)
        if what == "come":
            for _, here in some:
                here(())
        elif what == "wait for room":
            self.world.gcs.send(raylet(node), PullStatus(bool(leases), 0, 0, leases))
        else:
            message = PullStatus(False, 0, 0, leases_unblocked=leases)
            self.world.gcs.send(raylet(node), message)
        self.world.run_for(MS)

    def all_arguments_come(self) -> None:
        for node in range(2):
            pulling = self.pulling(node)
            leases = tuple(lease for lease, _ in pulling)
            self.world.gcs.send(raylet(node), PullStatus(False, 0, 0, leases_unblocked=leases))
            for _, here in pulling:
                here(())

    @rule(fails=st.integers(1, 3))
    def starts_fail(self, fails: int) -> None:
        self.world.fail_starts = fails

    @rule(owner=st.integers(0, 1))
    def owner_dies(self, owner: int) -> None:
        dead = self.owners[owner]
        if dead.state == "up":
            dead.crash()
            self.world.run_for(10_000)  # the news travels by the GCS, behind its last requests
            for node in range(2):
                self.world.raylet(node).failures.owners_gone(
                    lambda who: who.worker_id == dead.me.worker_id, "owner died"
                )
            self.owners[owner] = self.world.owner(owner)

    @rule(duration=st.sampled_from([1, MS, 50 * MS, S, 20 * S, 70 * S]))
    def time_passes(self, duration: int) -> None:
        self.world.run_for(duration)

    @invariant()
    def answered_once(self) -> None:
        for owner in self.owners:
            ends = [i for _, i, a in owner.answered if isinstance(a, ENDS) and i >= 0]
            spilled = [i for _, i, a in owner.answered if isinstance(a, LeaseSpillback)]
            assert len(set(ends)) == len(ends)
            assert len(set(spilled)) == len(spilled), "at most one hop"

    def teardown(self) -> None:
        self.world.fail_starts = 0
        for index in range(2):
            self.bundle(index, "cancel")
        self.world.gcs.send(raylet(0), PullStatus(False, 0, 0))
        quiet = 0
        while quiet < 3:  # starts that fail take a minute each to be noticed
            self.all_arguments_come()
            self.world.run_for(80 * S)
            quiet = 0 if self.granted() else quiet + 1
            for owner, lease in self.granted():
                owner.give_back(lease)
        self.world.run_for(20 * S)
        for node in range(2):
            room = self.world.raylet(node)
            assert room.resources.available == room.resources.total
            waiting = {
                name
                for lease in room.leases.values()
                for name in lease.spec.options.resources.units
                if "group" not in name
            }
            assert waiting <= {"y"}, f"node {node}: {waiting} wait although everything is free"
            assert len(room.pool.idle) <= NODES[node]["CPU"]


TestLeaseMachine = LeaseMachine.TestCase
