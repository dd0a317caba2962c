"""The printed report of a Ray program: verdict, where the time went, tasks, objects, answers.

Works from ``summary.json`` alone, as ``console`` does for training jobs, and in its look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from raysim.report import library_console
from raysim.report.layout import BAR, JOINT, NAME, NARROW, Page, bar, number, percent, pretty, usd
from raysim.report.words import profile_words
from raysim.units import format_bytes, format_seconds

Summary = Mapping[str, Any]

MOST_FUNCTIONS = 10
MOST_FAILURES = 5
MOST_FAULTS = 6
MOST_JOBS = 12
_MIN_SHARE = 0.001
_WIDE_NAME = 45


def render(summary: Summary, *, width: int, wall_s: float | None = None) -> Text:
    """The report as styled text; parameters as ``console.render``."""
    page = Page(width=max(width, NARROW))
    _verdict(page, summary)
    _header(page, summary, wall_s)
    _time(page, summary)
    library_console.tables(page, summary["libraries"])
    _jobs(page, summary)
    _functions(page, summary)
    _usage(page, summary)
    _answers(page, summary)
    return Text("\n").join(page.lines)


def _verdict(page: Page, summary: Summary) -> None:
    verdict = summary["verdict"]
    page.add("")
    page.words(verdict["text"], indent=0, style="bold green" if verdict["ok"] else "bold red")
    page.blank()


def _header(page: Page, summary: Summary, wall_s: float | None) -> None:
    took = "" if wall_s is None else f" in {format_seconds(wall_s)}"
    virtual = format_seconds(summary["run"]["virtual_seconds"])
    parts = [
        f"raysim {summary['raysim']}", f"program {summary['scenario']}", f"seed {summary['seed']}",
        f"{virtual} virtual{took}", f"run {summary['run_id']}",
    ]  # fmt: skip
    page.add("")
    page.flow([Text(p, "dim") for p in parts], indent=0, joint=JOINT)
    cluster, compute = summary["cluster"], summary["compute"]
    said = f"{cluster['text']}, {cluster['network']}"
    if cluster["autoscaled"]:
        most = sum(g["max_count"] for g in cluster["groups"])
        said += f", autoscaled up to {most:,} nodes"
    page.add("")
    page.words(pretty(said), indent=2)
    page.add("")
    page.words(f"time of user code: {compute['text']}", indent=2)


def _time(page: Page, summary: Summary) -> None:
    rows = [r for r in summary["time"] if r["frac"] >= _MIN_SHARE]
    if not rows:
        return
    page.blank()
    page.add(
        (f" {'where the time goes':<{_WIDE_NAME}}", "bold"), (f"{'time':>9}{'share':>9}", "dim")
    )
    page.rule()
    columns = min(BAR, page.width - _WIDE_NAME - 23)
    longest = rows[0]["seconds"] or 1.0
    for row in rows:
        page.add(
            f" {row['name']:<{_WIDE_NAME}}{format_seconds(row['seconds']):>9}",
            f"{percent(row['frac']):>9}",
            ("   " + bar(row["seconds"] / longest, columns), "cyan"),
        )
    whole = format_seconds(summary["run"]["virtual_seconds"])
    page.add((f" {'run':<{_WIDE_NAME}}{whole:>9}{'100 %':>9}", "bold"))


def _jobs(page: Page, summary: Summary) -> None:
    """Of several: when each was submitted, how long it waited and ran."""
    rows = summary["jobs"]
    if not rows:
        return
    page.blank()
    columns = "".join(f"{h:>10}" for h in ("submitted", "wait", "run", "in all"))
    page.add((f" {'job':<{NAME - 4}}", "bold"), (columns, "dim"))
    page.rule()
    for row in rows[:MOST_JOBS]:
        times = (row["submitted_seconds"], row["wait_seconds"], row["run_seconds"], row["seconds"])
        cells = "".join(f"{'-' if t is None else format_seconds(t) if t else '0 s':>10}"
                        for t in times)  # fmt: skip
        name = row["name"] if len(row["name"]) <= NAME - 5 else row["name"][: NAME - 8] + "..."
        again = f", {row['attempts']:,} attempts" if row["attempts"] > 1 else ""
        line = Text(f" {name:<{NAME - 4}}{cells}")
        line.append(f"  {row['status']}{again}", "dim")
        page.lines.append(line)
    if len(rows) > MOST_JOBS:
        waits = sorted(r["wait_seconds"] for r in rows if r["wait_seconds"] is not None)
        tail = f"; waits {format_seconds(waits[0])} to {format_seconds(waits[-1])}" if waits else ""
        page.add((f" and {len(rows) - MOST_JOBS:,} more in summary.json{tail}", "dim"))


def _machine_facts(summary: Summary) -> list[str]:
    facts = []
    for row in summary["machines"]:
        said = f"{row['asked']:,} x {row['group']} asked for, {row['came']:,} came"
        if row["p50_seconds"] is not None:
            phases = sorted(row["p50_phase_seconds"].items(), key=lambda item: -item[1])
            longest = ", ".join(
                f"{name.replace('_', ' ')} {format_seconds(s)}" for name, s in phases[:2]
            )
            said += f" after {format_seconds(row['p50_seconds'])} ({longest})"
        facts.append(pretty(said))
    return facts


def _functions(page: Page, summary: Summary) -> None:
    rows = summary["tasks"]["by_function"]
    if not rows or len(summary.get("libraries") or []) >= max(1, len(summary["jobs"])):
        return  # tasks of the libraries' own actors alone: they say better what they did
    page.blank()
    heads = ("tasks", "mean", "p50", "p95", "wait p95")
    columns = "".join(f"{h:>10}" for h in heads)
    page.add((f" {'function':<{NAME - 4}}", "bold"), (columns, "dim"))
    page.rule()
    for row in rows[:MOST_FUNCTIONS]:
        name = row["name"] if len(row["name"]) <= NAME - 5 else row["name"][: NAME - 8] + "..."
        times = (row["mean_seconds"], row["p50_seconds"], row["p95_seconds"],
                 row["wait_p95_seconds"])  # fmt: skip
        cells = "".join(f"{'-' if t is None else format_seconds(t):>10}" for t in times)
        line = Text(f" {name:<{NAME - 4}}{row['count']:>10,}{cells}")
        notes = [
            f"{row[key]:,} {key}" for key in ("retried", "failed") if row[key]
        ]  # fmt: skip
        page.lines.append(line)
        if notes:
            joined = ", ".join(notes)
            if line.cell_len + len(joined) + 2 <= page.width:
                line.append(f"  {joined}", "dim")
            else:
                page.add((f"   {joined}", "dim"))
    more = summary["tasks"]["functions"] - MOST_FUNCTIONS
    if more > 0:
        page.add((f" and {more:,} more in summary.json", "dim"))


def _usage(page: Page, summary: Summary) -> None:
    rows = []
    for row in summary["utilisation"]:
        for name, used in row["resources"].items():
            per_node = used["per_node"]
            each = format_bytes(per_node) if name == "memory" else number(per_node)
            what = pretty(f"{row['group']}: {name}, {row['nodes']:,} x {each}")
            note = "held by ranks" if summary["program"]["launcher"] else "held"
            if name == "CPU":
                note = f"held; cores at work {percent(row['cores_frac'], 0)}"
            rows.append((what, used["frac"], note))
    store = summary["object_store"]
    if store["peak_bytes"]:
        capacity = store["capacity_bytes"] or 1
        rows.append(
            (f"fullest object store, {store['peak_node']}", store["peak_bytes"] / capacity,
             f"peak {format_bytes(store['peak_bytes'])} of {format_bytes(capacity)}")
        )  # fmt: skip
    port = summary["network"]["busiest_port"]
    if port["bytes"]:
        rows.append(
            (f"busiest port, {port['node']} {port['direction']}", port["frac"],
             f"{format_bytes(port['bytes'])} of objects and large messages")
        )  # fmt: skip
    if not rows:
        return
    page.blank()
    page.add((f" {'used, mean of the run':<{NAME + 3}}", "bold"), (f"{'share':>8}", "dim"))
    page.rule()
    columns = max(0, min(BAR, page.width - NAME - 56))
    for what, share, note in rows:
        page.add(f" {what:<{NAME + 3}}{percent(share):>8}   ")
        if columns:
            page.lines[-1].append(f"{bar(share, columns):<{columns}}  ", "magenta")
        page.words(note, indent=NAME + 15 + columns + 2 * bool(columns), style="dim")


def _answers(page: Page, summary: Summary) -> None:
    page.blank()
    page.labelled("Bound by", [Text(summary["bound_by"]["text"])])
    library_console.answers(page, summary["libraries"])
    if not summary["program"]["launcher"]:
        page.labelled("Tasks", [Text(t) for t in _task_facts(summary)])
    objects = _object_facts(summary)
    if objects:
        page.labelled("Objects", [Text(t) for t in objects])
    if summary["machines"]:
        page.labelled("Machines", [Text(t) for t in _machine_facts(summary)])
    if summary["faults"]:
        page.labelled("Faults", [Text(t) for t in _fault_facts(summary["faults"])])
    failures = summary["failures"]
    if failures:
        page.labelled("Failures", [Text(t) for t in _failure_facts(failures)])
    _ending(page, summary)
    page.labelled("Cost", [Text(_cost(summary["cost"]))])
    if summary.get("energy"):
        page.labelled("Energy", [Text(_energy(summary["energy"]))])
    trust = summary["trust"]
    parts = [f"{trust[b]} {b}" for b in ("measured", "datasheet", "assumed")]
    parts[0] = parts[0].replace(" ", " inputs ", 1)
    parts += profile_words(trust)
    page.labelled("Trust", [Text(t) for t in parts], joint=", ")
    if summary["targets"]:
        page.labelled("Targets", [_target(t) for t in summary["targets"]])
    if summary["simplifications"]:
        page.labelled("Left out", [Text(" ".join(summary["simplifications"]))])
    if summary["warnings"]:
        page.labelled("Note", [Text(w) for w in summary["warnings"]])


def _task_facts(summary: Summary) -> list[str]:
    tasks, actors = summary["tasks"], summary["actors"]
    facts = [f"{n:,} {state}" for state, n in tasks["by_state"].items()] or ["none submitted"]
    if tasks["retried"]:
        facts.append(f"{tasks['retried']:,} run again")
    if actors["total"]:
        restarts = actors["restarts"]
        again = f", {restarts:,} restart{'s' * (restarts != 1)}" if restarts else ""
        facts.append(f"{actors['total']:,} actor{'s' * (actors['total'] != 1)}{again}")
    return facts


def _object_facts(summary: Summary) -> list[str]:
    store, network = summary["object_store"], summary["network"]
    facts = []
    if network["transfers"]:
        moved = format_bytes(network["bytes"])
        facts.append(f"{network['transfers']:,} moved between nodes, {moved}")
    for key in ("spilled", "restored", "fallback"):
        size = store[f"{key}_bytes"]
        if size:
            facts.append(
                f"{format_bytes(size)} {'allocated on disk' if key == 'fallback' else key}"
            )
    return facts


def _fault_facts(faults: Sequence[Summary]) -> list[str]:
    facts = [_fault(fault) for fault in faults[:MOST_FAULTS]]
    more = len(faults) - MOST_FAULTS
    return [*facts, f"and {more:,} more"] if more > 0 else facts


def _fault(fault: Summary) -> str:
    return f"{fault['kind']} {fault['node']} at {format_seconds(fault['at_seconds'])}"


def _failure_facts(failures: Sequence[Summary]) -> list[str]:
    facts = []
    for row in failures[:MOST_FAILURES]:
        n = row["attempts"]
        again = f", {row['retried']:,} tried again" if row["retried"] else ""
        facts.append(f"{n:,} {row['error_type']} on {row['node']}{again}")
    if len(failures) > MOST_FAILURES:
        facts.append(f"and {len(failures) - MOST_FAILURES} kinds more")
    return facts


def _ending(page: Page, summary: Summary) -> None:
    """What was left when the driver ended."""
    program, pending = summary["program"], summary["pending"]
    if program["exit"] in {"hang", "until"} and program["message"]:
        page.labelled("Driver", [Text(f"waits at: {program['message']}")])
    if pending["count"] or pending["running"] or pending["groups"]:
        causes = ", ".join(f"{n:,} for {kind}" for kind, n in pending["causes"].items())
        left = f"{pending['running']:,} running, {pending['count']:,} waiting"
        left += f", {pending['groups']:,} placement groups" if pending["groups"] else ""
        page.labelled("Unfinished", [Text(left + (f" ({causes})" if causes else ""))])
        if program["exit"] != "ok":
            for sentence in pending["examples"]:
                page.add(" " * 12)
                page.words(sentence, indent=12, style="dim")


def _cost(cost: Summary) -> str:
    hours = f"{number(cost['node_hours'])} node-hours"
    if cost["gpu_hours"]:
        hours += f", {number(cost['gpu_hours'])} GPU-hours"
    if cost["usd"] is None:
        return f"{hours}; no price known for these nodes"
    rate = "" if cost["usd_per_hour"] is None else f" at {usd(cost['usd_per_hour'])}/h"
    each = cost.get("usd_per_million_output_tokens")
    tokens = "" if each is None else f"; {usd(each)} per million output tokens"
    return f"{usd(cost['usd'])}: {hours}{rate}{tokens}"


def _energy(used: Summary) -> str:
    text = f"{number(used['kwh'])} kWh with cooling"
    if used["average_kw"] is not None:  # a program may fail before any time has passed
        text = f"{number(used['kwh'])} kWh, {number(used['average_kw'])} kW on average with cooling"
    return text if used["kg_co2e"] is None else f"{text}; {number(used['kg_co2e'])} kg CO2e"


def _target(target: Summary) -> Text:
    passed = target["passed"]
    said = Text("PASS " if passed else "FAIL ", "bold green" if passed else "bold red")
    said.append(f"{target['text']} ({target['value_text']})")
    return said
