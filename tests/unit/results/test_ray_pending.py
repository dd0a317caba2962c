"""Why a task waits: one story per cause, the sentence in full."""

from __future__ import annotations

import re

import pytest

from raysim.raycore.ids import WorkerAddress, hex_id, number_of, object_id
from raysim.raycore.tasks import LabelMatch, NodeAffinity
from raysim.raystate.moment import moment
from raysim.results.ray.pending import pending_cause, pending_causes, why_pending
from tests.unit.results.ray_cases import DRIVER, MS, Story, actor_options, options

GIB = 2**30


def why(story: Story, task_id: int, t_ms: float | None = None) -> tuple[str, str]:
    now = moment(story.rows, None if t_ms is None else int(t_ms * MS))
    cause = pending_cause(now, task_id)
    assert cause.sentence == why_pending(now, task_id)
    return cause.kind, _LONG_ID.sub(_in_short, cause.sentence)


_LONG_ID = re.compile(r"(task|actor|object) ([0-9a-f]{20,})")


def _in_short(found: re.Match[str]) -> str:
    """Our number in place of Ray's id."""
    return f"{found[1]} {number_of(found[1], bytes.fromhex(found[2]))}"


def waiting(opts=None, *nodes: dict[str, float], state: str = "PENDING_RESOURCES") -> Story:
    """Task 1 with a lease request in some state at node 0."""
    story = Story()
    for number, node in enumerate(nodes or ({"CPU": 4},)):
        story.node(number, 0, **node)
    spec = story.submit(1, opts or options(), 10)
    story.resolved(1, 11)
    story.lease(1, spec, state, 12)
    return story


def test_a_task_that_runs_is_not_pending() -> None:
    story = Story()
    story.submit(1, options(), 10)
    story.run(1, 20, 5)
    assert why(story, 1) == (
        "not pending",
        "f (task 1) is not pending: RUNNING on node-0 since 0.021 s.",
    )


def test_ids_are_printed_as_ray_prints_them() -> None:
    story = Story()
    task_id = 3 << 48 | 1
    story.submit(task_id, options(), 10)
    story.run(task_id, 20, 5)
    assert f"f (task {hex_id('task', task_id)}) is" in why_pending(moment(story.rows), task_id)


def test_a_task_that_does_not_exist_yet() -> None:
    story = Story()
    story.submit(1, options(), 10)
    with pytest.raises(KeyError, match=r"no task f+01000000 has been submitted by 0\.009 s"):
        why(story, 1, 9)


def test_argument_in_the_making() -> None:
    story = Story()
    story.submit(1, options("m.load"), 0)
    story.run(1, 5, 3, node_id=2)
    story.note("object", object_id(9, 1), "INLINE", 0, detail=(8, DRIVER))
    story.submit(2, options("m.use"), 6, args=(object_id(1, 1), object_id(9, 1)))
    assert why(story, 2) == (
        "argument",
        (
            "use (task 2) waits for 1 of its 2 arguments; the first comes from load (task 1),"
            " RUNNING on node-2 since 0.006 s."
        ),
    )


def test_arguments_are_followed_to_the_first_cause() -> None:
    story = waiting(options("m.load", cpus=8), {"CPU": 4}, state="INFEASIBLE")
    story.submit(2, options("m.mid"), 20, args=(object_id(1, 1),))
    story.submit(3, options("m.use"), 20, args=(object_id(2, 1),))
    assert why(story, 3) == (
        "argument",
        (
            "use (task 3) waits for 1 of its 1 argument; the first comes from load (task 1),"
            " through 1 task between, which is PENDING_NODE_ASSIGNMENT: load (task 1) can run on"
            " no node: it needs 8 CPU, no node has that much CPU; the closest, node-0, has 4 CPU."
        ),
    )


def test_owner_ran_ahead() -> None:
    story = Story()
    for task_id in (1, 2, 3):
        story.submit(task_id, options(), 1)
    assert why(story, 3) == (
        "owner",
        (
            "f (task 3) has all its arguments; its owner, worker 1 on node-0, has yet to handle it,"
            " after 2 tasks submitted before it."
        ),
    )


