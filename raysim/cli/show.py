"""``raysim show`` and ``raysim open``: any part of a run again, from its folder alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from raysim.cli import terminal
from raysim.cli.mistakes import not_a_run
from raysim.errors import Location, Problem, ScenarioError

Table = tuple[list[str], list[list[str]], set[str]]


def show(
    run: Path | None,
    *,
    table: str | None,
    tree: bool,
    at: str | None = None,
    why: str | None = None,
    quiet: bool = False,
) -> None:
    """Print the report of ``run``, or one of its tables, or its module tree, or a moment of it.

    If ``quiet``, the verdict in its place.
    """
    from raysim.report import console

    folder = find(run)
    summary = read_summary(folder)
    if _is_plan(folder):
        from raysim.report import plan_console

        report = plan_console.render(summary, width=terminal.width())
        terminal.show(report.split("\n")[0] if quiet else report)
        return
    if quiet and not (tree or table or at or why):
        terminal.say(summary["verdict"]["text"])
        return
    if tree and summary.get("kind") == "program":
        raise ScenarioError(f"--tree: {folder} is a Ray program; only training jobs have modules")
    if summary.get("kind") == "program":
        from raysim.cli import show_program

        if show_program.show(folder, table=table, at=at, why=why):
            return
    elif at is not None or why is not None:
        flag = "--at" if why is None else "--why"
        raise ScenarioError(f"{flag}: {folder} is a training job; only Ray programs have moments")
    if tree:
        from raysim.cli.tree import print_tree

        print_tree(folder, summary)
    elif table is not None:
        headers, rows, right = _table(table, summary)
        terminal.table(headers, rows, right=right)
    else:
        terminal.show(console.render(summary, width=terminal.width()))


def open_report(run: Path | None) -> None:
    """Print the path of ``report.html`` and open it in the default browser, if there is one.

    Without a run, that of the last run or plan.
    """
    import webbrowser

    folder = find(run, plans=True)
    report = (folder / "report.html").resolve()
    if not report.is_file():
        raise ScenarioError(f"{folder} has no report.html")
    terminal.say(str(report))
    webbrowser.open(report.as_uri())


def _is_plan(folder: Path) -> bool:
    """It holds the trials of a plan, not a run."""
    return (folder / "trials.parquet").is_file()


def find(run: Path | None, *, plans: bool = False) -> Path:
    """The folder of a run: a path, a folder name under ``runs/``, an id, or None for the last one.

    With ``plans`` the last one may be a plan.

    Raises
    ------
    ScenarioError
        There is no such run.
    """
    from raysim.results.result import RUNS

    known = [p.parent for p in RUNS.glob("*/summary.json")]
    if run is None:
        runs = [p for p in known if plans or not _is_plan(p)]
        if not runs:
            raise ScenarioError(f"no run in {RUNS}/ yet; `raysim run SCENARIO` makes one")
        return max(runs, key=lambda p: ((p / "summary.json").stat().st_mtime_ns, p.name))
    if run.name == "summary.json" and run.is_file():
        return run.parent
    if (run / "summary.json").is_file():
        return run
    named = [p for p in known if p.name == str(run) or p.name.endswith(f"-{run}")]
    if len(named) == 1:
        return named[0]
    if named:
        raise ScenarioError(f"{run} may be {', '.join(sorted(p.name for p in named))}")
    raise ScenarioError(f"{run}: {not_a_run(run, known)}")


def read_summary(folder: Path) -> dict[str, Any]:
    """``summary.json`` of a run's folder.

    Raises
    ------
    ScenarioError
        The file is not JSON, or not a summary.
    """
    path = folder / "summary.json"
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        where = Location(file=str(path), line=error.lineno, column=error.colno)
        raise ScenarioError(Problem(where=where, message=f"not JSON: {error.msg}")) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: cannot be read: {error}") from error
    if not isinstance(summary, dict) or "raysim" not in summary:
        raise ScenarioError(f"{path}: not a summary written by raysim")
    return summary


def _table(name: str, summary: Mapping[str, Any]) -> Table:
    if name not in TABLES:
        raise ScenarioError(f"--table {name}: one of {', '.join(TABLES)}")
    return TABLES[name](summary)


def _rows(records: Iterable[Mapping[str, str]], left: set[str]) -> Table:
    """A table of text records: columns in ``left`` are words, the others numbers."""
    listed = list(records)
    headers = list(listed[0]) if listed else ["nothing"]
    return headers, [list(r.values()) for r in listed], set(headers) - left


def _collectives(summary: Mapping[str, Any]) -> Table:
    """The columns of DeepSpeed's comms summary, rates in GB/s."""
    from raysim.units import format_bytes, format_bytes_per_s, format_seconds

    rows = []
    for c in summary.get("collectives") or []:
        count = c["count"] or 1
        rows.append(
            {
                "op": c["op"],
                "what": c["what"],
                "group": c["group"],
                "ranks": f"{c['group_ranks']:,}",
                "message": format_bytes(c["bytes"] / count),
                "count": f"{c['count']:,}",
                "total": format_seconds(c["seconds"]),
                "average": format_seconds(c["seconds"] / count),
                "busbw": format_bytes_per_s(c["bus_bytes_per_s"]),
                "algorithm": f"{c['algorithm']} {c['protocol']}",
            }
        )
    return _rows(rows, {"op", "what", "group", "algorithm"})


