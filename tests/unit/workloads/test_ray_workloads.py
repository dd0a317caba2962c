"""Workloads on a small emulated cluster, against arithmetic."""

from __future__ import annotations

import itertools
from collections import Counter

import networkx as nx
import pytest

from raysim.raycore.ids import WorkerAddress
from raysim.raycore.tasks import Ref
from raysim.raystate.listings import rows
from raysim.units import NS_PER_S
from raysim.workloads.ray.actor_pool import ActorPool, start_actor_pool
from raysim.workloads.ray.arrivals import Arrivals, Poisson, Times, arrival_times_s, start_arrivals
from raysim.workloads.ray.broadcast import Broadcast, start_broadcast
from raysim.workloads.ray.dag import TaskGraph, start_task_graph
from raysim.workloads.ray.durations import Constant, LogNormal
from raysim.workloads.ray.shapes import TaskShape
from raysim.workloads.ray.shuffle import Shuffle, start_shuffle
from raysim.workloads.ray.task_bag import TaskBag, start_task_bag
from tests.unit.workloads.ray_cases import Played, play, ran_s, starter

MB = 10**6


def asleep(seconds: float, **more) -> TaskShape:
    return TaskShape(runs=Constant(seconds=seconds), uses="time", **more)


def bag(**settings) -> Played:
    return play(starter(start_task_bag, TaskBag(**settings)))


def nothing_left(played: Played) -> bool:
    """Every object is gone."""
    return not rows(played.end, "objects")


# ---- task bag ------------------------------------------------------------------------------------


def test_as_many_tasks_as_cpus_take_one_tasks_time() -> None:
    played = bag(tasks=32, shape=asleep(1.0))
    assert played.done.error is None
    assert played.outcome.finished == 32
    assert 1.0 < played.outcome.makespan_s < 1.1
    assert nothing_left(played)


def test_no_more_in_flight_than_asked() -> None:
    played = bag(tasks=20, shape=asleep(0.1), max_in_flight=5)
    assert played.outcome.finished == 20
    assert played.most_at_once() == 5
    assert played.outcome.makespan_s > 0.4
    assert nothing_left(played)


@pytest.mark.parametrize("collect", ["get", "wait"])
def test_large_arguments_are_put_and_let_go(collect: str) -> None:
    played = bag(tasks=6, arg_bytes=10 * MB, return_bytes=20 * MB, collect=collect)
    made = Counter(row.detail[0] for row in played.rows if row.state == "CREATED")
    assert made == {10 * MB: 6, 20 * MB: 6}
    assert nothing_left(played)


def test_small_arguments_travel_in_the_spec() -> None:
    played = bag(tasks=3, arg_bytes=1000)
    specs = [attempt.spec for attempt in played.attempts()]
    assert [spec.args[1].size_bytes for spec in specs if spec] == [1000] * 3
    assert not any(row.state == "CREATED" for row in played.rows)


def test_submitters_own_what_they_submit() -> None:
    played = bag(tasks=9, submitters=2, shape=asleep(0.1, name="inner"))
    outer = played.attempts("submitter")
    inner = played.attempts("inner")
    assert (len(outer), len(inner)) == (2, 9)
    parents = Counter(attempt.spec.parent for attempt in inner if attempt.spec)
    assert parents == {outer[0].task_id: 5, outer[1].task_id: 4}
    assert nothing_left(played)


def test_same_seed_same_run_and_another_seed_another() -> None:
    spec = TaskBag(tasks=20, shape=TaskShape(runs=LogNormal(median_s=0.1, sigma=1)))
    runs = [play(starter(start_task_bag, spec), seed=seed) for seed in (1, 1, 2)]
    assert runs[0].digest == runs[1].digest
    assert runs[0].outcome == runs[1].outcome
    assert runs[0].outcome.makespan_s != runs[2].outcome.makespan_s


# ---- graph ---------------------------------------------------------------------------------------


