"""Nodes that an execution asks for.

Real counterpart: ``_internal/cluster_autoscaler/rate_based_cluster_autoscaler.py``. Every 10 s,
unless all of CPU, GPU and store are less than half used: the largest row rate ``T`` with
``sum_i resources_i / rate_i x T`` within twice the cluster (at most 256 CPUs and 32 GPUs more),
where ``rate_i`` is what one task of operator i does; the bundles that needs are requested.

Not modelled: averages over 10 s (the instant counts), the AutoscalingCoordinator between several
datasets, expiry of a request after 180 s.
"""

from __future__ import annotations

import math

from raysim.raycore.protocol import RequestClusterResourceConstraint
from raysim.raycore.resources import ResourceSet
from raysim.raycore.scripts import Script, ask_gcs, now
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.operators import Operator
from raysim.raylibs.data.resources import NONE, ResourceManager, Resources
from raysim.units import NS_PER_S, to_ns


class ClusterAutoscaler:
    """Of one execution."""

    def __init__(
        self, topology: list[Operator], manager: ResourceManager, context: DataContext
    ) -> None:
        self.topology = topology
        self.manager = manager
        self.context = context
        self.requests: list[tuple[int, int]] = []
        """(When, bundles) of each request."""
        self._looked_ns = 0

    def next_look_ns(self, now_ns: int) -> int | None:
        """How long until it looks again; None: never."""
        if not self.context.cluster_autoscaling:
            return None
        every_ns = to_ns(self.context.autoscaling_period_s)
        return max(self._looked_ns + every_ns - now_ns, 1)

    def look(self) -> Script:
        """Ask for what would keep the operators in balance, if it is time."""
        at_ns = yield now()
        due_ns = self._looked_ns + to_ns(self.context.autoscaling_period_s)
        if not self.context.cluster_autoscaling or at_ns < due_ns:
            return
        self._looked_ns = at_ns
        used = NONE
        for usage in self.manager.usages.values():
            used = used.plus(usage)
        limits = self.manager.limits
        low = self.context.autoscaling_low_util
        if all(u <= low * limit for u, limit in zip(used, limits, strict=True)):
            return
        bundles = self._bundles(limits)
        if bundles:
            self.requests.append((at_ns, len(bundles)))
            yield ask_gcs(RequestClusterResourceConstraint(tuple(bundles)))

    def _bundles(self, limits: Resources) -> list[ResourceSet]:
        capacity = Resources(
            min(2 * limits.cpu, limits.cpu + self.context.autoscaling_max_added_cpus),
            min(2 * limits.gpu, limits.gpu + self.context.autoscaling_max_added_gpus),
        )
        rates = {op.name: rate for op in self.topology if (rate := _rows_per_s(op)) is not None}
        ops = [op for op in self.topology if op.name in rates and not op.finished]
        per_row = NONE
        fastest = math.inf
        for op in ops:
            each, most = _each(op), op.least_and_most()[1]
            per_row = per_row.plus(each.times(1 / rates[op.name]))
            for one, all_of in ((each.cpu, most.cpu), (each.gpu, most.gpu)):
                if one and math.isfinite(all_of):
                    fastest = min(fastest, all_of / one * rates[op.name])
        if per_row.cpu:
            fastest = min(fastest, capacity.cpu / per_row.cpu)
        if per_row.gpu:
            fastest = min(fastest, capacity.gpu / per_row.gpu)
        if not ops or math.isinf(fastest):
            return []
        bundles: list[ResourceSet] = []
        for op in ops:
            each = _each(op)
            held = {"CPU": each.cpu, "GPU": each.gpu}
            bundle = ResourceSet.of({k: v for k, v in held.items() if v})
            bundles += [bundle] * math.ceil(fastest / rates[op.name])
        return bundles


def _each(op: Operator) -> Resources:
    """What one task, or one actor, holds."""
    usage = op.usage()
    pool = getattr(op, "pool", None)
    each: Resources = pool.each if pool is not None else op.per_task()
    return each._replace(store=0.0) if usage is not None else each


def _rows_per_s(op: Operator) -> float | None:
    """Rows that one of its tasks takes in a second; None before the first has ended."""
    metrics = op.metrics
    ended = metrics.tasks_finished
    if not op.throttled or not ended or not metrics.task_ns:
        return None
    rows_per_task = metrics.rows_in / max(metrics.tasks_submitted, 1)
    return rows_per_task / (metrics.task_ns / ended / NS_PER_S)
