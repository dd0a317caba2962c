"""``serve`` jobs: what a scenario says, what is wrong with it, what they come to, and warnings."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.errors import ScenarioError
from raysim.raylibs.serve.config import AutoscalingConfig, BatchConfig, MultiplexConfig
from raysim.raylibs.serve.load import ClosedLoop, OpenLoop
from raysim.scenario.load import from_mapping
from raysim.workloads.serve_job import Redeploy, ServeJob

MODEL = {"name": "model", "num_replicas": 2, "work": {"wait": "100ms"}}
LOAD = {"rate": "10/s", "lasting": "30s"}


def scenario(*deployments: dict[str, Any], load: dict[str, Any] | None = None, **more: Any) -> Any:
    serve = {"deployments": [*(deployments or (MODEL,))], "load": load or LOAD, **more}
    return from_mapping(
        {
            "name": "serve", "cluster": {"node": "m5.2xlarge", "nodes": 2},
            "jobs": [{"serve": serve}],
        }
    )  # fmt: skip


def job(*deployments: dict[str, Any], **more: Any) -> ServeJob:
    found: ServeJob = scenario(*deployments, **more).job.library
    return found


def report(*deployments: dict[str, Any], **more: Any) -> dict[str, Any]:
    summary = raysim.run(scenario(*deployments, **more), record=False).summary
    found: dict[str, Any] = summary["libraries"][0] | {"bound_by": summary["bound_by"]["text"]}
    return found


def codes(*deployments: dict[str, Any], **more: Any) -> list[str]:
    return [w["code"] for w in report(*deployments, **more)["warnings"]]


def test_a_deployment_is_what_it_says() -> None:
    full = {
        "name": "m", "max_ongoing_requests": 20, "max_queued_requests": 7, "num_gpus": 0.5,
        "num_cpus": 0, "constructor": "20s",
        "autoscaling_config": {"min_replicas": 2, "max_replicas": 9, "upscale_delay_s": 5},
        "batch": {"max_batch_size": 8}, "multiplexed": {"load": "3s"},
        "placement_group": {"bundles": [{"GPU": 1}, {"CPU": 2}], "strategy": "SPREAD"},
        "work": {"python": "1ms", "busy": "2ms", "per_item": "3ms", "wait": "4ms", "cv": 0.5,
                 "calls": [["a", "b"], ["c"]], "fails": "1%"},
    }  # fmt: skip
    found = job(full, *({"name": n} for n in "abc"), options="haproxy")
    (config, *_) = found.app.deployments
    assert found.app.ingress == "m"
    assert found.stack == "haproxy"
    assert config.autoscaling == AutoscalingConfig(
        min_replicas=2, max_replicas=9, upscale_delay_s=5
    )
    assert config.batch == BatchConfig(max_batch_size=8)
    assert config.multiplex == MultiplexConfig(load_s=3.0)
    assert config.resources == {"GPU": 0.5}
    assert config.placement_group_strategy == "SPREAD"
    assert config.placement_group_bundles == ({"GPU": 1.0}, {"CPU": 2.0})
    assert (config.work.python_s, config.work.busy_s, config.work.per_item_busy_s) == (
        0.001, 0.002, 0.003,
    )  # fmt: skip
    assert config.work.calls == (("a", "b"), ("c",))
    assert config.work.fails_frac == 0.01


CONFIG = """
proxy_location: EveryNode
http_options: {host: 0.0.0.0, port: 8000}
applications:
- name: app1
  route_prefix: /
  import_path: fruit:deployment_graph
  runtime_env: {}
  deployments:
  - name: Market
    num_replicas: 2
    max_ongoing_requests: 40
    ray_actor_options: {num_cpus: 0.5}
    user_config: {price: 3}
  - name: Stand
    num_replicas: auto
    autoscaling_config: {min_replicas: 2, target_ongoing_requests: 4.0, metrics_interval_s: 10.0}
    graceful_shutdown_timeout_s: 5.0
