"""A fit in the user's words: the constants, and the error of every row before and after.

Rows that were fitted and rows that were not are never counted together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raysim.calibrate.fit import Fit, Fitted
from raysim.calibrate.parameters import constants_of
from raysim.calibrate.rows import Measured, RowKey, named
from raysim.perf.profile import Constant, Profile, SectionName, unit_of

UNUSED = "Calibration rows that were not fitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One measured row and what was predicted with raysim's own constants and with the fit's."""

    row: Measured
    before: float
    after: float

    @property
    def error_before(self) -> float:
        """Predicted over measured, minus one."""
        return self.before / self.row.value - 1.0

    @property
    def error_after(self) -> float:
        """The same with the fitted constants."""
        return self.after / self.row.value - 1.0


def compare(
    rows: Iterable[Measured], before: Mapping[RowKey, float], after: Mapping[RowKey, float]
) -> tuple[list[Compared], list[Measured]]:
    """Rows beside their predictions, and those that were not predicted."""
    rows = list(rows)
    both = [r for r in rows if r.key in before and r.key in after]
    missing = [r for r in rows if r.key not in before or r.key not in after]
    return [Compared(row=r, before=before[r.key], after=after[r.key]) for r in both], missing


def profile_of_fit(
    fit: Fit,
    *,
    name: str,
    made: str,
    source: str,
    section: SectionName = "ray",
    direct: Mapping[str, Constant] | None = None,
) -> Profile:
    """The profile: constants that rows determined, and those that were measured directly.

    What neither says is left out, so that it stays what raysim takes it to be.
    """
    constants = dict(direct or {})
    for one in fit.constants:
        if one.determined:
            rows = [named(key) for key in one.rows]
            constants |= constants_of(
                one.parameter, float(f"{one.value:.6g}"), float(f"{one.error:.2g}"), rows
            )
    empty: dict[str, Constant] = {}
    return Profile(
        name=name, made=made, source=source, spread=float(f"{fit.spread:.3g}"),
        ray=constants if section == "ray" else empty,
        training=constants if section == "training" else empty,
    )  # fmt: skip


def lines(
    fit: Fit, compared: Sequence[Compared], missing: Sequence[Measured] = ()
) -> Iterator[str]:
    """What ``raysim calibrate`` prints; ``compared`` holds fitted rows and others."""
    rows = f"{len(fit.rows)} row{'s' * (len(fit.rows) != 1)}"
    yield f"Constants, fitted on {rows} with {fit.evaluations} predictions of them"
    yield from table(("constant", "prior", "fitted", "+-", "", ""), map(_constant, fit.constants))
    fitted = {row.key for row in fit.rows}
    parts: dict[str, list[Compared]] = {"Fitted rows": [], UNUSED: [], "Validation rows": []}
    for one in compared:
        unused = UNUSED if one.row.role == "calibration" else "Validation rows"
        parts["Fitted rows" if one.row.key in fitted else unused].append(one)
    for title, part in parts.items():
        if part:
            yield ""
            yield f"{title}: {summary(part)}"
            head = ("row", "measured", "", "before", "after", "spread")
            yield from table(head, map(_row, part))
    if missing:
        yield ""
        yield f"Not predicted: {', '.join(named(row.key) for row in missing)}"


def summary(compared: Sequence[Compared]) -> str:
    """Median and 90th percentile of the absolute errors, before and after."""
    before = np.abs([c.error_before for c in compared])
    after = np.abs([c.error_after for c in compared])
    words = [
        f"{what} {np.percentile(before, q):.1%} before, {np.percentile(after, q):.1%} after"
        for what, q in (("median error", 50), ("90th percentile", 90))
    ]
    return "; ".join(words)


def _constant(one: Fitted) -> tuple[str, ...]:
    p = one.parameter
    said = [f"at its {one.at_bound} bound"] * bool(one.at_bound) + [one.why] * bool(one.why)
    said += [f"carries {', '.join(p.carries)}"] * bool(p.carries and one.determined)
    value = f"{one.value:.4g}" if one.determined else "="
    error = f"{one.error:.0%}" if one.determined else ""
    return (p.name, f"{p.prior:.4g}", value, error, unit_of(p.name), "; ".join(said))


def _row(one: Compared) -> tuple[str, ...]:
    spread = f"{one.row.spread:.0%}" if one.row.repetitions > 1 else "one run"
    row = one.row
    errors = (f"{one.error_before:+.1%}", f"{one.error_after:+.1%}")
    return (named(row.key), f"{row.value:.4g}", row.unit, *errors, spread)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Aligned columns: text to the left, numbers to the right."""
    cells = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = [
            c.rjust(w) if c[:1].isdigit() or c[:1] in "+-=" else c.ljust(w)
            for c, w in zip(row, widths, strict=True)
        ]
        yield f"  {'  '.join(padded)}".rstrip()