def diamond() -> nx.DiGraph:
    graph = nx.DiGraph()
    for node in "abcd":
        graph.add_node(node, duration_s=0.5, name=node, uses="time", output_bytes=MB)
    graph.add_edges_from([("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])
    return graph


@pytest.mark.parametrize("keep", [False, True])
def test_a_graph_takes_its_critical_path(keep: bool) -> None:
    spec = TaskGraph(graph=diamond(), keep_references=keep)
    played = play(starter(start_task_graph, spec, draws=False))
    assert 1.5 < played.outcome.makespan_s < 1.6
    times = {a.spec.name.rpartition(".")[2]: ran_s(a) for a in played.attempts() if a.spec}
    for before, after in diamond().edges:
        assert times[before][1] <= times[after][0]
    assert nothing_left(played)


def test_nodes_in_any_order_are_submitted_arguments_first() -> None:
    graph = nx.DiGraph()
    graph.add_edge("late", "later")
    graph.add_edge("early", "late")
    for node in graph:
        graph.nodes[node].update(duration_s=0.0, name=node)
    played = play(starter(start_task_graph, TaskGraph(graph=graph), draws=False))
    names = [a.spec.name for a in played.attempts() if a.spec]
    assert names == ["workload.early", "workload.late", "workload.later"]


# ---- actors --------------------------------------------------------------------------------------


def test_calls_are_shared_by_actors_one_at_a_time() -> None:
    spec = ActorPool(actors=4, calls=40, shape=asleep(0.1, name="A"), return_bytes=10)
    played = play(starter(start_actor_pool, spec))
    assert played.outcome.finished == 40
    assert played.most_at_once() == 4
    by_worker = Counter(attempt.worker_id for attempt in played.attempts("call"))
    assert sorted(by_worker.values()) == [10, 10, 10, 10]
    states = {entry.state for entry in played.end.actors.values()}
    assert states == {"DEAD"}
    assert nothing_left(played)


def test_calls_sent_at_once_queue_at_their_actors() -> None:
    spec = ActorPool(actors=2, calls=6, in_flight=0, shape=asleep(0.1, name="A"))
    played = play(starter(start_actor_pool, spec))
    workers = [attempt.worker_id for attempt in played.attempts("call")]
    assert workers[0::2] == [workers[0]] * 3
    assert workers[1::2] == [workers[1]] * 3


def test_init_holds_up_the_first_calls() -> None:
    spec = ActorPool(actors=1, calls=1, init_s=5.0, shape=asleep(0.1, name="A"))
    played = play(starter(start_actor_pool, spec))
    assert played.outcome.makespan_s > 5.1


# ---- shuffle, broadcast --------------------------------------------------------------------------


def test_a_shuffle_makes_every_partition_once() -> None:
    spec = Shuffle(mappers=3, reducers=4, total_bytes=12 * MB, output_bytes=10)
    played = play(starter(start_shuffle, spec))
    made = [row for row in played.rows if row.state == "CREATED"]
    assert [row.detail[0] for row in made] == [MB] * 12
    reducers = played.attempts("reduce")
    assert len(reducers) == 4
    taken = [
        arg.object_id
        for attempt in reducers
        if attempt.spec
        for arg in attempt.spec.args
        if isinstance(arg, Ref)
    ]
    assert sorted(taken) == sorted(row.number for row in made)
    assert nothing_left(played)


def test_a_broadcast_reaches_every_node() -> None:
    spec = Broadcast(object_bytes=100 * MB, receivers=4, nodes=(0, 1, 2, 3))
    played = play(starter(start_broadcast, spec), nodes=4)
    assert [attempt.node_id for attempt in played.attempts()] == [0, 1, 2, 3]
    copies = {row.node_id for row in played.rows if row.state == "COPY"}
    assert copies == {1, 2, 3}
    assert nothing_left(played)


def test_a_chain_of_receivers_takes_one_after_another() -> None:
    spec = Broadcast(object_bytes=MB, receivers=4, nodes=(0, 1, 2, 3), fan_out=1)
    times = [ran_s(a) for a in play(starter(start_broadcast, spec), nodes=4).attempts()]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(times))


# ---- arrivals ------------------------------------------------------------------------------------


def test_tasks_are_submitted_when_they_arrive() -> None:
    spec = Arrivals(times=Times(seconds=(0.0, 0.5, 2.0, 2.0)), shape=asleep(0.01))
    attempts = play(starter(start_arrivals, spec)).attempts()
    starts = [attempt.first_ns("PENDING_NODE_ASSIGNMENT") for attempt in attempts]
    first = starts[0]
    assert first is not None
    assert [round((t - first) / NS_PER_S, 2) for t in starts if t] == [0.0, 0.5, 2.0, 2.0]


def test_poisson_has_its_rate() -> None:
    from raysim.kernel.rng import Streams

    times = Poisson(rate_per_s=100, duration_s=100)
    drawn = arrival_times_s(times, Streams(3)("a"))
    assert 9_600 < len(drawn) < 10_400
    assert drawn == sorted(drawn)
    assert drawn[-1] < 100
    assert drawn == arrival_times_s(times, Streams(3)("a"))


def test_no_arrivals_end_at_once() -> None:
    spec = Arrivals(times=Poisson(rate_per_s=1e-9, duration_s=1))
    assert play(starter(start_arrivals, spec)).done.tasks == []


def test_the_driver_of_a_case_is_the_first_process() -> None:
    played = bag(tasks=1)
    (attempt,) = played.attempts()
    assert attempt.spec is not None
    assert isinstance(attempt.spec.caller, WorkerAddress)
    assert played.end.workers[attempt.spec.caller.worker_id].worker_type == "DRIVER"
