"""Who keeps an object: handles, tasks, values that contain it, other processes."""

from __future__ import annotations

import pytest

from raysim.raycore import protocol as p
from raysim.raycore import scripts as b
from raysim.raycore.config import RayConfig
from raysim.raycore.ids import task_of
from raysim.raycore.tasks import NodeAffinity, Payload
from tests.unit.raycore.core_worker_parts import MS, US, House, S, actor, method, options

BIG = 1_000_000


def within(*refs):
    return Payload(100, None, refs)


def keeper(running):
    """Keep the reference inside the argument."""
    ref = running.args[0].contained[0]
    running.worker.add_local_reference(ref)
    running.keep(ref)
    running.finish()


def reader(running):
    values = yield b.get([running.state])
    return [Payload(values[0].size_bytes)]


def dropper(running):
    running.worker.remove_local_reference(running.state.object_id)
    running.finish()


def test_the_last_handle_frees_the_object_everywhere():
    house = House(nodes=2)
    on_1 = options(b.no_op, strategy=NodeAffinity(node_id=1))

    def main(_):
        (x,) = yield b.submit(options(b.Return([BIG])))
        yield b.get((yield b.submit(on_1, [x])))
        yield b.get([x])
        yield b.drop(x)
        return x

    x = house.play(main)
    assert [m.freed for m in house.managers] == [[x.object_id], [x.object_id]]
    assert x.object_id not in house.driver.references.table


