"""Least squares on logarithms of ratios, with a prior: few constants from measured rows.

Levenberg-Marquardt (Marquardt 1963) on ``ln(predicted / measured) / sigma`` with Huber's weights
and one more residual per constant, ``ln(value / prior) / sigma``; steps are clipped to the bounds.
Derivatives are differences of predictions. Nothing is drawn: the same rows give the same bits.

A constant that the rows say little about stays at its prior, and so does one that they cannot
tell from another: of such a pair one is fitted, and is then worth what both were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysim.calibrate.parameters import Parameter
from raysim.calibrate.rows import Measured, Predict, RowKey, named, only_calibration
from raysim.errors import CalibrationError

Vector = NDArray[np.float64]
Evaluate = Callable[[Predict, Iterable[Mapping[str, float]]], Iterable[Mapping[RowKey, float]]]
"""``map``, or the ``map`` of a pool of processes."""

MODEL_ERROR = 0.05
"""Of the emulator itself, which no repetition shows: keeps a quiet row from ruling the others."""
HUBER = 3.0
"""Standard deviations beyond which a residual counts by its size and not by its square."""
STEP = 0.03
"""Of the differences: 3 % of a constant, so that whole nanoseconds and ties do not show."""
POLLED_STEP = 0.4
"""The same where loops look every 10 to 100 ms: a smaller one moves no row, or makes it jump."""
LONGEST_STEP = 1.0
CLEAR = 0.5
"""A constant is determined when the rows leave at most this share of its prior's deviation."""
ALIKE = 0.9
"""Cosine from which two constants are said to be seen by the rows as one."""
RESPONDS = 0.02
"""A row responds to a constant that moves it by at least this share of its own move."""
ITERATIONS = 40
MOST_DAMPING = 100.0
"""Beyond it a step is shorter than a percent of what the gradient asks for."""
ROUNDS = 3
LITTLE = 1e-3
"""A gain of this share of the cost, or a step of this length, ends the descent: the emulator's own
steps (turns at a core, whole messages) make such gains, far within any constant's error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What became of one constant."""

    parameter: Parameter
    value: float
    error: float
    """Standard error of the logarithm; the prior's deviation where nothing was fitted."""
    determined: bool
    why: str = ""
    """Why it stayed at its prior, or what it also stands for."""
    at_bound: str = ""
    """``lower`` or ``upper``: the rows want more than the bounds allow."""
    rows: tuple[RowKey, ...] = ()
    """Those that respond to it, most telling first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Constants, and the fitted rows before and after."""

    constants: tuple[Fitted, ...]
    rows: tuple[Measured, ...]
    before: Mapping[RowKey, float]
    after: Mapping[RowKey, float]
    chi2: tuple[float, float]
    """Weighted sum of squared residuals per row, before and after; about 1 when the model's error
    is ``MODEL_ERROR``."""
    evaluations: int

    @property
    def spread(self) -> float:
        """Standard deviation of ``ln(after / measured)``; each fitted constant takes a freedom.

        Of rows with the fit's own model error; where there are others they bear their share.
        """
        plain = [row for row in self.rows if row.model_error is None] or self.rows
        off = [math.log(self.after[row.key] / row.value) for row in plain]
        free = max(1, len(self.rows) - sum(c.determined for c in self.constants))
        return math.sqrt(math.fsum(x * x for x in off) * len(self.rows) / free / len(plain))

    @property
    def values(self) -> dict[str, float]:
        """Every constant, fitted or left at its prior."""
        return {c.parameter.name: c.value for c in self.constants}


