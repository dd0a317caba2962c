"""Specs say what is wrong with them, all at once; distributions and outcomes are arithmetic."""

from __future__ import annotations

import math

import networkx as nx
import pytest

from raysim.errors import ScenarioError
from raysim.kernel.rng import Streams
from raysim.raycore.resources import CPU, GPU, MEMORY, UNIT
from raysim.workloads.ray.actor_pool import ActorPool
from raysim.workloads.ray.arrivals import Poisson, Times
from raysim.workloads.ray.broadcast import Broadcast
from raysim.workloads.ray.dag import TaskGraph
from raysim.workloads.ray.durations import (
    Constant,
    Empirical,
    Exponential,
    LogNormal,
    Uniform,
    draw_s,
)
from raysim.workloads.ray.outcome import outcome
from raysim.workloads.ray.shapes import TaskShape, actor_class
from raysim.workloads.ray.shuffle import Shuffle
from raysim.workloads.ray.task_bag import TaskBag
from tests.unit.results.ray_cases import Story, options


def graph(*edges: tuple[str, str], **attributes) -> nx.DiGraph:
    made = nx.DiGraph(edges)
    for node in made:
        made.nodes[node].update({"duration_s": 1.0} | attributes)
    return made


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TaskBag(tasks=0), "task_bag.tasks: must be at least 1 (got 0)"),
        (lambda: TaskBag(tasks=1.5), "task_bag.tasks: must be a whole number (got 1.5)"),
        (lambda: TaskBag(tasks=2, submitters=3), "submitters: more than there are tasks (2)"),
        (lambda: TaskBag(tasks=2, collect="drop"), "must be get or wait (got 'drop')"),
        (lambda: TaskShape(num_cpus=-1), "task.num_cpus: must be at least 0 (got -1)"),
        (lambda: TaskShape(num_gpus=1.5), "task.num_gpus: above 1 must be whole (got 1.5)"),
        (lambda: TaskShape(resources={"CPU": 1}), "resources.CPU: has a setting of its own"),
        (lambda: TaskShape(uses="gpu"), "task.uses: must be cores or time (got 'gpu')"),
        (lambda: Constant(seconds=math.nan), "constant.seconds: must be at least 0 (got nan)"),
        (lambda: Uniform(low_s=2, high_s=1), "uniform.high_s: must be at least 2 (got 1)"),
        (lambda: Exponential(mean_s=0), "exponential.mean_s: must be more than 0 (got 0)"),
        (lambda: LogNormal(median_s=1, sigma=-1), "lognormal.sigma: must be at least 0"),
        (lambda: Empirical(seconds=()), "empirical.seconds: needs at least one value"),
        (lambda: Empirical(seconds=(1, -1)), "empirical.seconds[1]: must be at least 0"),
        (lambda: ActorPool(actors=0, calls=1), "actor_pool.actors: must be at least 1"),
        (lambda: Shuffle(mappers=9, reducers=9, total_bytes=80), "less than one byte for 81"),
        (lambda: Broadcast(object_bytes=1, receivers=1, nodes=(-1,)), "broadcast.nodes[0]:"),
        (lambda: Poisson(rate_per_s=0, duration_s=1), "poisson.rate_per_s: must be more than 0"),
        (lambda: Times(seconds=(1, 0.5)), "times.seconds[1]: must be at least 1 (got 0.5)"),
        (lambda: TaskGraph(graph=nx.DiGraph()), "graph.graph: has no tasks"),
        (lambda: TaskGraph(graph=nx.Graph([(1, 2)])), "graph.graph: must be directed"),
        (lambda: TaskGraph(graph=nx.DiGraph([(1, 2)])), "graph.1: has no duration_s"),
        (
            lambda: TaskGraph(graph=graph(("a", "b"), ("b", "a"), ("a", "c"))),
            "graph.graph: has a cycle: 3 tasks wait for each other",
        ),
        (
            lambda: TaskGraph(graph=graph(("a", "b"), cpus=2)),
            "graph.'a'.cpus: is not one of duration_s, num_cpus",
        ),
    ],
)
def test_what_is_wrong_is_said(make, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        make()
    assert message in str(caught.value)


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(ScenarioError) as caught:
        TaskBag(tasks=0, arg_bytes=-1, return_bytes=-1)
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("duration", "mean_s"),
    [
        (Constant(seconds=2), 2),
        (Uniform(low_s=1, high_s=3), 2),
        (Exponential(mean_s=2), 2),
        (LogNormal(median_s=2, sigma=0.5), 2 * math.exp(0.125)),
        (Empirical(seconds=(1, 3)), 2),
    ],
)
def test_means(duration, mean_s: float) -> None:
    drawn = draw_s(duration, Streams(5)("d"), 20_000)
    assert sum(drawn) / len(drawn) == pytest.approx(mean_s, rel=0.03)
    assert drawn == draw_s(duration, Streams(5)("d"), 20_000)


def test_shape_asks_for_what_it_says() -> None:
    shape = TaskShape(num_cpus=2, num_gpus=0.5, memory_bytes=1000, resources={"tpu": 1})
    wanted = {CPU: 2 * UNIT, GPU: UNIT // 2, MEMORY: 1000 * UNIT, "tpu": UNIT}
    assert dict(shape.resource_set()) == wanted
    assert shape.options().max_calls == 1
    assert TaskShape().options().max_calls == 0


def test_an_actor_without_reserved_cpu_needs_one_to_be_placed() -> None:
    from raysim.raycore.tasks import ActorOptions

    shape = TaskShape(num_gpus=1)
    loose = actor_class(shape, ActorOptions(), reserve_cpu=False)
    assert dict(loose.resources) == {GPU: UNIT}
    assert dict(loose.placement_resources or {}) == {CPU: UNIT, GPU: UNIT}
    firm = actor_class(shape, ActorOptions(), reserve_cpu=True)
    assert dict(firm.resources) == {CPU: UNIT, GPU: UNIT}
    assert firm.placement_resources is None


def test_outcome_counts_and_measures() -> None:
    story = Story()
    for task_id in (1, 2, 3):
        spec = story.submit(task_id, options(), 0)
    story.run(1, 9, 5)
    story.finish(1, 110)
    story.run(2, 19, 6)
    story.fail(2, 30)
    story.submit(2, spec.options, 31)
    story.run(2, 40, 7)
    story.finish(2, 220)
    story.fail(3, 50, "TASK_CANCELLED")
    found = outcome(story.rows)
    assert (found.tasks, found.finished, found.failed, found.attempts) == (3, 2, 1, 4)
    assert found.makespan_s == pytest.approx(0.220)
    assert found.tasks_per_s == pytest.approx(2 / 0.220)
    assert found.latencies["wait"].p50_s == pytest.approx(0.015)
    assert found.latencies["wait"].p95_s == pytest.approx(0.0195)
    assert found.latencies["run"].max_s == pytest.approx(0.200)
    assert found.latencies["total"].mean_s == pytest.approx(0.165)
    assert outcome(story.rows, [1]).tasks == 1


def test_nothing_has_no_latency() -> None:
    found = outcome([])
    assert (found.tasks, found.makespan_s, found.tasks_per_s, found.latencies) == (0, 0, 0, {})
