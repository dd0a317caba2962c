"""Python classes as library actors."""

from __future__ import annotations

from typing import Any

from raysim.raycore.resources import ResourceSet
from raysim.raycore.scripts import get, make_group, now, put, sleep, wait_group
from raysim.raycore.tasks import ActorOptions, Payload, TaskError
from raysim.raylibs.actors import ActorClass, Sized, fetch
from tests.raycore_parts import ray_cluster
from tests.stories.ray_scripts import run

MS = 1_000_000


class Counter:
    """Counts, slowly if asked to."""

    def __init__(self, process: Any, start: int = 0) -> None:
        self.process = process
        self.n = start

    def add(self, n: int) -> int:
        self.n += n
        return self.n

    def add_later(self, n: int) -> Any:
        yield sleep(10 * MS)
        self.n += n
        return self.n

    def node(self) -> int:
        return self.process.me.node_id

    def big(self) -> Sized:
        return Sized("big", 10_000_000)

    def fail(self) -> TaskError:
        return TaskError("TASK_EXECUTION_EXCEPTION", "no")

    def read(self, value: Any, other: Any) -> Any:
        return value, other


COUNTER = ActorClass(cls=Counter)


def test_methods_are_functions_or_scripts_on_one_instance() -> None:
    def main(_process: Any) -> Any:
        counter = yield from COUNTER.remote(5)
        first = yield from counter.ask("add", 1)
        began = yield now()
        second = yield from counter.ask("add_later", 2)
        return first, second, (yield now()) - began

    first, second, took_ns = run(ray_cluster(), main)
    assert (first, second) == (6, 8)
    assert 10 * MS <= took_ns < 12 * MS


def test_calls_of_one_actor_run_in_order_unless_it_is_concurrent() -> None:
    def total(actor: ActorClass) -> Any:
        def main(_process: Any) -> Any:
            counter = yield from actor.remote()
            yield from counter.ask("add", 0)
            began = yield now()
            refs = []
            for _ in range(4):
                refs += yield counter.call("add_later", 1)
            yield get(refs)
            return ((yield now()) - began) // MS

        return run(ray_cluster(), main)

    assert total(COUNTER) >= 40
    assert total(COUNTER.options(actor=ActorOptions(max_concurrency=4))) < 12


def test_references_arrive_as_their_values_and_large_results_go_through_the_store() -> None:
    def main(_process: Any) -> Any:
        counter = yield from COUNTER.remote()
        ref = yield put(Payload(1_000_000, "stored"))
        got = yield from counter.ask("read", ref, "plain")
        refs = yield counter.call("big")
        big = yield from fetch(refs[0])
        return got, big

    cluster = ray_cluster()
    assert run(cluster, main) == (("stored", "plain"), "big")


def test_a_method_that_fails_gives_its_error_and_the_actor_goes_on() -> None:
    def main(_process: Any) -> Any:
        counter = yield from COUNTER.remote()
        error = yield from counter.ask("fail")
        return error, (yield from counter.ask("add", 3))

    error, after = run(ray_cluster(), main)
    assert (error.error_type, error.message, after) == ("TASK_EXECUTION_EXCEPTION", "no", 3)


def test_a_killed_actor_answers_with_its_death() -> None:
    def main(_process: Any) -> Any:
        counter = yield from COUNTER.remote()
        yield from counter.ask("add", 1)
        yield counter.kill()
        yield sleep(100 * MS)
        return (yield from counter.ask("add", 1))

    assert run(ray_cluster(), main).error_type == "ACTOR_DIED"


def test_in_a_placement_group_an_actor_is_where_its_bundle_is() -> None:
    def main(_process: Any) -> Any:
        bundles = [ResourceSet.of({"CPU": 1})] * 2
        group = yield make_group(bundles, "STRICT_SPREAD")
        yield wait_group(group)
        nodes = []
        for i in range(2):
            one = ActorClass(cls=Counter, resources={"CPU": 1}).in_group(group, i)
            counter = yield from one.remote()
            nodes.append((yield from counter.ask("node")))
        return nodes

    assert sorted(run(ray_cluster(2), main)) == [0, 1]


def test_another_process_calls_through_the_same_handle() -> None:
    class Caller:
        def __init__(self, process: Any, counter: Any) -> None:
            self.counter = counter

        def forward(self, n: int) -> Any:
            return (yield from self.counter.ask("add", n))

    def main(_process: Any) -> Any:
        counter = yield from COUNTER.remote()
        caller = yield from ActorClass(cls=Caller).remote(counter)
        yield from caller.ask("forward", 4)
        return (yield from counter.ask("add", 1))

    assert run(ray_cluster(), main) == 5


def test_a_taken_name_is_an_error() -> None:
    def main(_process: Any) -> Any:
        named = COUNTER.options(actor=ActorOptions(name="c"))
        first = yield from named.remote()
        second = yield from named.remote()
        return first, second

    first, second = run(ray_cluster(), main)
    assert not isinstance(first, TaskError)
    assert isinstance(second, TaskError)
