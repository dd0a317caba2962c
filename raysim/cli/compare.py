"""``raysim compare``: runs side by side, differences first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.cli import terminal
from raysim.cli.show import find, read_summary
from raysim.errors import ScenarioError

if TYPE_CHECKING:
    from raysim.report.comparing_spans import Recorded

SCENARIO = "scenario.resolved.yaml"
MOST_KEYS = 12
"""Changed keys printed; the page has all."""


def compare(runs: tuple[Path, ...], *, by: str | None, html: Path | None = None) -> None:
    """Print what differs; ``by`` a part of rows' names, ``html`` a page to write.

    Raises
    ------
    ScenarioError
        Fewer than two runs, one that is not there, or no row of that name.
    """
    from raysim.report.comparing import rows_of

    if len(runs) < 2:
        raise ScenarioError("compare needs two runs or more")
    folders = [find(run) for run in runs]
    summaries = [read_summary(folder) for folder in folders]
    rows = rows_of(summaries)
    if by is not None:
        rows = [row for row in rows if by in row.name]
        if not rows:
            raise ScenarioError(f"--by {by}: nothing of that name differs")
    heads = [folder.name for folder in folders]
    changed = by is None and _say_changed(folders, heads)
    if rows:
        lines = [
            [row.name, *row.cells, "" if row.ratio is None else f"{row.ratio - 1:+.1%}"]
            for row in rows
        ]
        last = "last over first"
        terminal.table(["", *heads, last], lines, right=[*heads, last])
    else:
        terminal.say("Nothing of what was found differs." if changed else "Nothing differs.")
    if html is not None:
        _write_page(folders, summaries, html)


def _say_changed(folders: Sequence[Path], heads: Sequence[str]) -> bool:
    """Print the keys of the scenarios that differ; whether any does."""
    from raysim.report.changed import changed_keys

    scenarios = [_scenario(folder)[1] for folder in folders]
    if None in scenarios:
        return False
    keys = changed_keys([s for s in scenarios if s is not None])
    if keys:
        rows = [[key.key, *key.cells] for key in keys[:MOST_KEYS]]
        terminal.table(["changed", *heads], rows, right=[])
        if len(keys) > MOST_KEYS:
            terminal.say(f"and {len(keys) - MOST_KEYS} more keys; --html FILE lists all")
    return bool(keys)


def _scenario(folder: Path) -> tuple[str, Mapping[str, Any] | None]:
    """The resolved scenario of a run as text and as data, where there is one."""
    from ruamel.yaml import YAML

    path = folder / SCENARIO
    if not path.is_file():
        return "", None
    text = path.read_text(encoding="utf-8")
    data = YAML(typ="safe").load(text)
    return text, data if isinstance(data, dict) else None


def _write_page(folders: Sequence[Path], summaries: Sequence[dict[str, Any]], html: Path) -> None:
    from raysim.report.comparing_html import LETTERS, Run, render

    if len(folders) > len(LETTERS):
        raise ScenarioError(f"--html: at most {len(LETTERS)} runs")
    runs = []
    for folder, summary in zip(folders, summaries, strict=True):
        text, data = _scenario(folder)
        runs.append(
            Run(
                name=folder.name, summary=summary, scenario_yaml=text, scenario=data,
                recorded=_recorded(folder, summary),
            )
        )  # fmt: skip
    html.parent.mkdir(parents=True, exist_ok=True)
    html.write_text(render(runs), encoding="utf-8")
    terminal.say(f"Wrote {html}")


def _recorded(folder: Path, summary: Mapping[str, Any]) -> Recorded | None:
    """The slices of the slowest GPU that was recorded, and the memory of the fullest."""
    from raysim.report.comparing_spans import Recorded

    path = folder / "frames" / "spans.parquet"
    if not path.is_file():
        return None
    import pandas as pd

    frame = pd.read_parquet(path)
    frame = frame[frame["gpu"].astype(str).str.startswith("gpu-")]
    if frame.empty:
        return None
    slowest = str((summary.get("step") or {}).get("slowest_rank"))
    mine = frame[frame["rank"].astype(str) == slowest]
    first = (mine if len(mine) else frame).iloc[0]
    node, gpu = str(first["node"]), str(first["gpu"])
    label = f"rank {first['rank']}, {node}/{gpu}"
    of_gpu = frame[(frame["node"] == node) & (frame["gpu"] == gpu)]
    memory = _memory(folder / "frames" / "memory.parquet", summary, (node, gpu))
    return Recorded(_spans(of_gpu, node, gpu), memory, label)


def _spans(frame: Any, node: str, gpu: str) -> list[Any]:
    from raysim.kernel.record import Span

    wanted = ("stream", "name", "category", "start_ns", "end_ns", "step", "micro_batch")
    columns = [frame[name].tolist() for name in wanted]
    return [
        Span(
            (node, gpu, stream), name, category, int(start), int(end),
            {k: int(v) for k, v in (("step", step), ("micro_batch", micro)) if v == v},  # noqa: PLR0124  (NaN)
        )
        for stream, name, category, start, end, step, micro in zip(*columns, strict=True)
    ]  # fmt: skip


def _memory(path: Path, summary: Mapping[str, Any], gpu: tuple[str, str]) -> list[Any]:
    """Changes of the fullest GPU's memory if it was recorded, else of the GPU shown."""
    if not path.is_file():
        return []
    import pandas as pd

    frame, said = pd.read_parquet(path), summary.get("memory") or {}
    for node, name in ((said.get("node"), f"gpu-{said.get('gpu')}"), gpu):
        mine = frame[(frame["node"] == node) & (frame["gpu"] == name)]
        if len(mine):
            columns = [mine[c].tolist() for c in ("t_ns", "category", "bytes")]
            return list(zip(*columns, strict=True))
    return []
