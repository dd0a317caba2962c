"""A step of a deep model from two shallow ones: what one more layer adds is always the same.

Past the first few, equal layers in a row cost the same: their kernels, their share of buckets, the
collectives that hide behind them. So a step is linear in how many there are, and two depths tell
it. Only time is told this way: which moment memory peaks at changes with depth.

Simplifications, below 3 % together (``tests/laws/test_training_folding.py``): parameters that
ZeRO-3 keeps gathered between passes (``stage3_max_live_parameters``) are a larger share of a
shallow model, and its last bucket is filled another way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from raysim.hardware.cluster import ClusterSpec
from raysim.kernel.simulation import Simulation
from raysim.models.table import Layer
from raysim.training.compiler.feed import Feed
from raysim.training.engines.megatron import overlapped_bucket_numel
from raysim.training.pipeline.partition import stage_bounds
from raysim.training.plan import TrainingPlan
from raysim.training.stages import pipeline_of
from raysim.training.tower import simulate
from raysim.units import to_seconds

MOST_PERIOD = 8
"""Layers after which a pattern repeats: dense and expert layers, local and global attention."""
WORTH_IT = 2
"""How many times fewer layers the two shallow models must have together."""
FEWEST = 16
"""Layers of a model that is worth folding."""
SMALLEST = 40_000_000
"""Parameters of such a layer: the kernels of smaller ones may end before the next are issued, and
a host that falls behind is not linear."""


@dataclass(frozen=True, slots=True)
class Fold:
    """A stretch of layers that repeats itself, and the two lengths that are played in its place."""

    start: int
    """Index of its first layer."""
    layers: int
    """How many there are."""
    shallow: int
    deep: int

    def folded(self, plan: TrainingPlan, layers: int) -> TrainingPlan:
        """The plan with so many of them left."""
        own = plan.model.layers
        kept = own[: self.start + layers] + own[self.start + self.layers :]
        return replace(plan, model=replace(plan.model, layers=kept))


def fold_of(plan: TrainingPlan) -> Fold | None:
    """Where a plan's model can be folded; None where it cannot, or where that saves little."""
    settings = plan.pipeline
    uneven = (
        settings.layers_per_stage
        or settings.first_layers
        or settings.activation_checkpoint_interval
        or settings.num_layers_in_first_pipeline_stage is not None
        or settings.num_layers_in_last_pipeline_stage is not None
    )
    if uneven or plan.recompute_layers is not None or plan.zero.swaps:
        return None
    start, count, period = repeating(plan.model.layers)
    if count < FEWEST:
        return None
    unit = math.lcm(period, pipeline_of(plan).layout.depth)
    numel = sum(layer.body.numel for layer in plan.model.layers[start : start + period])
    if numel < SMALLEST * period:
        return None
    least = unit * -(-_bucket_numel(plan) // (numel * unit // period))
    rest = count % unit
    if plan.engine == "deepspeed" and plan.zero.stage == 3:
        rest += unit  # the last layer's reductions have no next layer to wait for
    fold = Fold(start, count, rest + least, rest + 2 * least)
    if WORTH_IT * (fold.shallow + fold.deep) > count or not _stays_even(plan, fold):
        return None
    return fold


def repeating(layers: Sequence[Layer]) -> tuple[int, int, int]:
    """The longest stretch that repeats itself: its start, its length, and after how many layers."""
    found = (0, 0, 1)
    for period in range(1, MOST_PERIOD + 1):
        start = 0
        for i in range(period, len(layers) + 1):
            if i < len(layers) and layers[i].body is layers[i - period].body:
                continue
            length = i - start
            if length >= 2 * period and length > found[1] + period:
                found = (start, length, period)
            start = i - period + 1
    return found


def _bucket_numel(plan: TrainingPlan) -> int:
    """Elements of gradients that are reduced at once, at most."""
    if plan.engine == "deepspeed" and plan.zero.stage:
        return max(1, plan.zero.reduce_bucket_size)
    if plan.engine == "internevo":
        return plan.internevo.reduce_bucket_size
    if plan.engine == "megatron" and plan.megatron.overlap_grad_reduce:
        return plan.megatron.ddp_bucket_size or overlapped_bucket_numel(plan.mesh.weight_ranks)
    return 1


def _stays_even(plan: TrainingPlan, fold: Fold) -> bool:
    """Whether every pipeline stage loses as many layers."""
    if plan.mesh.pp == 1:
        return True
    lost = set()
    chunks = pipeline_of(plan).layout.depth // plan.mesh.pp
    full = stage_bounds(plan.model.layers, plan.pipeline, plan.mesh.pp, chunks)
    for layers in (fold.shallow, fold.deep):
        own = fold.folded(plan, layers).model.layers
        few = stage_bounds(own, plan.pipeline, plan.mesh.pp, chunks)
        sizes = [
            (b - a) - (d - c)
            for a, b, c, d in zip(full, full[1:], few, few[1:], strict=False)
        ]  # fmt: skip
        if len(set(sizes)) != 1:
            return False
        lost.add(sizes[0])
    return len(lost) > 1


def folded_step_s(plan: TrainingPlan, cluster: ClusterSpec, feed: Feed | None = None) -> float:
    """Seconds of a steady optimizer step: from two shallow models, or played where none will do.

    Parameters
    ----------
    plan, cluster
        What runs, and where.
    feed
        What the data of a micro-batch costs; None: nothing.

    Raises
    ------
    ScenarioError
        As ``simulate``.
    """
    fold = fold_of(plan)
    if fold is None:
        return _step_s(plan, cluster, feed)
    shallow = _step_s(fold.folded(plan, fold.shallow), cluster, feed)
    deep = _step_s(fold.folded(plan, fold.deep), cluster, feed)
    per_layer = (deep - shallow) / (fold.deep - fold.shallow)
    return deep + (fold.layers - fold.deep) * per_layer


def _step_s(plan: TrainingPlan, cluster: ClusterSpec, feed: Feed | None) -> float:
    played = simulate(plan, cluster, simulation=Simulation(), feed=feed, memory=False)
    return to_seconds(played.steady_step_ns)
