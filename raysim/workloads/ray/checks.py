"""Findings about a workload's settings, all of them at once, each with its key."""

from __future__ import annotations

import math

from raysim.errors import Problem, ScenarioError


class Checks:
    """Collects what is wrong, then raises it."""

    def __init__(self, workload: str) -> None:
        self.workload = workload
        self.problems: list[Problem] = []

    def wrong(self, key: str, message: str) -> None:
        """Something is."""
        self.problems.append(Problem(message=message, key=f"{self.workload}.{key}"))

    def at_least(self, key: str, value: float, low: float) -> None:
        """A number, finite, not below ``low``."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.wrong(key, f"must be a number (got {value!r})")
        elif not math.isfinite(value) or value < low:
            self.wrong(key, f"must be at least {low:g} (got {value:g})")

    def more_than(self, key: str, value: float, low: float) -> None:
        """The same without ``low`` itself."""
        if not isinstance(value, int | float) or not math.isfinite(value) or value <= low:
            self.wrong(key, f"must be more than {low:g} (got {value!r})")

    def count(self, key: str, value: int, low: int = 1) -> None:
        """A whole number."""
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(key, f"must be a whole number (got {value!r})")
        elif value < low:
            self.wrong(key, f"must be at least {low} (got {value})")

    def done(self) -> None:
        """Raise what was found.

        Raises
        ------
        ScenarioError
            Anything was wrong.
        """
        if self.problems:
            raise ScenarioError(self.problems)
