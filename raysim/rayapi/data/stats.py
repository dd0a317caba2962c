"""``Dataset.stats()``: what the last execution did, operator by operator, as text.

Real counterpart: ``ray/data/_internal/stats.py``, whose words these are.

Not modelled: least and most of a task or block, CPU time, memory of workers, times of an iterator;
operators of what the dataset was made of before it was materialised.
"""

from __future__ import annotations

from typing import Any

from raysim.raylibs.data.stats import ExecutionStats, OpStats, stats_of


def stats(dataset: Any) -> str:
    """``Dataset.stats``; empty until it has run."""
    ran = dataset.ran
    if ran is None:
        return ""
    return described(ran if isinstance(ran, ExecutionStats) else stats_of(ran))


def described(found: ExecutionStats) -> str:
    """Operators in their order, then all of it."""
    shown = [op for op in found.operators if op.tasks]
    lines = [_operator(number, op) for number, op in enumerate(shown, 1)]
    if found.wall_s > 0:
        rate = found.rows / found.wall_s
        lines.append(f"Dataset throughput:\n\t* Ray Data throughput: {rate} rows/s\n")
    return "\n".join(lines)


def _operator(number: int, op: OpStats) -> str:
    """With means where Ray has least and most as well."""
    head = (
        f"Operator {number} {op.name}: {op.tasks} tasks executed, {op.blocks_out} blocks produced "
        f"in {round(op.wall_s, 2)}s"
    )
    blocks = max(op.blocks_out, 1)
    said = [
        head,
        f"* Remote wall time: {_time(op.task_s / op.tasks)} mean, {_time(op.task_s)} total",
        f"* Output num rows per block: {op.rows_out // blocks} mean, {op.rows_out} total",
        f"* Output size bytes per block: {op.bytes_out // blocks} mean, {op.bytes_out} total",
        f"* Output rows per task: {op.rows_out // op.tasks} mean, {op.tasks} tasks used",
        "* Operator throughput:",
        f"\t* Total input num rows: {op.rows_in} rows",
        f"\t* Total output num rows: {op.rows_out} rows",
    ]
    if op.wall_s > 0:
        said.append(f"\t* Ray Data throughput: {op.rows_out / op.wall_s} rows/s")
    if op.task_s > 0:
        said.append(f"\t* Estimated single task throughput: {op.rows_out / op.task_s} rows/s")
    return "\n".join(said) + "\n"


def _time(seconds: float) -> str:
    """As Ray rounds them."""
    if seconds > 1:
        return f"{round(seconds, 2)}s"
    if seconds > 1e-3:
        return f"{round(seconds * 1e3, 2)}ms"
    return f"{round(seconds * 1e6, 2)}us"