def fit(
    parameters: Sequence[Parameter],
    predict: Predict,
    rows: Sequence[Measured],
    *,
    model_error: float = MODEL_ERROR,
    step: float = STEP,
    start: Mapping[str, float] | None = None,
    evaluate: Evaluate = map,
) -> Fit:
    """The constants that make ``predict`` agree best with ``rows``.

    Parameters
    ----------
    parameters
        Constants to fit; their names are the keys that ``predict`` takes.
    predict
        Predicts at least ``rows``.
    rows
        Calibration rows, in any unit; every one positive.
    model_error
        Standard deviation of a prediction's logarithm where all constants are right.
    step
        Of the differences that stand for derivatives, in logarithms.
    start
        Another point than the priors to descend from; of both ends the better one is kept.
    evaluate
        Predicts for several sets of values at once.

    Raises
    ------
    CalibrationError
        A row is a validation row, a row is there twice or is not predicted, or there is nothing to
        fit.
    """
    only_calibration(rows)
    if not parameters:
        raise CalibrationError("no constant to fit")
    if len({row.key for row in rows}) != len(rows):
        raise CalibrationError("a measured row is there twice")
    problem = _Problem(list(parameters), predict, list(rows), model_error, step, evaluate)
    ends = [_settled(problem, problem.point(each)) for each in ({}, start) if each is not None]
    return problem.outcome(*min(ends, key=lambda end: problem.cost(end[0])))


