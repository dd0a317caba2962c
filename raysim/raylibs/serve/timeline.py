"""What the controller did: targets and running replicas of each deployment over time."""

from __future__ import annotations

from dataclasses import dataclass, field

Steps = list[tuple[float, int]]
"""(Second, from then on)."""


@dataclass(slots=True)
class Timeline:
    """Changes, in order of time."""

    targets: dict[str, Steps] = field(default_factory=dict)
    runs: dict[str, Steps] = field(default_factory=dict)

    def target(self, deployment: str, at_s: float, replicas: int) -> None:
        """So many are wanted."""
        self.targets.setdefault(deployment, []).append((at_s, replicas))

    def running(self, deployment: str, at_s: float, replicas: int) -> None:
        """So many serve."""
        self.runs.setdefault(deployment, []).append((at_s, replicas))

    def mean(self, deployment: str, from_s: float, to_s: float) -> float:
        """Running replicas in the mean of an interval."""
        return area(self.runs.get(deployment, []), from_s, to_s) / max(to_s - from_s, 1e-9)


def area(steps: Steps, from_s: float, to_s: float) -> float:
    """Replica-seconds of an interval."""
    total, value, since = 0.0, 0, from_s
    for at_s, then in steps:
        if at_s >= to_s:
            break
        if at_s > since:
            total += value * (at_s - since)
            since = at_s
        value = then
    return total + value * (to_s - since)


def at(steps: Steps, second: float) -> int:
    """The value then."""
    value = 0
    for at_s, then in steps:
        if at_s > second:
            break
        value = then
    return value
