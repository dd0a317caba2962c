"""The printed report: verdict first, then what binds, in at most a screen or two.

Works from ``summary.json`` alone, so a run prints the same now and from its folder next year. This
is the one file that uses pretty characters; `ascii_only` turns them into plain ones for terminals
without them. Machine times (how long the simulation took) are an argument, never in the summary.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from raysim.units import (
    GIB,
    MIB,
    format_bytes,
    format_bytes_per_s,
    format_count,
    format_seconds,
)

WIDE, NARROW = 100, 80
_LABEL = 12
_NAME = 33
_BAR = 34
TIMES = "\N{MULTIPLICATION SIGN}"
SPECIAL = f"█▏·─±{TIMES}"
"""What an output must be able to encode, or `ascii_only` is for it."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_ASCII = str.maketrans(
    {"█": "#", "·": "-", TIMES: "x", "─": "-", "±": "~"}
    | dict.fromkeys("▉▊▋▌", "#")
    | dict.fromkeys("▍▎▏", "|")
)

Summary = Mapping[str, Any]


def text(summary: Summary, *, width: int = WIDE) -> str:
    """The report as plain text: no colour, no trailing blanks, one final newline."""
    lines = render(summary, width=width).plain.split("\n")
    return "\n".join(line.rstrip() for line in lines).rstrip("\n") + "\n"