@dataclass(slots=True)
class _Problem:
    """The sum to be made small, with every prediction kept."""

    parameters: list[Parameter]
    predict: Predict
    rows: list[Measured]
    model_error: float
    step: float
    evaluate: Evaluate
    known: dict[bytes, Vector] = field(default_factory=dict)
    slopes: dict[bytes, Vector] = field(default_factory=dict)

    @property
    def prior(self) -> Vector:
        return np.log([p.prior for p in self.parameters])

    @property
    def lower(self) -> Vector:
        return np.log([p.lower for p in self.parameters])

    @property
    def upper(self) -> Vector:
        return np.log([p.upper for p in self.parameters])

    @property
    def precision(self) -> Vector:
        """Of the prior, one over variance."""
        return np.array([p.sigma**-2 for p in self.parameters])

    @property
    def sigma(self) -> Vector:
        """Of each row's logarithm: its median's own, and the model's."""
        model = [self.model_error if r.model_error is None else r.model_error for r in self.rows]
        each = [
            math.hypot(row.spread / math.sqrt(row.repetitions), error)
            for row, error in zip(self.rows, model, strict=True)
        ]
        return np.array(each)

    def point(self, values: Mapping[str, float]) -> Vector:
        """These values within the bounds; the prior of what is not among them."""
        x = np.log([values.get(p.name, p.prior) for p in self.parameters])
        return np.clip(x, self.lower, self.upper)

    def values(self, x: Vector) -> dict[str, float]:
        """Constants by name, and those they carry; exactly the prior where it was not moved."""
        values: dict[str, float] = {}
        for p, at, prior in zip(self.parameters, x, self.prior, strict=True):
            values[p.name] = p.prior if at == prior else math.exp(at)
            moved = math.exp(at - prior)
            values |= {name: own * moved for name, own in p.carries.items()}
        return values

    def residuals(self, *points: Vector) -> list[Vector]:
        """``ln(predicted / measured) / sigma`` at each point."""
        missing = {x.tobytes(): x for x in points if x.tobytes() not in self.known}
        told = self.evaluate(self.predict, [self.values(x) for x in missing.values()])
        for key, predicted in zip(missing, told, strict=True):
            self.known[key] = np.array([_log_ratio(predicted, row) for row in self.rows])
        return [self.known[x.tobytes()] / self.sigma for x in points]

    def jacobian(self, x: Vector) -> Vector:
        """Derivatives of the residuals, rows by constants; backwards at an upper bound."""
        if x.tobytes() not in self.slopes:
            steps = np.where(x + self.step <= self.upper, self.step, -self.step)
            points = [x + step * unit for step, unit in zip(steps, np.eye(len(x)), strict=True)]
            here, *there = self.residuals(x, *points)
            columns = [(r - here) / step for r, step in zip(there, steps, strict=True)]
            self.slopes[x.tobytes()] = np.column_stack(columns)
        return self.slopes[x.tobytes()]

    def cost(self, x: Vector) -> float:
        """Huber's sum over rows and the prior's."""
        r = np.abs(self.residuals(x)[0])
        rows = np.where(r <= HUBER, r * r / 2, HUBER * r - HUBER * HUBER / 2)
        away = x - self.prior
        return float(rows.sum() + (self.precision * away * away).sum() / 2)

    def normal(self, x: Vector, j: Vector) -> tuple[Vector, Vector]:
        """Normal matrix and gradient, prior included, with Huber's weights at ``x``."""
        r = self.residuals(x)[0]
        weighted = j.T * _weights(r)
        gradient = weighted @ r + self.precision * (x - self.prior)
        return weighted @ j + np.diag(self.precision), gradient

    def told_apart(self, j: Vector, x: Vector) -> NDArray[np.bool_]:
        """Which constants the rows determine, when those they do not are left alone.

        The least determined goes first, then the others are looked at again: of two that the rows
        see as one, one stays. Among equals the one named last goes.
        """
        weighted = j.T * _weights(self.residuals(x)[0])
        information = weighted @ j + np.diag(self.precision)
        active = np.ones(len(self.parameters), dtype=np.bool_)
        while active.any():
            left = np.sqrt(np.diag(np.linalg.inv(information[np.ix_(active, active)])))
            left = left * np.sqrt(self.precision[active])
            worst = len(left) - 1 - int(np.argmax(np.round(left[::-1], 9)))
            if left[worst] <= CLEAR:
                break
            active[np.flatnonzero(active)[worst]] = False
        return active

    def outcome(self, x: Vector, active: NDArray[np.bool_]) -> Fit:
        """Everything about the solution."""
        j, r = self.jacobian(x), self.residuals(x)[0]
        weights = _weights(r)
        chi2 = [float((_weights(s) * s * s).mean()) for s in (self.residuals(self.prior)[0], r)]
        information = (j.T * weights) @ j + np.diag(self.precision)
        errors = np.array([p.sigma for p in self.parameters])
        if active.any():
            left = np.diag(np.linalg.inv(information[np.ix_(active, active)]))
            errors[active] = np.sqrt(left * max(1.0, chi2[1]))
        values = self.values(x)
        constants = [
            Fitted(
                parameter=p,
                value=values[p.name],
                error=float(min(errors[k], p.sigma)),
                determined=bool(active[k]),
                why=self._why(k, j, active),
                at_bound=self._at_bound(k, x, active),
                rows=self._responding(j[:, k] * self.sigma) if active[k] else (),
            )
            for k, p in enumerate(self.parameters)
        ]
        return Fit(
            constants=tuple(constants),
            rows=tuple(self.rows),
            before=self._predicted(self.prior),
            after=self._predicted(x),
            chi2=(chi2[0], chi2[1]),
            evaluations=len(self.known),
        )

    def _predicted(self, x: Vector) -> dict[RowKey, float]:
        ratios = np.exp(self.residuals(x)[0] * self.sigma)
        return {r.key: r.value * float(q) for r, q in zip(self.rows, ratios, strict=True)}

    def _responding(self, slopes: Vector) -> tuple[RowKey, ...]:
        order = sorted(range(len(self.rows)), key=lambda i: (-abs(slopes[i]), self.rows[i].key))
        return tuple(self.rows[i].key for i in order if abs(slopes[i]) >= RESPONDS)

    def _why(self, k: int, j: Vector, active: NDArray[np.bool_]) -> str:
        """Of one left alone: that no row responds, or what it cannot be told from."""
        like = [
            self.parameters[i].name
            for i in range(len(self.parameters))
            if i != k and active[i] != active[k] and _cosine(j[:, i], j[:, k]) >= ALIKE
        ]
        if active[k]:
            return f"stands for {', '.join(like)} too" if like else ""
        if not self._responding(j[:, k] * self.sigma):
            return "no row responds to it"
        return f"not told apart from {', '.join(like)}" if like else "the rows say too little"

    def _at_bound(self, k: int, x: Vector, active: NDArray[np.bool_]) -> str:
        if not active[k]:
            return ""
        return "lower" if x[k] <= self.lower[k] else "upper" if x[k] >= self.upper[k] else ""


