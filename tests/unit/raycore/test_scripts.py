"""Several scripts of one process: who is resumed when, in which order, with what."""

from __future__ import annotations

from typing import Any

from raysim.raycore.scripts import (
    TIMED_OUT,
    Event,
    Queue,
    compute,
    create_actor,
    kill,
    now,
    script,
    sleep,
    spawn,
    wait_for,
)
from tests.raycore_parts import ray_cluster
from tests.stories.ray_scripts import actor, run

MS = 1_000_000


def test_an_event_resumes_all_who_wait_in_their_order_with_its_value() -> None:
    seen: list[Any] = []

    def waiter(name: str, event: Event) -> Any:
        value = yield wait_for(event)
        seen.append((name, value, (yield now())))

    def main(_process: Any) -> Any:
        event = Event()
        began = yield now()
        for name in "ab":
            yield spawn(waiter(name, event))
        yield sleep(5 * MS)
        event.set("x")
        event.set("y")
        yield sleep(1)
        yield spawn(waiter("late", event))
        yield sleep(1)
        return began

    began = run(ray_cluster(), main)
    assert [(n, v, t - began) for n, v, t in seen] == [
        ("a", "x", 5 * MS), ("b", "x", 5 * MS), ("late", "x", 5 * MS + 1)
    ]  # fmt: skip


def test_a_wait_ends_at_its_timeout_and_the_event_no_longer_resumes_it() -> None:
    def main(_process: Any) -> Any:
        event = Event()
        began = yield now()
        first = yield wait_for(event, 3 * MS)
        at = yield now()
        event.set(1)
        second = yield wait_for(event, 3 * MS)
        yield sleep(10 * MS)
        return first, at - began, second

    first, after_ns, second = run(ray_cluster(), main)
    assert first is TIMED_OUT
    assert (after_ns, second) == (3 * MS, 1)


def test_a_bounded_queue_holds_its_producer_back() -> None:
    seen: list[tuple[str, int, int]] = []

    def producer(queue: Queue) -> Any:
        for item in range(4):
            yield queue.put(item)
            seen.append(("put", item, (yield now())))

    def main(_process: Any) -> Any:
        queue = Queue(maxsize=2)
        began = yield now()
        yield spawn(producer(queue))
        for _ in range(4):
            yield sleep(10 * MS)
            item = yield queue.get()
            seen.append(("got", item, (yield now())))
        return began

    began = run(ray_cluster(), main)
    assert [(what, item, (t - began) // MS) for what, item, t in seen] == [
        ("put", 0, 0), ("put", 1, 0), ("put", 2, 10), ("got", 0, 10), ("put", 3, 20),
        ("got", 1, 20), ("got", 2, 30), ("got", 3, 40),
    ]  # fmt: skip


def test_a_spawned_script_shares_the_nodes_cores_and_says_what_it_returned() -> None:
    def work() -> Any:
        yield compute(0.1)
        return "done"

    def main(_process: Any) -> Any:
        ended: list[Any] = []
        began = yield now()
        for _ in range(3):
            yield spawn(work(), ended.append)
        yield sleep(160 * MS)
        at_two_cores = list(ended)
        yield sleep(1000 * MS)
        return at_two_cores, ended, (yield now()) - began

    halfway, ended, _ = run(ray_cluster(cpus=2), main)
    assert halfway == ["done"] * 3  # 3 x 0.1 s over 2 cores: 0.15 s
    assert ended == ["done"] * 3


def test_a_spawned_script_ends_with_its_process() -> None:
    beats: list[int] = []

    def heart() -> Any:
        while True:
            yield sleep(10 * MS)
            beats.append((yield now()))

    @script
    def create(_running: Any) -> Any:
        yield spawn(heart())

    def main(_process: Any) -> Any:
        made = yield create_actor(actor(create))
        yield sleep(1000 * MS)
        before = len(beats)
        yield kill(made)
        yield sleep(1000 * MS)
        return before

    before = run(ray_cluster(), main)
    assert before > 20
    assert len(beats) <= before + 1
