"""Plans on real systems: DeepSpeed and Ray take the files, a Ray cluster tries the points."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import raysim
from raysim.planner import pool
from raysim.planner.files import deploy_files
from raysim.planner.plan import Question, plan
from raysim.planner.pool import on_ray, processes, serial
from raysim.planner.space import space_of
from raysim.planner.sweep import sweep
from tests.unit.planner.parts import SPACE, scenario

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("real clusters")]


def test_deepspeed_takes_the_chosen_json(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.runtime import config as module

    chosen = plan(scenario(), Question(vary=SPACE)).chosen()
    assert chosen is not None
    world = chosen.strategy.mesh.world
    monkeypatch.setattr(module.dist, "get_rank", lambda group=None: 0)
    monkeypatch.setattr(module.dist, "get_world_size", lambda group=None: world)
    taken: Any = module.DeepSpeedConfig(json.loads(deploy_files(chosen)["ds_config.json"]))
    ours, batch = chosen.strategy.deepspeed, chosen.strategy.batch
    assert ours is not None
    assert taken.zero_optimization_stage == ours.zero.stage
    assert taken.train_batch_size == batch.train
    assert taken.train_micro_batch_size_per_gpu == batch.micro
    assert taken.gradient_accumulation_steps == batch.accumulation


def test_ray_takes_the_chosen_cluster_file() -> None:
    pytest.importorskip("ray")
    from ray.autoscaler._private.util import prepare_config, validate_config

    said = raysim.load("scenarios/llama31_70b_zero3_offload")
    group = next(g.name for g in said.cluster.groups if g.node.gpu is not None)
    larger = said.with_({f"cluster.{group}.replicas": 6, "train.workers": None})
    config = yaml(deploy_files(larger)["cluster.yaml"])
    validate_config(prepare_config(config))
    assert config["available_node_types"][group]["max_workers"] == 6


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama3_70b_spot", {"cluster.prices": {"gpu": "11 usd/h"}}),
        ("llama3_70b_spot", {"spot": {}, "cluster.gpu.replicas": 16}),
        ("databound_vit", {"cluster.cpu.max_replicas": 16, "cluster.cpu.min_replicas": 2}),
    ],
)
def test_ray_takes_machines_that_are_taken_back_and_bounds(
    name: str, changes: dict[str, Any]
) -> None:
    pytest.importorskip("ray")
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml(deploy_files(raysim.load(f"scenarios/{name}", changes))["cluster.yaml"])
    config.setdefault("auth", {"ssh_user": "ubuntu"})
    for node_type in config["available_node_types"].values():
        node_type.setdefault("resources", {})  # which AWS is asked for when the cluster starts
    validate_config(prepare_config(config))


def test_serve_takes_the_chosen_config() -> None:
    pytest.importorskip("ray.serve")
    from ray.serve.schema import ServeDeploySchema

    key = "serve.deployments.1.autoscaling_config.max_replicas"
    files = deploy_files(raysim.load("scenarios/serve_burst", {key: 16}))
    taken = ServeDeploySchema.model_validate(yaml(files["serve_config.yaml"]))
    options = {d.name: d for d in taken.applications[0].deployments}
    bounds: Any = options["classifier"].autoscaling_config
    assert bounds["max_replicas"] == 16
    assert options["api"].num_replicas == 2


def test_ray_train_takes_the_chosen_numbers() -> None:
    pytest.importorskip("ray.train")
    from ray.train import CheckpointConfig
    from ray.train.v2.api.config import FailureConfig, ScalingConfig

    said = json.loads(deploy_files(raysim.load("scenarios/llama3_70b_spot"))["ray_train.json"])
    scaling = said["scaling_config"]
    scaling["num_workers"] = tuple(scaling["num_workers"])
    assert (ScalingConfig(**scaling).min_workers, ScalingConfig(**scaling).max_workers) == (32, 64)
    assert FailureConfig(**said["run_config"]["failure_config"]).max_failures == 20
    assert CheckpointConfig(**said["run_config"]["checkpoint_config"]).num_to_keep == 2


def test_accelerate_takes_the_chosen_config(tmp_path: Path) -> None:
    module = pytest.importorskip("accelerate.commands.config.config_args")
    file = tmp_path / "accelerate.yaml"
    changes = {"cluster.nodes": 2, "train.micro_batch": 4}
    file.write_text(deploy_files(raysim.load("scenarios/llama31_8b_fsdp2", changes))[file.name])
    taken: Any = module.load_config_from_file(str(file))
    assert (taken.num_machines, taken.num_processes) == (2, 16)
    assert taken.fsdp_config["fsdp_version"] == 2
    assert taken.downcast_bf16 == "no"


def yaml(text: str) -> Any:
    return YAML(typ="safe").load(text)


POINTS = {**SPACE, "train.activation_checkpointing": ["none", "full"]}


def test_a_ray_cluster_finds_what_processes_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a worker is killed: the third point kills its own, the first time."""
    ray = pytest.importorskip("ray")
    said, died = scenario(), tmp_path / "died"
    points = space_of(said, POINTS)
    expected = sweep(said, points, serial)

    def dies_once(task: Any, point: Any) -> Any:
        if point.number == 3 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return task(point)

    try:
        assert sweep(said, points, on_ray(None)) == expected
        monkeypatch.setattr(pool, "_try_on_ray", dies_once)
        assert sweep(said, points, on_ray(None)) == expected
    finally:
        ray.shutdown()
    assert died.exists()
    assert sweep(said, points, processes(2)) == expected
    assert sweep(said, points, serial).frame.equals(expected.frame)