def _settled(problem: _Problem, x: Vector) -> tuple[Vector, NDArray[np.bool_]]:
    """The end of the descent from a point, and which constants were told apart there."""
    active = problem.told_apart(problem.jacobian(x), x)
    for _ in range(ROUNDS):
        x = np.where(active, x, problem.prior)
        x = _descend(problem, x, active)
        again = problem.told_apart(problem.jacobian(x), x)
        if bool(np.all(again == active)):
            return x, active
        active = again
    return _descend(problem, np.where(active, x, problem.prior), active), active


def _descend(problem: _Problem, x: Vector, active: NDArray[np.bool_]) -> Vector:
    """Levenberg-Marquardt from ``x`` over the active constants.

    After a step the derivatives are corrected by what it showed (Broyden 1965), which costs no
    prediction; they are taken anew where that leads no further.
    """
    damping, j, fresh = 1e-3, problem.jacobian(x), True
    for _ in range(ITERATIONS):
        there, damping = _step(problem, x, j, active, damping)
        gain = problem.cost(x) - problem.cost(there)
        step = there - x
        small = gain < LITTLE * (1.0 + problem.cost(there)) or _length(step) < LITTLE
        if gain > 0:
            missed = np.subtract(*problem.residuals(there, x)) - j @ step
            j, x = j + np.outer(missed, step) / float(step @ step), there
        if small and fresh:
            break
        fresh = small
        if fresh:
            j = problem.jacobian(x)
    return x


def _step(
    problem: _Problem, x: Vector, j: Vector, active: NDArray[np.bool_], damping: float
) -> tuple[Vector, float]:
    """The first better point as damping grows, or ``x`` itself; and the damping to go on with."""
    matrix, gradient = problem.normal(x, j)
    held = (x <= problem.lower) & (gradient > 0) | (x >= problem.upper) & (gradient < 0)
    free = np.flatnonzero(active & ~held)
    if not len(free):
        return x, damping
    a, g, cost = matrix[np.ix_(free, free)], gradient[free], problem.cost(x)
    while damping < MOST_DAMPING:
        step = np.zeros_like(x)
        step[free] = np.linalg.solve(a + damping * np.diag(np.diag(a)), -g)
        step = np.clip(step, -LONGEST_STEP, LONGEST_STEP)
        there = np.clip(x + step, problem.lower, problem.upper)
        if _length(there - x) < LITTLE:
            break
        if problem.cost(there) < cost:
            return there, max(damping / 5.0, 1e-6)
        damping = max(1.0, damping * 5.0)  # from half of what the gradient asks for
    return x, 1e-3


def _length(step: Vector) -> float:
    """Of the constant that moves most."""
    return float(np.abs(step).max())


def _weights(r: Vector) -> Vector:
    """Huber's."""
    weights: Vector = HUBER / np.maximum(np.abs(r), HUBER)
    return weights


def _cosine(a: Vector, b: Vector) -> float:
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return abs(float(a @ b)) / lengths if lengths else 0.0


def _log_ratio(predicted: Mapping[RowKey, float], row: Measured) -> float:
    value: Any = predicted.get(row.key)
    if value is None:
        raise CalibrationError(f"{named(row.key)}: measured, but the emulator does not print it")
    if not (math.isfinite(value) and value > 0):
        raise CalibrationError(f"{named(row.key)}: predicted {value:g}, which has no ratio")
    return math.log(value / row.value)
