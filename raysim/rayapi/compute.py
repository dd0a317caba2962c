"""What the program's own code costs: declared, measured on this machine, or taken from a table.

``declared`` charges what the program says (``cost``, ``time.sleep``) and nothing else, so that a
run depends on nothing outside it. ``measured`` runs a stopwatch over the program's own code, not
over Ray's calls, and scales it by the speed of the emulated cores; what it found can be written as
``compute.csv``. ``table`` takes such a file instead of the stopwatch: equal runs again.

A table is by function, its arguments and slice: the k-th stretch of a function's code between two
of its calls into Ray, averaged over its executions with equal arguments (numbers and short text by
value, arrays and bytes by size). A function with more than ``MAX_KINDS`` of them has one row for
all, which is also that of arguments that a table does not have. Slices beyond ``MAX_SLICES`` share
the last row.

Cores are shared (``RunningTask.compute``) for stretches above ``SMALL_NS``; shorter ones only delay
their own thread, as the costs of Ray's calls do.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from raysim.rayapi.clock import host_ns
from raysim.rayapi.fibers import HUB

if TYPE_CHECKING:
    from raysim.rayapi.fibers import Fiber
    from raysim.rayapi.process_state import ProcessState
    from raysim.raycore.ids import TaskID

Mode = Literal["declared", "measured", "table"]

_Key = tuple[str, str, int]

SMALL_NS = 100_000
MAX_SLICES = 1_000
MAX_KINDS = 8
_LONGEST = 60


class Compute:
    """One run's way of charging for user code.

    Parameters
    ----------
    mode
        ``declared``, ``measured`` or ``table``.
    table
        The file to take times from.
    slowdown
        Seconds on an emulated core per second on this machine's.
    """

    def __init__(
        self, mode: Mode = "declared", *, table: Path | None = None, slowdown: float = 1.0
    ) -> None:
        self.mode = mode
        self.slowdown = slowdown
        self.running = mode != "declared"
        """Whether slices are charged at all."""
        self._measured: dict[_Key, list[float]] = {}
        self._table = _read(table) if table is not None else {}

    def begin(self, fiber: Fiber) -> None:
        """The fiber's own code runs from here."""
        fiber.slice_began_ns = host_ns() if self.mode == "measured" else 1

    def end(self, fiber: Fiber) -> None:
        """It has run until here; nothing if it does not run, as of who waits after its end."""
        began_ns, fiber.slice_began_ns = fiber.slice_began_ns, 0
        if not began_ns or fiber.process.priced:
            return
        name, index = fiber.name, min(fiber.slices, MAX_SLICES)
        if self.mode == "measured":
            spent_ns = (host_ns() - began_ns) * self.slowdown
            row = self._measured.setdefault((name, fiber.kind, index), [0, 0.0])
            row[0] += 1
            row[1] += spent_ns / 1e9
        else:
            kind = fiber.kind if (name, fiber.kind, 0) in self._table else ""
            spent_ns = self._table.get((name, kind, index), 0.0) * 1e9
        fiber.slices += 1
        fiber.spent_ns += int(spent_ns)
        fiber.computed_ns += int(spent_ns)

    def write(self, path: Path) -> None:
        """What was measured, for ``table``."""
        kinds: dict[str, set[str]] = defaultdict(set)
        for name, kind, _ in self._measured:
            kinds[name].add(kind)
        rows: dict[_Key, list[float]] = defaultdict(lambda: [0, 0.0])
        for (name, kind, index), (calls, total_s) in self._measured.items():
            row = rows[name, kind if len(kinds[name]) <= MAX_KINDS else "", index]
            row[0] += calls
            row[1] += total_s
        with path.open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["function", "arguments", "slice", "calls", "mean_core_s"])
            for (name, kind, index), (calls, total_s) in sorted(rows.items()):
                out.writerow([name, kind, index, int(calls), f"{total_s / calls:.9f}"])


def _read(path: Path) -> dict[_Key, float]:
    """Mean seconds; those of no arguments are over all calls."""
    found: dict[_Key, float] = {}
    over_all: dict[_Key, list[float]] = defaultdict(lambda: [0, 0.0])
    with path.open(newline="") as file:
        for r in csv.DictReader(file):
            name, index, mean_s = r["function"], int(r["slice"]), float(r["mean_core_s"])
            found[name, r.get("arguments") or "", index] = mean_s  # of an older table: of all calls
            row, calls = over_all[name, "", index], int(r.get("calls") or 1)
            row[0] += calls
            row[1] += calls * mean_s
    means = {key: total_s / calls for key, (calls, total_s) in over_all.items() if calls}
    return {**found, **means}


def kind_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """A call's arguments in short: equal for calls that are taken to cost the same."""
    words = [*map(_word, args), *(f"{name}={_word(value)}" for name, value in kwargs.items())]
    said = " ".join(
        word if count == 1 else f"{count}*{word}"
        for word, count in ((word, len(list(same))) for word, same in groupby(words))
    )
    return said if len(said) <= _LONGEST else f"{len(words)} arguments"


