"""The controller on an emulated cluster: starts, scaling, updates, deaths, drains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raysim.raycore.cluster import Cluster
from raysim.raycore.faults import Faults
from raysim.raylibs.serve.config import AutoscalingConfig, DeploymentConfig, Work
from raysim.raylibs.serve.load import OpenLoop, Trace
from raysim.raylibs.serve.run import Running
from tests.unit.raylibs.serve.parts import app, later, one, serve, steady

BURST = OpenLoop(rate=((0, 2), (60, 2), (60.001, 60), (400, 60), (400.001, 2)), duration_s=900)
SCALES = AutoscalingConfig(max_replicas=10, downscale_delay_s=120.0)


def test_an_application_comes_up_and_serves() -> None:
    served = serve(one(Work(wait_s=0.1), num_replicas=3, constructor_s=20.0), steady(5, 30))
    assert served.log.statuses == {"ok": len(served.log)}
    assert 20.0 < served.up_s < 25.0
    assert sorted(served.running.instance.proxies) == [0, 1, 2]


def test_a_burst_is_answered_after_ten_and_thirty_seconds() -> None:
    """The step of section 3.4: a report, the delay, and the replica's own start."""
    served = serve(one(Work(wait_s=0.2), autoscaling=SCALES, constructor_s=8.0), BURST)
    decided_s, wanted = served.targets()[0]
    assert 60 + 30 < decided_s < 60 + 10 + 6 + 30 + 1, "a sample, a report, the delay"
    assert wanted == 10
    ready_s = next(t for t, n in served.replicas() if n > 1)
    assert decided_s + 8 < ready_s < decided_s + 12
    down = [(t, n) for t, n in served.targets() if n < 6]
    assert down[0][0] >= 400 + 120 - 10
    assert served.log.statuses == {"ok": len(served.log)}


def test_from_zero_the_first_request_starts_a_replica_at_once() -> None:
    scales = AutoscalingConfig(min_replicas=0, max_replicas=3, downscale_delay_s=30.0)
    served = serve(one(Work(wait_s=0.1), autoscaling=scales), Trace(times_s=(1.0, 200.0)))
    assert served.log.statuses == {"ok": 2}
    assert served.targets()[0] == (pytest.approx(1.0, abs=0.2), 1)
    assert served.running.timeline.runs["model"][-1][1] == 0
    assert served.log.latency_s.max() < 3.0


def test_a_rolling_update_never_stops_more_than_a_fifth() -> None:
    def update(cluster: Cluster, running: Running) -> None:
        config = running.instance.app.deployment("model")
        later(cluster, 20, lambda: running.controller.redeploy(replace(config, version="2")))

    served = serve(one(Work(wait_s=0.1), num_replicas=10), steady(20, 120), during=update)
    assert min(n for _, n in served.replicas()) == 8
    assert served.replicas()[-1][1] == 10
    assert {r.config.version for r in served.running.instance.running["model"]} == {"2"}
    assert served.log.statuses == {"ok": len(served.log)}, "no request is lost to an update"


def test_a_graceful_stop_waits_for_requests_and_a_kill_does_not() -> None:
    def update(cluster: Cluster, running: Running) -> None:
        config = running.instance.app.deployment("model")
        later(cluster, 5, lambda: running.controller.redeploy(replace(config, version="2")))

    lost = {}
    for patience_s in (20.0, 3.0):
        application = one(
            Work(wait_s=10.0), graceful_shutdown_timeout_s=patience_s, max_ongoing_requests=50
        )
        log = serve(application, steady(2, 30), during=update).log
        lost[patience_s] = log.statuses.get("replica_died", 0)
    assert lost[20.0] == 0
    assert lost[3.0] > 0


def test_the_death_of_a_worker_fails_what_it_had_and_is_repaired() -> None:
    def kill(cluster: Cluster, running: Running) -> None:
        (first, *_) = running.instance.running["model"]
        later(cluster, 20, lambda: Faults(cluster).kill_worker(first.process.me.worker_id))

    application = one(Work(wait_s=0.5), num_replicas=2, max_ongoing_requests=100)
    served = serve(application, steady(20, 60), during=kill)
    assert 1 <= served.log.statuses["replica_died"] <= 20
    (down, up) = served.replicas()
    assert down[1] == 1
    assert 20.0 <= down[0] < 31.5, "at the next health check"
    assert up[1] == 2
    assert up[0] < down[0] + 5.0


def test_the_loss_of_a_node_is_survived() -> None:
    """Requests hang until the GCS gives the node up; then others take over."""

    def fail(cluster: Cluster, running: Running) -> None:
        later(cluster, 20, lambda: Faults(cluster).fail_node(2))

    application = app(
        DeploymentConfig(
            name="ingress", num_replicas=3, max_ongoing_requests=100,
            work=Work(calls=(("model",),)),
        ),
        DeploymentConfig(name="model", num_replicas=6, work=Work(wait_s=0.2)),
    )  # fmt: skip
    served = serve(application, steady(10, 180), during=fail)
    nodes = {r.process.me.node_id for r in served.running.instance.running["model"]}
    assert nodes == {0, 1}
    assert served.replicas("model")[-1][1] == 6
    after = served.log.arrived_s - served.up_s > 100
    assert served.log.latency_s[after].max() < 0.5


def test_replicas_on_a_draining_node_serve_until_others_run() -> None:
    def drain(cluster: Cluster, running: Running) -> None:
        later(cluster, 20, lambda: Faults(cluster).preempt(2, "2min"))

    served = serve(
        one(Work(wait_s=0.2), num_replicas=6, constructor_s=10.0), steady(10, 100), during=drain
    )
    assert min(n for _, n in served.replicas()) >= 6
    nodes = {r.process.me.node_id for r in served.running.instance.running["model"]}
    assert nodes == {0, 1}
    assert served.log.statuses == {"ok": len(served.log)}


def test_constructors_that_raise_are_tried_again_and_given_up() -> None:
    few = serve(one(Work(), num_replicas=2, constructor_fails=3), steady(1, 5))
    assert not few.running.refusal
    many = serve(one(Work(), num_replicas=2, constructor_fails=100), steady(1, 5))
    assert many.running.refusal == "model: the constructor raised"


def test_what_has_no_room_is_said() -> None:
    served = serve(one(Work(), num_replicas=2, resources={"GPU": 1.0}), steady(1, 5))
    assert served.running.refusal == "model has 0 of 2 replicas"


def test_a_replica_with_bundles_is_in_a_placement_group() -> None:
    bundles = ({"CPU": 1.0}, {"CPU": 4.0})
    application = one(
        Work(wait_s=0.1), num_replicas=2, placement_group_bundles=bundles,
        placement_group_strategy="STRICT_PACK",
    )  # fmt: skip
    served = serve(application, steady(5, 10))
    nodes = [r.process.me.node_id for r in served.running.instance.running["model"]]
    assert len(set(nodes)) == 2, "two of five CPUs do not fit a node of eight"
    assert served.log.statuses == {"ok": len(served.log)}


def test_idle_applications_have_no_events() -> None:
    scales = AutoscalingConfig(max_replicas=3)
    events = []
    for hours in (1, 10):
        last = Trace(times_s=(1.0, 3600.0 * hours))
        served = serve(one(Work(wait_s=0.1), autoscaling=scales), last, until="20h")
        assert served.log.statuses == {"ok": 2}
        events.append(served.cluster.sim.log.events)
    assert events[0] == events[1]
