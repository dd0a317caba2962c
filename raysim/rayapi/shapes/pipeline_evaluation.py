"""``schedule.eval()``, and schedules without a loss: all micro-batches forward, nothing backward.

Real counterpart: ``torch/distributed/pipelining/schedules.py``.

Simplified: every rank is busy until the last one has done.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from raysim.errors import ScenarioError
from raysim.rayapi.shapes import prediction
from raysim.rayapi.shapes.roles import Role
from raysim.rayapi.shapes.spread import spread
from raysim.rayapi.train.environment import host_pool

if TYPE_CHECKING:
    from raysim.rayapi.shapes.steps import Steps


def evaluated(steps: Steps, model: Any, role: Role, micro_batches: int) -> None:
    """So many forwards of a pipeline are queued.

    Raises
    ------
    RuntimeError
        They cannot be predicted.
    """
    known = steps.shared.forwards
    key: Any = evaluated, id(role), micro_batches
    if key not in known:
        known[key] = _forward(steps, model, role, micro_batches)
    steps.evaluated(known[key], within=False)


def _forward(steps: Steps, model: Any, role: Role, micro_batches: int) -> prediction.Forward:
    assert role.model is not None, "an evaluation of a model that was not traced"
    world = steps.worker.context.world_size
    wrapping = spread(steps, model.raysim_wrapping)
    half = role.half or (torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"))
    plan = wrapping.plan(
        role.model, world_size=world, micro_batch=role.batch, accumulation=micro_batches,
        optimizer=None, autocast=half, clipping=0.0,
    )  # fmt: skip
    plan = replace(
        plan, constants=steps.worker.run.session.training, host_pool=host_pool(steps.worker)
    )
    cluster = steps.cluster(alone=0 if wrapping.meets else plan.mesh.world)
    try:
        return prediction.pipeline_forward(plan, cluster, steps.feed_of(role), steps.seed)
    except ScenarioError as error:
        raise RuntimeError(f"raysim cannot predict this evaluation: {error}") from error
