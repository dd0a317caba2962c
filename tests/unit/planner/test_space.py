"""Spaces: combinations, defaults, what follows from a choice."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import raysim
from raysim.errors import ScenarioError
from raysim.planner.space import Space, chosen, space_of
from tests.unit.planner.parts import NODES, scenario


@given(st.dictionaries(st.text(min_size=1), st.lists(st.integers(), min_size=1), max_size=4))
def test_points_are_all_combinations_each_once(values):
    space = Space({key: tuple(dict.fromkeys(v)) for key, v in values.items()})
    points = list(space.points())
    assert len(points) == space.size == math.prod(len(v) for v in space.values.values())
    assert [p.number for p in points] == list(range(space.size))
    assert len({tuple(p.choice.items()) for p in points}) == space.size


def test_the_scenarios_own_space_is_taken():
    own = scenario(vary={"train.micro_batch": [1, 2]})
    assert space_of(own).values == {"train.micro_batch": (1, 2)}
    asked = space_of(own, {"train.zero_stage": [2]})
    assert asked.values == {"train.zero_stage": (2,)}


def test_a_space_where_nobody_says_one():
    space = space_of(scenario())
    assert space.values[NODES] == (1, 2, 4)
    assert space.values["train.zero_stage"] == (1, 2, 3)
    assert space.values["train.micro_batch"][0] == 1
    assert space.values["train.activation_checkpointing"] == ("none", "full")


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ({"train.micro_batch": []}, "no values to try"),
        ({"train.micro_batsh": [1]}, "unknown key 'micro_batsh'"),
        ({"cluster.workers.replicas": [1, 2]}, "no group 'workers'"),
    ],
)
def test_what_cannot_be_varied_is_said(vary, said):
    with pytest.raises(ScenarioError, match=said):
        space_of(scenario(), vary)


def test_workers_follow_nodes_unless_they_are_said():
    assert chosen(scenario(), {NODES: 2}).strategy.mesh.world == 8
    assert chosen(scenario(), {NODES: 2, "train.workers": 4}).strategy.mesh.world == 4
    assert chosen(scenario(), {"train.micro_batch": 2}).strategy.mesh.world == 4


def test_beyond_a_space_lies_what_would_help():
    space = Space({NODES: (1, 2), "train.micro_batch": (2, 4), "train.zero_stage": (1, 2)})
    assert space.outside(NODES) == (4, 8)
    assert space.outside("train.micro_batch") == (1,)
    assert space.outside("train.zero_stage") == (3,)
    assert space.outside("train.tensor_parallel") == ()


ZERO = "train.deepspeed.zero_optimization."


@pytest.mark.parametrize(
    ("name", "key", "values"),
    [
        ("llama3_8b_zero3", "cluster.gpu-worker.node", ["hgx-h200-8", "dgx-a100-80-8"]),
        ("llama3_8b_zero3", "cluster.gpu-worker.gpu", ["H200-SXM-141GB"]),
        ("llama31_8b_fsdp2", "train.gradient_accumulation_steps", [2, 4]),
        ("llama3_8b_zero3", f"{ZERO}offload_optimizer.device", ["none", "cpu"]),
        ("llama3_8b_zero3", f"{ZERO}reduce_bucket_size", ["auto", 100_000_000]),
        ("llama3_8b_zero3", f"{ZERO}stage3_prefetch_bucket_size", [10_000_000]),
        ("llama3_8b_zero3", "train.activation_checkpointing", ["none", "selective", "full"]),
        ("opt_175b_3d", "train.tensor_parallel", [4, 8]),
        ("opt_175b_3d", "train.pipeline.stages", [8, 32]),
        ("llama31_70b_megatron", "train.megatron.tensor_model_parallel_size", [4]),
        ("llama31_70b_megatron", "train.megatron.pipeline_model_parallel_size", [8]),
        ("llama31_70b_megatron", "train.megatron.context_parallel_size", [2]),
        ("llama3_70b_goodput", "train.checkpoint.every", ["30min", "optimal"]),
        ("llama3_70b_goodput", "train.failures.spare_nodes", [0, 2]),
        ("databound_vit", "cluster.cpu.replicas", [2, 16]),
        ("databound_vit", "cluster.cpu.max_replicas", [4, 16]),
        ("shuffle_sort", "ray.object_store_memory", ["20GiB", "80GiB"]),
        ("ray_shared_cluster", "spot.spot.per_hour", [1, 10]),
        ("serve_burst", "serve.deployments.1.autoscaling_config.min_replicas", [2, 4]),
    ],
)  # fmt: skip
def test_whatever_matters_can_be_varied(name, key, values):
    said = raysim.load(f"scenarios/{name}")
    space = space_of(said, {key: values})
    built = [chosen(said, point.choice).resolved() for point in space.points()]
    assert len({json.dumps(b, default=str) for b in built}) == len(values)
