"""Anyscale's compute configs as cluster files."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.errors import ScenarioError
from raysim.scenario.anyscale import read_cluster_file
from raysim.scenario.clusters import ClusterResult, make_cluster
from raysim.scenario.documents import Document
from raysim.scenario.schema_cluster import ClusterSection

OLDER = """\
cloud_id: cld_1
region: us-west-2
max_workers: 10
head_node_type:
  name: head
  instance_type: m5.2xlarge
worker_node_types:
- name: gpus
  instance_type: g5.12xlarge
  min_workers: 1
  max_workers: 3
  use_spot: false
  resources:
    custom_resources: {big: 2}
    cpu: 40
"""
NEWER = """\
cloud: mine
head_node: {instance_type: m5.2xlarge}
worker_nodes:
- {instance_type: g5.12xlarge, min_nodes: 1, max_nodes: 3, market_type: PREFER_SPOT}
"""


JOB = """\
name: train
entrypoint: python train.py
compute_config:
  head_node: {instance_type: m5.2xlarge, labels: {disk: fast}}
  worker_nodes:
  - {instance_type: g5.12xlarge, min_nodes: 1, max_nodes: 3}
"""


def result(folder: Path, text: str) -> ClusterResult:
    (folder / "compute.yaml").write_text(text)
    files = read_cluster_file(folder / "compute.yaml", "compute.yaml")
    data = {"from": "compute.yaml"}
    where = Document(file="scenario.yaml", data=data, prefix="cluster")
    return make_cluster(ClusterSection.model_validate(data), where, files, None)


@pytest.mark.parametrize(
    ("text", "name"), [(OLDER, "gpus"), (NEWER, "worker-0"), (JOB, "worker-0")]
)
def test_both_spellings(tmp_path: Path, text: str, name: str) -> None:
    made = result(tmp_path, text)
    assert made.spec is not None, [str(p) for p in made.errors]
    head, workers = made.spec.groups
    assert (head.node.name, head.head, head.count) == ("m5.2xlarge", True, 1)
    assert (workers.name, workers.node.name) == (name, "g5.12xlarge")
    assert (workers.count, workers.max_count, made.spec.num_gpus) == (1, 3, 4)


def test_resources_are_those_of_ray(tmp_path: Path) -> None:
    made = result(tmp_path, OLDER)
    assert made.spec is not None
    assert made.spec.groups[1].resources == {"CPU": 40.0, "big": 2.0, "GPU": 4.0}


def test_gpus_in_the_name_of_a_machine_of_gcp(tmp_path: Path) -> None:
    made = result(tmp_path, OLDER.replace("g5.12xlarge", "n1-standard-32-nvidia-tesla-t4-2"))
    assert made.spec is not None
    node = made.spec.groups[1].node
    assert (node.vcpus, node.gpu_count) == (32, 2)
    assert node.gpu is not None
    assert node.gpu.name == "T4"


def test_problems_stand_where_the_file_has_them(tmp_path: Path) -> None:
    made = result(tmp_path, OLDER.replace("min_workers: 1", "min_workers: lots"))
    assert "compute.yaml:10:16" in str(made.errors[0])


def test_other_files_are_left_as_they_are(tmp_path: Path) -> None:
    ray_up = "provider: {type: aws}\nhead_node: {InstanceType: m5.large}\n"
    (tmp_path / "x.yaml").write_text(ray_up)
    (document,) = read_cluster_file(tmp_path / "x.yaml", "x.yaml")
    assert set(document.data) == {"provider", "head_node"}


def test_machines_within_a_jobs_config(tmp_path: Path) -> None:
    made = result(tmp_path, JOB)
    assert made.spec is not None
    assert made.spec.groups[0].labels == {"disk": "fast"}
    wrong = result(tmp_path, JOB.replace("min_nodes: 1", "min_nodes: lots"))
    assert "compute.yaml:6:45 " in str(wrong.errors[0])
    with pytest.raises(ScenarioError, match=r"compute.yaml:3:17 .*expected machines"):
        result(tmp_path, "name: train\nentrypoint: python train.py\ncompute_config: mine:1\n")


def test_workers_that_anyscale_would_choose_are_said_to_be_missing(tmp_path: Path) -> None:
    made = result(
        tmp_path, "head_node: {instance_type: m5.large}\nauto_select_worker_config: true\n"
    )
    assert "compute.yaml:2:1 " in str(made.notes[0])
    assert "list them as worker_nodes" in str(made.notes[0])


def test_a_head_without_cpus_needs_workers(tmp_path: Path) -> None:
    text = "head_node: {instance_type: m5.large, resources: {CPU: 0}}\n"
    with pytest.raises(ScenarioError, match=r"compute.yaml:2:.*name the machines in worker_nodes"):
        result(tmp_path, text + "auto_select_worker_config: true\n")
    assert result(tmp_path, text).spec is not None
