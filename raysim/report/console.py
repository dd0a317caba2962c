"""The printed report: verdict first, then what binds, in at most a screen or two.

Works from ``summary.json`` alone, so a run prints the same now and from its folder next year. This
is the one file that uses pretty characters; `ascii_only` turns them into plain ones for terminals
without them. Machine times (how long the simulation took) are an argument, never in the summary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from raysim.report.console_memory import change_line, memory_part, shortage
from raysim.report.goodput import goodput, peer_words
from raysim.report.layout import (
    BAR,
    NAME,
    NARROW,
    WIDE,
    Page,
    bar,
    number,
    percent,
    pretty,
    usd,
)
from raysim.report.words import likely_words, profile_words, standing_words
from raysim.units import (
    format_bytes,
    format_count,
    format_seconds,
)

Summary = Mapping[str, Any]


def text(summary: Summary, *, width: int = WIDE) -> str:
    """The report as plain text: no colour, no trailing blanks, one final newline."""
    lines = render(summary, width=width).plain.split("\n")
    return "\n".join(line.rstrip() for line in lines).rstrip("\n") + "\n"


def render(
    summary: Summary,
    *,
    width: int = WIDE,
    wall_s: float | None = None,
) -> Text:
    """The report as styled text.

    Parameters
    ----------
    summary
        The dictionary of ``summary.json``.
    width
        Columns to use; 80 at least.
    wall_s
        How long the simulation took on this machine, for the header.
    """
    if summary.get("kind") == "program":
        from raysim.report import program_console

        return program_console.render(summary, width=width, wall_s=wall_s)
    page = Page(width=max(width, NARROW))
    _verdict(page, summary)
    _header(page, summary, wall_s)
    if _fits(summary):
        _step(page, summary)
        memory_part(page, summary)
    else:
        shortage(page, summary)
        memory_part(page, summary)
        _step(page, summary)
    if _fits(summary):
        _throughput(page, summary)
        goodput(page, summary)
    _answers(page, summary)
    _said(page, summary)
    return Text("\n").join(page.lines)


def wrote(names: Sequence[str], *, width: int = WIDE) -> Text:
    """What stands below a report: the folder and its files."""
    page = Page(width=max(width, NARROW))
    page.labelled("Wrote", [Text(name) for name in names], joint="  ")
    return Text("\n").join(page.lines)


def _fits(summary: Summary) -> bool:
    return bool((summary.get("verdict") or {}).get("fits", True))


def _verdict(page: Page, summary: Summary) -> None:
    verdict = summary.get("verdict")
    if not verdict:
        return
    page.add("")
    page.words(verdict["text"], indent=0, style="bold green" if verdict["fits"] else "bold red")
    page.blank()


def _header(page: Page, summary: Summary, wall_s: float | None) -> None:
    simulation = summary.get("simulation") or {}
    parts = [f"raysim {summary['raysim']}", f"scenario {summary['scenario']}"]
    parts.append(f"seed {summary['seed']}")
    virtual = simulation.get("virtual_seconds")
    if virtual is not None:
        took = "" if wall_s is None else f" in {format_seconds(wall_s)}"
        parts.append(f"{format_seconds(virtual)} virtual{took}")
    parts.append(f"run {summary['run_id']}")
    page.add("")
    page.flow([Text(p, "dim") for p in parts], indent=0, joint=" · ")
    cluster, job = cluster_line(summary), job_line(summary)
    if len(cluster) + len(job) + 5 <= page.width:
        page.add(cluster, ("  |  ", "dim"), job)
    else:
        for line in (cluster, job):
            page.add("")
            page.words(line, indent=2)


def cluster_line(summary: Summary) -> str:
    """``2 nodes x 8 H100-SXM-80GB, <network>``, with the pretty multiplication sign."""
    cluster = summary["cluster"]
    nodes = cluster["gpu_nodes"]
    line = f"{nodes:,} node{'s' * (nodes != 1)} x {cluster['gpus_per_node']} {cluster['gpu']}"
    if cluster.get("network"):
        line += f", {cluster['network']}"
    return pretty(line)


def job_line(summary: Summary) -> str:
    """Model, size and strategy in one line."""
    job = summary["job"]
    model = job.get("architecture") or job["model"]
    line = f"{model} {format_count(job['parameters'])}, {job['strategy']}"
    return pretty(line)


def _step(page: Page, summary: Summary) -> None:
    step = summary.get("step")
    if not step:
        return
    simulated = (summary.get("simulation") or {}).get("simulated_steps") or 1
    title = "one step" if simulated == 1 else f"one step, median of {simulated}"
    if not _fits(summary):
        title = "one step, if memory sufficed"
    page.blank()
    page.add((f" {title:<{NAME}}", "bold"), (f"{'time':>10}{'share':>9}", "dim"))
    page.rule()
    rows = [r for r in step["breakdown"] if r["seconds"] > 0]
    rows.sort(key=lambda r: -r["seconds"])
    longest = max((r["seconds"] for r in rows), default=1.0)
    columns = min(BAR, page.width - NAME - 24)
    for row in rows:
        page.add(
            f" {row['name']:<{NAME}}{format_seconds(row['seconds']):>10}",
            (f"{percent(row['frac']):>9}", ""),
            ("   " + bar(row["seconds"] / longest, columns), "cyan"),
        )
    page.add((f" {'step':<{NAME}}{format_seconds(step['seconds']):>10}{'100 %':>9}", "bold"), "   ")
    page.words(", ".join(_step_notes(summary)), indent=NAME + 23, style="dim")


def _step_notes(summary: Summary) -> list[str]:
    step, job = summary["step"], summary["job"]
    notes = []
    if step.get("p95_seconds"):
        notes.append(f"p95 {format_seconds(step['p95_seconds'])}")
    if step.get("drawn_seconds"):
        notes.append(f"every kernel drawn {format_seconds(step['drawn_seconds'])}")
    if step.get("slowest_rank") is not None and job.get("simulated_ranks", 1) > 1:
        notes.append(f"slowest rank {step['slowest_rank']}")
    simulated, world = job.get("simulated_ranks", 1), _world(summary)
    if simulated < world:
        notes.append(f"{simulated} of {world:,} ranks, {peer_words(summary)}")
    return notes


def _world(summary: Summary) -> int:
    """GPUs the job uses; the cluster may have more."""
    job = summary["job"]
    if "dp" not in job:
        return int(summary["cluster"]["gpus"])
    return int(job["dp"]) * int(job.get("tp", 1)) * int(job.get("pp", 1))


def _throughput(page: Page, summary: Summary) -> None:
    rows = [*_speed_rows(summary), *_duration_rows(summary), *_cost_rows(summary)]
    if not rows:
        return
    page.blank()
    for left, left_value, right, right_value in rows:
        line = f" {left:<15}{left_value:<14} {right:<27}{right_value}"
        page.add(line.rstrip())


_Row = tuple[str, str, str, str]


def _speed_rows(summary: Summary) -> list[_Row]:
    speed = summary.get("throughput")
    if not speed:
        return []
    unit = summary["job"].get("sample_unit", "samples")
    rows: list[_Row] = []
    if unit == "tokens" and speed.get("tokens_per_s"):
        rate, per_gpu = speed["tokens_per_s"], speed["tokens_per_s_per_gpu"]
    else:
        unit = "samples" if unit == "tokens" else unit
        rate = speed["samples_per_s"]
        per_gpu = rate / _world(summary)
    rows.append((f"{unit}/s", number(rate), f"{unit}/s/GPU", number(per_gpu)))
    if speed.get("mfu") is not None:
        achieved = speed["model_flops_per_s_per_gpu"] / 1e12
        peak = speed["peak_flops_per_s"] / 1e12
        tflops = f"{number(achieved)} of {number(peak)}"
        rows.append(("MFU", percent(speed["mfu"]), "model TFLOP/s/GPU", tflops))
    return rows


def _duration_rows(summary: Summary) -> list[_Row]:
    run = summary.get("run")
    if not run or run.get("seconds") is None:
        return []
    steps = f"{run['steps']:,} steps" if run.get("steps") is not None else ""
    if run.get("skipped_steps"):
        steps += f", {run['skipped_steps']:,} skipped for overflow"
    if run.get("epochs"):
        length = f"{run['epochs']:,} epoch{'s' * (run['epochs'] != 1)}"
    elif run.get("tokens"):
        length = f"{format_count(run['tokens'])} tokens"
    else:
        length, steps = steps, ""
    rows: list[_Row] = [("whole run", format_seconds(run["seconds"]), length, steps)]
    epoch = run.get("epoch_seconds")
    if epoch and run.get("epochs") is not None:
        evaluated = "evaluation included" if run.get("evaluation_seconds") else ""
        rows.append(("one epoch", format_seconds(epoch), evaluated, ""))
    return rows


def _phases(summary: Summary) -> list[Text]:
    """Where the whole run's time goes, longest first."""
    table = (summary.get("goodput") or {}).get("parts")
    phases = [] if table else (summary.get("run") or {}).get("phases") or []
    return [
        Text(f"{p['name']} {format_seconds(p['seconds'])}")
        for p in sorted(phases, key=lambda p: -p["seconds"])
    ]


