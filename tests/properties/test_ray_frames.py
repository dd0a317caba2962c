"""Frames at any moment agree with the rows; states move as Ray's do; every wait has a cause."""

from __future__ import annotations

import networkx as nx
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raysim.raycore.ids import hex_id
from raysim.raycore.state_log import Change
from raysim.raystate.listings import BASE, rows
from raysim.raystate.moment import ENDED, in_order, moment
from raysim.raystate.summary import summary
from raysim.raystate.timeline import slices
from raysim.results.ray.pending import RUNNING, pending_cause, pending_causes
from raysim.results.ray.status import cluster_status, status_text
from raysim.workloads.ray.actor_pool import ActorPool, start_actor_pool
from raysim.workloads.ray.dag import TaskGraph, start_task_graph
from raysim.workloads.ray.durations import Constant, Exponential
from raysim.workloads.ray.shapes import TaskShape
from raysim.workloads.ray.task_bag import TaskBag, start_task_bag
from tests.unit.results.ray_cases import Story, options
from tests.unit.workloads.ray_cases import play, starter

AT_OWNER = {"PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT"}
LEGAL: dict[str, set[str]] = {
    "": {"PENDING_ARGS_AVAIL"},
    "PENDING_ARGS_AVAIL": {
        "PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER", "RUNNING", "FAILED", "PENDING_ARGS_AVAIL",
    },
    "PENDING_NODE_ASSIGNMENT": {
        "PENDING_OBJ_STORE_MEM_AVAIL", "PENDING_ARGS_FETCH", "SUBMITTED_TO_WORKER", "RUNNING",
        "FAILED", "PENDING_ARGS_AVAIL",
    },
    "PENDING_OBJ_STORE_MEM_AVAIL": {
        "PENDING_ARGS_FETCH", "SUBMITTED_TO_WORKER", "FAILED", "PENDING_ARGS_AVAIL",
    },
    "PENDING_ARGS_FETCH": {"SUBMITTED_TO_WORKER", "FAILED", "PENDING_ARGS_AVAIL"},
    "SUBMITTED_TO_WORKER": {
        "PENDING_ACTOR_TASK_ARGS_FETCH", "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY",
        "GETTING_AND_PINNING_ARGS", "RUNNING", "FINISHED", "FAILED", "PENDING_ARGS_AVAIL",
    },
    "PENDING_ACTOR_TASK_ARGS_FETCH": {
        "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY", "RUNNING", "FAILED", "PENDING_ARGS_AVAIL",
    },
    "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY": {"RUNNING", "FAILED", "PENDING_ARGS_AVAIL"},
    "GETTING_AND_PINNING_ARGS": {"RUNNING", "FAILED", "PENDING_ARGS_AVAIL"},
    "RUNNING": {
        "RUNNING_IN_RAY_GET", "RUNNING_IN_RAY_WAIT", "FINISHED", "FAILED", "PENDING_ARGS_AVAIL",
    },
    "RUNNING_IN_RAY_GET": {"RUNNING", "FINISHED", "FAILED", "PENDING_ARGS_AVAIL"},
    "RUNNING_IN_RAY_WAIT": {"RUNNING", "FINISHED", "FAILED", "PENDING_ARGS_AVAIL"},
    "FINISHED": {"PENDING_ARGS_AVAIL"},
    "FAILED": {"PENDING_ARGS_AVAIL"},
}  # fmt: skip
"""Ray's task life (``TaskStatus`` in ``common.proto``); a lost output begins it again."""


@st.composite
def histories(draw: st.DrawFn) -> Story:
    """Up to five tasks that wander through their legal states, with times in any interleaving."""
    story = Story()
    opts = options()
    for task_id in range(1, draw(st.integers(1, 5)) + 1):
        t_ms, state = draw(st.integers(0, 20)), ""
        for _ in range(draw(st.integers(1, 8))):
            state = draw(st.sampled_from(sorted(LEGAL[state])))
            if state == "PENDING_ARGS_AVAIL":
                story.submit(task_id, opts, t_ms)
            else:
                where = {} if state in AT_OWNER else {"node_id": 0, "worker_id": task_id}
                story.note("task", task_id, state, t_ms, **where)
            t_ms += draw(st.integers(0, 10))
    return story


@given(histories(), st.integers(-1, 120))
def test_a_frame_says_what_the_last_rows_said(story: Story, t_ms: int) -> None:
    t_ns = t_ms * 1_000_000
    now = moment(story.rows, t_ns)
    before = [row for row in in_order(story.rows) if row.t_ns <= t_ns]
    last: dict[int, Change] = {row.number: row for row in before}
    assert {number: row.state for number, row in last.items()} == {
        number: attempt.state for number, attempt in now.tasks.items()
    }
    listed = rows(now, "tasks", detail=True)
    assert len(listed) == sum(row.state == "PENDING_ARGS_AVAIL" for row in before)
    for row in listed:
        assert (row["end_time_ms"] is not None) == (row["state"] in ENDED)
        assert row["creation_time_ms"] <= (row["start_time_ms"] or 10**9)
        assert (row["start_time_ms"] or 0) <= (row["end_time_ms"] or 10**9)


