"""What is tried when nobody says: sizes of the cluster, and what its kind of job is cut by."""

from __future__ import annotations

from typing import Any

from raysim.errors import Problem, ScenarioError
from raysim.hardware.cluster import NodeGroup
from raysim.scenario.build import build_model
from raysim.scenario.load import AnyScenario, Scenario

NODES = (0.5, 1, 2, 4)
"""Sizes of the cluster, over the scenario's."""
DEGREES = (1, 2, 4, 8, 16, 32, 64)
MOST_MICRO_BATCHES = 6
MOST_MEGATRON_MICRO_BATCHES = 3
MOST_STAGES = 16
OFFLOAD = "train.deepspeed.zero_optimization.offload_optimizer.device"
MEGATRON = "train.megatron."

Values = dict[str, tuple[Any, ...]]


def default_values(scenario: AnyScenario) -> Values:
    """Values by key.

    Raises
    ------
    ScenarioError
        A program on a cluster that grows by itself, or on one node: nothing that is sure to matter.
    """
    if not isinstance(scenario, Scenario):
        return _of_program(scenario)
    groups = [g for g in scenario.cluster.groups if g.node.gpu is not None]
    sizes = _sizes(scenario, groups[0]) if len(groups) == 1 else {}
    if scenario.strategy.megatron is not None:
        return sizes | _of_megatron(scenario)
    strategy = scenario.strategy
    values: Values = {}
    if strategy.deepspeed is not None and strategy.mesh.pp == 1:
        values["train.zero_stage"] = (1, 2, 3)
        if strategy.deepspeed.zero.offload_optimizer.device in ("none", "cpu"):
            values[OFFLOAD] = ("none", "cpu")
    values["train.micro_batch"] = _micro_batches(scenario, MOST_MICRO_BATCHES)
    values["train.activation_checkpointing"] = ("none", "full")
    return sizes | values


def _of_program(scenario: AnyScenario) -> Values:
    groups = [
        g for g in scenario.cluster.groups
        if g.count and not g.head and (g.max_count or g.count) == g.count
    ]  # fmt: skip
    if not groups:
        message = "say what to try, with --vary KEY=VALUE,VALUE or `vary` in the scenario"
        raise ScenarioError(Problem(message=message))
    values: Values = {}
    for group in groups:
        values |= _sizes(scenario, group)
    return values


def _sizes(scenario: AnyScenario, group: NodeGroup) -> Values:
    inline = scenario.spec.cluster.nodes is not None
    key = "cluster.nodes" if inline else f"cluster.{group.name}.replicas"
    return {key: tuple(sorted({max(1, round(group.count * f)) for f in NODES}))}


def _of_megatron(scenario: Scenario) -> Values:
    """Tensor parallelism within a node, pipelines, experts and micro-batches.

    Degrees that do not divide heads, layers or ranks are refused when they are tried.
    """
    model, mesh = build_model(scenario), scenario.strategy.mesh
    gpus = max(g.node.gpu_count for g in scenario.cluster.groups)
    layers = len(model.layers)
    most = min(MOST_STAGES, layers, mesh.world)
    values: Values = {
        f"{MEGATRON}tensor_model_parallel_size": tuple(d for d in DEGREES if d <= gpus),
        f"{MEGATRON}pipeline_model_parallel_size": tuple(d for d in DEGREES if d <= most),
    }
    if mesh.ep > 1:
        values[f"{MEGATRON}expert_model_parallel_size"] = tuple(
            d for d in DEGREES if d <= mesh.world and d <= 4 * mesh.ep
        )
    if mesh.cp > 1:
        values[f"{MEGATRON}context_parallel_size"] = tuple(d for d in DEGREES if d <= 2 * mesh.cp)
    values[f"{MEGATRON}micro_batch_size"] = _micro_batches(scenario, MOST_MEGATRON_MICRO_BATCHES)
    return values


def _micro_batches(scenario: Scenario, most: int) -> tuple[int, ...]:
    batch = scenario.strategy.batch
    per_rank = batch.micro * batch.accumulation
    return tuple(2**k for k in range(most) if per_rank % 2**k == 0)