def _cost_rows(summary: Summary) -> list[_Row]:
    cost = summary.get("cost")
    if not cost:
        return []
    hours = f"{number(cost['gpu_hours'])}"
    if cost.get("usd") is None:
        rows: list[_Row] = [("GPU-hours", hours, "", "no price known for these nodes")]
    else:
        per_hour = f"at {usd(cost['usd_per_gpu_hour'])}/GPU-h"
        rows = [("GPU-hours", hours, per_hour, usd(cost["usd"]))]
    used = summary.get("energy") or {}
    each = cost.get("usd_per_million_tokens")
    tokens = ("", "") if each is None else ("per million tokens", usd(each))
    if used or any(tokens):
        energy = ("energy", f"{number(used['kwh'])} kWh") if used else ("", "")
        rows.append((*energy, *tokens))
    if used.get("kg_co2e") is not None:
        rows.append(("emissions", f"{number(used['kg_co2e'])} kg CO2e", "", ""))
    return rows


def _answers(page: Page, summary: Summary) -> None:
    page.blank()
    if summary.get("bound_by"):
        page.labelled("Bound by", [Text(summary["bound_by"]["text"])])
    if _fits(summary):
        changes = summary.get("would_help") or []
        helps = [c for c in changes if (c.get("step_delta_frac") or -1) < 0]
        hurts = [c for c in changes if c not in helps]
        for label, group in (("Would help", helps), ("Would not", hurts)):
            if group:
                page.labelled(label, [_help(c) for c in group])
        phases = _phases(summary)
        if phases:
            page.labelled("Run time", phases)
        if summary.get("network_credits"):
            page.labelled("Network", [Text(summary["network_credits"]["text"], "yellow")])
    measured = references(summary)
    if summary.get("trust"):
        trust = _trust(summary["trust"], compared=bool(measured))
        page.labelled("Trust", [Text(t) for t in trust], joint=", ")
    _certainty(page, summary.get("certainty") or {})
    if measured:
        page.labelled("Measured", [Text(m) for m in measured])
    targets = summary.get("targets") or []
    if targets:
        page.labelled("Targets", [_target(t) for t in targets])


