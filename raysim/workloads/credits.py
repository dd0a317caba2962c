"""Network credits: a NIC that is "up to" a rate, and keeps it while its credits last.

Sizes of AWS's instances up to 4xlarge have a baseline and burst above it; credits are full at
launch, come back at the baseline's rate, and are a bucket: a step may burst as long as the mean
rate is within the baseline. AWS says they last "5 to 60 minutes, depending on the instance size",
and no more.
"""

from __future__ import annotations

from dataclasses import dataclass

from raysim.training.link_use import link_use
from raysim.training.tower import StepOutcome
from raysim.units import to_seconds

CREDITS_S = 1800.0
"""Assumed: of a NIC at its full rate, within what AWS says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """What a job's steps come to when credits are used up."""

    baseline_bytes_per_s: float
    after_s: float
    """Seconds of training from full credits."""
    step_s: float
    """From then on: as long as the baseline needs for what a node sends or receives."""


def throttle_of(step: StepOutcome) -> Throttle | None:
    """None where the rate is guaranteed, or what the job needs of it."""
    nic = step.comms.topology.specs[0].nic
    if nic.baseline_bytes_per_s is None or len(step.cluster.gpu_nodes) == 1:
        return None
    carried = [use.carried_bytes for use in link_use(step) if "/nic-" in use.link.name]
    step_s = to_seconds(step.steady_step_ns)
    guaranteed = nic.baseline_bytes_per_s * nic.efficiency
    most = max(carried, default=0.0)
    spent = most / step_s - guaranteed
    if spent <= 0:
        return None
    full = CREDITS_S * (nic.bytes_per_s - nic.baseline_bytes_per_s) * nic.efficiency
    return Throttle(
        baseline_bytes_per_s=nic.baseline_bytes_per_s,
        after_s=full / spent,
        step_s=most / guaranteed,
    )
