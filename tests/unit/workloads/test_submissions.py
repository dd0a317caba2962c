"""Several jobs in a scenario, spot groups and RayJobs, played to their end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.kernel.rng import Streams
from raysim.raycore.cloud import NOTHING, Delay, NodeStart
from raysim.results.result import Result
from raysim.scenario.load import load
from raysim.workloads.rayjob import probed_s, until_submitted_s

SLEEPS = """
import sys, time
import ray

ray.init()

@ray.remote(num_cpus=4, max_retries=-1)
def work(i, seconds):
    time.sleep(seconds)
    return i

if sys.argv[1:] == ["bad"]:
    raise ValueError("bad input")
seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 30
print(sum(ray.get([work.remote(i, seconds) for i in range(int(sys.argv[1]))])))
"""
CLUSTER = "{nodes: 2, node: m5.2xlarge}"
KUBERAY = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: c%s}
spec:
  rayVersion: "2.52.0"
  enableInTreeAutoscaling: %s
  headGroupSpec:
    rayStartParams: {num-cpus: "0"}
    template:
      spec:
        nodeSelector: {node.kubernetes.io/instance-type: m5.large}
        containers: [{name: h, image: i, resources: {limits: {cpu: 2, memory: 7Gi}}}]
  workerGroupSpecs:
    - groupName: w
      replicas: 2
      minReplicas: 2
      maxReplicas: %d
      rayStartParams: {}
      template:
        spec:
          nodeSelector: {node.kubernetes.io/instance-type: m5.2xlarge}
          containers: [{name: w, image: i, resources: {limits: {cpu: 8, memory: 28Gi}}}]
"""


def play(folder: Path, jobs: str, more: str = "", *, cluster: str = CLUSTER) -> Result:
    (folder / "work.py").write_text(SLEEPS)
    text = f"raysim: 1\ncluster: {cluster}\njobs:\n{jobs}\n{more}\n"
    (folder / "scenario.yaml").write_text(text)
    return raysim.run(load(folder / "scenario.yaml"), check=True)


def script(name: str, *args: object, **more: object) -> str:
    said = "".join(f", {key}: {value}" for key, value in more.items())
    argv = ", ".join(f'"{a}"' for a in args)
    return (
        f"  - {{name: {name}, script: {{path: work.py, args: [{argv}], compute: declared}}{said}}}"
    )


def by_name(result: Result) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in result.summary["jobs"]}


def test_jobs_wait_for_each_other_and_each_has_its_times(tmp_path: Path) -> None:
    result = play(
        tmp_path, "\n".join([script("first", 4), script("second", 4, at="10s"),
                             script("third", 1, 1, at="2min")])
    )  # fmt: skip
    rows = by_name(result)
    assert [row["status"] for row in rows.values()] == ["SUCCEEDED"] * 3
    first, second, third = rows.values()
    assert first["wait_seconds"] < 5  # two nodes hold four tasks: it fills the cluster
    assert second["wait_seconds"] == pytest.approx(first["ended_seconds"] - 10, abs=2)
    assert second["run_seconds"] == pytest.approx(30, abs=2)
    assert third["submitted_seconds"] == 120
    assert third["wait_seconds"] < 5
    assert result.summary["run"]["seconds"] == pytest.approx(third["ended_seconds"], abs=0.2)
    assert result.summary["tasks"]["total"] == 9  # supervisors are Ray's, not the users'
    assert "Finished" in result.summary["verdict"]["text"]


def test_copies_come_one_after_another(tmp_path: Path) -> None:
    rows = by_name(play(tmp_path, script("c", 1, 1, copies=3, every="20s", at="5s")))
    assert {n: r["submitted_seconds"] for n, r in rows.items()} == {"c-0": 5, "c-1": 25, "c-2": 45}


def test_a_failed_job_is_tried_again_as_often_as_it_says(tmp_path: Path) -> None:
    result = play(tmp_path, script("ok", 1, 1) + "\n" + script("bad", "bad", backoff_limit=2))
    row = by_name(result)["bad"]
    assert (row["status"], row["attempts"]) == ("FAILED", 3)
    assert "ValueError: bad input" in row["message"]
    assert result.summary["verdict"]["ok"] is False
    assert "1 of 2 jobs not succeeded (bad FAILED)" in result.summary["verdict"]["text"]


def test_a_job_past_its_deadline_is_stopped(tmp_path: Path) -> None:
    row = by_name(play(tmp_path, script("long", 400, backoff_limit=3, active_deadline="50s")))[
        "long"
    ]
    assert (row["status"], row["attempts"]) == ("STOPPED", 1)
    assert row["ended_seconds"] == pytest.approx(50, abs=0.5)


def test_jobs_of_scripts_and_workloads_mix(tmp_path: Path) -> None:
    bag = "  - {name: bag, workload: {task_bag: {tasks: 8, duration: 1s}}}"
    rows = by_name(play(tmp_path, script("s", 2, 1) + "\n" + bag))
    assert [row["status"] for row in rows.values()] == ["SUCCEEDED"] * 2


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        (script("a", 1) + "\n" + script("a", 1), "2 jobs are called 'a'"),
        (script("a", 1) + "\n  - {name: b, script: work.py}", "the same `compute`"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, jobs: str, said: str) -> None:
    with pytest.raises(raysim.ScenarioError, match=said):
        play(tmp_path, jobs)