@given(histories(), histories(), st.integers(0, 60))
def test_what_happens_later_changes_nothing(story: Story, other: Story, t_ms: int) -> None:
    t_ns = t_ms * 1_000_000
    later = [row._replace(t_ns=row.t_ns + t_ns + 1, number=row.number + 100) for row in other.rows]
    for resource in BASE:
        with_later = rows(moment(later + story.rows, t_ns), resource, detail=True)
        assert with_later == rows(moment(story.rows, t_ns), resource, detail=True)


@given(histories(), st.integers(0, 120))
def test_counts_add_up(story: Story, t_ms: int) -> None:
    now = moment(story.rows, t_ms * 1_000_000)
    cluster = summary(now, "tasks")["cluster"]
    counted = sum(sum(g["state_counts"].values()) for g in cluster["summary"].values())
    assert counted == cluster["total_tasks"] == len(now.attempts)
    waiting = [a for a in now.tasks.values() if a.state not in ENDED and a.state not in RUNNING]
    assert sum(pending_causes(now).values()) == len(waiting)


@given(histories(), st.integers(0, 120))
def test_every_task_has_a_cause_in_a_sentence(story: Story, t_ms: int) -> None:
    now = moment(story.rows, t_ms * 1_000_000)
    for number, attempt in now.tasks.items():
        kind, sentence = pending_cause(now, number)
        assert sentence.startswith(f"f (task {hex_id('task', number)})")
        assert sentence.endswith(".")
        idle = attempt.state in ENDED or attempt.state in RUNNING
        assert (kind == "not pending") == idle


@given(histories(), st.integers(0, 120))
def test_slices_are_within_the_run(story: Story, t_ms: int) -> None:
    now = moment(story.rows, t_ms * 1_000_000)
    for drawn in slices(now):
        assert 0 <= drawn.start_ns <= drawn.end_ns <= now.t_ns


# ---- on an emulated cluster ----------------------------------------------------------------------

SHAPES = st.builds(
    TaskShape,
    runs=st.sampled_from([Constant(seconds=0.01), Exponential(mean_s=0.3)]),
    uses=st.sampled_from(["time", "cores"]),
    num_cpus=st.sampled_from([0, 0.5, 1, 40]),
    strategy=st.sampled_from(["DEFAULT", "SPREAD"]),
)
BAGS = st.builds(
    TaskBag,
    tasks=st.integers(4, 40),
    shape=SHAPES,
    arg_bytes=st.sampled_from([0, 1000, 10**6]),
    return_bytes=st.sampled_from([0, 1000, 10**6]),
    max_in_flight=st.sampled_from([0, 3]),
    submitters=st.sampled_from([0, 2]),
    collect=st.sampled_from(["get", "wait"]),
)
POOLS = st.builds(
    ActorPool,
    actors=st.integers(1, 4),
    calls=st.integers(1, 20),
    shape=SHAPES,
    in_flight=st.integers(0, 2),
    max_concurrency=st.integers(1, 2),
)


@st.composite
def graphs(draw: st.DrawFn) -> TaskGraph:
    n = draw(st.integers(1, 8))
    graph: nx.DiGraph = nx.DiGraph()
    for node in range(n):
        graph.add_node(node, duration_s=0.1, output_bytes=draw(st.sampled_from([0, 10**6])))
    for after in range(1, n):
        for before in draw(st.sets(st.integers(0, after - 1), max_size=3)):
            graph.add_edge(before, after)
    return TaskGraph(graph=graph, fetch=draw(st.booleans()))


LETS_GO_AT_ONCE = TaskBag(
    tasks=9, shape=TaskShape(runs=Constant(seconds=0.01), num_cpus=0), arg_bytes=10**6,
    return_bytes=0, max_in_flight=3, collect="wait",
)  # fmt: skip
"""A value comes from a reply that is handled ahead of the clock."""


@settings(max_examples=25)
@example(LETS_GO_AT_ONCE, [])
@given(st.one_of(BAGS, POOLS, graphs()), st.lists(st.floats(0, 1), max_size=3))
def test_any_workload_moves_legally_and_explains_itself(spec, instants: list[float]) -> None:
    if isinstance(spec, TaskBag):
        played = play(starter(start_task_bag, spec))
    elif isinstance(spec, ActorPool):
        played = play(starter(start_actor_pool, spec))
    else:
        played = play(starter(start_task_graph, spec, draws=False))
    state: dict[int, str] = {}
    for row in in_order(played.rows):
        if row.kind == "task":
            before = state.get(row.number, "")
            assert row.state in LEGAL[before], f"task {row.number}: {before} to {row.state}"
            state[row.number] = row.state
    assert {state[number] for number in played.done.tasks} == {"FINISHED"}
    assert played.outcome.finished == len(set(played.done.tasks))
    ordered = in_order(played.rows)
    for share in instants:
        now = moment(ordered, ordered[int(share * (len(ordered) - 1))].t_ns)
        assert not any("not pending" in kind for kind in pending_causes(now))
        assert status_text(cluster_status(now), verbose=True)
        for resource in BASE:
            rows(now, resource, detail=True)
    end = played.end
    assert rows(end, "objects") == []
    assert cluster_status(end).demands == ()
    ids = {hex_id("task", number) for number in state}
    assert {row["task_id"] for row in rows(end, "tasks")} == ids
