"""What a run does when something fails, and how large its group is to be.

Real counterparts: ``execution/failure_handling/default.py``, ``execution/scaling_policy/fixed.py``
and ``elastic.py``. Three budgets are counted apart: worker failures, starts of the group that
failed, and preemptions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

from raysim.raylibs.train.config import WITHOUT_LIMIT, FailureConfig, ScalingConfig

Cause = Literal["worker", "start", "preemption"]
Decision = Literal["RETRY", "RAISE"]


class FailurePolicy:
    """Counts failures of one run."""

    def __init__(self, config: FailureConfig) -> None:
        self.config = config
        self.count: Counter[str] = Counter()

    def decide(self, cause: Cause, failures: int = 1) -> Decision:
        """Of one more failure, or of several in a row."""
        self.count[cause] += failures
        left = self.left(cause)
        return "RETRY" if left is None or left >= 0 else "RAISE"

    def left(self, cause: Cause) -> int | None:
        """Failures that may still come; None: without limit."""
        limit = {
            "worker": self.config.max_failures,
            "start": self.config.controller_failure_limit,
            "preemption": self.config.max_preemption_failures,
        }[cause]
        return None if limit == WITHOUT_LIMIT else limit - self.count[cause]


def possible_workers(config: ScalingConfig, nodes: Iterable[Mapping[str, float]]) -> int:
    """How many fit on nodes of these resources, the most that is asked for at most."""
    need = config.resources
    if not any(need.values()):
        return config.max_workers
    fit = sum(
        min(int(node.get(name, 0.0) // n) for name, n in need.items() if n > 0) for node in nodes
    )
    return min(fit, config.max_workers)
