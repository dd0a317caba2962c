"""What the summary of a launcher's script says otherwise than a Ray program's.

Ranks hold their GPUs from when they have started to the end, without a lease of Ray's; there are
no tasks to count.
"""

from __future__ import annotations

from typing import Any

from raysim.units import NS_PER_S, format_seconds
from raysim.workloads.program_run import ProgramOutcome

TOO_FULL = "does not fit"
"""How the report of a run begins that ran out of memory."""


def verdict(outcome: ProgramOutcome, cost: Any) -> dict[str, Any]:
    """In one sentence, and one of the report."""
    took = format_seconds(outcome.end_ns / NS_PER_S)
    how, said = outcome.exit.how, outcome.exit.message.rstrip(".")
    enough = outcome.exit.enough or "as asked"
    text = {
        "ok": f"Finished in {took}", "until": f"Stopped at {took}, {enough}",
        "hang": f"Hangs: nothing happens after {took}", "killed": f"Failed after {took}: {said}",
        "exit": f"Failed after {took}: a rank ended with {said}",
    }.get(how, f"Failed after {took}: a rank raised {said}")  # fmt: skip
    if how == "ok" and cost["usd"] is not None:
        text += f", ${cost['usd']:.3g}"
    for report in outcome.reports:
        if report.ok:
            text += f": {report.text}"
        elif report.text.startswith(TOO_FULL):
            text = f"Failed after {took}: {report.text.partition('; ')[0]}"
    ok = how in {"ok", "until"} and all(r.ok for r in outcome.reports)
    return {"ok": ok, "text": f"{text}."}


def utilisation(outcome: ProgramOutcome, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows, with the GPUs that ranks hold."""
    for report in outcome.reports:
        lived_s = report.metrics["seconds"] - report.metrics["start_s"]
        ranks = dict(report.detail["ranks"])
        for row in rows:
            gpus = row["resources"].get("GPU")
            if gpus is None:
                continue
            held = sum(
                n for i, n in ranks.items() if outcome.cluster.groups[i].name == row["group"]
            )
            gpus["busy_seconds"] = held * lived_s
            gpus["frac"] = (
                held * lived_s / gpus["capacity_seconds"] if gpus["capacity_seconds"] else 0.0
            )
            gpus["peak"] = float(held)
    return rows
