"""RayJob and RayService manifests as they are written, and what is wrong with some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.errors import ScenarioError
from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
from raysim.scenario.autoscaling import autoscaler_of
from raysim.scenario.kuberay import fault_tolerance
from raysim.scenario.load import load
from raysim.scenario.rayjob import RayJobRequest, of_service, read_rayjob, read_rayservice
from raysim.scenario.yaml_text import parse_yaml_all

JOB = """\
apiVersion: ray.io/v1
kind: RayJob
metadata: {name: sample}
spec:
  entrypoint: A=1 python -u /samples/code.py --n 3
  runtimeEnvYAML: |
    pip: [requests==2.26.0]
    working_dir: /samples
    env_vars: {counter_name: test, A: "0"}
  backoffLimit: 2
  activeDeadlineSeconds: 600
  ttlSecondsAfterFinished: 30
  shutdownAfterJobFinishes: true
  entrypointNumCpus: 2
  entrypointResources: '{"slot": 1}'
  rayClusterSpec:
    rayVersion: "2.52.0"
    headGroupSpec:
      rayStartParams: {}
      template: {spec: {containers: [{name: h, image: i, resources: {limits: {cpu: 2, memory: 4Gi}}}]}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: code}
data:
  code.py: |
    import os, sys, ray
    ray.init()
    print(sys.argv[1:], os.environ["counter_name"], os.environ["A"])
"""  # noqa: E501  (a manifest is not wrapped)
SERVICE = """\
apiVersion: ray.io/v1
kind: RayService
metadata: {name: fruit}
spec:
  serveConfigV2: |
    applications:
      - name: fruit_app
        import_path: fruit.deployment_graph
        deployments: [{name: MangoStand, num_replicas: 2}]
      - {name: math_app, import_path: conditional_dag.serve_dag}
  rayClusterConfig: {}
"""


def job(text: str, folder: Path = Path()) -> RayJobRequest:
    return read_rayjob(parse_yaml_all(text, "job.yaml"), folder)


def test_all_that_matters_is_read() -> None:
    its = job(JOB)
    assert (its.name, its.script.name, its.args) == ("sample", "code.py", ("--n", "3"))
    assert its.source is not None
    assert its.source.startswith("import os, sys, ray")
    assert its.resources == {"num_cpus": 2, "resources": {"slot": 1}}
    assert its.runtime_env == {
        "pip": ["requests==2.26.0"], "env_vars": {"counter_name": "test", "A": "1"},
    }  # fmt: skip
    assert (its.backoff_limit, its.active_deadline_seconds) == (2, 600)
    assert (its.shutdown_after_job_finishes, its.ttl_seconds_after_finished) == (True, 30)
    assert (its.submission_mode, its.own_cluster) == ("K8sJobMode", True)


def test_defaults_are_the_operators() -> None:
    its = job("kind: RayJob\nspec:\n  entrypoint: python code.py\n---\n" + JOB.split("---\n")[1])
    assert (its.backoff_limit, its.active_deadline_seconds) == (0, None)
    assert (its.shutdown_after_job_finishes, its.ttl_seconds_after_finished) == (False, 0)


def test_a_file_beside_the_manifest_comes_first(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("1\n")
    its = job(JOB, tmp_path)
    assert (its.source, its.script) == (None, tmp_path / "code.py")


def test_it_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "scenario.yaml").write_text(
        "raysim: 1\ncluster: {from: job.yaml, hardware: {head: {node: m5.large}}}\n"
        "jobs: [{rayjob: {path: job.yaml, compute: declared}}]\n"
    )
    text = (tmp_path / "job.yaml").read_text().replace("'{\"slot\": 1}'", "'{}'")
    (tmp_path / "job.yaml").write_text(text)
    scenario = load(tmp_path / "scenario.yaml")
    result = raysim.run(scenario)
    (row,) = result.summary["jobs"]
    assert row["status"] == "SUCCEEDED", row["message"]
    # pods on a new machine, probes, the submitter's pod, pip: minutes before its first line
    assert 100 < row["driver_started_seconds"] < 400
    assert result.summary["bound_by"]["text"].startswith("No driver: pods start")
    assert scenario.files.keys() >= {"job.yaml"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("python -u /samples/code.py --n 3", "sh run.sh", "expected `python script.py"),
        ("A=1 python", "python", ""),
        ("samples/code.py", "samples/other.py", "other.py is neither in"),
        ("backoffLimit: 2", "backoffLimit: -1", "spec.backoffLimit: expected a number"),
        ("kind: RayJob", "kind: RayJobs", "no RayJob in this file"),
        ("backoffLimit: 2", "submissionMode: HttpMode", "did you mean 'HTTPMode'"),
        ("backoffLimit: 2", "submissionMode: InteractiveMode", "people submit it"),
        ("backoffLimit: 2", "suspend: true", "a suspended job does not start"),
        ("--n 3", "'--n", "no shell command"),
        ("pip: [requests==2.26.0]", "pip: [requests", "cannot be read"),
    ],
)
def test_what_is_wrong_is_said_where_it_stands(old: str, new: str, said: str) -> None:
    text = JOB.replace(old, new)
    assert text != JOB
    if not said:
        assert job(text)
        return
    with pytest.raises(ScenarioError) as caught:
        job(text)
    assert said in "\n".join(map(str, caught.value.problems))
    assert "job.yaml:" in str(caught.value.problems[0])


def test_a_services_config_is_handed_on_as_data() -> None:
    documents = parse_yaml_all(SERVICE, "service.yaml")
    its = read_rayservice(documents)
    assert [a["name"] for a in its.serve_config["applications"]] == ["fruit_app", "math_app"]
    assert (its.upgrade, its.capacity_factor, its.deletion_delay_s) == ("NewCluster", 2, 60)
    (note,) = of_service(documents)
    assert "2 applications" in note.message
    assert "twice the nodes until 60 s after" in note.message
    none = SERVICE + "  upgradeStrategy: {type: None}\n"
    assert read_rayservice(parse_yaml_all(none, "")).capacity_factor == 1
    with pytest.raises(ScenarioError, match="applications"):
        read_rayservice(parse_yaml_all(SERVICE.replace("applications", "apps"), ""))


@pytest.mark.parametrize(
    "how",
    ['metadata: {name: c, annotations: {ray.io/ft-enabled: "true"}}\nspec: {}',
     "spec:\n  gcsFaultToleranceOptions: {redisAddress: redis:6379}"],
)  # fmt: skip
def test_gcs_fault_tolerance_keeps_tables_and_workers(how: str) -> None:
    documents = parse_yaml_all(f"apiVersion: ray.io/v1\nkind: RayCluster\n{how}\n", "c.yaml")
    assert fault_tolerance(documents) == {
        "gcs_storage": "redis", "gcs_rpc_server_reconnect_timeout_s": 600,
    }  # fmt: skip
    assert fault_tolerance(parse_yaml_all("kind: RayCluster\nspec: {}\n", "c.yaml")) == {}


def test_a_manifest_is_a_scenario_by_itself(tmp_path: Path) -> None:
    text = JOB.replace("headGroupSpec:\n      rayStartParams: {}\n      template: {spec: {",
                       "headGroupSpec:\n      rayStartParams: {}\n      template: {spec: {"
                       "nodeSelector: {node.kubernetes.io/instance-type: m5.large}, ")  # fmt: skip
    (tmp_path / "job.yaml").write_text(text)
    scenario = load(tmp_path / "job.yaml", {"jobs.0.rayjob.compute": "declared"})
    assert scenario.name == "sample"
    assert [g.name for g in scenario.cluster.groups] == ["head"]
    (submission,) = scenario.job.submissions  # type: ignore[union-attr]
    assert (submission.mode, submission.own_cluster) == ("K8sJobMode", True)
    assert submission.paid_after_s == 30


CRON = """\
apiVersion: ray.io/v1
kind: RayCronJob
metadata: {name: nightly}
spec:
  schedule: "0 2 * * *"
  jobTemplate:
    entrypoint: python code.py
    rayClusterSpec:
      headGroupSpec:
        labels: {disk: fast}
        template: {spec: {containers: [{name: h, image: i, resources: {limits: {cpu: 2, memory: 4Gi}}}]}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: code}
