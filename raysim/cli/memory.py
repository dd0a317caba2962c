"""``raysim memory``: will it fit, as a table of layouts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from raysim.cli import terminal
from raysim.cli.mistakes import expect_config
from raysim.errors import ScenarioError
from raysim.units import GIB, format_bytes, parse_bytes

if TYPE_CHECKING:
    from raysim.errors import Problem
    from raysim.planner.memory_grid import Cell, Grid

NAMES = {0: "0 (replicated)", 1: "1", 2: "2", 3: "3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """The flags of the verb."""

    node: str = "hgx-h100-8"
    nodes: int | None = None
    seq_len: int | None = None
    zero_stage: tuple[int, ...] = ()
    offload: tuple[str, ...] = ()
    checkpointing: tuple[str, ...] = ()
    micro_batch: tuple[int, ...] = ()
    peft: Path | None = None
    fail_over: str | None = None
    as_json: bool = False
    quiet: bool = False


def memory(config: Path, options: MemoryOptions) -> bool:
    """Print the grid.

    Returns
    -------
    bool
        True when nothing of it fits, or is within ``fail_over``.
    """
    from raysim.planner.memory_grid import Grid, base_of, cells, model_of

    expect_config(config)
    usual = Grid(config=config)
    offloads = options.offload or usual.offloads
    grid = Grid(
        config=config, node=options.node, nodes=options.nodes, seq_len=options.seq_len,
        stages=options.zero_stage or usual.stages, offloads=offloads,
        checkpointing=options.checkpointing or usual.checkpointing,
        micro_batches=options.micro_batch or usual.micro_batches, peft=options.peft,
    )  # fmt: skip
    base = base_of(grid)
    found = list(cells(base, grid))
    same = {cell.why for cell in found}
    if len(same) == 1 and (why := same.pop()):
        raise ScenarioError(f"{config}   {why}")
    limit = parse_bytes(options.fail_over) if options.fail_over else None
    if options.as_json:
        terminal.say(json.dumps([{**c._asdict(), "fits": c.fits} for c in found], indent=1))
    elif options.quiet:
        terminal.say(_verdict(found, limit))
    else:
        name = next(g.node.gpu.name for g in base.cluster.groups if g.node.gpu)
        name = name if base.spec.cluster.gpu else options.node
        gpus = sum(g.count * g.node.gpu_count for g in base.cluster.groups)
        on = f"{gpus} GPUs of {name}, {model_of(base)}"
        terminal.say(_verdict(found, limit))
        _print(grid, found, limit, on, base.warnings)
    return not any(_within(c, limit) for c in found)


def _verdict(found: list[Cell], limit: float | None) -> str:
    """How many layouts fit, and the one that takes least."""
    known = [c for c in found if not c.why]
    within = [c for c in known if _within(c, limit)]
    if not known:
        return f"None of the layouts can be: {found[0].why}"
    least = min(within or known, key=lambda c: c.gpu_bytes)
    said = f"{len(within)} of {len(known)} layouts fit" if within else "No layout fits"
    layout = f"ZeRO {least.zero_stage}, offload {least.offload}, checkpointing "
    layout += f"{least.checkpointing}, micro-batch {least.micro_batch}"
    return f"{said}; least is {format_bytes(least.gpu_bytes)}: {layout}{_of_host(least)}."


def _of_host(cell: Cell) -> str:
    """That a GPU has room and its node has not."""
    if cell.fits or cell.gpu_bytes > cell.capacity_bytes:
        return ""
    needed, there = format_bytes(cell.host_bytes), format_bytes(cell.host_capacity_bytes)
    return f", whose node needs {needed} of main memory and has {there}"


def _within(cell: Cell, limit: float | None) -> bool:
    return cell.fits and (limit is None or cell.gpu_bytes <= limit)


def _print(
    grid: Grid, found: list[Cell], limit: float | None, on: str, warnings: tuple[Problem, ...]
) -> None:
    capacity = format_bytes(found[0].capacity_bytes)
    said = "" if limit is None else f", limit {format_bytes(limit)}"
    terminal.say(
        f"GiB on the fullest GPU of {capacity}{said}: {on}, DeepSpeed in bf16; ! does not fit"
    )
    columns = [(c, m) for c in grid.checkpointing for m in grid.micro_batches]
    heads = [f"{'recompute' if c == 'full' else c}, micro {m}" for c, m in columns]
    rows: dict[tuple[int, str], dict[tuple[str, int], Cell]] = {}
    for cell in found:
        at = (cell.zero_stage, cell.offload)
        rows.setdefault(at, {})[cell.checkpointing, cell.micro_batch] = cell
    lines = [
        [NAMES[stage], offload, *(_shown(row[c], limit) for c in columns),
         _shown_of_host(next(iter(row.values())))]
        for (stage, offload), row in rows.items()
    ]  # fmt: skip
    right = [*heads, f"host, of {found[0].host_capacity_bytes / GIB:,.0f}"]
    terminal.table(["ZeRO stage", "offload", *right], lines, right=right)
    refused = {cell.why for cell in found if cell.why}
    for why in sorted(refused):
        terminal.say(f"-: {why}")
    for warning in warnings:
        terminal.say(f"Note: {warning}")


def _shown_of_host(cell: Cell) -> str:
    beyond = cell.host_bytes > cell.host_capacity_bytes
    return f"{cell.host_bytes / GIB:,.0f}{'!' if beyond else ' '}"


def _shown(cell: Cell, limit: float | None) -> str:
    if cell.why:
        return "-"
    return f"{cell.gpu_bytes / GIB:,.1f}{' ' if _within(cell, limit) else '!'}"
