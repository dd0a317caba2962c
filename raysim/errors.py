"""The exception tree: four branches, by who acts.

::

    RaysimError
    |-- ScenarioError         the user: a file is wrong; says file, line, key and the fix (exit 2)
    |-- InfeasibleError       the answer is no, with the reasons counted
    |-- CalibrationError      the measurer: a table or a fit cannot be used
    `-- InvariantViolation    us: something that must always hold did not (exit 3)

A simulated out-of-memory is a *result*, never an exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


class RaysimError(Exception):
    """Root of every error raysim raises on purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where in a user's file something stands; lines and columns count from 1."""

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        """``file:line:col``, as compilers print it."""
        parts = [self.file, self.line, self.column]
        return ":".join(str(p) for p in parts if p is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with (or worth saying about) a user's file."""

    message: str
    where: Location | None = None
    key: str | None = None

    def __str__(self) -> str:
        """One line: position, key, message."""
        place = f"{self.where}   " if self.where else ""
        key = f"{self.key}: " if self.key else ""
        return f"{place}{key}{self.message}"


class ScenarioError(RaysimError):
    """The scenario, or a file it points to, is wrong; carries every problem found."""

    def __init__(self, problems: Problem | str | Iterable[Problem]) -> None:
        if isinstance(problems, str):
            problems = Problem(message=problems)
        if isinstance(problems, Problem):
            problems = (problems,)
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))

    def __reduce__(self) -> tuple[type[ScenarioError], tuple[tuple[Problem, ...]]]:
        """Pickle by problems, so that a worker process can report them."""
        return type(self), (self.problems,)


class InfeasibleError(RaysimError):
    """No configuration meets the targets; ``reasons`` counts why."""

    def __init__(self, message: str, reasons: Mapping[str, int]) -> None:
        self.reasons = dict(reasons)
        super().__init__(message)

    def __reduce__(self) -> tuple[type[InfeasibleError], tuple[str, dict[str, int]]]:
        """Pickle by message and reasons."""
        return type(self), (str(self), self.reasons)


class CalibrationError(RaysimError):
    """A measured table or a fit cannot be used as asked."""


class InvariantViolation(RaysimError):  # noqa: N818  (the field's word)
    """Something that must always hold did not; the fault is raysim's."""