def test_a_task_keeps_its_arguments_until_it_ends():
    house = House()
    o = options(b.Sleep(S))

    def main(process):
        x = yield b.put(Payload(BIG))
        refs = yield b.submit(o, [x])
        refs += yield b.submit(o, [within(x)])
        yield b.drop(x)
        yield b.sleep(S // 2)
        between = x.object_id in process.references.table
        yield b.get(refs)
        yield b.sleep(MS)
        return between, x.object_id in process.references.table

    assert house.play(main) == (True, False)


def test_a_small_argument_is_inlined_and_let_go_when_it_is():
    house = House()

    def main(process):
        (x,) = yield b.submit(options(b.Return([5])))
        yield b.get([x])
        refs = yield b.submit(options(b.Sleep(S)), [x])
        yield b.drop(x)
        yield b.sleep(MS)
        gone = x.object_id not in process.references.table
        yield b.get(refs)
        return gone

    assert house.play(main)


def test_a_value_keeps_what_it_contains():
    house = House()

    def main(process):
        x = yield b.put(Payload(BIG))
        y = yield b.put(within(x))
        yield b.drop(x)
        kept = x.object_id in process.references.table
        yield b.drop(y)
        return kept, len(process.references.table)

    assert house.play(main) == (True, 0)


@pytest.mark.parametrize("large", [True, False])
def test_an_actor_that_keeps_a_reference_keeps_the_object(large):
    house = House(latency_ns=US)

    def main(process):
        a = yield b.create_actor(actor())
        if large:
            x = yield b.put(Payload(BIG))
        else:
            (x,) = yield b.submit(options(b.Return([77])))
            yield b.get([x])
        yield b.get((yield b.call_actor(a, method(keeper), [within(x)])))
        yield b.drop(x)
        yield b.sleep(S)
        borrowers = len(process.references.table[x.object_id].sharing.borrowers)
        values = yield b.get((yield b.call_actor(a, method(b.script(reader)))))
        yield b.get((yield b.call_actor(a, method(dropper))))
        yield b.sleep(S)
        return borrowers, values[0].size_bytes, x.object_id in process.references.table

    assert house.play(main) == (1, BIG if large else 77, False)


def test_a_borrower_that_dies_has_let_go():
    house = House()

    def main(process):
        a = yield b.create_actor(actor())
        x = yield b.put(Payload(BIG))
        yield b.get((yield b.call_actor(a, method(keeper), [within(x)])))
        yield b.drop(x)
        yield b.sleep(MS)
        before = x.object_id in process.references.table
        yield b.kill(a)
        yield b.sleep(MS)
        return before, x.object_id in process.references.table

    assert house.play(main) == (True, False)


def test_a_borrower_on_a_node_that_is_declared_dead_has_let_go():
    house = House(nodes=2)
    house.raylets[0].idle.extendleft(house.raylets[1].idle)

    def main(process):
        a = yield b.create_actor(actor())
        x = yield b.put(Payload(BIG))
        yield b.get((yield b.call_actor(a, method(keeper), [within(x)])))
        yield b.drop(x)
        yield b.sleep(MS)
        before = x.object_id in process.references.table
        house.remove_node(1)
        yield b.sleep(MS)
        return before, x.object_id in process.references.table

    assert house.play(main) == (True, False)


def test_a_reference_passed_on_by_a_borrower_outlives_the_borrower():
    house = House(workers=6, latency_ns=US)

    def relay(running):
        """Make an actor that keeps the reference, and forget it."""
        child = method(keeper)
        a = running.state
        yield b.get((yield b.call_actor(a, child, [within(*running.args[0].contained)])))
        return []

    def owner_of_child(running):
        running.keep((yield b.create_actor(actor())))
        return []

    def ask_child(running):
        refs = yield b.call_actor(running.state, method(b.script(reader)))
        return (yield b.get(refs))

    def main(process):
        middle = yield b.create_actor(actor())
        yield b.get((yield b.call_actor(middle, method(b.script(owner_of_child)))))
        x = yield b.put(Payload(BIG))
        yield b.get((yield b.call_actor(middle, method(b.script(relay)), [within(x)])))
        yield b.drop(x)
        yield b.sleep(S)
        borrowers = [w.address for w in process.references.table[x.object_id].sharing.borrowers]
        values = yield b.get((yield b.call_actor(middle, method(b.script(ask_child)))))
        return borrowers, values[0].size_bytes

    borrowers, size_bytes = house.play(main)
    assert len(borrowers) == 1
    assert size_bytes == BIG


def test_a_returned_reference_stays_valid_when_its_maker_forgets_it():
    house = House(latency_ns=US)

    def giver(running):
        given = running.args[0].contained[0]
        mine = yield b.put(Payload(2 * BIG))
        (small,) = yield b.submit(options(b.Return([5])))
        running.worker.after(
            MS, lambda _: [running.worker.remove_local_reference(r[0]) for r in (mine, small)]
        )
        return [within(mine, small, given)]

    def main(process):
        x = yield b.put(Payload(BIG))
        refs = yield b.submit(options(b.script(giver)), [within(x)])
        yield b.drop(x)
        (value,) = yield b.get(refs)
        for ref in value.contained:
            yield b.keep(ref)
        yield b.drop(*refs)
        yield b.sleep(S)
        values = yield b.get(value.contained)
        yield b.drop(*value.contained)
        yield b.sleep(S)
        return [v.size_bytes for v in values]

    assert house.play(main) == [2 * BIG, 5, BIG]
    assert house.leftovers() == {}


def test_a_reference_found_in_a_borrowed_value_outlives_that_value():
    house = House(latency_ns=US)

    def maker(running):
        inner = yield b.put(Payload(BIG))
        outer = yield b.put(within(inner))
        yield b.drop(inner)
        running.keep(outer)
        return [within(outer)]

    def forget(running):
        yield b.drop(running.state)

    def main(process):
        a = yield b.create_actor(actor())
        refs = yield b.call_actor(a, method(b.script(maker)))
        (value,) = yield b.get(refs)
        outer = value.contained[0]
        yield b.keep(outer)
        yield b.drop(*refs)
        (value,) = yield b.get([outer])
        inner = value.contained[0]
        yield b.keep(inner)
        yield b.get((yield b.call_actor(a, method(b.script(forget)))))
        yield b.drop(outer)
        yield b.sleep(S)
        maker_has = list(house.processes[outer.owner.worker_id].references.table)
        (value,) = yield b.get([inner])
        yield b.drop(inner)
        return maker_has == [inner.object_id], value.size_bytes

    assert house.play(main) == (True, BIG)


def test_an_owners_death_loses_its_objects_to_borrowers_though_copies_exist():  # litmus 17
    house = House(nodes=2)

    def maker(_):
        x = yield b.put(Payload(BIG))
        return [within(x)]

    def main(process):
        a = yield b.create_actor(actor())
        (value,) = yield b.get((yield b.call_actor(a, method(b.script(maker)))))
        (x,) = value.contained
        yield b.keep(x)
        (here,) = yield b.get([x])
        yield b.kill(a)
        yield b.sleep(S)
        (gone,) = yield b.get([x])
        return here.size_bytes, gone.error_type, x.object_id in house.plasma[0].objects

    assert house.play(main) == (BIG, "OWNER_DIED", True)


def test_a_task_whose_result_nobody_wants_leaves_nothing():
    house = House()

    def main(_):
        for size_bytes in (10, BIG):
            refs = yield b.submit(options(b.Return([size_bytes])))
            yield b.drop(*refs)
        yield b.sleep(S)

    house.play(main)
    assert house.leftovers() == {}
    assert house.plasma[0].objects == {}


# ---- lost objects --------------------------------------------------------------------------------

ON_1 = NodeAffinity(node_id=1, soft=True)


def double(running):
    return [Payload(2 * running.args[0].size_bytes)]
    yield


def test_lineage_remakes_a_lost_object_and_its_lost_argument():
    house = House(nodes=2)

    def main(process):
        (x,) = yield b.submit(options(b.Return([BIG]), strategy=ON_1))
        (y,) = yield b.submit(options(b.script(double), strategy=ON_1), [x])
        yield b.wait([y], fetch_local=False)
        yield b.drop(x)
        house.remove_node(1)
        yield b.sleep(MS)
        (value,) = yield b.get([y])
        yield b.drop(y)
        return value.size_bytes, process.tasks.lineage, process.tasks.lineage_bytes

    assert house.play(main) == (2 * BIG, {}, 0)
    assert house.leftovers() == {}


def test_another_copy_is_pinned_instead_at_the_heartbeat():
    house = House(nodes=2)

    def main(process):
        (x,) = yield b.submit(options(b.Return([BIG]), strategy=ON_1))
        yield b.get([x])
        house.remove_node(1)
        found = []
        for _ in range(2):  # once a second the process looks what it has lost
            yield b.sleep(S - 2 * MS)
            found.append(process.references.table[x.object_id].copies.pinned_at)
        return found, x

    pinned_at, x = house.play(main)
    assert pinned_at == [-1, 0]
    assert x.object_id in house.managers[0].pinned


@pytest.mark.parametrize(
    ("max_retries", "error"), [(0, "OBJECT_UNRECONSTRUCTABLE_MAX_ATTEMPTS_EXCEEDED"), (1, None)]
)
def test_making_again_uses_up_a_retry(max_retries, error):
    house = House(nodes=2)

    def main(_):
        o = options(b.Return([BIG]), strategy=ON_1, max_retries=max_retries)
        (x,) = yield b.submit(o)
        yield b.wait([x], fetch_local=False)
        house.remove_node(1)
        yield b.sleep(MS)
        (value,) = yield b.get([x])
        return getattr(value, "error_type", None)

    assert house.play(main) == error


def test_what_was_put_cannot_be_made_again():
    house = House(nodes=2)

    def main(process):
        x = yield b.put(Payload(BIG))
        record = process.references.table[x.object_id]
        process.directory.node_removed(0)
        yield b.sleep(S)
        (value,) = yield b.get([x])
        return value.error_type, record.copies

    assert house.play(main) == ("OBJECT_LOST", None)


def test_a_get_under_way_hears_that_its_object_is_lost_for_good():
    house = House(nodes=2)

    def main(process):
        (x,) = yield b.submit(options(b.Return([BIG]), strategy=ON_1, max_retries=0))
        yield b.wait([x], fetch_local=False)
        house.plasma[1].objects.clear()
        process.after(MS, lambda _: house.remove_node(1))
        (value,) = yield b.get([x])
        return value.error_type, process.sim.now_ns

    error, at_ns = house.play(main)
    assert error == "OBJECT_UNRECONSTRUCTABLE_MAX_ATTEMPTS_EXCEEDED"
    assert at_ns == S, "at the heartbeat"


def test_lineage_is_dropped_oldest_first_beyond_its_limit():
    house = House(workers=1, config=RayConfig(max_lineage_bytes=10_000))

    def main(process):
        refs = []
        for _ in range(12):
            refs += yield b.submit(options(b.Return([200_000])))
        yield b.wait(refs, 12)
        yield b.sleep(MS)
        return list(process.tasks.lineage), process.tasks.lineage_bytes, refs

    kept, kept_bytes, refs = house.play(main)
    assert kept_bytes <= 10_000
    assert kept == [task_of(r.object_id) for r in refs][-len(kept) :]


def test_unwanted_copies_reported_late_are_freed():
    house = House()

    def main(process):
        x = yield b.put(Payload(BIG))
        yield b.drop(x)
        update = p.LocationUpdate(x.object_id, added=True)
        process.directory.on_update(p.UpdateObjectLocationBatch(0, (update,)))
        yield b.sleep(MS)
        return x.object_id

    assert house.managers[0].freed == [house.play(main)] * 2
