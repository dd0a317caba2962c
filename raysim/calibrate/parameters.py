"""What may be fitted: a constant with what was known of it before, and its bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from raysim.errors import CalibrationError
from raysim.perf.profile import Constant, SectionName, bounds_of, known, unit_of
from raysim.scenario.documents import did_you_mean

PRIOR_SIGMA = math.log(2.0)
"""Of a constant that nobody measured on this machine: a factor of two either way."""
TELLING = 6
"""Rows that a profile names beside a fitted constant, the most telling ones."""
DIRECT_SIGMA = 0.2
"""Of one that a table of this machine says directly: what the table's conditions leave open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One positive constant, fitted by its logarithm."""

    name: str
    prior: float
    lower: float
    upper: float
    sigma: float = PRIOR_SIGMA
    """Standard deviation of the logarithm before fitting."""
    source: str = ""
    """Of a prior that was measured: the table's row."""
    carries: Mapping[str, float] = field(default_factory=dict)
    """Others by name, at this prior: they keep their ratio to it, since rows see only the sum."""

    def __post_init__(self) -> None:
        """Check.

        Raises
        ------
        CalibrationError
            Bounds and prior do not stand in order, or the prior says nothing.
        """
        if not 0 < self.lower <= self.prior <= self.upper < math.inf or self.lower == self.upper:
            raise CalibrationError(
                f"{self.name}: expected 0 < lower <= prior <= upper, "
                f"got {self.lower:g}, {self.prior:g}, {self.upper:g}"
            )
        if not self.sigma > 0:
            raise CalibrationError(f"{self.name}: sigma must be positive, got {self.sigma:g}")


def parameters(
    names: Iterable[str],
    section: SectionName = "ray",
    direct: Mapping[str, Constant] | None = None,
) -> list[Parameter]:
    """Parameters for the constants of these names, as a profile's ``section`` calls them.

    Parameters
    ----------
    direct
        Constants that were measured by themselves: they stand in place of raysim's own values.

    Raises
    ------
    CalibrationError
        A name is unknown or twice there, or the constant has no value to begin from.
    """
    own, direct = known(section), direct or {}
    made: dict[str, Parameter] = {}
    for name in names:
        if name not in own:
            raise CalibrationError(f"unknown constant {name!r}{did_you_mean(name, own)}")
        if name in made:
            raise CalibrationError(f"{name} is named twice")
        measured = direct.get(name)
        prior = own[name] if measured is None else measured.value
        if prior is None:
            raise CalibrationError(f"{name} has no value to begin from: measure it, or give one")
        lower, upper = bounds_of(name, own[name] or prior)
        made[name] = Parameter(
            name=name,
            prior=min(max(prior, lower), upper),
            lower=lower,
            upper=upper,
            sigma=PRIOR_SIGMA
            if measured is None
            else math.hypot(DIRECT_SIGMA, measured.error or 0.0),
            source="" if measured is None else measured.source,
        )
    return list(made.values())


def constants_of(
    parameter: Parameter, value: float, error: float, rows: Iterable[str]
) -> dict[str, Constant]:
    """The fitted constant as a profile has it, and those that it carries."""
    rows = tuple(rows)
    fitted = Constant(
        value=value,
        unit=unit_of(parameter.name),
        prior=parameter.prior,
        lower=parameter.lower,
        upper=parameter.upper,
        error=error,
        source=f"least squares over {len(rows)} rows that respond to it",
        rows=rows[:TELLING],
    )
    carried = {
        name: Constant(
            value=float(f"{prior * value / parameter.prior:.6g}"), unit=unit_of(name), prior=prior,
            error=error, source=f"as {parameter.name}: rows see only the sum",
        )
        for name, prior in parameter.carries.items()
    }  # fmt: skip
    return {parameter.name: fitted, **carried}