"""


def from_config(tmp_path: Path, text: str, **more: Any) -> ServeJob:
    (tmp_path / "serve_config.yaml").write_text(text, encoding="utf-8")
    serve = {"config": "serve_config.yaml", "load": LOAD, **more}
    data = {
        "name": "serve", "cluster": {"node": "m5.2xlarge", "nodes": 2}, "jobs": [{"serve": serve}]
    }  # fmt: skip
    (tmp_path / "scenario.yaml").write_text(json.dumps(data), encoding="utf-8")
    found: Any = raysim.load(tmp_path).job
    job: ServeJob = found.library
    return job


def test_a_serve_config_file_is_read_as_it_is(tmp_path: Path) -> None:
    work = {"wait": "50ms", "calls": [["Stand"]]}
    own = [{"name": "Market", "work": work, "max_ongoing_requests": 60}]
    market, stand = from_config(tmp_path, CONFIG, deployments=own).app.deployments
    assert (market.num_replicas, market.max_ongoing_requests) == (2, 60), "the scenario's own wins"
    assert market.resources == {"CPU": 0.5}
    assert market.work.calls == (("Stand",),)
    assert stand.autoscaling == AutoscalingConfig(
        min_replicas=2, max_replicas=100, target_ongoing_requests=4.0
    )
    assert stand.graceful_shutdown_timeout_s == 5.0


def test_a_ray_services_config_is_read_where_it_stands(tmp_path: Path) -> None:
    head = "apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: s}\nspec:\n"
    service = f"{head}  serveConfigV2: |\n{textwrap.indent(CONFIG, '    ')}"
    own = from_config(tmp_path, CONFIG).app.deployments
    assert from_config(tmp_path, service).app.deployments == own


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("applications:", "apps:", "it has no applications"),
        ("max_ongoing_requests: 40", "max_ongoing_requests: none", "serve_config.yaml:12:"),
        ("name: Market", "title: Market", "a deployment has a name"),
    ],
)
def test_what_is_wrong_in_a_serve_config_is_said(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        from_config(tmp_path, CONFIG.replace(old, new))
    assert said in "\n".join(map(str, caught.value.problems))


def test_an_application_of_several_has_to_be_named(tmp_path: Path) -> None:
    two = CONFIG + "- {name: app2, import_path: x, deployments: [{name: Other}]}\n"
    (other,) = from_config(tmp_path, two, application="app2").app.deployments
    assert other.name == "Other"
    with pytest.raises(ScenarioError, match="say which `application`; there are app1, app2"):
        from_config(tmp_path, two)


def test_loads_are_users_a_rate_or_steps() -> None:
    users = job(load={"users": 5, "think": "1s", "lasting": "10s"}).load
    assert users == ClosedLoop(users=5, think_s=1.0, duration_s=10.0)
    steps = [{"at": "0s", "rate": "10/s"}, {"at": "1min", "rate": "90/s"}]
    assert job(load={"steps": steps, "lasting": "2min"}).load == OpenLoop(
        rate=((0.0, 10.0), (60.0, 90.0)), duration_s=120.0
    )
    again = job(redeploys=[{"deployment": "model", "at": "9s"}]).redeploys
    assert again == (Redeploy(deployment="model", at_s=9.0),)


@pytest.mark.parametrize(
    ("deployments", "more", "said"),
    [
        ([MODEL, MODEL], {}, "model is there twice"),
        ([{"name": "a", "work": {"calls": [["b"]]}}], {}, "no deployment b; there are a"),
        ([{"name": "a", "work": {"calls": [["b"]]}}, {"name": "b", "work": {"calls": [["a"]]}}],
         {}, "a calls itself through b"),
        ([MODEL], {"ingress": "x"}, "no deployment x; there are model"),
        ([MODEL], {"redeploys": [{"deployment": "x", "at": "1s"}]}, "no deployment x"),
        ([MODEL], {"load": {"users": 1, "rate": "1/s", "lasting": "1s"}}, "give one of users"),
        ([MODEL], {"load": {"users": 1, "lasting": "1s"}, "fidelity": "flow"}, "give a rate"),
        ([{"name": "m", "autoscaling_config": {"min_replicas": 3, "max_replicas": 2}}], {},
         "min_replicas is above max_replicas"),
        ([{"name": "m", "max_ongoing": 3}], {}, "unknown key 'max_ongoing'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(
    deployments: list[dict[str, Any]], more: dict[str, Any], said: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario(*deployments, **more)
    assert said in "\n".join(map(str, caught.value.problems))


def test_a_job_comes_to_rates_latencies_and_replicas() -> None:
    said = report()
    assert said["ok"]
    metrics = said["metrics"]
    assert metrics["requests_per_s"] == pytest.approx(10, rel=0.2)
    assert 0.1 < metrics["latency_p50"] < metrics["latency_p99"] < 0.2
    assert metrics["replicas_mean"] == pytest.approx(2)
    assert metrics["failed"] == 0.0
    assert said["bound_by"].startswith("Nothing")


def test_what_binds_is_named() -> None:
    busy = {"name": "m", "max_ongoing_requests": 50, "work": {"busy": "50ms"}}
    assert report(busy, load={"users": 20, "lasting": "20s"})["bound_by"].startswith("m: its rep")
    slots = {"name": "m", "num_cpus": 0.1, "num_replicas": 20, "work": {"wait": "200ms"}}
    said = report(slots, load={"users": 400, "lasting": "10s"})
    assert said["bound_by"].startswith("Routers to m"), "they back off while slots stand empty"
    assert "serve-unbounded-queue" in [w["code"] for w in said["warnings"]]
    proxy = {"name": "m", "num_replicas": 12, "num_cpus": 0.1, "max_ongoing_requests": 100}
    said = report(proxy, load={"users": 300, "lasting": "3s"})
    assert said["bound_by"].startswith("The proxy")
    assert "serve-proxy-bound" in [w["code"] for w in said["warnings"]]


def test_an_update_loses_no_request() -> None:
    said = report({**MODEL, "num_replicas": 4}, redeploys=[{"deployment": "model", "at": "5s"}])
    assert said["metrics"]["failed"] == 0.0
    assert min(n for _, n in said["detail"]["replicas"]["model"]) == 3


def test_an_application_without_room_is_a_result() -> None:
    said = report({"name": "m", "num_gpus": 1})
    assert not said["ok"]
    assert said["text"] == "default does not run: m has 0 of 1 replicas."


def auto(**changes: Any) -> dict[str, Any]:
    return {**MODEL, "autoscaling_config": {"max_replicas": 4, **changes}}


@pytest.mark.parametrize(
    ("deployment", "code"),
    [
        ({**MODEL, "batch": {"max_batch_size": 10}}, "serve-batch-never-full"),
        (auto(upscale_delay_s=3), "serve-lookback-over-delay"),
        (auto(metrics_interval_s=60), "serve-interval-over-lookback"),
        ({**auto(), "constructor": "50s"}, "serve-slow-start"),
        (auto(target_ongoing_requests=9), "serve-target-over-slots"),
        (auto(max_replicas=200), "serve-no-room-for-max"),
    ],
)
def test_traps_of_settings_are_warned_of(deployment: dict[str, Any], code: str) -> None:
    assert codes(deployment) == [code]
    assert code not in codes(MODEL)


def test_traps_of_a_run_are_warned_of() -> None:
    slow = {"name": "m", "work": {"wait": "1s"}}
    assert "serve-unbounded-queue" in codes(slow)
    assert "serve-unbounded-queue" not in codes({**slow, "max_queued_requests": 5})
    stuck = {**slow, "autoscaling_config": {"max_replicas": 1}}
    assert "serve-at-max-replicas" in codes(stuck)
    slots = {"name": "m", "num_replicas": 4, "work": {"wait": "1s"}}
    assert "serve-slots-bound" in codes(slots, load={"rate": "40/s", "lasting": "30s"})


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("ray.serve.llm:build_openai_app", "say it as `llm: {model: config.json"),
        ("fruit:app", "names no deployments: fruit:app makes them; name them"),
    ],
)
def test_a_serve_config_without_deployments_says_what_to_write(
    tmp_path: Path, path: str, said: str
) -> None:
    """``serve build`` writes them; a config by hand may leave them to the code."""
    with pytest.raises(ScenarioError) as caught:
        from_config(tmp_path, f"applications:\n- name: a\n  import_path: {path}\n")
    assert said in str(caught.value)
    assert "serve_config.yaml:2:3" in str(caught.value)


def test_targets_of_several_jobs_are_those_that_one_of_them_has() -> None:
    """Of an embedding model beside other work: its p99 could not be asked for."""
    said = {"serve": {"deployments": [MODEL], "load": LOAD}, "name": "embed"}
    bag = {"workload": {"task_bag": {"tasks": 8}}, "name": "bag"}
    base = {"name": "rag", "cluster": {"node": "m5.2xlarge", "nodes": 2}}
    asked = {"targets": {"latency_p99": "<= 1s"}}
    (target,) = from_mapping(base | asked | {"jobs": [said, bag]}).targets
    assert (target.name, target.limit) == ("latency_p99", 1.0)
    with pytest.raises(ScenarioError, match="latency_p99"):  # of which?
        from_mapping(base | asked | {"jobs": [said, said | {"name": "rerank"}]})
