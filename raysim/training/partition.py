"""Which pipeline stage holds which layers, decided as DeepSpeed's ``PipelineModule`` does.

Source: ``deepspeed/runtime/utils.py`` (``partition_uniform``, ``partition_balanced``) and
``deepspeed/runtime/pipe/module.py`` (``_partition_layers``) of 0.19. Releases before the dynamic
programme balanced by binary search and are not modelled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from raysim.errors import ScenarioError
from raysim.models.table import Layer


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
    n = len(weights)
    if n <= num_parts:
        return partition_uniform(n, num_parts)
    prefix = np.concatenate(([0.0], np.cumsum(np.asarray(weights, dtype=float))))
    heaviest = np.full((n + 1, num_parts + 1), np.inf)
    lightest = np.full((n + 1, num_parts + 1), np.inf)
    cut = np.zeros((n + 1, num_parts + 1), dtype=int)
    heaviest[0, 0] = 0.0
    for i in range(1, n + 1):
        last_part = prefix[i] - prefix[:i]
        for j in range(1, min(i, num_parts) + 1):
            high = np.maximum(heaviest[:i, j - 1], last_part)
            low = np.minimum(lightest[:i, j - 1], last_part)
            spread = high - low
            k = int(np.flatnonzero(spread == spread.min())[-1])
            heaviest[i, j], lightest[i, j], cut[i, j] = high[k], low[k], k
    bounds = [n]
    for j in range(num_parts, 0, -1):
        bounds.append(int(cut[bounds[-1], j]))
    return bounds[::-1]


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
