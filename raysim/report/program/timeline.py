"""The cluster over time: a lane for each node, with its tasks and actors, bytes, marks, life.

What is drawn one by one has a slot of its lane, as a worker process would; a lane of more slots
than it has room for is drawn as areas, by function, which the script counts from the same slices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Any, NamedTuple

from raysim.raycore.cloud import PHASES
from raysim.raycore.ids import WorkerAddress
from raysim.raycore.protocol import ActorTableData, NodeTableData
from raysim.raycore.state_log import Change
from raysim.raystate.moment import Moment, TaskAttempt
from raysim.raystate.names import class_name, node_name, task_name
from raysim.results.program_summary import error_type
from raysim.results.ray.recorded import Recorded

MOST_NODES = 64
"""Lanes; the page says how many nodes there are."""
FEW_IDLE = 4
"""So many nodes that do nothing have no lanes; they are named in a line."""
MOST_SLICES = 24_000
"""Drawn one by one, the longest; of all others lanes have areas."""
MOST_MARKS = 1_500
BINS = 400
"""Parts of the run in which bytes are counted, and tasks that are not drawn one by one."""
COLORS = 8
"""Functions and classes with a colour of their own; the others share one."""
FINISHED, FAILED, RUNS, LIVES = range(4)
"""How a slice ended; ``LIVES``: an actor between its calls."""
_MILLION = 1_000_000


class Slice(NamedTuple):
    """A task that ran, or an actor that lived."""

    node_id: int
    start_ns: int
    end_ns: int
    worker_id: int
    name: str
    group: str
    """Whose colour it has: its function, or its actor's class."""
    how: int
    attempt: int


class Timeline(NamedTuple):
    """Everything the script draws, and what the page says of it."""

    data: dict[str, Any]
    legend: tuple[tuple[int, str, int], ...]
    """(Colour, function or class, how often)."""
    nodes: int
    drawn_nodes: int
    slices: int
    drawn_slices: int
    idle: tuple[str, ...]
    """Nodes without a lane: they were up, and nothing ran on them or moved."""
    marks: tuple[tuple[str, float, str, str], ...]
    """(Node, second, kind, what happened), for the list beside the picture."""


def timeline(recorded: Recorded, now: Moment, summary: Mapping[str, Any]) -> Timeline | None:
    """Of the whole run; None: no node ever came up."""
    end_ns = max(1, recorded.end_ns)
    lives = _lives(recorded)
    if not lives:
        return None
    every = _slices(now, recorded.rows, end_ns)
    shown = sorted(every, key=lambda s: s.start_ns - s.end_ns)[:MOST_SLICES]
    colors, legend = _colored(every)
    marks = _marks(now, recorded, summary)
    nodes = _order(lives, marks)
    moved = _moved(recorded.rows, end_ns)
    busy = {s.node_id for s in every} | {m[0] for m in marks} | {x.node_id for x in
            recorded.launches} | {key[1] for key in moved}  # fmt: skip
    idle = [i for i in nodes if i not in busy]
    if len(idle) < FEW_IDLE:
        idle = []
    drawn = [i for i in nodes if i not in set(idle)][:MOST_NODES]
    names: dict[str, int] = {}
    by_node = _by_node(sorted(shown, key=lambda s: (s.start_ns, s.end_ns)))
    most = {i: _at_once(found) for i, found in _by_node(every).items()}
    areas = _areas(every, colors, end_ns) if len(every) > len(shown) else {}
    lanes = []
    for node_id in drawn:
        packed, slots = _packed(by_node.get(node_id, []), colors, names, end_ns)
        lanes.append(
            {
                "n": node_name(node_id), "g": lives[node_id].group,
                "up": [[_ppm(a, end_ns), _ppm(b if b >= 0 else end_ns, end_ns), state]
                       for a, b, state in lives[node_id].spans],
                "wait": _launching(recorded, node_id, end_ns),
                "slots": slots, "most": most.get(node_id, 0), "s": packed,
                "in": moved["in", node_id], "out": moved["out", node_id],
                "spill": moved["spill", node_id], "restore": moved["restore", node_id],
                "m": [[_ppm(m[1], end_ns), m[2], m[3]] for m in marks if m[0] == node_id],
                **({"a": areas[node_id]} if node_id in areas else {}),
            }
        )  # fmt: skip
    data = {
        "end": end_ns / 1e9, "bins": BINS, "colors": [name for _, name, _ in legend],
        "names": [[n, c] for n, c in names.items()],
        "lanes": lanes, "all": [[_ppm(m[1], end_ns), m[2], m[3]] for m in marks if m[0] < 0],
    }  # fmt: skip
    listed = tuple(
        (node_name(m[0]) if m[0] >= 0 else "cluster", m[1] / 1e9, m[2], m[3])
        for m in marks if m[2] != "failed"
    )  # fmt: skip
    unused = tuple(node_name(i) for i in idle)
    return Timeline(data, legend, len(nodes), len(drawn), len(every), len(shown), unused, listed)


