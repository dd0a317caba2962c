"""Which pipeline stage holds which layers, decided as DeepSpeed or Megatron-LM does, or as said.

Source: ``deepspeed/runtime/utils.py`` (``partition_uniform``, ``partition_balanced``) and
``deepspeed/runtime/pipe/module.py`` (``_partition_layers``) of 0.19. Releases before the dynamic
programme balanced by binary search and are not modelled. Megatron-LM:
``megatron/core/transformer/transformer_block.py`` (``get_num_layers_to_build``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from raysim.errors import ScenarioError
from raysim.models.table import Layer
from raysim.training.settings.deepspeed import PipelineSettings


def partition_uniform(num_items: int, num_parts: int) -> list[int]:
    """Boundaries ``[0, ..., num_items]`` of parts whose sizes differ by at most one, larger first.

    >>> partition_uniform(10, 4)
    [0, 3, 6, 8, 10]
    """
    if num_items <= num_parts:
        return [min(part, num_items) for part in range(num_parts + 1)]
    size, residual = divmod(num_items, num_parts)
    return [part * size + min(part, residual) for part in range(num_parts + 1)]


def partition_balanced(weights: Sequence[float], num_parts: int) -> list[int]:
    """Boundaries that minimise (heaviest part - lightest part), by DeepSpeed's dynamic programme.

    The state of (first ``i`` items, ``j`` parts) keeps one candidate only and ties go to the latest
    cut, so the result is DeepSpeed's, not always the global optimum.

    >>> partition_balanced([1, 1, 1, 4, 1, 1, 1, 1], 3)
    [0, 3, 4, 8]
    """
    if len(weights) <= num_parts:
        return partition_uniform(len(weights), num_parts)
    return list(_balanced(tuple(weights), num_parts))


@lru_cache(maxsize=64)
def _balanced(weights: tuple[float, ...], num_parts: int) -> tuple[int, ...]:
    n = len(weights)
    prefix = np.concatenate(([0.0], np.cumsum(np.asarray(weights, dtype=float))))
    heaviest = np.full((n + 1, num_parts + 1), np.inf)
    lightest = np.full((n + 1, num_parts + 1), np.inf)
    cut = np.zeros((n + 1, num_parts + 1), dtype=int)
    heaviest[0, 0] = 0.0
    for i in range(1, n + 1):
        last_part = (prefix[i] - prefix[:i])[:, None]
        parts = slice(1, min(i, num_parts) + 1)
        before = slice(0, min(i, num_parts))
        high = np.maximum(heaviest[:i, before], last_part)
        low = np.minimum(lightest[:i, before], last_part)
        spread = high - low
        best = i - 1 - spread[::-1].argmin(axis=0)
        heaviest[i, parts] = high[best, range(len(best))]
        lightest[i, parts] = low[best, range(len(best))]
        cut[i, parts] = best
    bounds = [n]
    for j in range(num_parts, 0, -1):
        bounds.append(int(cut[bounds[-1], j]))
    return tuple(bounds[::-1])


def layer_weights(layers: Sequence[Layer], method: str) -> list[float]:
    """Weight of each layer under ``parameters`` or ``type:regex``.

    Tied layers count at each occurrence, as PipelineModule counts trainable parameters per layer.
    """
    if method == "parameters":
        return [
            float(sum(p.numel for p in layer.body.parameters if p.trainable)) for layer in layers
        ]
    pattern = re.compile(method.split(":", 1)[1], re.IGNORECASE)
    return [1.0 if pattern.search(layer.cls) else 0.0 for layer in layers]


def partition_layers(layers: Sequence[Layer], stages: int, method: str) -> list[int]:
    """Boundaries of pipeline stages over ``layers``.

    Raises
    ------
    ScenarioError
        The method is not one of DeepSpeed's, or it leaves a stage without layers.
    """
    name = method.lower()
    if name == "uniform":
        bounds = partition_uniform(len(layers), stages)
    elif name == "parameters" or name.startswith("type:"):
        bounds = partition_balanced(layer_weights(layers, name), stages)
    else:
        raise ScenarioError(
            f"pipeline partition_method {method!r}: DeepSpeed knows uniform, parameters, type:regex"
        )
    if any(a == b for a, b in pairwise(bounds)):
        raise ScenarioError(
            f"pipeline: {len(layers)} layers over {stages} stages by {method!r} leave one empty"
        )
    return bounds


def blocks_per_stage(blocks: int, ranks: int, chunks: int, settings: PipelineSettings) -> list[int]:
    """Blocks of each of ``ranks * chunks`` stages, as Megatron-LM divides them.

    >>> blocks_per_stage(8, 2, 2, PipelineSettings())
    [2, 2, 2, 2]
    >>> blocks_per_stage(7, 4, 1, PipelineSettings(account_for_embedding_in_pipeline_split=True))
    [1, 2, 2, 2]

    Raises
    ------
    ScenarioError
        They do not divide evenly.
    """
    embedding = settings.account_for_embedding_in_pipeline_split
    head = settings.account_for_loss_in_pipeline_split
    total = blocks + embedding + head
    explicit = {
        0: settings.num_layers_in_first_pipeline_stage,
        ranks - 1: settings.num_layers_in_last_pipeline_stage,
    }
    said = {rank: count for rank, count in explicit.items() if count is not None}
    left, over = ranks - len(said), total - sum(said.values())
    if over < 0 or (over % left if left else over):
        raise ScenarioError(
            f"pipeline: {over} layers do not divide over {left} ranks; give layers_per_stage, or "
            "the layers of the first or last rank"
        )
    counts = [said.get(rank, over // left if left else 0) for rank in range(ranks)]
    for rank, count in enumerate(counts):
        if count % chunks:
            raise ScenarioError(
                f"pipeline: {count} layers of rank {rank} do not divide into {chunks} stages; "
                "give layers_per_stage"
            )
    stages = [count // chunks for _ in range(chunks) for count in counts]
    stages[0] -= embedding
    stages[-1] -= head
    return stages


def cut_blocks(layers: Sequence[Layer], counts: Sequence[int]) -> list[int]:
    """Boundaries of stages with so many blocks each; what has no blocks counts every layer.

    Layers before the first block go with the first stage, those after the last with the last.

    Raises
    ------
    ScenarioError
        The counts are not the model's, or leave a stage empty.
    """
    blocks = [i for i, layer in enumerate(layers) if layer.kind == "block"]
    blocks = blocks or list(range(len(layers)))
    if sum(counts) != len(blocks):
        raise ScenarioError(
            f"pipeline: layers_per_stage has {sum(counts)} layers, the model {len(blocks)}"
        )
    starts = [*blocks, blocks[-1] + 1]
    bounds, done = [0], 0
    for count in counts[:-1]:
        done += count
        bounds.append(starts[done])
    bounds.append(len(layers))
    if any(a >= b for a, b in pairwise(bounds)):
        raise ScenarioError(f"pipeline: layers per stage {list(counts)} leave a stage empty")
    return bounds


def stage_bounds(
    layers: Sequence[Layer], settings: PipelineSettings, ranks: int, chunks: int
) -> list[int]:
    """Boundaries of ``ranks * chunks`` stages over ``layers``.

    Raises
    ------
    ScenarioError
        The model cannot be cut as asked.
    """
    stages = ranks * chunks
    if stages == 1:
        return [0, len(layers)]
    if settings.first_layers:
        return [*settings.first_layers, len(layers)]
    if settings.layers_per_stage:
        if len(settings.layers_per_stage) != stages:
            raise ScenarioError(
                f"pipeline: layers_per_stage has {len(settings.layers_per_stage)} entries, "
                f"there are {stages} stages"
            )
        return cut_blocks(layers, settings.layers_per_stage)
    if settings.partition_method == "blocks":
        blocks = sum(layer.kind == "block" for layer in layers) or len(layers)
        return cut_blocks(layers, blocks_per_stage(blocks, ranks, chunks, settings))
    return partition_layers(layers, stages, settings.partition_method)