data:
  code.py: |
    import ray
    ray.init()
    where = ray.remote(lambda: ray.get_runtime_context().get_node_labels()["disk"])
    print(ray.get(where.options(label_selector={"disk": "in(fast,slow)"}).remote()))
"""  # noqa: E501  (a manifest is not wrapped)


def test_a_cron_jobs_manifest_is_one_job_and_its_labels_are_selected(tmp_path: Path) -> None:
    (tmp_path / "cron.yaml").write_text(CRON)
    scenario = load(tmp_path / "cron.yaml", {"jobs.0.rayjob.compute": "declared"})
    assert scenario.name == "nightly"
    (row,) = raysim.run(scenario).summary["jobs"]
    assert row["status"] == "SUCCEEDED", row["message"]
    (tmp_path / "cron.yaml").write_text(CRON.replace("python code.py", "bash code.sh"))
    with pytest.raises(ScenarioError, match=r"cron.yaml:7:17 .*expected `python script.py"):
        load(tmp_path / "cron.yaml")


AUTOSCALED = """\
kind: RayCluster
spec:
  {release}
  enableInTreeAutoscaling: true
  autoscalerOptions: {{{options}}}
"""


@pytest.mark.parametrize(
    ("release", "options", "said", "version"),
    [
        ('rayVersion: "2.52.0"', "", None, "v2"),
        ('rayVersion: "2.46.0"', "", None, "v1"),
        ('rayVersion: "2.46.0"', "version: v2", None, "v2"),
        ('rayVersion: "2.52.0"', "version: v1", None, "v1"),
        ('rayVersion: "nightly"', "", None, "v2"),
        ("suspend: false", "", "v1", "v1"),
    ],
)
def test_the_autoscalers_version_is_the_files_or_the_releases(
    release: str, options: str, said: Any, version: str
) -> None:
    documents = parse_yaml_all(AUTOSCALED.format(release=release, options=options), "c.yaml")
    node = catalog.node("m5.large")
    groups = (
        NodeGroup(name="head", node=node, count=1, head=True),
        NodeGroup(name="w", node=node, count=0, max_count=3),
    )
    spec = ClusterSpec(groups=groups, fabric=FabricSpec(kind="star"))
    made = autoscaler_of(spec, documents, said)
    assert made is not None
    assert (made.version, made.kuberay) == (version, True)
