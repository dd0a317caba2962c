"""What is tried when nobody says: sizes of the cluster, and what its kind of job is cut by."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from raysim.planner.default_programs import sizes, values_of_program
from raysim.scenario.build import build_model
from raysim.scenario.documents import value_at
from raysim.scenario.load import AnyScenario, Scenario
from raysim.scenario.overrides import TRAIN
from raysim.scenario.sources import FSDP

NODES = (0.5, 1, 2, 4)
"""Sizes of the cluster, over the scenario's."""
DEGREES = (1, 2, 4, 8, 16, 32, 64)
MOST_MICRO_BATCHES = 6
FEW_MICRO_BATCHES = 3
"""Of jobs that are cut in other ways as well."""
MOST_STAGES = 16
SCHEDULES = ("megatron_1f1b", "interleaved", "zb_h1", "zb_v")
"""Of pipelines without DeepSpeed."""
OFFLOAD = "train.deepspeed.zero_optimization.offload_optimizer.device"
MEGATRON = "train.megatron."
ENGINE = "train.engine"
HALF, FULL = 2, 4
"""Bytes of a weight."""
COPIES = 4
LARGE_FRAC = 0.5
"""Of a GPU's memory: the rest is for activations, buckets and CUDA, so that a job that replicates
more may fit only sharded."""
ACCELERATE = "train.fsdp.fsdp_config."

Values = dict[str, tuple[Any, ...]]


def default_values(scenario: AnyScenario) -> Values:
    """Values by key.

    Raises
    ------
    ScenarioError
        A program on one node: nothing that is sure to matter.
    """
    if not isinstance(scenario, Scenario):
        return values_of_program(scenario)
    groups = [g for g in scenario.cluster.groups if g.node.gpu is not None]
    values: Values = {}
    if len(groups) == 1 and (not groups[0].head or scenario.spec.cluster.nodes):
        fixed = replace(groups[0], min_count=groups[0].count, max_count=groups[0].count)
        values |= sizes(scenario, fixed, NODES)
    if scenario.strategy.megatron is not None:
        values |= _of_megatron(scenario)
    elif scenario.spec.train.pipeline is not None:
        values |= _of_pipeline(scenario)
    else:
        values |= _of_data_parallel(scenario)
    values |= _of_failures(scenario)
    return {key: found for key, found in values.items() if len(found) > 1}


def _of_data_parallel(scenario: Scenario) -> Values:
    """ZeRO stages and offload of DeepSpeed, resharding of FSDP; micro-batches, checkpointing."""
    strategy = scenario.strategy
    values: Values = {}
    if strategy.deepspeed is not None:
        values["train.zero_stage"] = (1, 2, 3)
        if strategy.deepspeed.zero.offload_optimizer.device in ("none", "cpu"):
            values[OFFLOAD] = ("none", "cpu")
    if strategy.engine == "ddp" and _fills_gpus(scenario):
        values[ENGINE] = ("ddp", "fsdp")
    values["train.micro_batch"] = _micro_batches(scenario, MOST_MICRO_BATCHES)
    block = value_at(_fsdp(scenario), ("fsdp_config",))
    accelerate = block if isinstance(block, dict) else {}
    if accelerate.get("fsdp_activation_checkpointing"):
        values[f"{ACCELERATE}fsdp_activation_checkpointing"] = (False, True)
    else:
        values["train.activation_checkpointing"] = ("none", "full")
    if isinstance(accelerate.get("fsdp_reshard_after_forward"), bool):
        values[f"{ACCELERATE}fsdp_reshard_after_forward"] = (True, False)
    elif not accelerate and strategy.engine == "fsdp" and strategy.fsdp.version == 2:
        values["train.fsdp.reshard_after_forward"] = (True, False)
    if not accelerate and strategy.engine == "fsdp" and strategy.batch.accumulation > 1:
        values["train.fsdp.sync_every_micro_batch"] = (False, True)
    return values


def _fills_gpus(scenario: Scenario) -> bool:
    """Whether a copy of weights, gradients and Adam's two states takes most of a GPU's memory."""
    memory = min(g.node.gpu.memory_bytes for g in scenario.cluster.groups if g.node.gpu is not None)
    each = FULL if scenario.strategy.precision == "fp32" else HALF
    return COPIES * each * build_model(scenario).num_trainable > LARGE_FRAC * memory


def _fsdp(scenario: Scenario) -> Any:
    source = scenario.sources.get(FSDP)
    return None if source is None else source.documents[0].data


def _of_pipeline(scenario: Scenario) -> Values:
    """Stages, tensor parallelism within a node, and schedules where DeepSpeed's is not the only."""
    mesh, pipeline = scenario.strategy.mesh, scenario.strategy.pipeline
    most = min(MOST_STAGES, len(build_model(scenario).layers), mesh.world)
    values: Values = {
        "train.pipeline.stages": tuple(
            d for d in DEGREES if d <= most and mesh.pp <= 4 * d <= 16 * mesh.pp
        ),
    }
    if mesh.tp > 1:
        gpus = max(g.node.gpu_count for g in scenario.cluster.groups)
        values["train.tensor_parallel"] = tuple(d for d in DEGREES if d <= gpus)
    if scenario.strategy.deepspeed is None:
        values["train.pipeline.schedule"] = tuple(dict.fromkeys((pipeline.schedule, *SCHEDULES)))
    values["train.micro_batch"] = _micro_batches(scenario, FEW_MICRO_BATCHES)
    values["train.pipeline.activation_checkpoint_interval"] = (0, 1)
    return values


def _of_failures(scenario: Scenario) -> Values:
    """How often to save, where something fails."""
    train = scenario.spec.train
    every = train.checkpoint_every or train.checkpoint.every
    if train.failures is None or every is None:
        return {}
    key = "checkpoint_every" if train.checkpoint_every is not None else "checkpoint.every"
    own = value_at(scenario.document.data, (*TRAIN, *key.split(".")))
    return {f"train.{key}": tuple(dict.fromkeys((own, "optimal")))}


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
    values[f"{MEGATRON}micro_batch_size"] = _micro_batches(scenario, FEW_MICRO_BATCHES)
    return values


def _micro_batches(scenario: Scenario, most: int) -> tuple[int, ...]:
    """The job's own and its doubles and halves that divide what a rank takes per step."""
    own = scenario.strategy.batch.micro
    per_rank = own * scenario.strategy.batch.accumulation
    halves = [own >> k for k in range(own.bit_length()) if own % 2**k == 0]
    doubles = [own << k for k in range(1, per_rank.bit_length()) if per_rank % (own << k) == 0]
    near = sorted(halves + doubles, key=lambda micro: (abs(math.log2(micro / own)), micro))
    return tuple(sorted(near[:most]))
