"""What a plan leaves: a table, a summary, files that the real things take."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from ruamel.yaml import YAML

import raysim
from raysim.planner.files import deploy_files, write
from raysim.planner.plan import Question, plan
from tests.unit.planner.parts import NODES, SPACE, scenario


@pytest.fixture(scope="module")
def answer():
    return plan(scenario(), Question(vary=SPACE, maximize="tokens_per_s"))


def test_the_folder_replays_the_choice(answer, tmp_path):
    names = write(answer, tmp_path)
    assert all((tmp_path / name).exists() for name in names)
    frame = pd.read_parquet(tmp_path / "trials.parquet")
    best = frame.loc[frame.tokens_per_s.idxmax()]
    again = raysim.run(raysim.load(tmp_path / "best" / "scenario.yaml"), record=False)
    assert again.summary["throughput"]["tokens_per_s"] == pytest.approx(best.tokens_per_s)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["best"]["metrics"]["tokens_per_s"] == best.tokens_per_s
    assert summary["tried"] == summary["size"] == 8


def test_deepspeeds_json_says_the_batch_and_nothing_is_auto(answer):
    chosen = answer.chosen()
    files = deploy_files(chosen)
    config = json.loads(files["ds_config.json"])
    batch = chosen.strategy.batch
    world = chosen.strategy.mesh.dp
    assert config["train_batch_size"] == batch.micro * batch.accumulation * world
    assert config["zero_optimization"]["stage"] == chosen.strategy.deepspeed.zero.stage
    assert '"auto"' not in files["ds_config.json"]


def test_the_users_cluster_file_has_the_chosen_sizes():
    two = scenario(**{NODES: 2, "train.workers": None})
    group = YAML().load(deploy_files(two)["raycluster.yaml"])["spec"]["workerGroupSpecs"][0]
    assert [group[k] for k in ("replicas", "minReplicas", "maxReplicas")] == [2, 2, 2]


def test_a_ray_up_file_too():
    said = raysim.load("scenarios/llama31_8b_sft")
    files = deploy_files(said)
    name = "cluster.yaml" if "cluster.yaml" in files else "raycluster.yaml"
    assert YAML().load(files[name])


def test_a_cluster_of_a_scenarios_own_becomes_a_raycluster():
    inline = scenario(**{"cluster": {"node": "dgx-a100-80-8", "nodes": 1}, "train.workers": None})
    spec = YAML().load(deploy_files(inline)["raycluster.yaml"])["spec"]
    limits = spec["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "8"


def test_a_key_of_numbers_and_words_is_kept_as_json(tmp_path):
    key = "train.deepspeed.zero_optimization.reduce_bucket_size"
    write(plan(scenario(), Question(vary={key: ["auto", 100_000_000]})), tmp_path)
    frame = pd.read_parquet(tmp_path / "trials.parquet")
    assert [json.loads(v) for v in frame[key]] == ["auto", 100_000_000]


SORT = "scenarios/shuffle_sort"


def test_a_ray_up_file_has_the_chosen_machines_and_store():
    changes = {
        "cluster.worker.replicas": 5, "cluster.worker.node": "i4i.8xlarge",
        "ray.object_store_memory": "20GiB",
    }  # fmt: skip
    files = deploy_files(raysim.load(SORT, changes))
    cluster = YAML().load(files["cluster.yaml"])
    worker = cluster["available_node_types"]["worker"]
    assert (worker["min_workers"], worker["max_workers"], cluster["max_workers"]) == (5, 5, 5)
    assert worker["node_config"]["InstanceType"] == "i4i.8xlarge"
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        (start,) = [c for c in cluster[key] if "ray start" in c]
        assert f"ray start --object-store-memory={20 * 2**30} " in start
    assert "ray up -y cluster.yaml" in files["launch.sh"]


def test_what_was_not_chosen_stays_as_the_user_has_it():
    cluster = YAML().load(deploy_files(raysim.load("scenarios/databound_vit"))["cluster.yaml"])
    workers = cluster["available_node_types"]["cpu"]
    assert (workers["min_workers"], workers["max_workers"], cluster["max_workers"]) == (4, 8, 9)
    assert "head_start_ray_commands" not in cluster


def test_a_raycluster_has_the_chosen_machines_and_store(tmp_path):
    (tmp_path / "raycluster.yaml").write_text(RAYCLUSTER)
    (tmp_path / "scenario.yaml").write_text(KUBE_SCENARIO)
    changes = {"cluster.cpu.node": "m6i.8xlarge", "ray.object_store_memory": "5GiB"}
    cluster = deploy_files(raysim.load(tmp_path / "scenario.yaml", changes))["raycluster.yaml"]
    spec = YAML().load(cluster)["spec"]
    group = spec["workerGroupSpecs"][0]
    chosen = group["template"]["spec"]["nodeSelector"]
    assert chosen == {"node.kubernetes.io/instance-type": "m6i.8xlarge"}
    for part in (spec["headGroupSpec"], group):
        assert part["rayStartParams"]["object-store-memory"] == str(5 * 2**30)
    assert group["replicas"] == 2  # not chosen


RAYCLUSTER = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: small}
spec:
  rayVersion: "2.60.0"
  headGroupSpec:
    rayStartParams: {}
    template: {spec: {containers: [{name: ray-head, resources: {limits: {cpu: 4, memory: 16Gi}}}]}}
  workerGroupSpecs:
    - groupName: cpu
      replicas: 2
      minReplicas: 1
      maxReplicas: 2
      template: {spec: {containers: [{name: ray, resources: {limits: {cpu: 8, memory: 32Gi}}}]}}
"""
KUBE_SCENARIO = """
raysim: 1
name: small
cluster: {from: raycluster.yaml, hardware: {head: {node: m6i.2xlarge}, cpu: {node: m6i.4xlarge}}}
jobs: [{workload: {task_bag: {tasks: 10}}}]
"""
