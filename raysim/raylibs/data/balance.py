"""What each stage of a dataset can do at most: the closed form behind "how many CPU nodes".

Rows per second are the least over what binds: all CPUs over the CPU seconds that a row takes in all
stages, each pool's actors over the seconds of a row, the consumers over their step. Real
counterpart: what ``rate_based_cluster_autoscaler.py`` works out from measured rates.

Rates are of rows of the source; what a stage makes more or less of them counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.plan import plan_of
from raysim.raylibs.data.specs import Dataset
from raysim.raylibs.data.stages import MapStage
from raysim.raylibs.data.tasks import flow_of

SAMPLE_ROWS = 1_000_000
"""Rows a stage's cost is worked out on; costs are linear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRate:
    """One stage, per row of the source."""

    name: str
    cpu_s: float
    """CPUs held times seconds."""
    gpu_s: float
    slots: float
    """Tasks or actors at once, as the user limits them."""
    held_s: float
    """Of one task or actor."""

    @property
    def rows_per_s(self) -> float:
        """That its limit allows."""
        return self.slots / self.held_s if self.held_s else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """All stages, on a cluster of so many CPUs and GPUs beside the consumers'."""

    stages: tuple[StageRate, ...]
    cpus: float
    gpus: float
    consumers_per_s: float
    """Rows that the consumers take; infinite where they only store them."""

    @property
    def cpu_s_per_row(self) -> float:
        """Of all stages."""
        return sum(s.cpu_s for s in self.stages)

    @property
    def supply_per_s(self) -> float:
        """Rows that the stages make, at most."""
        gpu_s = sum(s.gpu_s for s in self.stages)
        return min(
            self.cpus / self.cpu_s_per_row if self.cpu_s_per_row else math.inf,
            self.gpus / gpu_s if gpu_s else math.inf,
            *(s.rows_per_s for s in self.stages),
        )

    @property
    def cpus_to_keep_up(self) -> float:
        """CPUs at which the consumers, the GPUs or a limited stage bind."""
        gpu_s = sum(s.gpu_s for s in self.stages)
        wanted = min(
            self.consumers_per_s,
            self.gpus / gpu_s if gpu_s else math.inf,
            *(s.rows_per_s for s in self.stages),
        )
        return wanted * self.cpu_s_per_row if self.cpu_s_per_row else 0.0


def balance(
    dataset: Dataset, context: DataContext, *, cpus: float, gpus: float, consumers_per_s: float
) -> Balance:
    """Of a dataset on so many CPUs and GPUs that nobody else holds."""
    stages: list[StageRate] = []
    rows, row_bytes = float(SAMPLE_ROWS), dataset.source.row_bytes
    for node in plan_of(dataset, context, cpus):
        stage = node.stage
        if not isinstance(stage, MapStage) or stage.samples:
            continue
        flow = flow_of(stage, round(rows), round(rows * row_bytes))
        first = stage.first
        held_s = (flow.core_s / stage.width + flow.wait_s) / SAMPLE_ROWS
        most = first.concurrency[1] if isinstance(first.concurrency, tuple) else first.concurrency
        stages.append(
            StageRate(
                name=stage.name, cpu_s=held_s * first.cpus, gpu_s=held_s * first.num_gpus,
                slots=most * first.max_concurrency if most else math.inf, held_s=held_s,
            )
        )  # fmt: skip
        row_bytes = flow.size_bytes / flow.rows if flow.rows else 0.0
        rows = flow.rows
    return Balance(
        stages=tuple(stages), cpus=cpus, gpus=gpus, consumers_per_s=consumers_per_s
    )  # fmt: skip
