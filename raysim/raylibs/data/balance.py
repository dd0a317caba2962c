"""What each stage of a dataset can do at most: the closed form behind "how many CPU nodes".

Rows per second are the least over what binds: all CPUs over the CPU seconds that a row takes in all
stages, each pool's actors over the seconds of a row, the consumers over their step. Real
counterpart: what ``rate_based_cluster_autoscaler.py`` works out from measured rates.

A row holds a CPU for its work, longer where two threads have one core (``hardware/cores.py``), and
for what it waits. Rates are of rows of the source; what a stage makes more or less of them counts.

Not modelled: pools slowed by the threads beside them, trainers' own work on the CPUs they hold,
CPUs that are not spread evenly over machines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from raysim.hardware.cores import Capacity
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
    """CPUs held times seconds of work, on cores of its own."""
    wait_cpu_s: float
    """CPUs held times seconds that no core works."""
    core_s: float
    """Of all threads."""
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
    machines: Capacity
    """That have these CPUs, and those that the consumers hold."""
    gpus: float
    consumers_per_s: float
    """Rows that the consumers take; infinite where they only store them."""

    @property
    def cpu_s_per_row(self) -> float:
        """Of all stages, where every CPU is a core."""
        return sum(s.cpu_s + s.wait_cpu_s for s in self.stages)

    @property
    def cpu_rows_per_s(self) -> float:
        """Rows that the CPUs make."""
        return self._made_by(self.cpus)

    @property
    def cpus_to_keep_up(self) -> float:
        """CPUs at which the consumers, the GPUs or a limited stage bind.

        Where there are too few, of more machines like these.
        """
        gpu_s = sum(s.gpu_s for s in self.stages)
        wanted = min(
            self.consumers_per_s,
            self.gpus / gpu_s if gpu_s else math.inf,
            *(s.rows_per_s for s in self.stages),
        )
        made = self.cpu_rows_per_s
        if wanted <= made:
            return min(wanted * self.cpu_s_per_row, self.cpus) if self.cpu_s_per_row else 0.0
        all_cpus = self.machines.vcpus
        if not all_cpus:  # those that it had are gone
            return wanted * self.cpu_s_per_row
        return self.cpus + (wanted - made) * all_cpus / self._made_by(all_cpus)

    def _made_by(self, cpus: float) -> float:
        """Rows per second of so many of the machines' CPUs."""
        work, wait = sum(s.cpu_s for s in self.stages), sum(s.wait_cpu_s for s in self.stages)
        core_s = sum(s.core_s for s in self.stages)
        if not work + wait:
            return math.inf
        rates = [cpus / (work + wait)]
        if core_s:
            rates.append(self.machines.most / core_s)
            doubling = self.machines.doubling
            if doubling is not None:  # x threads do cores + (x - cores) * gain of a row's core_s
                each = work / core_s / doubling.gain
                spare = self.machines.cores * (1.0 - doubling.gain)
                rates.append((cpus + spare * each) / (wait + each * core_s))
        return min(rates)


def balance(
    dataset: Dataset,
    context: DataContext,
    *,
    cpus: float,
    machines: Capacity,
    gpus: float,
    consumers_per_s: float,
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
                name=stage.name, cpu_s=flow.core_s / stage.width / SAMPLE_ROWS * first.cpus,
                wait_cpu_s=flow.wait_s / SAMPLE_ROWS * first.cpus,
                core_s=flow.core_s / SAMPLE_ROWS, gpu_s=held_s * first.num_gpus,
                slots=most * first.max_concurrency if most else math.inf, held_s=held_s,
            )
        )  # fmt: skip
        row_bytes = flow.size_bytes / flow.rows if flow.rows else 0.0
        rows = flow.rows
    return Balance(
        stages=tuple(stages), cpus=cpus, machines=machines, gpus=gpus,
        consumers_per_s=consumers_per_s,
    )  # fmt: skip
