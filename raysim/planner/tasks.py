"""What is done to a point: played in full, or its step estimated from two shallow models."""

from __future__ import annotations

from dataclasses import dataclass

from raysim.planner.draws import played
from raysim.planner.estimate import estimate_point
from raysim.planner.space import Point
from raysim.planner.trials import Trial
from raysim.scenario.load import AnyScenario, Scenario
from raysim.scenario.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The same for every point; travels to processes and Ray workers."""

    scenario: AnyScenario
    limits: tuple[Target, ...] = ()
    folded: bool = False

    def __call__(self, point: Point) -> Trial:
        """What the point comes to."""
        if self.folded and isinstance(self.scenario, Scenario):
            return estimate_point(self.scenario, point)
        return played(self.scenario, point, self.limits)