def test_infeasible_names_the_closest_node() -> None:
    story = waiting(
        options("m.train", cpus=1, resources={"GPU": 8}),
        {"CPU": 64},
        {"CPU": 8, "GPU": 4},
        state="INFEASIBLE",
    )
    assert why(story, 1) == (
        "infeasible",
        (
            "train (task 1) can run on no node: it needs 1 CPU, 8 GPU, no node has that much GPU;"
            " the closest, node-1, has 4 GPU."
        ),
    )


def test_infeasible_by_combination() -> None:
    story = waiting(
        options("m.train", cpus=32, resources={"GPU": 1}),
        {"CPU": 64},
        {"CPU": 8, "GPU": 4},
        state="INFEASIBLE",
    )
    assert why(story, 1)[1].endswith("no node has all of it; the closest, node-1, has 8 CPU.")


def test_infeasible_by_label_and_by_affinity() -> None:
    match = LabelMatch(key="zone", operator="in", values=("b",))
    story = waiting(options(label_selector=(match,)), state="INFEASIBLE")
    assert "none of 1 node has the labels it selects (zone)" in why(story, 1)[1]
    story = waiting(options(strategy=NodeAffinity(node_id=5)), state="INFEASIBLE")
    assert "it needs 1 CPU on node-5, which is not alive" in why(story, 1)[1]


def test_behind_others_for_resources() -> None:
    story = waiting()
    spec = story.submit(2, options(), 13)
    story.resolved(2, 14)
    spec = story.submit(3, story.rows[1].detail.options, 13)
    story.resolved(3, 14)
    story.lease(3, spec, "PENDING_RESOURCES", 15)
    story.published(0, 16, {"CPU": 4}, {"CPU": 0.5})
    assert why(story, 3) == (
        "resources",
        (
            "f (task 3) is behind 1 lease request of its class at node-0 since 0.015 s; it needs"
            " 1 CPU, and node-0 has 0.5 of 4 CPU free."
        ),
    )


def test_queue_of_the_owner_at_the_limit_of_requests() -> None:
    story = Story()
    story.node(0, 0, CPU=4)
    opts = options()
    for task_id in range(1, 31):
        spec = story.submit(task_id, opts, 1)
        story.resolved(task_id, 1)
        if task_id <= 10:
            story.lease(task_id, spec, "PENDING_RESOURCES", 2)
    kind, sentence = why(story, 30)
    assert kind == "lease requests"
    assert sentence.startswith(
        "f (task 30) is behind 29 tasks in its owner's queue, for which 10 lease requests are out"
        " (at most 10): the first of them is the first of its class at node-0"
    )
    assert pending_causes(moment(story.rows)) == {"resources": 10, "lease requests": 20}


def test_worker_process() -> None:
    story = waiting(state="PENDING_WORKER")
    story.note("worker", 7, "STARTING", 12, node_id=0)
    story.note("worker", 8, "STARTING", 12, node_id=0)
    assert why(story, 1) == (
        "worker process",
        (
            "f (task 1) has its resources on node-0 and waits for a worker process since 0.012 s;"
            " 2 processes starting there now."
        ),
    )


def test_arguments_on_their_way() -> None:
    story = Story()
    story.node(0, 0, CPU=4)
    number = object_id(50, 1)
    story.note("object", number, "CREATED", 1, node_id=1, detail=(3 * GIB, DRIVER, True))
    spec = story.submit(1, options(), 10, args=(number,))
    story.resolved(1, 11)
    story.lease(1, spec, "PENDING_ARGS", 12)
    assert why(story, 1) == (
        "arguments fetch",
        (
            "f (task 1) waits on node-0 since 0.012 s for its arguments to arrive: 1 object, 3.00"
            " GiB, the first in the memory of node-1."
        ),
    )
    story.lease(1, spec, "PENDING_ARG_MEMORY", 14)
    assert why(story, 1) == (
        "argument memory",
        (
            "f (task 1) waits on node-0 since 0.014 s: its arguments (3.00 GiB) and those of the"
            " tasks that run there exceed 70% of the object store."
        ),
    )