# ---- lives of nodes ------------------------------------------------------------------------------


class _Life(NamedTuple):
    group: str
    spans: list[tuple[int, int, str]]
    """(From, to or -1, ``up``, ``draining`` or ``silent``)."""


def _lives(recorded: Recorded) -> dict[int, _Life]:
    found: dict[int, _Life] = {}
    for row in recorded.rows:
        if row.kind != "node" or row.state == "RESOURCES":
            continue
        data = row.detail
        group = data.node_type if isinstance(data, NodeTableData) else ""
        life = found.setdefault(row.number, _Life(group, []))
        spans = life.spans
        if spans and spans[-1][1] < 0:
            spans[-1] = (spans[-1][0], row.t_ns, spans[-1][2])
        if row.state != "DEAD":
            spans.append((row.t_ns, -1, "draining" if row.state == "DRAINING" else "up"))
    for t_ns, node_id in recorded.lost:
        if node_id in found:
            _fall_silent(found[node_id].spans, t_ns)
    return found


def _fall_silent(spans: list[tuple[int, int, str]], t_ns: int) -> None:
    """Up for the others, and doing nothing any more."""
    for k, (a, b, state) in enumerate(spans):
        if a <= t_ns and (b < 0 or t_ns < b):
            spans[k : k + 1] = [(a, t_ns, state), (t_ns, b, "silent")]
            return


