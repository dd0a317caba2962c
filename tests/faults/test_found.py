"""What seeded chaos has found, each as a small story that would fail without its repair."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raysim.kernel.component import RoomDown
from raysim.raycore import scripts
from raysim.raycore.checks import leaks
from raysim.raycore.cluster import Cluster, NodeOptions
from raysim.raycore.faults import Faults
from raysim.raycore.protocol import GetObjectStatus, raylet
from raysim.raycore.resources import ResourceSet
from raysim.raycore.scripts import create_actor, drop, get, put, sleep
from raysim.raycore.tasks import NodeAffinity, Payload
from raysim.units import NS_PER_S
from tests.raycore_parts import ray_cluster
from tests.stories.ray_scripts import actor, method, run, task

S = NS_PER_S


@pytest.mark.parametrize("after_s", [0.05, 0.9, 5.0, 30.0])
@pytest.mark.parametrize("how", ["kill_raylet", "fail_node"])
def test_a_node_that_comes_back_stays(how: str, after_s: float) -> None:
    cluster = ray_cluster(3, check=True)
    faults = Faults(cluster)
    cluster.sim.at("10s", getattr(faults, how), 1)
    cluster.sim.at(int((10 + after_s) * S), faults.restart_node, 1)
    cluster.sim.run("300s")
    assert cluster.is_up(1)
    assert list(cluster.gcs.tables.nodes) == [0, 2, 1]
    there = task(strategy=NodeAffinity(node_id=1))

    def main(_: Any) -> Any:
        return (yield get((yield scripts.submit(there))))

    assert isinstance(run(cluster, main)[0], Payload)


def test_a_raylet_that_exits_by_itself_is_missed_by_the_health_checks() -> None:
    cluster = ray_cluster(2)
    cluster.sim.run("30s")
    cluster.end_processes(1, "it gave up")
    cluster.sim.run("60s")
    assert list(cluster.gcs.tables.nodes) == [0]


def test_workers_of_a_driver_that_died_before_its_job_was_known_leave() -> None:
    cluster = ray_cluster(1, cpus=2)
    driver = cluster.driver()
    cluster.sim.at("0.3s", Faults(cluster).kill_worker, driver.me.worker_id)
    cluster.sim.run("60s")
    assert not cluster.processes


def test_a_request_that_is_cancelled_is_answered() -> None:
    cluster = ray_cluster(2, check=True)

    def main(driver: Any) -> Any:
        refs = yield scripts.submit(task(scripts.Sleep(60 * S)))
        big = yield put(Payload(10**6))
        later = yield scripts.submit(task(strategy=NodeAffinity(node_id=1)), [big])
        yield scripts.cancel(later[0])
        yield get(later)
        yield drop(*later, big)
        yield get(refs)
        yield drop(*refs)
        yield sleep(30 * S)
        return driver

    run(cluster, main)
    assert not left(cluster)


def left(cluster: Cluster) -> list[str]:
    """What is left when a story is over."""
    cluster.sim.run(cluster.sim.now_ns + 100 * S)
    return leaks(cluster)


def test_a_node_that_came_back_while_the_gcs_was_away_is_a_new_node() -> None:
    cluster = ray_cluster(2, check=True, config={"gcs_storage": "redis"})
    faults = Faults(cluster)
    cluster.sim.at("10s", faults.kill_gcs, "10s")
    cluster.sim.at("12s", faults.fail_node, 1)
    cluster.sim.at("13s", faults.restart_node, 1)
    there = task(scripts.Sleep(30 * S), strategy=NodeAffinity(node_id=1))

    def main(_: Any) -> Any:
        refs = yield scripts.submit(there)
        yield get(refs)
        yield drop(*refs)

    run(cluster, main)
    starts = [r for r in cluster.env.log.rows if r.kind == "task" and r.state == "RUNNING"]
    assert [r.node_id for r in starts] == [1, 1]
    assert not left(cluster)


def test_a_lease_of_an_owner_that_died_before_its_request_arrived_is_not_kept() -> None:
    cluster = ray_cluster(2, cpus=1, check=True)
    faults = Faults(cluster)
    driver = cluster.driver()
    cluster.sim.run("5s")
    faults.partition(1)
    driver.submit_task(task(scripts.Sleep(1000 * S), strategy=NodeAffinity(node_id=1)), ())
    cluster.sim.run("6s")
    faults.kill_worker(driver.me.worker_id)
    cluster.sim.run("10s")
    faults.heal(1)
    assert not left(cluster)


def test_creates_of_a_process_that_died_are_not_kept() -> None:
    cluster = ray_cluster(
        1, check=True, options={0: NodeOptions(object_store_bytes=10**8)},
        config={"object_spilling_threshold": 1.0},
    )  # fmt: skip
    driver = cluster.driver()
    cluster.sim.run("5s")
    for _ in range(3):
        driver.put(Payload(6 * 10**7), lambda _: None)
    cluster.sim.run("5.5s")
    Faults(cluster).kill_worker(driver.me.worker_id)
    assert not left(cluster)


def test_a_request_for_a_lease_may_come_twice() -> None:
    cluster = ray_cluster(1, cpus=1, check=True)
    driver = cluster.driver()
    cluster.sim.run("5s")
    refs = driver.submit_task(task(scripts.Sleep(5 * S)), ())
    cluster.sim.run("6s")
    room: Any = cluster.sim.components[raylet(0)]
    first = next(iter(room.leases.values()))
    answers: list[Any] = []
    driver.call(raylet(0), first.request, answers.append)
    cluster.sim.run("7s")
    assert answers[0].worker == first.worker.address
    driver.remove_local_reference(refs[0].object_id)
    assert not left(cluster)


def test_what_a_node_had_sent_is_lost_with_its_power() -> None:
    cluster = ray_cluster(2, check=True)
    faults = Faults(cluster)
    cluster.sim.run("10s")
    faults.partition(1)
    faults.fail_node(1)
    faults.restart_node(1)  # what registers it waits for the cable
    faults.fail_node(1)
    faults.heal(1)
    cluster.sim.run("200s")
    assert list(cluster.gcs.tables.nodes) == [0]


def test_a_raylet_that_died_before_its_registration_arrived_is_found_dead() -> None:
    cluster = ray_cluster(2, check=True)
    faults = Faults(cluster)
    cluster.sim.run("10s")
    faults.partition(1)
    faults.kill_raylet(1)
    faults.restart_node(1)
    faults.kill_raylet(1)
    faults.heal(1)
    cluster.sim.run("200s")
    assert list(cluster.gcs.tables.nodes) == [0]


def test_calls_of_the_dead_of_a_node_that_came_back_are_refused() -> None:
    cluster = ray_cluster(2, check=True)
    faults = Faults(cluster)
    other = cluster.driver(node_id=1)
    driver = cluster.driver()
    cluster.sim.run("10s")
    faults.fail_node(1)
    faults.restart_node(1)
    answers: list[Any] = []
    driver.call(other.address, GetObjectStatus(1), answers.append)
    cluster.sim.run("20s")
    assert isinstance(answers[0], RoomDown)


def test_what_a_gcs_asked_before_it_died_is_not_granted_afterwards() -> None:
    cluster = ray_cluster(2, cpus=2, check=True, config={"gcs_storage": "redis"})
    faults = Faults(cluster)
    cluster.sim.at("5s", faults.partition, 0)
    cluster.sim.at("7s", faults.kill_gcs, "5s")
    cluster.sim.at("30s", faults.heal, 0)

    there = replace(actor(cpus=1), strategy=NodeAffinity(node_id=1))

    def main(_: Any) -> Any:
        yield sleep(6 * S)
        a = yield create_actor(there)
        refs = yield scripts.call_actor(a, method())
        yield get(refs)
        yield drop(*refs)
        yield scripts.drop_actor(a)

    run(cluster, main)
    assert not left(cluster)


def test_a_raylet_that_is_not_known_yet_grants_nothing() -> None:
    cluster = ray_cluster(2, check=True, config={"gcs_storage": "redis"})
    faults = Faults(cluster)
    cluster.sim.at("6s", faults.kill_gcs, "20s")
    cluster.sim.at("8s", faults.fail_node, 1)
    cluster.sim.at("9s", faults.restart_node, 1)

    def main(_: Any) -> Any:
        yield sleep(5 * S)
        refs = yield scripts.submit(task(strategy=NodeAffinity(node_id=1)))
        yield sleep(5 * S)
        more = yield scripts.submit(task(strategy=NodeAffinity(node_id=1)))
        yield get(more)
        yield drop(*refs, *more)

    run(cluster, main)
    granted = [r for r in cluster.env.log.rows if r.kind == "lease" and r.state == "GRANTED"]
    assert granted[-1].t_ns > 26 * S
    assert not left(cluster)


def test_what_a_dead_node_was_sending_does_not_stand_in_the_way_of_making_it_again() -> None:
    cluster = ray_cluster(2, check=True)
    faults = Faults(cluster)
    cluster.sim.at("6s", faults.slow_links, 1, 0.0001)
    big = task(scripts.Return([50_000_000]), strategy=NodeAffinity(node_id=1, soft=True))

    def main(_: Any) -> Any:
        yield sleep(5 * S)
        refs = yield scripts.submit(big)
        yield sleep(5 * S)
        cluster.sim.call_later(S, faults.kill_raylet, 1)
        values = yield get(refs, timeout_ns=300 * S)
        yield drop(*refs)
        return values

    assert run(cluster, main)[0].size_bytes == 50_000_000
    assert not left(cluster)


def test_what_a_constructor_took_does_not_count_for_the_actors_life() -> None:
    cluster = ray_cluster(
        1, cpus=4, check=True, options={0: NodeOptions(object_store_bytes=100_000_000)}
    )

    def main(_: Any) -> Any:
        first = yield put(Payload(40_000_000))
        a = yield create_actor(actor(), [first])
        yield get((yield scripts.call_actor(a, method())))
        second = yield put(Payload(40_000_000))
        refs = yield scripts.submit(task(), [second])
        answer = yield get(refs, timeout_ns=60 * S)
        yield drop(first, second, *refs)
        yield scripts.drop_actor(a)
        return answer

    assert isinstance(run(cluster, main), list)


def test_bundles_are_not_prepared_on_a_raylet_that_is_not_known_yet() -> None:
    cluster = ray_cluster(2, cpus=1, check=True, config={"gcs_storage": "redis"})
    faults = Faults(cluster)
    cluster.sim.at("3s", faults.kill_gcs, "10s")
    cluster.sim.at("5s", faults.fail_node, 1)
    cluster.sim.at("6s", faults.restart_node, 1)

    def main(_: Any) -> Any:
        yield sleep(2 * S)
        group = yield scripts.make_group([ResourceSet.of({"CPU": 1})] * 2, "STRICT_SPREAD")
        yield sleep(60 * S)
        yield scripts.remove_group(group)

    run(cluster, main)
    assert not left(cluster)
