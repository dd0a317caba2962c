"""Object managers of three small nodes under any order of puts, gets, frees and deaths.

Always: every room's own checker, after every event; bundles beyond the quota only if one alone or
for a GET. At the end, when time has passed: every get has ended or waits for an object that nobody
holds; every object that was not freed, and whose owner and primary's node live, still exists, in
memory or in a file; nothing is pinned, sent or received for nobody.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raysim.raycore.protocol import (
    ClientDisconnected,
    FreeObjects,
    NodeAdded,
    NodeRemoved,
    PlasmaCreated,
    PlasmaRelease,
    WorkerFailed,
    object_manager,
    plasma,
)
from raysim.raycore.tasks import Ref
from tests.unit.raycore.object_case import MB, MS, ObjectCase, S, Worker

NODES = 3
NODE = st.integers(0, NODES - 1)


class PullMachine(RuleBasedStateMachine):
    """Workers put, get and die; nodes die and come back."""

    def __init__(self) -> None:
        super().__init__()
        self.case = ObjectCase(
            NODES, capacity=300 * MB, disk=3000 * MB, start_ns=100 * MS,
            config={"min_spilling_size": 20 * MB},
        )  # fmt: skip
        self.workers: list[Worker] = list(self.case.workers)
        self.refs: dict[int, tuple[Ref, Worker, int]] = {}
        """Objects put and not freed: reference, owner, node of the primary."""
        self.count = 0
        self.requests: dict[tuple[str, int], tuple[Worker, list[int], str]] = {}
        self.down: dict[int, None] = {}

    def alive(self, worker: Worker) -> bool:
        return worker.state == "up"

    def settle(self) -> None:
        self.case.sim.run(until=self.case.sim.now_ns + 1)

    def up(self, node: int) -> bool:
        return node not in self.down

    @rule(node=NODE, owner=NODE, size=st.sampled_from([1, 20, 60, 150, 290]))
    def put(self, node, owner, size):
        if not (self.up(node) and self.up(owner)):
            return
        self.count += 1
        maker, its_owner = self.workers[node], self.workers[owner]
        ref = maker.put(self.count, size * MB, owner=its_owner)
        self.refs[self.count] = (ref, its_owner, node)
        self.settle()

    @precondition(lambda self: self.refs)
    @rule(data=st.data(), node=NODE, priority=st.sampled_from(["GET", "WAIT", "TASK_ARGS"]))
    def get(self, data, node, priority):
        if not self.up(node):
            return
        some = st.lists(st.sampled_from(sorted(self.refs)), min_size=1, max_size=3, unique=True)
        ids = data.draw(some)
        reader = self.workers[node]
        request = reader.get(*(self.refs[i][0] for i in ids), priority=priority)
        self.requests[request] = (reader, ids, priority)
        self.settle()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data):
        request = data.draw(st.sampled_from(sorted(self.requests)))
        reader, _, _ = self.requests.pop(request)
        reader.cancel(request)
        self.settle()

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def free(self, data):
        object_id = data.draw(st.sampled_from(sorted(self.refs)))
        _, owner, _ = self.refs.pop(object_id)
        owner.removed[object_id] = None
        owner.publish(object_id)
        for node in range(NODES):
            owner.send(object_manager(node), FreeObjects((object_id,)))
        self.settle()

    @rule(node=NODE)
    def let_go(self, node):
        """The readers of a node use nothing any more."""
        worker = self.workers[node]
        if self.up(node):
            for object_id, stored in list(self.case.stores[node].objects.items()):
                for _ in range(stored.uses.get(worker.address, 0) * (not stored.maker)):
                    worker.send(plasma(node), PlasmaRelease(object_id, worker.address))
            self.settle()

    @rule(node=NODE)
    def worker_dies(self, node):
        if self.up(node):
            self.end(self.workers[node])
            gone = ClientDisconnected(self.workers[node].address)
            self.case.gcs.send(plasma(node), gone)
            self.case.gcs.send(object_manager(node), gone)
            self.tell(WorkerFailed(self.workers[node].me, "killed"))
            self.workers[node] = self.case.worker(node)
            self.settle()

    def end(self, worker: Worker) -> None:
        worker.crash(reason="killed")
        self.refs = {i: r for i, r in self.refs.items() if r[1] is not worker}
        for i in [i for i, r in self.refs.items() if r[0].object_id and self.unmade(i, worker)]:
            del self.refs[i]
        self.requests = {k: r for k, r in self.requests.items() if r[0] is not worker}

    def unmade(self, object_id: int, maker: Worker) -> bool:
        """Whether this maker had not finished it."""
        local = self.case.managers[maker.me.node_id].local.get(object_id)
        spilled = object_id in self.case.managers[maker.me.node_id].spills.spilled
        primary = self.refs[object_id][2] == maker.me.node_id
        return primary and local is None and not spilled

    def tell(self, message) -> None:
        for node in range(NODES):
            if self.up(node):
                self.case.gcs.send(object_manager(node), message)

    @rule()
    def io_worker_dies(self):
        for worker_id, worker in list(self.case.io.items()):
            del self.case.io[worker_id]
            if worker.state == "up":
                self.case.crash(worker)
                break
        self.settle()

    @rule(node=NODE, silent=st.booleans())
    def node_dies(self, node, silent):
        if not self.up(node) or len(self.down) == NODES - 1:
            return
        case = self.case
        self.down[node] = None
        self.end(self.workers[node])
        if silent:
            case.env.nodes[node].fail()
        for room in (case.stores[node], case.managers[node]):
            room.crash(reason="raylet killed", silent=silent)
        for worker_id, worker in list(case.io.items()):
            if worker.me.node_id == node:
                del case.io[worker_id]
                worker.crash(silent=silent)
        self.refs = {i: r for i, r in self.refs.items() if r[2] != node}
        for worker in self.workers:
            for object_id in list(worker.sizes):
                changed = worker.nodes.get(object_id, {}).pop(node, 0) is None
                if worker.urls.get(object_id, ("", -1))[1] == node:
                    del worker.urls[object_id]
                    changed = True
                if changed and self.alive(worker):
                    worker.publish(object_id)
        self.tell(NodeRemoved(node, expected=False, reason="died"))
        self.settle()

    @precondition(lambda self: self.down)
    @rule()
    def node_returns(self):
        case, node = self.case, next(iter(self.down))
        del self.down[node]
        case.env.nodes[node].restore()
        for room in (case.stores[node], case.managers[node]):
            room.start()
        self.workers[node] = case.worker(node)
        self.tell(NodeAdded(node))
        self.settle()

    @rule(wait_ns=st.sampled_from([MS, 5 * MS, 30 * MS, 300 * MS, 3 * S, 30 * S]))
    def wait(self, wait_ns):
        self.case.sim.run(until=self.case.sim.now_ns + wait_ns)

    @invariant()
    def admission_respects_the_quota(self):
        for node in range(NODES):
            requests = self.case.managers[node].requests
            pulls, available = requests.pulls, requests._available
            if self.up(node) and available is not None and pulls.active + pulls.held > 1:
                gets = any(b.active and b.priority == "GET" for b in pulls.bundles.values())
                others = any(b.active and b.priority != "GET" for b in pulls.bundles.values())
                if others and not gets:
                    assert pulls.remaining(available) >= 0

    def teardown(self):
        case = self.case
        for _ in range(3):
            for node in range(NODES):
                self.let_go(node)
            case.sim.run(until=case.sim.now_ns + 200 * S)
        for _ in range(len(self.requests) + 1):  # what one lets go of, another may be waiting for
            for request, (reader, _, priority) in list(self.requests.items()):
                if priority == "TASK_ARGS" and request in case.managers[
                    reader.me.node_id].requests.held:  # fmt: skip
                    del self.requests[request]
                    reader.cancel(request)
            case.sim.run(until=case.sim.now_ns + 20_000 * S)
        self.let_go(0), self.let_go(1), self.let_go(2)
        case.sim.run(until=case.sim.now_ns + 2000 * S)
        self.everything_is_somewhere()
        self.who_waits_waits_for_what_nobody_has()
        self.nothing_is_left_over()

    def everything_is_somewhere(self):
        for object_id, (_, owner, node) in self.refs.items():
            made = [a for w in self.all_workers() for _, i, a in w.made if i == object_id]
            if not made or not isinstance(made[0], PlasmaCreated):
                continue
            manager = self.case.managers[node]
            assert self.alive(owner)
            assert object_id in manager.spills.pinned or object_id in manager.spills.spilled, (
                f"object {object_id} is lost: {self.case.states(object_id)}"
            )

    def all_workers(self):
        return [w for w in self.case.sim.components.values() if isinstance(w, Worker)]

    def who_waits_waits_for_what_nobody_has(self):
        for node in range(NODES):
            if not self.up(node):
                continue
            for bundle in self.case.managers[node].requests.pulls.bundles.values():
                missing = [p.object_id for p in bundle.pulls if not p.local]
                assert missing, f"{bundle.request_id} waits for nothing"
                assert any(not self.exists(i) for i in missing), (
                    f"{bundle.request_id} waits for {missing}, which exist"
                )

    def exists(self, object_id: int) -> bool:
        return any(
            object_id in self.case.managers[node].local
            or object_id in self.case.managers[node].spills.spilled
            for node in range(NODES) if self.up(node)
        )  # fmt: skip

    def nothing_is_left_over(self):
        for node in range(NODES):
            if not self.up(node):
                continue
            manager, store = self.case.managers[node], self.case.stores[node]
            assert manager.pushes.pushes == {}
            assert manager.receiver.arrivals == {}
            assert manager.spills.restoring == {}
            assert manager.spills.spilling == {}
            assert manager.made == {}
            assert not store._creates
            for object_id, local in manager.local.items():
                assert local.pins == (object_id in manager.spills.pinned), (
                    f"object {object_id} is pinned {local.pins} times on node {node}"
                )
                assert object_id in store.objects
            for object_id, stored in store.objects.items():
                assert stored.payload is not None
                assert set(stored.uses) <= {manager.address}, f"{object_id}: {stored.uses}"


PullMachine.TestCase.settings = settings(
    settings.default, max_examples=min(40, settings.default.max_examples), stateful_step_count=25
)
TestPulls = PullMachine.TestCase
