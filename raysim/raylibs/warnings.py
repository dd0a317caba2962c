"""What a planner should know before it costs money: a cause, a number and the fix."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerWarning:
    """One trap that this job walks into, or nearly."""

    code: str
    """Short and stable: ``report-faster-than-poll``."""
    cause: str
    """A sentence with the numbers of this job."""
    fix: str
    """A sentence: which setting to change, and to what."""

    def __str__(self) -> str:
        return f"{self.cause} {self.fix}"
