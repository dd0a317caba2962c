"""How busy each part of an application was: threads, slots, queues; and which of them binds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from raysim.raylibs.serve.config import DeploymentConfig
from raysim.raylibs.serve.instance import Instance
from raysim.raylibs.serve.timeline import Timeline, area
from raysim.units import NS_PER_S

BUSY = 0.9
"""From here on a thread binds: its queue grows faster than its work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentUse:
    """One deployment over an interval; shares are of replica-seconds."""

    config: DeploymentConfig
    requests: int
    replicas_mean: float
    replicas_max: int
    loop_busy: float
    user_busy: float
    """Of ``Work.busy_s``: the GPU, or what runs beside the interpreter."""
    slots_used: float
    """Of ``max_ongoing_requests``."""
    wait_mean_s: float
    """For a replica with room."""
    wait_max_s: float
    wait_at_max_s: float
    """The longest of calls that came when ``max_replicas`` ran already."""

    @property
    def busy(self) -> float:
        """Of its busiest thread."""
        return max(self.loop_busy, self.user_busy)


def usage_of(
    instance: Instance, timeline: Timeline, from_s: float, to_s: float
) -> tuple[DeploymentUse, ...]:
    """Of every deployment, in order."""
    return tuple(_use(instance, timeline, d, from_s, to_s) for d in instance.app.deployments)


def _use(
    instance: Instance, timeline: Timeline, config: DeploymentConfig, from_s: float, to_s: float
) -> DeploymentUse:
    replicas = instance.all_replicas[config.name]
    routers = instance.all_routers[config.name]
    steps = timeline.runs.get(config.name, [])
    replica_s = area(steps, from_s, to_s) or math.inf  # none was there: it was busy for no share
    assigned = sum(r.assigned for r in routers)
    beside = sum(r.user_thread.busy_ns for r in replicas if r.user_thread is not r.loop)
    slots = replica_s * config.max_ongoing_requests
    return DeploymentUse(
        config=config,
        requests=sum(r.served for r in replicas),
        replicas_mean=timeline.mean(config.name, from_s, to_s),
        replicas_max=max((n for t, n in steps if t <= to_s), default=0),
        loop_busy=sum(r.loop.busy_ns for r in replicas) / NS_PER_S / replica_s,
        user_busy=beside / NS_PER_S / replica_s,
        slots_used=sum(r.held_ns for r in replicas) / NS_PER_S / slots,
        wait_mean_s=sum(r.waited_ns for r in routers) / NS_PER_S / max(assigned, 1),
        wait_max_s=max((r.longest_wait_ns for r in routers), default=0) / NS_PER_S,
        wait_at_max_s=max((r.longest_wait_at_max_ns for r in routers), default=0) / NS_PER_S,
    )


def proxy_busy(instance: Instance, from_s: float, to_s: float) -> float:
    """Of the busiest proxy."""
    busy = max((p.loop.busy_ns for p in instance.all_proxies), default=0)
    return busy / NS_PER_S / (to_s - from_s or math.inf)
