"""The seventeen things that follow from Ray's rules, seen on whole clusters; nothing is tuned.

Numbers are those of the list in the package's README. Constants are Ray's defaults; service times
are those of ``perf.ray_core``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from raysim.raycore.autoscaler.config import AutoscalerConfig, NodeTypeConfig
from raysim.raycore.cloud import CloudSpec, Delay, NodeStart
from raysim.raycore.cluster import NodeOptions
from raysim.raycore.faults import Faults
from raysim.raycore.resources import ResourceSet
from raysim.raycore.scripts import (
    Sleep,
    call_actor,
    create_actor,
    drop,
    get,
    make_group,
    remove_group,
    script,
    sleep,
    submit,
    wait,
    wait_group,
)
from raysim.units import NS_PER_S
from tests.raycore_parts import ray_cluster
from tests.stories.ray_scripts import (
    actor,
    method,
    run,
    seconds,
    starts,
    task,
)

S = NS_PER_S
MINUTE = Sleep(60 * S)


def one_by_one(cluster: Any, ask: Any, n: int = 100) -> Any:
    t0 = seconds(cluster)
    for _ in range(n):
        refs = yield ask()
        yield get(refs)
        yield drop(*refs)
    return (seconds(cluster) - t0) / n


def burst(cluster: Any, asks: Any) -> Any:
    t0 = seconds(cluster)
    refs = []
    for ask in asks:
        refs += yield ask
    yield get(refs)
    yield drop(*refs)
    return seconds(cluster) - t0


def test_1_a_synchronous_task_costs_a_lease_and_a_push_an_actor_call_only_a_push() -> None:
    cluster = ray_cluster(cpus=4)
    no_op, call = task(), method()

    def main(_: Any) -> Any:
        tasks = yield from one_by_one(cluster, lambda: submit(no_op))
        a = yield create_actor(actor())
        yield get((yield call_actor(a, call)))
        calls = yield from one_by_one(cluster, lambda: call_actor(a, call))
        return tasks / calls

    assert 1.7 < run(cluster, main) < 2.4


def test_2_the_driver_sets_the_throughput_of_a_burst_and_four_submitters_are_not_four_times() -> (
    None
):
    cluster = ray_cluster(cpus=64)
    no_op = task()

    def submitter(_: Any) -> Any:
        yield from burst(cluster, [submit(no_op)] * 1000)
        return []

    work = method(script(submitter))

    def main(driver: Any) -> Any:
        one = yield from burst(cluster, [submit(no_op)] * 4000)
        at_least = 4000 * driver.costs.submit_task_ns / S
        assert at_least < one < 2.0 * at_least, "the driver's own thread is not the limit"
        actors = []
        for _ in range(4):
            actors.append((yield create_actor(actor())))
        for a in actors:
            yield get((yield call_actor(a, method())))
        four = yield from burst(cluster, [call_actor(a, work) for a in actors])
        return one / four

    assert 2.2 < run(cluster, main) < 3.7


def test_3_one_caller_is_as_fast_with_one_actor_as_with_thirty_two() -> None:
    cluster = ray_cluster(cpus=64)
    call = method()

    def main(_: Any) -> Any:
        actors = []
        for _ in range(32):
            actors.append((yield create_actor(actor())))
        for a in actors:
            yield get((yield call_actor(a, call)))
        one = yield from burst(cluster, [call_actor(actors[0], call)] * 3200)
        many = yield from burst(cluster, [call_actor(a, call) for a in actors] * 100)
        return one / many

    assert run(cluster, main) == pytest.approx(1, abs=0.15)


def lag_of_64(prestart: bool) -> tuple[float, float]:
    """Seconds from the first to the last start of 64 tasks of a minute; and of one lease."""
    cluster = ray_cluster(cpus=64, config={"prestart_worker_first_driver": prestart})
    long = task(MINUTE)

    def main(_: Any) -> Any:
        yield sleep(5 * S)
        yield get((yield submit(task())))
        t0 = seconds(cluster)
        refs = []
        for _ in range(64):
            refs += yield submit(long)
        yield wait(refs, len(refs))
        return t0, refs

    t0, refs = run(cluster, main)
    times = [t for t, _ in starts(cluster, refs)]
    assert len(times) == 64
    assert all(t < t0 + 60 for t in times)
    return times[-1] - times[0], times[0] - t0


def test_4_ten_lease_requests_at_a_time_fill_a_big_node() -> None:
    lag, first = lag_of_64(prestart=True)
    rounds = 64 / 10
    assert lag < 2 * rounds * max(first, 64 * 70e-6 / rounds)
    assert lag > 0.5 * (rounds - 1) * 150e-6


def test_4_cold_workers_are_started_all_at_once_by_the_first_requests() -> None:
    """``PrestartWorkers``: by the backlog, though only ten leases are asked for at a time."""
    warm, _ = lag_of_64(prestart=True)
    cold, _ = lag_of_64(prestart=False)
    assert 20 * warm < cold < 2, "less than two slow ones take, one after the other"


def placed(nodes: int, cpus: int, n: int, **options: Any) -> list[int]:
    """Tasks per node of n long tasks submitted a second apart, so that views are fresh."""
    cluster = ray_cluster(nodes, cpus=cpus)
    long = task(Sleep(3600 * S), **options)

    def main(_: Any) -> Any:
        refs = []
        for _ in range(n):
            refs += yield submit(long)
            yield sleep(3 * S)
        return refs

    refs = run(cluster, main)
    nodes_of = [node for _, node in starts(cluster, refs)]
    return [nodes_of.count(k) for k in range(nodes)]


def test_5_nodes_fill_to_half_one_after_another_and_then_evenly() -> None:
    assert placed(4, 8, 4) == [4, 0, 0, 0]
    below = placed(4, 8, 16)
    assert sum(below) == 16
    assert max(below) <= 8
    full = placed(4, 8, 32)
    assert full == [8, 8, 8, 8]


def test_6_cpu_tasks_keep_off_gpu_nodes_while_others_are_free() -> None:
    gpu = {0: NodeOptions(), 1: NodeOptions(resources={"GPU": 4}), 2: NodeOptions()}
    cluster = ray_cluster(3, cpus=2, options=gpu)
    long = task(Sleep(3600 * S))

    def main(_: Any) -> Any:
        refs = []
        for _ in range(6):
            refs += yield submit(long)
            yield sleep(3 * S)
        return refs

    refs = run(cluster, main)
    order = [node for _, node in starts(cluster, refs)]
    assert sorted(order[:4]) == [0, 0, 2, 2]
    assert order[4:] == [1, 1]


def test_7_nested_tasks_deeper_than_the_cpus_still_end_by_ever_slower_extra_grants() -> None:
    cluster = ray_cluster(cpus=1)
    depth = 6

    def recurse(running: Any) -> Any:
        if running.spec.depth < depth:
            yield get((yield submit(nested)))
        return []

    nested = task(script(recurse))

    def main(_: Any) -> Any:
        return (yield get((yield submit(nested))))

    assert not isinstance(run(cluster, main)[0], Exception)
    assert len(starts(cluster)) == depth


def test_7_one_class_at_its_cap_gets_one_more_lease_after_1_2_4_8_10_10_seconds() -> None:
    cluster = ray_cluster(cpus=1)

    def block(_: Any) -> Any:
        yield get((yield submit(never)))
        return []

    never = task(resources={"nowhere": 1})
    inner = task(script(block))

    def main(_: Any) -> Any:
        refs = []
        for _ in range(8):
            refs += yield submit(inner)
        yield sleep(120 * S)
        return refs

    refs = run(cluster, main)
    times = [t for t, _ in starts(cluster, refs)]
    gaps = [b - a for a, b in pairwise(times)]
    # the raylet looks once a second, and a new process takes about 0.7 s to start
    for gap, backoff in zip(gaps, [1, 2, 4, 8, 10, 10], strict=False):
        assert backoff - 0.7 < gap < backoff + 1 + 1.2


def test_8_two_classes_share_a_node_equally() -> None:
    cluster = ray_cluster(cpus=16)
    a, b = task(Sleep(S), function_name="a"), task(Sleep(S), function_name="b")

    def main(_: Any) -> Any:
        first: list[Any] = []
        second: list[Any] = []
        for _ in range(200):
            first += yield submit(a)
            second += yield submit(b)
        yield sleep(10 * S)
        return first, second

    first, second = run(cluster, main, until="30s")
    of_a = [t for t, _ in starts(cluster, first) if 5 <= t < 11]
    of_b = [t for t, _ in starts(cluster, second) if 5 <= t < 11]
    assert len(of_a) + len(of_b) >= 80
    assert len(of_a) == pytest.approx(len(of_b), rel=0.25)


def test_13_a_cut_network_is_noticed_after_a_minute_a_killed_raylet_after_15_seconds() -> None:
    def noticed(how: str) -> float:
        cluster = ray_cluster(2)
        faults = Faults(cluster)
        cluster.sim.at("100s", getattr(faults, how), 1)
        cluster.sim.run("300s")
        dead = [r for r in cluster.env.log.rows if r.kind == "node" and r.state == "DEAD"]
        return dead[0].t_ns / S - 100

    assert 60 < noticed("partition") <= 66
    assert 60 < noticed("fail_node") <= 66
    assert 11 < noticed("kill_raylet") <= 18


def test_14_a_quiet_second_makes_a_large_burst_pay_process_starts_again() -> None:
    def processes_started_after(quiet_s: float) -> int:
        cluster = ray_cluster(cpus=4, costs={"worker_start_core_s": 0.05})
        short = task(Sleep(2 * S), cpus=0.25)

        def main(_: Any) -> Any:
            for _ in range(2):  # the first makes the processes, the second uses all of them
                yield from burst(cluster, [submit(short)] * 16)
            yield sleep(int(quiet_s * S))
            t0 = seconds(cluster)
            yield from burst(cluster, [submit(short)] * 16)
            return t0

        t0 = run(cluster, main)
        rows = [r for r in cluster.env.log.rows if r.kind == "worker" and r.state == "STARTING"]
        return sum(r.t_ns / S >= t0 for r in rows)

    assert processes_started_after(0.1) == 0
    assert processes_started_after(3.0) == 12 + 1, "and one ahead that nobody needed"


def launches(upscaling_speed: float | None) -> list[float]:
    """When nodes were asked for, seconds, by an autoscaler facing a hundred one-node tasks."""
    worker = NodeTypeConfig(name="worker", resources={"CPU": 4}, min_workers=0, max_workers=60)
    cluster = ray_cluster(
        1, max_nodes=60, cpus=4,
        autoscaling=AutoscalerConfig(node_types=(worker,), upscaling_speed=upscaling_speed),
        clouds=CloudSpec(starts={"worker": NodeStart(request=Delay(median_s=100))}),
    )  # fmt: skip
    asked: list[float] = []
    launch = cluster.cloud.launch

    def noticed(node_type: str, then: Any) -> None:
        asked.append(seconds(cluster))
        launch(node_type, then)

    cluster.cloud.launch = noticed  # type: ignore[method-assign]

    def main(_: Any) -> Any:
        for _ in range(100):
            yield submit(task(Sleep(3600 * S), cpus=4))
        yield sleep(99 * S)

    run(cluster, main)
    return [t for t in asked if t < 99]


def test_15_ten_nodes_at_most_are_pending_and_one_at_a_time_by_default() -> None:
    slow = launches(None)
    gaps = [b - a for a, b in pairwise(slow)]
    assert len(slow) == 10
    assert gaps == pytest.approx([5] * 9, abs=0.01)
    eager = launches(100.0)
    assert len(eager) == 10
    assert eager[0] == eager[-1]


def test_16_groups_are_made_one_at_a_time_and_one_that_cannot_fit_does_not_hold_up_others() -> None:
    cluster = ray_cluster(1, cpus=4)
    some, most = ResourceSet.of({"CPU": 3}), ResourceSet.of({"CPU": 2})

    def main(driver: Any) -> Any:
        first = yield make_group([some])
        assert (yield wait_group(first))
        waiting = yield make_group([most])
        yield sleep(5 * S)
        t0 = seconds(cluster)
        small = yield make_group([ResourceSet.of({"CPU": 1})])
        assert (yield wait_group(small))
        quick = seconds(cluster) - t0
        yield remove_group(first)
        t1 = seconds(cluster)
        assert (yield wait_group(waiting))
        return quick, seconds(cluster) - t1

    quick, waited = run(cluster, main)
    assert quick < 0.02
    assert waited < 1.1, "it tries again at least every second"
