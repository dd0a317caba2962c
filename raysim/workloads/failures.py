"""How often a job fails and what it must wait for then; when to save, in closed form.

The closed forms are those of checkpoint and restart with failures of a constant rate: J. W. Young,
"A first order approximation to the optimum checkpoint interval" (CACM 1974), and J. T. Daly, "A
higher order estimate of the optimum checkpoint interval for restart dumps" (FGCS 2006), whose model
of the wall time is exact. Daly's restart can itself fail; what is added here is a wait before it
(detection, a node that is missing) during which nothing can.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from raysim.hardware.specs import Provenance

DETECT_S = 30.0
REPLACEMENT_S = 600.0
PROVENANCE = {
    "failure detection": Provenance(
        basis="assumed",
        source="30 s; Ray gives a node up after 5 health checks 3 s apart, of at most 10 s",
    ),
    "node replacement": Provenance(
        basis="assumed",
        source="10 min; MegaScale (NSDI 2024) reports less for diagnosis and replacement",
    ),
}
_ROUNDING = 1e-9
_MOST_EXPONENT = 700.0
"""Beyond it, a float has no exponential: the job never ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """What stops a job, and what it takes to go on; every failure stops all of it."""

    mtbf_per_node_s: float | None = None
    mtbf_per_gpu_s: float | None = None
    """Both may be given: of what fails with a GPU, and of everything else."""
    times_s: tuple[float, ...] = ()
    """Instead: moments of the run, in order."""
    detect_s: float = DETECT_S
    spare_nodes: int = 0
    """Nodes that stand by."""
    replacement_s: float = REPLACEMENT_S
    """Until a failed node is repaired, or another takes its place."""
    takes_node: float = 1.0
    """Share of failures after which the node is gone; the others restart where they were."""
    warm_up_s: float = 0.0
    """After loading, until steps are as fast as before."""

    def mtbf_s(self, nodes: int, gpus: int) -> float:
        """Mean time between failures of a job on so many nodes; inf where none are random."""
        rate = 0.0
        if self.mtbf_per_node_s is not None:
            rate += nodes / self.mtbf_per_node_s
        if self.mtbf_per_gpu_s is not None:
            rate += gpus / self.mtbf_per_gpu_s
        return 1.0 / rate if rate else math.inf

    def mean_wait_s(self, mtbf_s: float) -> float:
        """How long a failure, once noticed, waits for a node in the mean.

        Nodes under repair are Poisson, cut off at the spares (a job that waits does not fail): all
        spares are away with Erlang's loss probability; the first of ``n`` repairs, whose remaining
        times are uniform, is back after ``1 / (n + 1)`` of one.
        """
        busy = self.takes_node * self.replacement_s / mtbf_s
        first_s = max(0.0, self.replacement_s / (self.spare_nodes + 1) - self.detect_s)
        return self.takes_node * self._none_left(busy) * first_s

    def _none_left(self, busy: float) -> float:
        """Erlang's B of ``busy`` over the spares, by its recursion."""
        chance = 1.0
        for n in range(1, self.spare_nodes + 1):
            chance = busy * chance / (n + busy * chance)
        return chance


def young_interval_s(stall_s: float, mtbf_s: float) -> float:
    """Work between saves, to first order: ``sqrt(2 d M)``."""
    return math.sqrt(2.0 * stall_s * mtbf_s)


def daly_interval_s(stall_s: float, mtbf_s: float) -> float:
    """Work between saves, to higher order (Daly 2006, equation 37)."""
    if stall_s >= 2.0 * mtbf_s:
        return mtbf_s
    x = stall_s / (2.0 * mtbf_s)
    return young_interval_s(stall_s, mtbf_s) * (1.0 + math.sqrt(x) / 3.0 + x / 9.0) - stall_s


def best_interval_s(stall_s: float, mtbf_s: float) -> float:
    """Work between saves that makes ``expected_work_s`` least: what Daly's formula approximates.

    With ``t`` of work and ``d`` of saving, the derivative is zero where
    ``t / M = 1 - exp(-(t + d) / M)``; neither restart nor wait changes that.
    """
    if not math.isfinite(mtbf_s):
        return math.inf
    low, high = 0.0, mtbf_s
    for _ in range(100):
        middle = (low + high) / 2
        if middle / mtbf_s < -math.expm1(-(middle + stall_s) / mtbf_s):
            low = middle
        else:
            high = middle
    return high


def expected_stretch_s(
    stretch_s: float, mtbf_s: float, *, wait_s: float, restart_s: float
) -> float:
    """Wall time until a stretch has gone through without a failure.

    Each failure costs ``wait_s``, in which nothing can fail, then ``restart_s``, in which it can:
    ``(exp(x / M) - 1) (M + w) exp(r / M)``; without the wait it is Daly's.
    """
    if not math.isfinite(mtbf_s):
        return stretch_s
    if (stretch_s + restart_s) / mtbf_s > _MOST_EXPONENT:
        return math.inf
    times = math.expm1(stretch_s / mtbf_s) * math.exp(restart_s / mtbf_s)
    return times * (mtbf_s + wait_s)


def expected_work_s(
    work_s: float,
    interval_s: float,
    stall_s: float,
    mtbf_s: float,
    *,
    wait_s: float,
    restart_s: float,
) -> float:
    """Wall time of ``work_s`` of steps with a save after every ``interval_s`` of them."""
    each = expected_stretch_s(interval_s + stall_s, mtbf_s, wait_s=wait_s, restart_s=restart_s)
    whole = math.floor(work_s / interval_s + _ROUNDING)
    rest_s = max(0.0, work_s - whole * interval_s)
    rest = expected_stretch_s(rest_s, mtbf_s, wait_s=wait_s, restart_s=restart_s)
    return whole * each + rest
