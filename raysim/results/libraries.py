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
