"""A cluster that a script holds: what happens to it when, what runs on it, how it looks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.errors import ScenarioError
from raysim.rayapi.session import ProgramHangs


def naps(seconds: float, count: int) -> Any:
    def main(ray: Any) -> int:
        @ray.remote
        def nap() -> int:
            time.sleep(seconds)
            return 1

        return sum(ray.get([nap.remote() for _ in range(count)]))

    return main


def test_a_driver_s_value_and_its_time() -> None:
    """16 naps of a minute on two nodes of eight CPUs."""
    cluster = raysim.Cluster.build(nodes=2, node="m5.2xlarge")
    assert cluster.run(naps(60, 16)) == 16
    assert 60 < cluster.now_s < 65


def test_a_cluster_runs_one_driver_after_the_other() -> None:
    cluster = raysim.Cluster.build()
    assert [cluster.run(naps(10, 8)) for _ in range(2)] == [8, 8]
    assert 20 < cluster.now_s < 25


def test_faults_at_their_moments() -> None:
    """A partition of ten minutes ends the node; a link of a tenth slows a copy."""
    cluster = raysim.Cluster.build(nodes=3, config={"health_check_period_ms": 1000})
    cluster.sim.at("10s", cluster.nodes[1].partition)
    assert cluster.run(naps(120, 24)) == 24
    assert cluster.frame("nodes").state.tolist() == ["ALIVE", "DEAD", "ALIVE"]
    assert cluster.frame("nodes", at="9s").state.tolist() == ["ALIVE"] * 3


def test_the_gcs_dies_and_comes_back() -> None:
    """With Redis; without it the cluster is gone."""
    cluster = raysim.Cluster.build(nodes=2, config={"gcs_storage": "redis"})
    cluster.sim.at("20s", cluster.kill_gcs, "5s")
    assert cluster.run(naps(60, 8)) == 8


def test_ray_status_at_a_moment() -> None:
    cluster = raysim.Cluster.build(nodes=2)
    cluster.run(naps(60, 16))
    assert "16.0/16.0 CPU" in cluster.status("30s")
    assert "16.0/16.0 CPU" not in cluster.status()


def test_the_same_seed_the_same_digest() -> None:
    digests = set()
    for _ in range(2):
        cluster = raysim.Cluster.build(raysim.Simulation(seed=7), nodes=2)
        cluster.sim.at("5s", cluster.nodes[1].kill_worker)
        cluster.run(naps(20, 20))
        digests.add(cluster.sim.digest)
    assert len(digests) == 1


def test_a_script_by_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "main.py"
    script.write_text("import ray\nray.init()\nprint(len(ray.nodes()))\n")
    assert raysim.Cluster.build(nodes=3).run(script) is None
    assert capsys.readouterr().out == "3\n"


def test_what_never_ends_is_given_up() -> None:
    with pytest.raises(ProgramHangs):
        raysim.Cluster.build().run(naps(1e6, 1), limit="1h")


def test_a_node_that_no_catalog_has() -> None:
    with pytest.raises(ScenarioError, match=r"m5\.3xlarge"):
        raysim.Cluster.build(node="m5.3xlarge")