def _certainty(page: Page, certainty: Summary) -> None:
    """Where nine of ten runs of this kind would end, and whether this job is one of the kind."""
    likely, standing = likely_words(certainty), standing_words(certainty)
    if likely:
        page.labelled("90 % in", [Text(words) for words in likely], joint=" · ")
    if standing:
        interpolated = certainty["standing"] == "interpolated"
        page.labelled("Standing", [Text(standing, "" if interpolated else "yellow")])


def _help(change: Summary) -> Text:
    if change.get("fits") is False:
        return Text(pretty(f"{change['text']} (would not fit)"), "dim")
    return Text(change_line(change))


def _trust(trust: Summary, *, compared: bool) -> list[str]:
    parts = [f"{trust[basis]} {basis}" for basis in ("measured", "datasheet", "assumed")]
    parts[0] = parts[0].replace(" ", " inputs ", 1)
    parts += profile_words(trust)
    error = trust.get("past_error")
    if error is not None:
        parts.append(f"past error on this kind \N{PLUS-MINUS SIGN}{percent(error, 0)}")
    elif not compared:
        parts.append("no measured run of this kind to compare with yet")
    return parts


def _target(target: Summary) -> Text:
    passed = target["passed"]
    text_ = Text("PASS " if passed else "FAIL ", "bold green" if passed else "bold red")
    text_.append(str(target["text"]))
    if not passed:
        value = target.get("value")
        text_.append(" (not reached)" if value is None else f" (is {target['value_text']})")
    return text_


def references(summary: Summary) -> list[str]:
    """One sentence per measured value: beside the prediction, with the error; the source last."""
    reference = summary.get("reference")
    if not reference:
        return []
    sentences = [_reference(row) for row in reference["values"]]
    if reference.get("source"):
        sentences.append(f"source: {reference['source']}")
    return sentences


def _reference(row: Summary) -> str:
    name = row["name"]

    def shown(value: float) -> str:
        if name.endswith("seconds"):
            return format_seconds(value)
        return format_bytes(value) if name == "memory_peak" else number(value)

    sentence = f"{name.replace('_', ' ')} {shown(row['measured'])}"
    predicted, error = row.get("predicted"), row.get("error_frac")
    if predicted is None:
        return f"{sentence}, not predicted"
    sentence += f", predicted {shown(predicted)}"
    return sentence if error is None else f"{sentence} ({error * 100:+.1f} %)"


def _said(page: Page, summary: Summary) -> None:
    for label, key, style in (
        ("Warning", "warnings", "bold yellow"),
        ("Simplified", "simplifications", "bold"),
    ):
        for n, sentence in enumerate(summary.get(key) or []):
            page.labelled("" if n else label, [Text(str(sentence))], style=style)
