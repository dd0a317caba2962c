"""Plans on real systems: DeepSpeed and Ray take the files, a Ray cluster tries the points."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ruamel.yaml import YAML

import raysim
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
    config = YAML(typ="safe").load(deploy_files(larger)["cluster.yaml"])
    validate_config(prepare_config(config))
    assert config["available_node_types"][group]["max_workers"] == 6


def test_a_ray_cluster_finds_what_processes_find() -> None:
    ray = pytest.importorskip("ray")
    space = {**SPACE, "train.activation_checkpointing": ["none", "full"]}
    said = scenario()
    points = space_of(said, space)
    try:
        found = sweep(said, points, on_ray(None))
    finally:
        ray.shutdown()
    assert found == sweep(said, points, serial) == sweep(said, points, processes(2))
