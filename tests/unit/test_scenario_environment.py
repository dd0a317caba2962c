"""The environment of a KubeRay file, and what a scenario says in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.errors import ScenarioError
from raysim.perf.host import HostPool
from raysim.scenario.build import build_job
from raysim.scenario.load import Scenario, from_mapping
from raysim.training.allocator.config import AllocatorConfig
from raysim.training.plan import TrainingPlan

EXPANDABLE = AllocatorConfig(expandable_segments=True)
SCENARIO = """
raysim: 1
name: alloc
cluster:
  from: cluster.yaml
  hardware: {head: {node: m5.2xlarge}, gpu: {node: hgx-h100-8}}
model: {sequential: [{linear: [64, 64]}]}
jobs:
  - train: {precision: fp32, micro_batch: 2, steps: 3}
"""
CLUSTER = """
apiVersion: ray.io/v1
kind: RayJob
metadata: {{name: train}}
spec:
  entrypoint: python train.py
{runtime}
  rayClusterSpec:
    headGroupSpec:
      rayStartParams: {{}}
      template:
        spec:
          containers:
            - name: head
              resources: {{limits: {{cpu: 8, memory: 32Gi}}}}
    workerGroupSpecs:
      - groupName: gpu
        replicas: 1
        rayStartParams: {{}}
        template:
          spec:
            containers:
              - name: worker
                env: [{env}]
                resources: {{limits: {{cpu: 100, memory: 500Gi, nvidia.com/gpu: 8}}}}
"""


def config(folder: Path, env: str = "", runtime: str = "", **changes: Any) -> AllocatorConfig:
    return training_plan(folder, env, runtime, **changes).allocator


def training_plan(folder: Path, env: str = "", runtime: str = "", **changes: Any) -> TrainingPlan:
    (folder / "scenario.yaml").write_text(SCENARIO)
    (folder / "cluster.yaml").write_text(CLUSTER.format(env=env, runtime=runtime))
    scenario = raysim.load(folder).with_({f"train.{k}": v for k, v in changes.items()})
    return build_job(scenario).plan


def variable(name: str, value: str) -> str:
    return f'{{name: {name}, value: "{value}"}}'


def test_torchs_defaults_where_nothing_is_said(tmp_path: Path) -> None:
    assert config(tmp_path) == AllocatorConfig()


def test_the_scenario_says_it_as_text_or_as_keys(tmp_path: Path) -> None:
    assert config(tmp_path, allocator="expandable_segments:True") == EXPANDABLE
    said = {"max_split_size_mb": 64, "roundup_power2_divisions": {256: 1, ">": 8}}
    found = config(tmp_path, allocator=said)
    assert found.max_split_size_mb == 64
    assert found.roundup_power2_divisions[8:] == (1, *[8] * 7)


def test_containers_and_runtime_environments_are_read(tmp_path: Path) -> None:
    env = variable("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert config(tmp_path, env) == EXPANDABLE
    runtime = "  runtimeEnvYAML: |\n    env_vars: {PYTORCH_ALLOC_CONF: 'expandable_segments:True'}"
    assert config(tmp_path, runtime=runtime) == EXPANDABLE


def test_the_older_name_and_the_scenario_come_first(tmp_path: Path) -> None:
    both = ", ".join(
        variable(name, f"max_split_size_mb:{size}")
        for name, size in (("PYTORCH_ALLOC_CONF", 30), ("PYTORCH_CUDA_ALLOC_CONF", 40))
    )
    assert config(tmp_path, both).max_split_size_mb == 40
    assert config(tmp_path, both, allocator="max_split_size_mb:50").max_split_size_mb == 50


def test_errors_name_file_and_key(tmp_path: Path) -> None:
    env = variable("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:5")
    with pytest.raises(
        ScenarioError, match=r"cluster.yaml:\d+.*max_split_size_mb must be at least"
    ):
        config(tmp_path, env)
    with pytest.raises(ScenarioError, match=r"train.allocator: torch knows no key 'segments'"):
        config(tmp_path, allocator="segments:True")
    with pytest.raises(ScenarioError, match=r"train.allocator: expected the text"):
        config(tmp_path, allocator=3)


def test_blocking_launches_are_the_environments_or_the_scenarios(tmp_path: Path) -> None:
    on, off = (variable("CUDA_LAUNCH_BLOCKING", value) for value in "10")
    runtime = "  runtimeEnvYAML: |\n    env_vars: {CUDA_LAUNCH_BLOCKING: '1'}"
    assert not training_plan(tmp_path).launch_blocking
    assert training_plan(tmp_path, on).launch_blocking
    assert training_plan(tmp_path, runtime=runtime).launch_blocking
    assert not training_plan(tmp_path, off).launch_blocking
    assert training_plan(tmp_path, launch_blocking=True).launch_blocking
    assert not training_plan(tmp_path, on, launch_blocking=False).launch_blocking


def test_threads_are_ray_s_of_a_worker_without_cpus_unless_somebody_says(tmp_path: Path) -> None:
    env = variable("OMP_NUM_THREADS", "6")
    runtime = "  runtimeEnvYAML: |\n    env_vars: {OMP_NUM_THREADS: '3'}"
    assert training_plan(tmp_path).host_pool == HostPool(threads=1)
    assert training_plan(tmp_path, env).host_pool == HostPool(threads=6)
    assert training_plan(tmp_path, runtime=runtime).host_pool == HostPool(threads=3)
    assert training_plan(tmp_path, env, omp_num_threads=12).host_pool == HostPool(threads=12)
    assert training_plan(tmp_path, env, bind_cores_to_rank=True).host_pool == HostPool(bound=True)
    nonsense = variable("OMP_NUM_THREADS", "many")
    assert training_plan(tmp_path, nonsense).host_pool == HostPool(threads=1)
    with pytest.raises(ScenarioError, match="bind_cores_to_rank sets OMP_NUM_THREADS"):
        training_plan(tmp_path, omp_num_threads=1, bind_cores_to_rank=True)


RAY_UP = """
cluster_name: train
provider: {type: aws, region: us-west-2}
available_node_types:
  head: {node_config: {InstanceType: p4d.24xlarge}, resources: {}}
head_node_type: head
"""


@pytest.mark.parametrize(("cpus", "threads"), [(0, 1), (2.5, 2), (12, 12)])
def test_ray_train_s_workers_have_their_cpus_but_not_under_ray_up(
    tmp_path: Path, cpus: float, threads: int
) -> None:
    """``ray start`` has exported 1 there, and Ray sets the variable only where it is not set."""
    (tmp_path / "cluster.yaml").write_text(RAY_UP)
    given: dict[str, Any] = {"node": "p4d.24xlarge"}
    for cluster, expected in ((given, threads), ({"from": "cluster.yaml"}, 1)):
        document = {
            "cluster": cluster, "model": {"sequential": [{"linear": [64, 64]}]},
            "jobs": [{"train": {"precision": "fp32", "micro_batch": 2, "steps": 3}}],
        }  # fmt: skip
        scenario = from_mapping(document, folder=tmp_path)
        assert isinstance(scenario, Scenario)
        plan = build_job(scenario, worker_cpus=cpus).plan
        assert plan.host_pool == HostPool(threads=expected)