def _word(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float)):
        return str(value)
    if isinstance(value, str):
        return repr(value) if len(value) <= _LONGEST // 4 else f"{len(value)}c"
    of_class = hasattr(type(value), "nbytes")  # an object may refuse what it does not have
    size = len(value) if isinstance(value, bytes) else value.nbytes if of_class else None
    return f"{size}B" if isinstance(size, int) else type(value).__name__


def pay_for_compute(fiber: Fiber) -> None:
    """Let the time of the fiber's own code pass."""
    spent_ns, fiber.computed_ns = fiber.computed_ns, 0
    if spent_ns < SMALL_NS:
        fiber.lead_ns += spent_ns
        return
    fiber.depth += 1  # while it pays, its own code does not run
    try:
        use_cores(fiber, spent_ns / 1e9, 1.0)
    finally:
        fiber.depth -= 1


def pay_for_memory(fiber: Fiber, size_bytes: int) -> None:
    """A call that made so much takes no less than its process takes to be given the memory.

    The stopwatch runs over one process for all, which had the memory before. A process keeps what
    its largest result took; in truth it gives back part of it when arrays are of 4 MiB and more.
    """
    process = fiber.process
    core = process.core
    new_bytes = size_bytes - process.made_bytes
    if new_bytes <= 0 or core is None:
        return
    process.made_bytes = size_bytes
    env = process.session.env
    cores = env.nodes[core.me.node_id].spec.vcpus
    least_ns = int(env.costs.new_memory_s(new_bytes, cores) * 1e9)
    if least_ns > fiber.spent_ns:
        fiber.computed_ns += least_ns - fiber.spent_ns
        pay_for_compute(fiber)


def use_cores(fiber: Fiber, core_s: float, threads: float) -> None:
    """Occupy ``threads`` cores for ``core_s`` seconds of each, or longer if they are shared."""
    fiber.settle()
    running = fiber.running
    if running is not None:
        fiber.block(lambda then: running.compute(core_s, then, width=threads))
        return
    core = fiber.process.core
    if core is None:
        fiber.lead_ns += round(core_s * 1e9)
        return
    cpu = fiber.process.session.env.nodes[core.me.node_id].cpu
    fiber.block(lambda then: cpu.job(core_s, then, width=threads))


def charge(
    seconds: float = 0.0,
    *,
    core_seconds: float = 0.0,
    threads: float = 1.0,
    memory_bytes: int = 0,
) -> None:
    """Declare what the running task costs from here on. Outside an emulated program: nothing.

    Parameters
    ----------
    seconds
        Time that passes, whatever else runs on the node.
    core_seconds
        Work for the node's cores, on each of ``threads``; takes longer when they are shared.
    threads
        How many cores it can use.
    memory_bytes
        What its process holds, until the task ends: of ``__init__`` of an actor and in a driver,
        until the process does. The node's memory monitor counts it, and may end the process.
    """
    fiber = HUB.current
    if fiber is None:
        return
    if memory_bytes and fiber.process.core is not None:
        _hold(fiber, memory_bytes)
    if core_seconds:
        use_cores(fiber, core_seconds, threads)
    if seconds:
        fiber.sleep(fiber.take_lead() + round(seconds * 1e9))


def _hold(fiber: Fiber, memory_bytes: int) -> None:
    """The process holds so much more, from where the clock is then."""
    fiber.settle()
    core, task = fiber.process.core, fiber.task
    assert core is not None, "whoever holds memory is a process"
    core.use_memory(memory_bytes)
    if task is not None and task.spec.kind != "ACTOR_CREATION_TASK":
        held = fiber.process.held_bytes
        held[task.spec.task_id] = held.get(task.spec.task_id, 0) + memory_bytes


def release_memory(process: ProcessState, task_id: TaskID) -> None:
    """The task has ended."""
    held_bytes = process.held_bytes.pop(task_id, 0)
    if held_bytes and not process.gone and process.core is not None:
        process.core.use_memory(-held_bytes)


def cost(
    seconds: float = 0.0,
    *,
    core_seconds: float = 0.0,
    threads: float = 1.0,
    memory_bytes: int = 0,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare what every call of a function costs: a decorator under ``@ray.remote``.

    The parameters are those of ``charge``, which does the same inside a function.

    Examples
    --------
    >>> from raysim.rayapi.compute import cost
    >>> @cost(core_seconds=2.0, threads=4)
    ... def train(batch):
    ...     return sum(batch)
    >>> train([1, 2])
    3
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def costly(*args: Any, **kwargs: Any) -> Any:
            charge(seconds, core_seconds=core_seconds, threads=threads, memory_bytes=memory_bytes)
            return function(*args, **kwargs)

        return costly

    return decorate
