"""The parts of a program's summary that say what Ray's libraries did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raysim.raylibs.report import LibraryReport, Table


def rows(reports: Sequence[LibraryReport]) -> list[dict[str, Any]]:
    """The ``libraries`` part: one entry per job that ended, in that order."""
    return [
        {
            "kind": report.kind,
            "ok": report.ok,
            "text": report.text,
            "metrics": dict(report.metrics),
            "tables": [_table(table) for table in report.tables],
            "would_help": list(report.would_help),
            "warnings": [
                {"code": w.code, "cause": w.cause, "fix": w.fix} for w in report.warnings
            ],
            "detail": dict(report.detail),
        }
        for report in reports
    ]  # fmt: skip


def _table(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "columns": [{"name": name, "unit": unit} for name, unit in table.columns],
        "rows": [list(row) for row in table.rows],
    }


def bound_by(reports: Sequence[LibraryReport]) -> dict[str, Any] | None:
    """What binds, as the last job that knows has it; None if none does."""
    said = [(report.kind, report.bound_by) for report in reports if report.bound_by]
    return {"what": said[-1][0], "text": said[-1][1], "frac": None} if said else None


def meanwhile(reports: Sequence[LibraryReport]) -> str:
    """What goes on while no task runs, as the last job that knows has it; empty if none does."""
    return next((report.meanwhile for report in reversed(reports) if report.meanwhile), "")


def token_cost(
    reports: Sequence[LibraryReport], usd: float | None, seconds: float
) -> dict[str, float]:
    """The part of ``cost`` that models which generate text have: dollars of a million tokens.

    At the run's mean price per second and the rate at which the last such job made them: what
    starting has cost is not in it.
    """
    rates = [
        r.metrics["output_tokens_per_s"] for r in reports if "output_tokens_per_s" in r.metrics
    ]
    if not usd or not rates or not rates[-1]:
        return {}
    return {"usd_per_million_output_tokens": usd / seconds / rates[-1] * 1e6}


def simplifications(reports: Sequence[LibraryReport]) -> list[str]:
    """What their models leave out, each said once."""
    return list(dict.fromkeys(s for report in reports for s in report.simplifications))


def inputs(reports: Sequence[LibraryReport]) -> list[dict[str, Any]]:
    """Rows of ``trust``."""
    return [
        {"name": i.name, "value": i.value, "basis": i.basis, "source": i.source}
        for report in reports
        for i in report.inputs
    ]


def metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    """Of every job, by name; of a name that several have, the last job's."""
    return {k: v for row in summary.get("libraries") or [] for k, v in row["metrics"].items()}


def metric(name: str, summary: Mapping[str, Any]) -> float | None:
    """A metric of the last job that has it."""
    return metrics(summary).get(name)
