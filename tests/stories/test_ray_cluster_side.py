"""The head lost, spot nodes taken back, idle nodes kept: what a program and a cluster see of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.raycore.autoscaler import AutoscalerConfig, NodeTypeConfig
from raysim.raycore.cloud import WARM_POD, CloudSpec
from raysim.raycore.faults import Faults
from raysim.results.result import Result
from raysim.scenario.load import load
from tests.rayapi_parts import run
from tests.raycore_parts import ray_cluster

FOUR = """
import time, ray
ray.init()
@ray.remote(num_cpus=4)
def work(i):
    time.sleep(60)
    return i
print(sum(ray.get([work.remote(i) for i in range(4)])))
"""
RESTARTS = """
import time, ray
ray.init()
@ray.remote(num_cpus=8, max_restarts=1, max_task_retries=-1)
class A:
    def pid(self):
        return 1
a = A.remote()
ray.get(a.pid.remote())
time.sleep(50)
ray.get(a.pid.remote())
"""


def play(folder: Path, text: str, *, redis: bool, away: bool, faults: str) -> Result:
    """A job on three workers and a small head; ``away``: its driver is on a worker."""
    (folder / "job.py").write_text(text)
    storage = "redis" if redis else "memory"
    cpus = 4 if away else 0
    (folder / "scenario.yaml").write_text(
        "raysim: 1\ncluster: {nodes: 3, node: m5.2xlarge, head: m5.large}\n"
        f"ray: {{config: {{gcs_storage: {storage}, gcs_rpc_server_reconnect_timeout_s: "
        f"{600 if redis else 60}}}}}\n"
        "jobs: [{name: j, at: 1s, script: {path: job.py, compute: declared}, "
        f"entrypoint_num_cpus: {cpus}}}]\nfaults: [{faults}]\n"
    )
    return raysim.run(load(folder / "scenario.yaml"), check=True)


def job(result: Result) -> dict[str, Any]:
    (row,) = result.summary["jobs"]
    return row


# ---- the head ------------------------------------------------------------------------------------

LOST = "{at: 30s, fail_node: 0, restart_after: 60s}"


@pytest.mark.parametrize("redis", [False, True])
def test_a_driver_on_the_head_dies_with_it(tmp_path: Path, redis: bool) -> None:
    row = job(play(tmp_path, FOUR, redis=redis, away=False, faults=LOST))
    assert (row["status"], row["ended_seconds"]) == ("FAILED", 30)
    assert "head node is gone" in row["message"]


def test_without_redis_everything_dies_with_the_head(tmp_path: Path) -> None:
    result = play(tmp_path, FOUR, redis=False, away=True, faults=LOST)
    assert job(result)["status"] == "FAILED"
    assert job(result)["ended_seconds"] == 90  # a minute without the GCS
    assert "the GCS cannot be reached" in job(result)["message"]


def test_with_redis_work_goes_on_and_only_ends_when_the_gcs_is_back(tmp_path: Path) -> None:
    result = play(tmp_path, FOUR, redis=True, away=True, faults=LOST)
    row = job(result)
    done = max(r.t_ns for r in rows(result, "task", "FINISHED")) / 1e9
    assert row["status"] == "SUCCEEDED"
    assert done == pytest.approx(65, abs=2)  # as if nothing had happened
    assert row["ended_seconds"] == pytest.approx(91, abs=1)  # its end must be written down


def test_with_redis_a_head_away_for_too_long_ends_it_all(tmp_path: Path) -> None:
    result = play(tmp_path, FOUR, redis=True, away=True, faults="{at: 30s, fail_node: 0}")
    assert job(result)["status"] == "FAILED"
    assert job(result)["ended_seconds"] == 630


def test_restarts_of_actors_wait_for_the_gcs(tmp_path: Path) -> None:
    faults = "{at: 10s, kill_gcs: true, restart_after: 80s}, {at: 20s, kill_worker_on: 2}"
    result = play(tmp_path, RESTARTS, redis=True, away=True, faults=faults)
    assert job(result)["status"] == "SUCCEEDED"
    alive = [(r.t_ns / 1e9, r.node_id) for r in rows(result, "actor", "ALIVE")]
    assert alive[0][1] == 2, "the driver holds half of node 1"
    assert alive[1][0] > 90


def test_a_supervisor_that_is_killed_takes_its_job_along(tmp_path: Path) -> None:
    result = play(
        tmp_path, FOUR, redis=False, away=True, faults="{at: 20s, kill_worker_on: 1}"
    )  # fmt: skip
    assert job(result)["status"] == "FAILED"
    assert "supervisor actor died" in job(result)["message"]
    assert job(result)["ended_seconds"] == pytest.approx(20, abs=1.5)


def rows(result: Result, kind: str, state: str) -> list[Any]:
    assert result.program is not None
    return [r for r in result.program.rows if r.kind == kind and r.state == state]


def test_a_single_program_ends_with_its_head(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(FOUR)
    (tmp_path / "scenario.yaml").write_text(
        "raysim: 1\ncluster: {nodes: 2, node: m5.2xlarge}\n"
        "jobs: [{script: {path: main.py, compute: declared}}]\n"
        "faults: [{at: 20s, fail_node: 0}]\n"
    )
    summary = raysim.run(load(tmp_path / "scenario.yaml")).summary
    assert summary["program"]["exit"] == "killed"
    assert summary["verdict"]["text"].startswith(
        "Failed after 20.0 s: the driver's process is gone"
    )


# ---- spot nodes ----------------------------------------------------------------------------------


def test_a_notice_is_seen_in_the_node_table_with_its_deadline() -> None:
    cluster = ray_cluster(3)
    faults = Faults(cluster)
    cluster.sim.at("20s", faults.preempt, 1, "30s")

    def main() -> Any:
        import time

        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as Pin

        from raysim.rayapi.state import node_rows

        ray.init()
        there = next(n["NodeID"] for n in ray.nodes() if n["NodeManagerAddress"] == "10.0.0.1")

        @ray.remote(scheduling_strategy=Pin(there, soft=False), max_retries=0)
        def busy() -> None:  # an idle node would leave at once
            time.sleep(1000)

        task = busy.remote()
        seen = []
        while time.time() < 1_767_225_600 + 130:
            row = next(r for r in node_rows() if r.node_id == 1)
            if not seen or seen[-1][1] != row.state:
                seen.append((cluster.sim.now_ns / 1e9, row.state, row.drain_deadline_ns / 1e9))
            time.sleep(5)  # as Train's watcher polls
        del task
        return seen

    seen = run(main, cluster)
    assert [(state, deadline) for _, state, deadline in seen] == [
        ("ALIVE", -1e-9), ("DRAINING", 50), ("DEAD", -1e-9),
    ]  # fmt: skip
    assert seen[1][0] == pytest.approx(22.5, abs=2.6)


# ---- idle nodes ----------------------------------------------------------------------------------

WORKER = NodeTypeConfig(name="worker", resources={"CPU": 4}, max_workers=3)


def shrinking(main: Any) -> Any:
    """A driver on a cluster of a head without CPUs and three nodes that end when idle for 20 s."""
    cluster = ray_cluster(
        4, max_nodes=3, resources={"CPU": 4},
        autoscaling=AutoscalerConfig(node_types=(WORKER,), idle_timeout_s=20, kuberay=True),
        clouds=CloudSpec(starts={"worker": WARM_POD}, pods=True),
    )  # fmt: skip
    return run(lambda: main(cluster), cluster)


@pytest.mark.parametrize("holds", ["nothing", "group", "objects"])
def test_a_node_with_a_group_or_primary_objects_is_not_idle(holds: str) -> None:
    def main(cluster: Any) -> list[int]:
        import time

        import numpy as np
        import ray
        from ray.util.placement_group import placement_group

        ray.init()

        @ray.remote(num_cpus=4, scheduling_strategy="SPREAD")
        def make() -> Any:
            time.sleep(1)
            return np.zeros(2**20)

        kept: list[Any] = []
        refs = [make.remote() for _ in range(8)]
        ray.wait(refs, num_returns=8, fetch_local=False)
        if holds == "objects":
            kept = refs
        elif holds == "group":
            kept = [placement_group([{"CPU": 1}] * 4, strategy="STRICT_SPREAD")]
            ray.get(kept[0].ready())
        del refs
        time.sleep(120)
        up = [n for n in range(4) if cluster.is_up(n)]
        return up if kept or holds == "nothing" else []

    expected = [0] if holds == "nothing" else [0, 1, 2, 3]
    assert shrinking(main) == expected