def _step(summary: Mapping[str, Any]) -> Table:
    return _parts((summary.get("step") or {}).get("breakdown") or [])


def _goodput(summary: Mapping[str, Any]) -> Table:
    return _parts((summary.get("goodput") or {}).get("parts") or [])


def _failures(summary: Mapping[str, Any]) -> Table:
    """Of one of the runs that were played: when, why, and what each cost."""
    from raysim.units import format_seconds

    rows = (summary.get("goodput") or {}).get("stops") or []
    times = (("at", "at_seconds"), ("work lost", "lost_seconds"), ("down for", "down_seconds"))
    return _rows(
        ({"why": r["why"]} | {name: format_seconds(r[key]) for name, key in times} for r in rows),
        {"why"},
    )


def _parts(rows: Iterable[Mapping[str, Any]]) -> Table:
    """What adds up to a step, or to the wall time."""
    from raysim.report.layout import percent
    from raysim.units import format_seconds

    return _rows(
        (
            {"part": r["name"], "time": format_seconds(r["seconds"]), "share": percent(r["frac"])}
            for r in rows
        ),
        {"part"},
    )


def _memory(summary: Mapping[str, Any]) -> Table:
    from raysim.units import format_bytes

    stages = (summary.get("memory") or {}).get("per_stage") or []
    categories = list(dict.fromkeys(c for s in stages for c in s["by_category"]))
    return _rows(
        (
            {"stage": str(s["pp"]), "rank": str(s["rank"]), "peak": format_bytes(s["peak_bytes"])}
            | {c: format_bytes(s["by_category"].get(c, 0)) for c in categories}
            for s in stages
        ),
        set(),
    )


def _inputs(summary: Mapping[str, Any]) -> Table:
    rows = (summary.get("trust") or {}).get("inputs") or []
    keys = ("name", "value", "basis", "source")
    records = ({k: _cell(r.get(k)) for k in keys} for r in rows)
    return _rows(records, {"name", "basis", "source"})


def _targets(summary: Mapping[str, Any]) -> Table:
    rows = summary.get("targets") or []
    return _rows(
        (
            {
                "target": r["text"],
                "value": r.get("value_text") or _cell(r["value"]),
                "verdict": "PASS" if r["passed"] else "FAIL",
            }
            for r in rows
        ),
        {"target", "verdict"},
    )


def _changes(summary: Mapping[str, Any]) -> Table:
    rows = summary.get("would_help") or []
    return _rows(
        (
            {
                "change": r["change"],
                "what": r["text"],
                "step": "" if (d := r.get("step_delta_frac")) is None else f"{d * 100:+.2f} %",
                "fits": {True: "yes", False: "no"}.get(r.get("fits"), "?"),
            }
            for r in rows
        ),
        {"change", "what", "fits"},
    )


def _links(summary: Mapping[str, Any]) -> Table:
    """The busiest links of a step."""
    from raysim.report.layout import percent
    from raysim.units import format_bytes, format_bytes_per_s

    return _rows(
        (
            {
                "link": r["link"],
                "can carry": format_bytes_per_s(r["bytes_per_s"]),
                "carried": format_bytes(r["bytes"]),
                "mean": percent(r["mean_frac"]),
                "peak": percent(r["peak_frac"]),
            }
            for r in summary.get("links") or []
        ),
        {"link"},
    )


def _sensitivity(summary: Mapping[str, Any]) -> Table:
    """Percent of the step per percent of each input."""
    rows = summary.get("sensitivity") or []
    return _rows(
        ({"input": r["input"], "elasticity": f"{r['elasticity']:+.3f}"} for r in rows), {"input"}
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


TABLES: dict[str, Callable[[Mapping[str, Any]], Table]] = {
    "step": _step,
    "goodput": _goodput,
    "failures": _failures,
    "memory": _memory,
    "collectives": _collectives,
    "links": _links,
    "sensitivity": _sensitivity,
    "inputs": _inputs,
    "targets": _targets,
    "changes": _changes,
}
