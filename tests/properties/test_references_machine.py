"""Objects stay as long as some live process can reach them, and not longer.

Five processes put objects into each other's hands: as arguments, inside arguments, inside other
objects, as parts of what they return; they forget them, and they die. Whatever the interleaving,
once all messages have arrived an object exists exactly if a handle leads to it, directly or through
objects that contain it.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from raysim.raycore import scripts as b
from raysim.raycore.tasks import Payload
from tests.unit.raycore.core_worker_parts import MS, US, House, S, actor, method, options

ACTORS = 4
NUMBERS = st.integers(0, 1_000)
SIZES = st.sampled_from([10, 200_000])


class References(RuleBasedStateMachine):
    @initialize(latency_us=st.integers(0, 40))
    def begin(self, latency_us):
        self.house = House(nodes=2, workers=8, latency_ns=latency_us * US, check=True)
        self.kept = {self.house.driver.me.worker_id: []}
        """Handles each process has."""
        self.inside = {}
        """Of each object, those its value contains."""
        self.actors = []
        house = self.house
        house.raylets[0].idle.extendleft(house.raylets[1].idle.pop() for _ in range(4))

        def main(_):
            for _i in range(ACTORS):
                self.actors += [(yield b.create_actor(actor(max_concurrency=4)))]

        house.play(main, until=10 * S)
        for a in self.actors:
            self.kept[self.process(a).me.worker_id] = []

    # Who there is

    def process(self, actor_id):
        return self.house.processes.get(self.house.gcs.rows[actor_id].address.worker_id)

    def alive(self):
        return [a for a in self.actors if self.house.gcs.rows[a].state == "ALIVE"]

    def some_actor(self, n):
        alive = self.alive()
        return alive[n % len(alive)] if alive else None

    def some_ref(self, worker_id, n):
        kept = self.kept.get(worker_id)
        return kept[n % len(kept)] if kept else None

    @property
    def driver(self):
        return self.house.driver

    def in_actor(self, n, fn, args=()):
        """Have ``fn(running)`` run in an actor."""
        a = self.some_actor(n)
        if a is not None:
            b.drive(self.driver, self.calling(a, fn, args))

    def calling(self, a, fn, args):
        def main(_):
            refs = yield b.call_actor(a, method(b.script(fn)), args)
            (value,) = yield b.get(refs)
            if isinstance(value, Payload):
                for ref in value.contained:
                    yield from self.keep(self.driver, ref)
            yield b.drop(*refs)

        return main

    # What programs do; each says so in ``kept`` when it does it

    def keep(self, process, ref):
        yield b.keep(ref)
        self.kept[process.me.worker_id].append(ref)

    def put(self, process, payload):
        ref = yield b.put(payload)
        self.inside[ref.object_id] = payload.contained
        self.kept[process.me.worker_id].append(ref)

    def keep_given(self, running):
        for ref in running.args[0].contained:
            yield from self.keep(running.worker, ref)
        yield b.sleep(MS)

    # Rules

    @rule(size_bytes=SIZES, task=st.booleans())
    def driver_makes(self, size_bytes, task):
        def main(process):
            if task:
                (ref,) = yield b.submit(options(b.Return([size_bytes])))
                self.inside[ref.object_id] = ()
                self.kept[process.me.worker_id].append(ref)
            else:
                yield from self.put(process, Payload(size_bytes))

        b.drive(self.driver, main)

    @rule(n=NUMBERS, m=NUMBERS, size_bytes=SIZES)
    def driver_puts_a_container(self, n, m, size_bytes):
        me = self.driver.me.worker_id
        refs = [r for r in (self.some_ref(me, n), self.some_ref(me, m)) if r is not None]
        payload = Payload(size_bytes, None, tuple(dict.fromkeys(refs)))
        b.drive(self.driver, lambda process: self.put(process, payload))

    @rule(n=NUMBERS, m=NUMBERS)
    def driver_gives_an_actor(self, n, m):
        ref = self.some_ref(self.driver.me.worker_id, n)
        if ref is not None:
            self.in_actor(m, self.keep_given, [Payload(10, None, (ref,))])

    @rule(n=NUMBERS, m=NUMBERS)
    def driver_passes_an_object_whose_insides_are_kept(self, n, m):
        ref = self.some_ref(self.driver.me.worker_id, n)
        if ref is None:
            return

        def body(running):
            value = running.args[0]
            for inner in value.contained:
                yield from self.keep(running.worker, inner)
            yield b.sleep(MS)

        self.in_actor(m, body, [ref])

    @rule(n=NUMBERS)
    def driver_drops(self, n):
        kept = self.kept[self.driver.me.worker_id]
        if kept:
            ref = kept.pop(n % len(kept))
            self.driver.remove_local_reference(ref.object_id)

    @rule(n=NUMBERS, m=NUMBERS, size_bytes=SIZES)
    def actor_puts(self, n, m, size_bytes):
        def body(running):
            inner = self.some_ref(running.worker.me.worker_id, m)
            payload = Payload(size_bytes, None, () if inner is None else (inner,))
            yield from self.put(running.worker, payload)

        self.in_actor(n, body)

    @rule(n=NUMBERS, m=NUMBERS)
    def actor_drops(self, n, m):
        def body(running):
            kept = self.kept[running.worker.me.worker_id]
            if kept:
                yield b.drop(kept.pop(m % len(kept)))

        self.in_actor(n, body)

    @rule(n=NUMBERS, m=NUMBERS)
    def actor_returns_one(self, n, m):
        def body(running):
            ref = self.some_ref(running.worker.me.worker_id, m)
            return [Payload(10, None, () if ref is None else (ref,))]
            yield

        self.in_actor(n, body)

    @rule(n=NUMBERS, m=NUMBERS)
    def actor_gives_a_task_that_gives_it_back(self, n, m):
        def echo(running):
            yield b.sleep(MS)
            return [Payload(200_000, None, running.args[0].contained)]

        def body(running):
            ref = self.some_ref(running.worker.me.worker_id, m)
            if ref is None:
                return
            refs = yield b.submit(
                options(b.script(echo), max_retries=0), [Payload(9, None, (ref,))]
            )
            (value,) = yield b.get(refs)
            if isinstance(value, Payload):
                for inner in value.contained:
                    yield from self.keep(running.worker, inner)
            yield b.drop(*refs)

        self.in_actor(n, body)

    @rule(n=NUMBERS, m=NUMBERS)
    def actor_looks_into_one(self, n, m):
        def body(running):
            me = running.worker.me.worker_id
            ref = self.some_ref(me, m)
            if ref is None:
                return
            yield b.keep(ref)
            (value,) = yield b.get([ref])
            if isinstance(value, Payload):
                for inner in value.contained:
                    yield from self.keep(running.worker, inner)
            yield b.drop(ref)

        self.in_actor(n, body)

    @precondition(lambda self: len(self.alive()) > 1)
    @rule(n=NUMBERS)
    def actor_dies(self, n):
        process = self.process(self.some_actor(n))
        if process is not None:
            del self.kept[process.me.worker_id]
            self.house.kill(process.me.worker_id, reason="boom")

    @rule(us=st.integers(0, 3_000))
    def time_passes(self, us):
        self.house.sim.run(self.house.sim.now_ns + us * US)

    @rule()
    def everything_arrives(self):
        house = self.house
        house.sim.run(house.sim.now_ns + 5 * S)
        processes = {w: c for w, c in house.processes.items() if c.state == "up"}
        wanted: dict[int, None] = {}
        left = [r for w, refs in self.kept.items() if w in processes for r in refs]
        while left:
            ref = left.pop()
            if ref.object_id in wanted or ref.owner.worker_id not in processes:
                continue
            wanted[ref.object_id] = None
            left.extend(self.inside[ref.object_id])
        for worker_id, process in processes.items():
            table = process.references.table
            mine = {i for i, r in table.items() if r.owner == process.me and i > 0}
            needed = {i for i in wanted if self.owner_of(i) == worker_id}
            assert mine == needed, (process.address, [table.get(i, i) for i in mine ^ needed])
            handles = [r.object_id for r in self.kept.get(worker_id, ())]
            assert {i: r.local for i, r in table.items() if r.local and i > 0} == {
                i: handles.count(i) for i in handles
            }
            assert all(r.submitted == 0 for i, r in table.items() if i > 0), table
        for store in house.plasma:
            there = [i for i in store.objects if self.owner_of(i) in processes]
            assert set(there) <= set(wanted)
        for process in processes.values():
            for record in process.references.table.values():
                if record.owner == process.me and record.copies is not None:
                    stores = [house.plasma[n] for n in record.copies.nodes]
                    assert any(record.object_id in s.objects for s in stores)

    def owner_of(self, object_id):
        for refs in [*self.kept.values(), *self.inside.values()]:
            for ref in refs:
                if ref.object_id == object_id:
                    return ref.owner.worker_id
        return None

    def teardown(self):
        if not hasattr(self, "house"):
            return
        self.everything_arrives()
        for worker_id, kept in self.kept.items():
            while kept:
                self.house.processes[worker_id].remove_local_reference(kept.pop().object_id)
        self.everything_arrives()
        assert not [i for c in self.house.processes.values() for i in c.references.table if i > 0]


References.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestReferences = References.TestCase