def render(
    summary: Summary, *, width: int = WIDE, wall_s: float | None = None, wrote: str | None = None
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
    wrote
        The last line: the folder and its files.
    """
    page = _Page(width=max(width, NARROW))
    _verdict(page, summary)
    _header(page, summary, wall_s)
    if _fits(summary):
        _step(page, summary)
        _memory(page, summary)
    else:
        _shortage(page, summary)
        _memory(page, summary)
        _step(page, summary)
    if _fits(summary):
        _throughput(page, summary)
    _answers(page, summary)
    _said(page, summary)
    if wrote:
        page.labelled("Wrote", [Text(wrote)])
    return Text("\n").join(page.lines)


def ascii_only(pretty: Text) -> Text:
    """The same text in ASCII, for an output that cannot encode block characters."""
    plain = pretty.copy()
    plain.plain = pretty.plain.translate(_ASCII)
    return plain


def bar(share: float, width: int) -> str:
    """A bar of ``share`` (0 to 1) of ``width`` columns, in eighths; above zero it is visible."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def percent(share: float, digits: int = 1) -> str:
    """``97.4 %``; a share that would round to zero says so."""
    least = 0.5 * 10.0**-digits
    if 0 < abs(share) * 100 < least:
        return f"<{10.0**-digits:.{digits}f} %"
    return f"{share * 100:,.{digits}f} %"


def size(size_bytes: float) -> str:
    """Binary size as the report prints it: ``79.6 GiB``."""
    return format_bytes(size_bytes)


def usd(amount: float) -> str:
    """Dollars: cents below 100, whole dollars above, three digits below one."""
    if abs(amount) >= 100:
        return f"${amount:,.0f}"
    return f"${amount:,.2f}" if abs(amount) >= 1 else f"${amount:.3g}"


@dataclass(slots=True)
class _Page:
    """Lines of one width, grown section by section."""

    width: int
    lines: list[Text] = field(default_factory=list)

    def add(self, *parts: str | tuple[str, str]) -> None:
        self.lines.append(Text.assemble(*parts))

    def blank(self) -> None:
        self.lines.append(Text())

    def rule(self) -> None:
        self.add((" " + "─" * min(self.width - 17, 83), "dim"))

    def flow(self, items: Iterable[Text], *, indent: int, joint: str = " ") -> None:
        """Append ``items`` to the last line, wrapped with a hanging indent."""
        line = self.lines[-1]
        first = True
        for item in items:
            glue = "" if first else joint
            if line.cell_len + len(glue) + item.cell_len > self.width and not first:
                line.append(joint.rstrip(), "dim")
                line = Text(" " * indent)
                self.lines.append(line)
                glue = ""
            line.append(glue, "dim")
            line.append_text(item)
            first = False

    def words(self, words: str, *, indent: int, style: str = "") -> None:
        """Append running text to the last line, wrapped at blanks."""
        self.flow((Text(w, style) for w in words.split()), indent=indent)

    def labelled(
        self, label: str, items: Sequence[Text], *, style: str = "bold", joint: str = " · "
    ) -> None:
        """``label`` in its column, then items; an item too long for a line wraps at blanks."""
        self.add((f"{label:<{_LABEL}}", style))
        if all(i.cell_len <= self.width - _LABEL for i in items):
            self.flow(items, indent=_LABEL, joint=joint)
            return
        for n, item in enumerate(items):
            if n:
                self.add(" " * _LABEL)
            pieces = item.split(" ")
            self.flow(pieces, indent=_LABEL)


def _fits(summary: Summary) -> bool:
    return bool((summary.get("verdict") or {}).get("fits", True))


def _verdict(page: _Page, summary: Summary) -> None:
    verdict = summary.get("verdict")
    if not verdict:
        return
    page.add("")
    page.words(verdict["text"], indent=0, style="bold green" if verdict["fits"] else "bold red")
    page.blank()


def _header(page: _Page, summary: Summary, wall_s: float | None) -> None:
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
    return _pretty(line)


def job_line(summary: Summary) -> str:
    """Model, size and strategy in one line."""
    job = summary["job"]
    model = job.get("architecture") or job["model"]
    line = f"{model} {format_count(job['parameters'])}, {job['strategy']}"
    return _pretty(line)


def _step(page: _Page, summary: Summary) -> None:
    step = summary.get("step")
    if not step:
        return
    simulated = (summary.get("simulation") or {}).get("simulated_steps") or 1
    title = "one step" if simulated == 1 else f"one step, median of {simulated}"
    if not _fits(summary):
        title = "one step, if memory sufficed"
    page.blank()
    page.add((f" {title:<{_NAME}}", "bold"), (f"{'time':>10}{'share':>9}", "dim"))
    page.rule()
    rows = [r for r in step["breakdown"] if r["seconds"] > 0]
    rows.sort(key=lambda r: -r["seconds"])
    longest = max((r["seconds"] for r in rows), default=1.0)
    columns = min(_BAR, page.width - _NAME - 24)
    for row in rows:
        page.add(
            f" {row['name']:<{_NAME}}{format_seconds(row['seconds']):>10}",
            (f"{percent(row['frac']):>9}", ""),
            ("   " + bar(row["seconds"] / longest, columns), "cyan"),
        )
    page.add(
        (f" {'step':<{_NAME}}{format_seconds(step['seconds']):>10}{'100 %':>9}", "bold"), "   "
    )
    page.flow([Text(n, "dim") for n in _step_notes(summary)], indent=_NAME + 23, joint=", ")


def _step_notes(summary: Summary) -> list[str]:
    step, job = summary["step"], summary["job"]
    notes = []
    if step.get("p95_seconds"):
        notes.append(f"p95 {format_seconds(step['p95_seconds'])}")
    if step.get("slowest_rank") is not None and job.get("simulated_ranks", 1) > 1:
        notes.append(f"slowest rank {step['slowest_rank']}")
    if job.get("folded"):
        ranks = job.get("simulated_ranks", 1)
        gpus = summary["cluster"]["gpus"]
        notes.append(f"{ranks} of {gpus:,} equal ranks simulated")
    return notes


def _memory(page: _Page, summary: Summary) -> None:
    memory = summary.get("memory")
    if not memory:
        return
    peak, capacity = memory["peak_bytes"], memory["capacity_bytes"]
    unit, scale = ("GiB", GIB) if peak >= GIB else ("MiB", MIB)
    page.blank()
    page.add((f" {'peak memory, fullest GPU':<{_NAME}}", "bold"), (f"{unit:>10}", "dim"))
    page.rule()
    rows = _memory_rows(memory)
    largest = max((b for _, b in rows), default=1)
    columns = min(_BAR, page.width - _NAME - 15)
    over = peak > capacity
    for name, size_bytes in rows:
        page.add(
            f" {name:<{_NAME}}{size_bytes / scale:>10,.2f}",
            ("   " + bar(size_bytes / largest, columns), "red" if over else "magenta"),
        )
    page.add((f" {'peak':<{_NAME}}{peak / scale:>10,.2f}", "bold red" if over else "bold"), "   ")
    notes = [f"of {size(capacity)} ({percent(peak / capacity, 0)})"]
    notes.append(f"{memory['node']}/gpu-{memory['gpu']}")
    if memory.get("when"):
        notes.append(memory["when"])
    page.flow([Text(n, "dim") for n in notes], indent=_NAME + 14, joint=", ")
    _memory_elsewhere(page, memory)


def _memory_rows(memory: Summary) -> list[tuple[str, float]]:
    """Categories, largest first; what they do not add up to is shown, never dropped."""
    rows = [(r["name"], r["bytes"]) for r in memory["by_category"] if r["bytes"] > 0]
    rows.sort(key=lambda r: -r[1])
    rest = memory["peak_bytes"] - sum(b for _, b in rows)
    if rest > 0.001 * memory["peak_bytes"]:
        rows.append(("not itemised", rest))
    return rows


def _memory_elsewhere(page: _Page, memory: Summary) -> None:
    stages = memory.get("per_stage") or []
    if len(stages) > 1:
        page.add(f" {'by pipeline stage':<{_NAME + 1}}")
        items = [Text(f"{s['pp']}: {size(s['peak_bytes'])}") for s in stages]
        page.flow(items, indent=_NAME + 2, joint=" · ")
    host = memory.get("host")
    if host:
        used, capacity = host["peak_bytes_per_node"], host["capacity_bytes"]
        share = percent(used / capacity, 0) if capacity else ""
        style = "" if host.get("fits", True) else "bold red"
        page.add(
            (f" {'host memory, per node':<{_NAME + 1}}", style),
            (f"{size(used)} of {size(capacity)} ({share})", style or "dim"),
        )


def _shortage(page: _Page, summary: Summary) -> None:
    """What is missing, in which category, during what, and the smallest change that would do."""
    page.blank()
    memory = summary.get("memory") or {}
    host = memory.get("host") or {}
    if memory.get("peak_bytes", 0) > memory.get("capacity_bytes", 0):
        short = memory["peak_bytes"] - memory["capacity_bytes"]
        line = f"{size(short)}: {size(memory['peak_bytes'])} needed, "
        line += f"{size(memory['capacity_bytes'])} on each {summary['cluster']['gpu']}"
        page.labelled("Short by", [Text(line, "red")])
        when = memory.get("allocating") or memory.get("when")
        if when:
            page.labelled("During", [Text(f"{when}, {memory['node']}/gpu-{memory['gpu']}")])
        _largest(page, memory["by_category"], memory["peak_bytes"])
    if host and not host.get("fits", True):
        short = host["peak_bytes_per_node"] - host["capacity_bytes"]
        line = f"{size(short)} of host memory: {size(host['peak_bytes_per_node'])} needed, "
        page.labelled(
            "Short by", [Text(line + f"{size(host['capacity_bytes'])} in each node", "red")]
        )
        _largest(page, host["by_category"], host["peak_bytes_per_node"])
    fitting = [w for w in summary.get("would_help") or [] if w.get("fits")]
    if fitting:
        page.labelled("Would fit", [Text(_change(w), "green") for w in fitting])
    else:
        page.labelled("Would fit", [Text("none of the changes tried")])


def _largest(page: _Page, categories: Iterable[Summary], total: float) -> None:
    rows = sorted(categories, key=lambda r: -r["bytes"])[:3]
    items = [f"{r['name']} {size(r['bytes'])} ({percent(r['bytes'] / total, 0)})" for r in rows]
    page.labelled("Largest", [Text(i) for i in items])


def _change(change: Summary) -> str:
    delta = change.get("step_delta_frac")
    if delta is None:
        return _pretty(change["text"])
    return _pretty(f"{change['text']}: {delta * 100:+.1f} % step")


def _pretty(words: str) -> str:
    """``2 x 8`` with a multiplication sign."""
    return words.replace(" x ", f" {TIMES} ")


def _throughput(page: _Page, summary: Summary) -> None:
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
    gpus = summary["cluster"]["gpus"]
    rows: list[_Row] = []
    if unit == "tokens" and speed.get("tokens_per_s"):
        rate, per_gpu = speed["tokens_per_s"], speed["tokens_per_s_per_gpu"]
    else:
        unit = "samples" if unit == "tokens" else unit
        rate = speed["samples_per_s"]
        per_gpu = rate / gpus
    rows.append((f"{unit}/s", number(rate), f"{unit}/s/GPU", number(per_gpu)))
    if speed.get("mfu") is not None:
        achieved = speed["model_flops_per_s_per_gpu"] / 1e12
        peak = speed["peak_flops_per_s"] / 1e12
        tflops = f"{number(achieved)} of {number(peak)}"
        rows.append(("MFU", percent(speed["mfu"]), "model TFLOP/s/GPU", tflops))
    return rows


def number(value: float) -> str:
    """Three significant digits at least, whole numbers above 100."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 or value == 0 else f"{value:.2e}"


def _duration_rows(summary: Summary) -> list[_Row]:
    run = summary.get("run")
    if not run:
        return []
    if run.get("tokens"):
        what = f"{format_count(run['tokens'])} tokens"
    elif run.get("epochs"):
        what = f"{run['epochs']:g} epoch{'s' * (run['epochs'] != 1)}"
    else:
        what = f"{run['steps']:,} steps"
    lefts = [(what, run["seconds"])]
    lefts += [
        ("one epoch", run.get("epoch_seconds")),
        ("first step", run.get("first_step_seconds")),
    ]
    phases = [p for p in run.get("phases") or [] if p["name"] != "training"]
    rights = [(f"of it {p['name']}", p["seconds"]) for p in phases]
    left = [(name, format_seconds(s)) for name, s in lefts if s]
    right = [(name, format_seconds(s)) for name, s in rights if s]
    if "steps" not in what:
        left.append(("steps", f"{run['steps']:,}"))
    pairs = itertools.zip_longest(left, right, fillvalue=("", ""))
    return [(*one, *other) for one, other in pairs]


def _cost_rows(summary: Summary) -> list[_Row]:
    cost = summary.get("cost")
    if not cost:
        return []
    hours = f"{number(cost['gpu_hours'])}"
    if cost.get("usd") is None:
        return [("GPU-hours", hours, "", "no price known for these nodes")]
    per_hour = f"at {usd(cost['usd_per_gpu_hour'])}/GPU-h"
    rows: list[_Row] = [("GPU-hours", hours, per_hour, usd(cost["usd"]))]
    if cost.get("usd_per_million_tokens") is not None:
        rows.append(("", "", "per million tokens", usd(cost["usd_per_million_tokens"])))
    return rows


def _answers(page: _Page, summary: Summary) -> None:
    page.blank()
    if summary.get("bound_by"):
        page.labelled("Bound by", [Text(summary["bound_by"]["text"])])
    helps = summary.get("would_help") or []
    if helps and _fits(summary):
        page.labelled("Would help", [_help(w) for w in helps])
    if summary.get("trust"):
        page.labelled("Trust", [Text(t) for t in _trust(summary["trust"])], joint=", ")
    measured = references(summary)
    if measured:
        page.labelled("Measured", [Text(m) for m in measured])
    targets = summary.get("targets") or []
    if targets:
        page.labelled("Targets", [_target(t) for t in targets])


def _help(change: Summary) -> Text:
    if change.get("fits") is False:
        return Text(_pretty(f"{change['text']} (would not fit)"), "dim")
    return Text(_change(change))


def _trust(trust: Summary) -> list[str]:
    parts = [f"{trust[basis]} inputs {basis}" if not n else f"{trust[basis]} {basis}"
             for n, basis in enumerate(("measured", "datasheet", "assumed"))]  # fmt: skip
    error = trust.get("past_error")
    if error is None:
        parts.append("no measured run of this kind to compare with yet")
    else:
        parts.append(f"past error on this kind ±{percent(error, 0)}")
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

    def shown(value: float | None) -> str:
        if value is None:
            return "not predicted"
        if name.endswith("seconds"):
            return format_seconds(value)
        return size(value) if name == "memory_peak" else number(value)

    words = name.replace("_", " ")
    sentence = f"{words} {shown(row['measured'])}, predicted {shown(row.get('predicted'))}"
    error = row.get("error_frac")
    return sentence if error is None else f"{sentence} ({error * 100:+.1f} %)"


def _said(page: _Page, summary: Summary) -> None:
    for label, key, style in (
        ("Warning", "warnings", "bold yellow"),
        ("Simplified", "simplifications", "bold"),
    ):
        for sentence in summary.get(key) or []:
            page.labelled(label, [Text(str(sentence))], style=style)


def collectives_rows(summary: Summary) -> list[dict[str, str]]:
    """The collectives table, with the columns of DeepSpeed's comms summary (GB/s, not Gb/s)."""
    rows = []
    for c in summary.get("collectives") or []:
        count = c["count"] or 1
        rows.append(
            {
                "op": c["op"],
                "what": f"{c.get('phase') or ''} {c.get('what') or ''}".strip(),
                "ranks": f"{c['group_ranks']:,}",
                "message": size(c["bytes"] / count),
                "count": f"{c['count']:,}",
                "total": format_seconds(c["seconds"]),
                "average": format_seconds(c["seconds"] / count),
                "exposed": format_seconds(c["exposed_seconds"]) if c["exposed_seconds"] else "-",
                "busbw": format_bytes_per_s(c["bus_bytes_per_s"]),
                "algorithm": f"{c['algorithm']} {c['protocol']}",
            }
        )
    return rows