def test_class_cap() -> None:
    story = Story()
    story.node(0, 0, CPU=2)
    opts = options()
    for task_id in (1, 2, 3):
        spec = story.submit(task_id, opts, 1)
        story.resolved(task_id, 1)
        state = "GRANTED" if task_id < 3 else "PENDING_CLASS_CAP"
        story.lease(task_id, spec, state, 2, worker_id=task_id + 10)
        if task_id < 3:
            story.run(task_id, 3, task_id + 10)
    story.note("worker", 11, "BLOCKED", 5, node_id=0)
    assert why(story, 3) == (
        "class cap",
        (
            "f (task 3) waits on node-0 since 0.002 s: 2 workers of its class are granted there"
            " (1 blocked in ray.get or ray.wait) where 2 CPU are room for 2; one more is let"
            " through 1 s after it came to be so."
        ),
    )


def test_at_the_class_cap_with_all_at_work_it_is_the_cpus_that_lack() -> None:
    story = Story()
    story.node(0, 0, CPU=1)
    opts = options()
    for task_id, state in ((1, "GRANTED"), (2, "PENDING_CLASS_CAP")):
        spec = story.submit(task_id, opts, 1)
        story.resolved(task_id, 1)
        story.lease(task_id, spec, state, 2, worker_id=task_id + 10)
    story.published(0, 3, {"CPU": 1}, {"CPU": 0})
    assert why(story, 2) == (
        "resources",
        (
            "f (task 2) is the first of its class at node-0 since 0.002 s; it needs 1 CPU, and"
            " node-0 has 0 of 1 CPU free."
        ),
    )


def test_pushed_but_not_begun() -> None:
    story = Story()
    story.submit(1, options(), 1)
    story.run(1, 2, 9)
    story.submit(2, options("m.g"), 1)
    story.note("task", 2, "SUBMITTED_TO_WORKER", 4, node_id=0, worker_id=9)
    assert why(story, 2) == (
        "push",
        (
            "g (task 2) was sent to worker 9 on node-0 at 0.004 s, which runs f (task 1) since"
            " 0.003 s."
        ),
    )


def test_call_of_an_actor_that_is_not_there_yet() -> None:
    story = Story()
    story.node(0, 0, CPU=0)
    opts = actor_options()
    creation = story.submit(1, opts, 1, kind="ACTOR_CREATION_TASK", actor_id=4)
    story.resolved(1, 2)
    story.actor(4, "PENDING_CREATION", 2, opts)
    story.lease(1, creation, "INFEASIBLE", 3)
    story.submit(2, options("m.A.m", cpus=0), 4, kind="ACTOR_TASK", actor_id=4)
    assert why(story, 2) == (
        "actor",
        (
            "A.m (task 2) waits for its actor 4, which is PENDING_CREATION: A.__init__ (task 1)"
            " can run on no node: it needs 1 CPU, no node has that much CPU; the closest, node-0,"
            " has 0 CPU."
        ),
    )


def test_call_behind_other_calls() -> None:
    story = Story()
    opts = actor_options()
    method = options("m.A.m", cpus=0)
    story.actor(4, "ALIVE", 0, opts, address=WorkerAddress(9, "node-0/worker-9", 0))
    for task_id in (1, 2, 3):
        story.submit(task_id, method, 1, kind="ACTOR_TASK", actor_id=4)
        if task_id == 1:
            story.run(1, 2, 9)
        else:
            state = "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY"
            story.note("task", task_id, state, 3, node_id=0, worker_id=9)
    assert why(story, 3) == (
        "actor",
        "A.m (task 3) is at its actor 4 behind 1 call; 1 call of it run now.",
    )


def test_leased_workers_will_take_it() -> None:
    story = waiting(state="GRANTED")
    story.run(1, 13, 5)
    story.submit(2, story.rows[1].detail.options, 14)
    story.resolved(2, 15)
    assert why(story, 2) == (
        "lease requests",
        (
            "f (task 2) waits in its owner's queue for one of 1 worker that the owner holds for"
            " tasks of its kind."
        ),
    )


def test_a_lost_argument() -> None:
    story = Story()
    number = object_id(50, 1)
    story.note("object", number, "CREATED", 0, node_id=1, detail=(8, DRIVER, True))
    story.note("object", number, "LOST", 1)
    story.submit(1, options(), 2, args=(number,))
    assert why(story, 1)[1] == (
        f"f (task 1) waits for 1 of its 1 argument: object {number} is lost."
    )
