"""A Ray program's run that stands still at a moment: to be looked at, saved, split or changed.

What is done at a moment is no event of the run, so it leaves no trace in its digest. A change is
one: a fault that happens here has the digest of one that the scenario declared at this time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from raysim.kernel.simulation import Simulation
from raysim.raycore.autoscaler import Autoscaler, AutoscalerConfig
from raysim.raycore.faults import Faults
from raysim.units import to_ns
from raysim.workloads.program import FaultEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is different in a branch, from its moment on."""

    faults: tuple[FaultEvent, ...] = ()
    autoscaling: AutoscalerConfig | None = None
    """New bounds and timeouts; None: as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What has happened up to a moment: the same for the same scenario, seed and code."""

    at_ns: int
    events: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The run, as it stands."""

    simulation: Simulation
    faults: Faults
    happened: list[FaultEvent] = field(default_factory=list)
    """Faults beside the job's own."""

    @property
    def mark(self) -> Mark:
        """Where it stands."""
        its = self.simulation
        return Mark(at_ns=its.now_ns, events=its.log.events, digest=its.digest)

    def apply(self, change: Change) -> None:
        """Let it happen now."""
        for event in change.faults:
            self.simulation.do(act(event, self.faults))
            back_later(event, self.faults)
            self.happened.append(event)
        if change.autoscaling is not None:
            for room in self.simulation.components.values():
                if isinstance(room, Autoscaler):
                    self.simulation.do(room.reconfigure, change.autoscaling)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """When to stand still, and whom to call."""

    at_ns: int
    then: Callable[[Running], object]


def act(event: FaultEvent, faults: Faults) -> Callable[[], object]:
    """What one fault does to a cluster."""
    node = event.node_id
    after = None if event.restart_after_s is None else f"{event.restart_after_s!r}s"
    return {
        "fail_node": partial(faults.fail_node, node),
        "restart_node": partial(faults.restart_node, node),
        "kill_raylet": partial(faults.kill_raylet, node),
        "kill_worker_on": partial(faults.kill_some_worker, node),
        "partition": partial(faults.partition, node),
        "heal": partial(faults.heal, node),
        "preempt": partial(faults.preempt, node, f"{event.notice_s!r}s"),
        "slow_links": partial(faults.slow_links, node, event.share),
        "fill_disk": partial(faults.fill_disk, node, event.share),
        "kill_gcs": partial(faults.kill_gcs, after),
    }[event.kind]


def back_later(event: FaultEvent, faults: Faults) -> None:
    """A node that fails for a while comes back."""
    if event.kind == "fail_node" and event.restart_after_s is not None:
        at_ns = to_ns(event.at_s) + to_ns(event.restart_after_s)
        faults.sim.at(at_ns, faults.restart_node, event.node_id)
