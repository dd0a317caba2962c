"""``raysim show`` of a Ray program: a moment of it, from the run's folder alone.

``ray status`` and ``ray list`` at any virtual time, and why a task waits.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from raysim.cli import terminal
from raysim.errors import ScenarioError
from raysim.units import format_seconds, parse_seconds, to_ns

if TYPE_CHECKING:
    from raysim.raystate.moment import Moment
    from raysim.results.ray.recorded import Recorded

_SUMMARY_TABLES = ("inputs", "targets")
"""Tables that a program has in its summary, as training jobs do."""


def show(folder: Path, *, table: str | None, at: str | None, why: str | None) -> bool:
    """Print what was asked for; False if it was the report, or a table of the summary.

    Raises
    ------
    ScenarioError
        The run kept no state, the time is not one, or there is no such table or task.
    """
    if (table in _SUMMARY_TABLES or table is None) and at is None and why is None:
        return False
    from raysim.raystate.moment import moment
    from raysim.results.ray.listing import list_text
    from raysim.results.ray.status import cluster_status, status_text

    recorded = _recorded(folder)
    t_ns = recorded.end_ns if at is None else _time_ns(at, recorded)
    now = moment(recorded.rows, t_ns)
    if why is not None:
        terminal.say(_why(now, why, recorded))
    elif table is not None:
        try:
            terminal.say(list_text(now, table))
        except ValueError as error:
            more = ", ".join(_SUMMARY_TABLES)
            raise ScenarioError(f"--table {table}: {error}, {more}") from None
    else:
        terminal.say(status_text(cluster_status(now)))
    return True


def _recorded(folder: Path) -> Recorded:
    from raysim.results.ray import recorded

    path = folder / "frames" / recorded.STATE_FILE
    if not path.is_file():
        raise ScenarioError(f"{folder} has no frames/{path.name}; run it without --no-trace")
    try:
        return recorded.read(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ScenarioError(f"{path}: cannot be read: {error}") from None


def _time_ns(text: str, recorded: Recorded) -> int:
    try:
        t_ns = to_ns(parse_seconds(text))
    except ValueError as error:
        raise ScenarioError(f"--at {text}: {error}") from None
    if t_ns > recorded.end_ns:
        end = format_seconds(recorded.end_ns / 1e9)
        raise ScenarioError(f"--at {text}: the run ends at {end}")
    return t_ns


def _why(now: Moment, task: str, recorded: Recorded) -> str:
    """The sentence for a task: its id as ``ray list tasks`` has it, or its name."""
    from raysim.raycore.ids import hex_id
    from raysim.raystate.moment import ENDED
    from raysim.raystate.names import task_name
    from raysim.results.ray.pending import why_pending

    by_id = {hex_id("task", number): number for number in now.tasks}
    number = by_id.get(task)
    if number is None:
        named = [a for a in now.tasks.values() if a.spec and task_name(a.spec) == task]
        waiting = [a for a in named if a.state not in ENDED] or named
        if not waiting:
            raise ScenarioError(
                f"--why {task}: no such task by {format_seconds(now.t_ns / 1e9)}; "
                "give an id of `raysim show --table tasks`, or a task's name"
            )
        number = waiting[0].task_id
    return why_pending(now, number, config=recorded.config)
