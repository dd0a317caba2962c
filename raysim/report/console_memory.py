"""The printed report's memory: what is held, what else would fit, what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.text import Text

from raysim.report.layout import BAR, NAME, Page, bar, percent, pretty
from raysim.units import GIB, MIB, format_bytes

Summary = Mapping[str, Any]


def memory_part(page: Page, summary: Summary) -> None:
    """The fullest GPU by category, as torch counts it, other stages, the host, the disk."""
    memory = summary.get("memory")
    if not memory:
        return
    peak, capacity = memory["peak_bytes"], memory["capacity_bytes"]
    unit, scale = ("GiB", GIB) if peak >= GIB else ("MiB", MIB)
    page.blank()
    page.add((f" {'peak memory, fullest GPU':<{NAME}}", "bold"), (f"{unit:>10}", "dim"))
    page.rule()
    rows = _memory_rows(memory)
    largest = max((b for _, b in rows), default=1)
    columns = min(BAR, page.width - NAME - 15)
    over = peak > capacity
    for name, size_bytes in rows:
        page.add(
            f" {name:<{NAME}}{_hundredths(size_bytes / scale):>10}",
            ("   " + bar(size_bytes / largest, columns), "red" if over else "magenta"),
        )
    page.add((f" {'peak':<{NAME}}{peak / scale:>10,.2f}", "bold red" if over else "bold"), "   ")
    notes = [f"of {format_bytes(capacity)} ({percent(peak / capacity, 0)})"]
    notes.append(f"{memory['node']}/gpu-{memory['gpu']}")
    if memory.get("when"):
        notes.append(memory["when"])
    page.words(", ".join(notes), indent=NAME + 14, style="dim")
    _as_torch_counts(page, memory)
    _memory_elsewhere(page, memory)


def _as_torch_counts(page: Page, memory: Summary) -> None:
    """The peaks under the names of torch's counters; and how often the cache is given back."""
    if memory.get("reserved_peak_bytes") is None:
        return
    counters = [("allocated", "allocated_peak_bytes"), ("reserved", "reserved_peak_bytes")]
    said = [f"max_memory_{name} {format_bytes(memory[key])}" for name, key in counters]
    said.append(f"nvidia-smi {format_bytes(memory['peak_bytes'])}")
    page.add((f" {'as torch counts':<{NAME + 10}}", "dim"), "   ")
    page.words(", ".join(said), indent=NAME + 14, style="dim")
    retries = memory.get("alloc_retries")
    if retries:
        times = "once" if retries == 1 else f"{retries} times"
        page.add((f" {'cache given back':<{NAME + 10}}", "yellow"), "   ")
        pauses = f"{times}, a pause each: without that it would not fit"
        page.words(pauses, indent=NAME + 14, style="yellow")


def _hundredths(value: float) -> str:
    return f"{value:,.2f}" if value >= 0.005 else "<0.01"


def _memory_rows(memory: Summary) -> list[tuple[str, float]]:
    """Categories, largest first; what they do not add up to is shown, never dropped."""
    rows = [(r["name"], r["bytes"]) for r in memory["by_category"] if r["bytes"] > 0]
    rows.sort(key=lambda r: -r[1])
    rest = memory["peak_bytes"] - sum(b for _, b in rows)
    if rest > 0.001 * memory["peak_bytes"]:
        rows.append(("not itemised", rest))
    return rows


def _memory_elsewhere(page: Page, memory: Summary) -> None:
    stages = memory.get("per_stage") or []
    if len(stages) > 1:
        page.add(f" {'by pipeline stage':<{NAME + 1}}")
        items = [Text(f"{s['pp']}: {format_bytes(s['peak_bytes'])}") for s in stages]
        page.flow(items, indent=NAME + 2, joint=" · ")
    for name, kind in (("host memory", "host"), ("swapped to disk", "disk")):
        held = memory.get(kind) or {}
        used = held.get("peak_bytes_per_node", held.get("bytes_per_node"))
        capacity = held.get("capacity_bytes") or 0
        if used:
            share = percent(used / capacity, 0) if capacity else ""
            style = "" if held.get("fits", True) else "bold red"
            page.add(
                (f" {f'{name}, per node':<{NAME + 1}}", style),
                (f"{format_bytes(used)} of {format_bytes(capacity)} ({share})", style or "dim"),
            )


def shortage(page: Page, summary: Summary) -> None:
    """What is missing, in which category, during what, and the smallest change that would do."""
    page.blank()
    memory = summary.get("memory") or {}
    peak, capacity = memory.get("peak_bytes", 0), memory.get("capacity_bytes", 0)
    if peak > capacity:
        _short_by(page, peak, capacity, f"on each {summary['cluster']['gpu']}")
        when = memory.get("allocating") or memory.get("when")
        if when:
            page.labelled("During", [Text(f"{when}, {memory['node']}/gpu-{memory['gpu']}")])
        _largest(page, memory["by_category"], peak)
        _failing(page, memory.get("out_of_memory"))
    host = memory.get("host") or {}
    if host and not host.get("fits", True):
        needed = host["peak_bytes_per_node"]
        _short_by(page, needed, host["capacity_bytes"], "of host memory in each node")
        _largest(page, host["by_category"], needed)
    if not (disk := memory.get("disk") or {}).get("fits", True):
        _short_by(page, disk["bytes_per_node"], disk["capacity_bytes"], "of disk in each node")
    fitting = [w for w in summary.get("would_help") or [] if w.get("fits")]
    if fitting:
        page.labelled("Would fit", [Text(change_line(w), "green") for w in fitting])
    else:
        page.labelled("Would fit", [Text("none of the changes tried")])


def _failing(page: Page, failure: Summary | None) -> None:
    """The allocation that finds no memory, and torch's message about it."""
    if not failure:
        return
    what = f"{failure['name']}, {failure['label']}" if failure["label"] else failure["name"]
    page.labelled("Fails", [
        Text(f"{format_bytes(failure['tensor_bytes'])} for {what}", "red"),
        Text(f"rank {failure['rank']}, {failure['when']}"),
    ])  # fmt: skip
    page.labelled("Then", [
        Text(f"allocated {format_bytes(failure['allocated_bytes'])}"),
        Text(f"reserved but unallocated {format_bytes(failure['unallocated_bytes'])}"),
        Text(f"outside torch {format_bytes(failure['outside_torch_bytes'])}"),
        Text(f"free {format_bytes(failure['free_bytes'])}"),
    ])  # fmt: skip


def _short_by(page: Page, needed: float, capacity: float, where: str) -> None:
    short = format_bytes(needed - capacity)
    line = f"{short}: {format_bytes(needed)} needed, {format_bytes(capacity)} {where}"
    page.labelled("Short by", [Text(line, "red")])


def _largest(page: Page, categories: Iterable[Summary], total: float) -> None:
    items = []
    for row in sorted(categories, key=lambda r: -r["bytes"])[:3]:
        share = percent(row["bytes"] / total, 0)
        items.append(Text(f"{row['name']} {format_bytes(row['bytes'])} ({share})"))
    page.labelled("Largest", items)


def change_line(change: Summary) -> str:
    """``micro-batch 2: +3.1 % step``."""
    delta = change.get("step_delta_frac")
    if delta is None:
        return pretty(change["text"])
    return pretty(f"{change['text']}: {delta * 100:+.1f} % step")