def _order(lives: Mapping[int, _Life], marks: list[tuple[int, int, str, str]]) -> list[int]:
    """By group; if there are more than are drawn, those that something happened to come first."""
    groups = list(dict.fromkeys(life.group for _, life in sorted(lives.items())))
    nodes = sorted(lives, key=lambda i: (groups.index(lives[i].group), i))
    if len(nodes) <= MOST_NODES:
        return nodes
    struck = {m[0] for m in marks if m[2] != "failed"}
    first = [i for i in nodes if i in struck][: MOST_NODES // 2]
    others = [i for i in nodes if i not in first]
    room = MOST_NODES - len(first)
    kept = set(first) | set(others[:room])
    return [i for i in nodes if i in kept] + [i for i in nodes if i not in kept]


def _launching(recorded: Recorded, node_id: int, end_ns: int) -> list[list[Any]]:
    """Phases of machines that became this node: (from, to, phase)."""
    found: list[list[Any]] = []
    for launch in recorded.launches:
        if launch.node_id != node_id:
            continue
        at_ns = launch.began_ns
        for name in PHASES:
            if name in launch.phases_ns:
                until = at_ns + launch.phases_ns[name]
                if until > at_ns:
                    found.append([_ppm(at_ns, end_ns), _ppm(until, end_ns), name.replace("_", " ")])
                at_ns = until
    return found


# ---- slices --------------------------------------------------------------------------------------


def _slices(now: Moment, rows: list[Change], end_ns: int) -> list[Slice]:
    classes = {
        actor_id: class_name(entry.data.options)
        for actor_id, entry in now.actors.items()
        if isinstance(entry.data, ActorTableData)
    }
    found = [s for a in now.attempts if (s := _task(a, classes, end_ns)) is not None]
    return found + _actors(rows, classes, end_ns)


def _task(attempt: TaskAttempt, classes: Mapping[int, str], end_ns: int) -> Slice | None:
    begun = attempt.first_ns("RUNNING")
    if begun is None or attempt.node_id < 0 or begun > end_ns:
        return None
    spec = attempt.spec
    name = task_name(spec) if spec else "unknown"
    group = name if spec is None or spec.kind == "NORMAL_TASK" else name.split(".")[0]
    if spec is not None and spec.actor_id in classes:
        group = classes[spec.actor_id]
    ended = attempt.end_ns
    how = RUNS if ended is None else FAILED if attempt.state == "FAILED" else FINISHED
    until = min(end_ns, end_ns if ended is None else ended)
    return Slice(attempt.node_id, begun, max(begun, until), attempt.worker_id, name, group, how,
                 attempt.attempt)  # fmt: skip


def _actors(rows: list[Change], classes: Mapping[int, str], end_ns: int) -> list[Slice]:
    """From ALIVE to the end of each life."""
    alive: dict[int, tuple[int, WorkerAddress]] = {}
    found: list[Slice] = []

    def ended(number: int, t_ns: int) -> None:
        begun, where = alive.pop(number)
        name = classes.get(number, "actor")
        found.append(Slice(where.node_id, begun, t_ns, where.worker_id, name, name, LIVES, 0))

    for row in rows:
        if row.kind != "actor":
            continue
        data = row.detail
        if row.state == "ALIVE":
            address = data.address if isinstance(data, ActorTableData) else None
            if row.number not in alive and isinstance(address, WorkerAddress):
                alive[row.number] = (row.t_ns, address)
        elif row.number in alive:
            ended(row.number, row.t_ns)
    for number in list(alive):
        ended(number, end_ns)
    return found


def _colored(slices: list[Slice]) -> tuple[dict[str, int], tuple[tuple[int, str, int], ...]]:
    """Colours by time: that of calls, of actors also that between them, which counts a tenth."""
    spent: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for s in slices:
        spent[s.group] += (s.end_ns - s.start_ns) * (0.1 if s.how == LIVES else 1.0)
        counts[s.group] += s.how != LIVES
    ranked = sorted(spent, key=lambda g: (-spent[g], g))
    colors = {group: min(i, COLORS) for i, group in enumerate(ranked)}
    legend = [(i, group, counts[group]) for i, group in enumerate(ranked[:COLORS])]
    others = ranked[COLORS:]
    if others:
        legend.append((COLORS, f"{len(others):,} others", sum(counts[g] for g in others)))
    return colors, tuple(legend)


def _by_node(slices: list[Slice]) -> dict[int, list[Slice]]:
    found: dict[int, list[Slice]] = defaultdict(list)
    for s in slices:
        found[s.node_id].append(s)
    return found


def _packed(
    slices: list[Slice], colors: Mapping[str, int], names: dict[str, int], end_ns: int
) -> tuple[list[int], int]:
    """(Start, length, slot, name, how + 4 x attempt) of each, flat; and how many slots there are.

    An actor has its slot as long as it lives, and its calls are in it.
    """
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    slots = 0
    of_actor: dict[int, int] = {}
    flat: list[int] = []
    numbers = {name: k for k, name in enumerate(names)}
    actors = {s.worker_id: s for s in slices if s.how == LIVES}
    for s in sorted(slices, key=lambda s: (s.start_ns, s.how != LIVES)):
        while busy and busy[0][0] <= s.start_ns:
            heappush(free, heappop(busy)[1])
        host = actors.get(s.worker_id)
        if s.worker_id in of_actor:
            slot = of_actor[s.worker_id]
        else:
            slot = heappop(free) if free else slots
            slots = max(slots, slot + 1)
            until = s.end_ns if host is None else max(s.end_ns, host.end_ns)
            heappush(busy, (until, slot))
            if host is not None:
                of_actor[s.worker_id] = slot
        if s.name not in numbers:
            numbers[s.name] = len(numbers)
            names[s.name] = colors[s.group]
        start = _ppm(s.start_ns, end_ns)
        flat += [start, _ppm(s.end_ns, end_ns) - start, slot, numbers[s.name],
                 s.how + 4 * s.attempt]  # fmt: skip
    return flat, slots


def _at_once(slices: list[Slice]) -> int:
    """The most tasks at one time; of an actor that lives, it or its call."""
    hosts = {s.worker_id for s in slices if s.how == LIVES}
    counted = [s for s in slices if s.how == LIVES or s.worker_id not in hosts]
    changes = sorted((t, way) for s in counted for t, way in ((s.start_ns, 1), (s.end_ns, -1)))
    count = most = 0
    for _, way in changes:
        count += way
        most = max(most, count)
    return most


def _areas(slices: list[Slice], colors: Mapping[str, int], end_ns: int) -> dict[int, list[Any]]:
    """By node: (colour, first bin, tasks in the mean of each bin from there on), of all calls."""
    from raysim.kernel.sampler import spread

    found: dict[tuple[int, int], list[float]] = {}
    for s in slices:
        if s.how != LIVES:
            bins = found.setdefault((s.node_id, colors[s.group]), [0.0] * BINS)
            spread(bins, s.end_ns - s.start_ns, s.start_ns, s.end_ns, end_ns / BINS)
    width = end_ns / BINS
    areas: dict[int, list[Any]] = defaultdict(list)
    for (node_id, color), bins in sorted(found.items()):
        areas[node_id].append([color, [float(f"{b / width:.3g}") for b in bins]])
    return areas


# ---- bytes and marks -----------------------------------------------------------------------------


def _moved(rows: list[Change], end_ns: int) -> dict[tuple[str, int], list[Any]]:
    """(Bin, bytes, ...) of each kind and node: counted when an object is there, or on disk."""
    found: dict[tuple[str, int], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    where: dict[int, dict[int, None]] = defaultdict(dict)
    sizes: dict[int, int] = {}
    restored: dict[tuple[int, int], None] = {}
    for row in rows:
        if row.kind != "object" or row.node_id < 0:
            continue
        number, node_id, state = row.number, row.node_id, row.state
        if isinstance(row.detail, tuple) and row.detail:
            sizes[number] = row.detail[0]
        size, at = sizes.get(number, 0), min(BINS - 1, row.t_ns * BINS // end_ns)
        if state == "SPILLED":
            found["spill", node_id][at] += size
        elif state == "RESTORED":
            found["restore", node_id][at] += size
            restored[number, node_id] = None
        elif state == "COPY" and restored.pop((number, node_id), 0) is not None:
            found["in", node_id][at] += size
            source = next((n for n in where[number] if n != node_id), None)
            if source is not None:
                found["out", source][at] += size
        if state in {"CREATED", "COPY", "RESTORED", "SPILLED"}:
            where[number][node_id] = None
        elif state in {"FREED", "LOST"}:
            where[number].pop(node_id, None)
    flat: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for key, bins in found.items():
        flat[key] = [v for b, size in sorted(bins.items()) for v in (b, float(f"{size:.3g}"))]
    return flat


def _marks(
    now: Moment, recorded: Recorded, summary: Mapping[str, Any]
) -> list[tuple[int, int, str, str]]:
    """(Node or -1, when, kind, what happened): faults, nodes that come and go, failed attempts."""
    found: list[tuple[int, int, str, str]] = []
    for fault in summary.get("faults") or []:
        name = str(fault["node"])
        node_id = int(name.removeprefix("node-")) if name.startswith("node-") else -1
        said = f"{fault['kind'].replace('_', ' ')} (the scenario's fault)"
        found.append((node_id, round(fault["at_seconds"] * 1e9), "fault", said))
    for row in recorded.rows:
        if row.kind != "node" or row.state not in {"DEAD", "DRAINING"}:
            continue
        data = row.detail
        why = data.death_reason if isinstance(data, NodeTableData) else ""
        said = f"dead: {why}" if row.state == "DEAD" else "draining: it will be taken back"
        found.append((row.number, row.t_ns, row.state.lower(), said.removesuffix(": ")))
    never = "is asked for, and has not come by the end"
    found += [
        (-1, launch.began_ns, "asked", f"a machine of {launch.node_type} {never}")
        for launch in recorded.launches
        if launch.up_ns < 0
    ]
    failed = [a for a in now.attempts if a.state == "FAILED" and a.node_id >= 0]
    for attempt in failed[: max(0, MOST_MARKS - len(found))]:
        name = task_name(attempt.spec) if attempt.spec else "a task"
        again = now.tasks[attempt.task_id] is not attempt
        said = f"{name} fails: {error_type(now, attempt)}{', tried again' if again else ''}"
        found.append((attempt.node_id, attempt.since_ns, "failed", said))
    return sorted(found, key=lambda m: m[1])


def _ppm(t_ns: float, end_ns: int) -> int:
    """Millionths of the run."""
    return round(t_ns * _MILLION / end_ns)