# ---- machines ------------------------------------------------------------------------------------


def kuberay(folder: Path, *, grows: bool, most: int = 2) -> str:
    (folder / "cluster.yaml").write_text(KUBERAY % ("", str(grows).lower(), most))
    return "{from: cluster.yaml}"


def test_spot_pods_are_replaced_by_the_operator_and_work_goes_on(tmp_path: Path) -> None:
    result = play(
        tmp_path, script("j", 40, 60, at="1s"), "spot: {w: {per_hour: 20, notice: 30s}}",
        cluster=kuberay(tmp_path, grows=False),
    )  # fmt: skip
    faults, machines = result.summary["faults"], result.summary["machines"]
    assert by_name(result)["j"]["status"] == "SUCCEEDED"
    assert len(faults) >= 3
    assert {f["kind"] for f in faults} == {"preempt"}
    assert machines[0]["came"] >= len(faults) - 2  # each makes a pod; the last may not come in time
    assert result.summary["tasks"]["retried"] > 0


def test_without_notice_health_checks_find_out(tmp_path: Path) -> None:
    result = play(
        tmp_path, script("j", 40, 60, at="1s"), "spot: {w: {per_hour: 8, notice: 0s}}",
        cluster=kuberay(tmp_path, grows=True, most=3),
    )  # fmt: skip
    lost = next(r for r in result.summary["time"] if r["key"] == "failure")
    assert {f["kind"] for f in result.summary["faults"]} == {"fail_node"}
    assert lost["seconds"] > 60
    assert by_name(result)["j"]["status"] == "SUCCEEDED"


def test_pending_placement_groups_bring_machines(tmp_path: Path) -> None:
    (tmp_path / "group.py").write_text(
        "import ray\nfrom ray.util.placement_group import placement_group\nray.init()\n"
        "ray.get(placement_group([{'CPU': 6}] * 4, strategy='STRICT_SPREAD').ready())\n"
    )
    job = "  - {script: {path: group.py, compute: declared}}"
    cluster = kuberay(tmp_path, grows=True, most=5)
    warm = play(tmp_path, job, "starts: {w: {pods: warm}}", cluster=cluster)
    cold = play(tmp_path, job, cluster=cluster)
    for result in (warm, cold):
        (row,) = result.summary["machines"]
        assert (row["asked"], row["came"]) == (2, 2)
    assert warm.summary["run"]["seconds"] < 30
    assert 90 < cold.summary["run"]["seconds"] < 400


def test_a_type_out_of_stock_holds_up_what_needs_it(tmp_path: Path) -> None:
    none = "starts: {w: {pods: warm, none_until: 10min}}"
    cluster = kuberay(tmp_path, grows=True, most=4)
    result = play(tmp_path, script("j", 8, 100), none, cluster=cluster)
    slow = result.summary["machines"][0]
    assert slow["came"] == 0  # two nodes were enough by then
    assert result.summary["run"]["seconds"] == pytest.approx(205, abs=10)


def test_names_of_groups_are_checked(tmp_path: Path) -> None:
    with pytest.raises(raysim.ScenarioError) as caught:
        play(tmp_path, script("j", 1), "spot: {wx: {per_hour: 1}, head: {per_hour: 1}}",
             cluster=kuberay(tmp_path, grows=True, most=4))  # fmt: skip
    said = "\n".join(map(str, caught.value.problems))
    assert "no group 'wx'" in said
    assert "the head is not taken back" in said


# ---- from kubectl apply to the job's submission --------------------------------------------------


def test_probes_come_after_ten_seconds_and_every_five() -> None:
    assert [probed_s(s) for s in (0, 9, 10, 10.1, 15, 31)] == [10, 10, 10, 15, 15, 35]


def start(provision: float, pull: float) -> NodeStart:
    return NodeStart(
        request=NOTHING, provision=Delay(median_s=provision), image_pull=Delay(median_s=pull),
        ray_install=NOTHING, ray_start=Delay(median_s=7),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("starts", "mode", "own", "seconds"),
    [
        # head: container at 20, ready at the first probe, 30; worker's container at 65, Ray at 72,
        # first probe at 75, a multiple of 3
        ({"h": start(10, 10), "w": start(60, 5)}, "HTTPMode", True, 75),
        # the worker waits for the head (Ray at 27): its Ray is there at 34, its probe at 35
        ({"h": start(10, 10), "w": start(4, 1)}, "HTTPMode", True, 36),
        ({"h": start(10, 10), "w": start(4, 1)}, "HTTPMode", False, 0),
    ],
)
def test_pods_probes_and_rounds_add_up(
    starts: dict[str, NodeStart], mode: str, own: bool, seconds: float
) -> None:
    said = until_submitted_s("j", Streams(0), ("h", "w"), starts, mode=mode, own_cluster=own)
    assert said == seconds


def test_a_submitters_pod_takes_seconds_more() -> None:
    starts = {"h": start(10, 10)}
    took = [
        until_submitted_s("j", Streams(0), ("h",), starts, mode=mode, own_cluster=True)
        for mode in ("HTTPMode", "K8sJobMode")
    ]
    assert 1 < took[1] - took[0] < 10
