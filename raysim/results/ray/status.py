"""``ray status`` of a moment: what it says, as data, and its text, line for line as Ray's.

Real counterpart: ``ClusterStatusParser`` and ``ClusterStatusFormatter`` in
``ray/autoscaler/v2/utils.py``; without autoscaler v2, ``format_info_string`` in
``ray/autoscaler/_private/util.py``.

Resources are those last published, as the GCS knows them. Demands are what waits for a worker:
normal tasks whose arguments are there and actors to be placed, less the lease requests that hold
resources already and wait for a process to start. Virtual time stands where Ray prints the date.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from raysim.raycore.ids import NodeID, hex_id
from raysim.raycore.protocol import ActorTableData, PlacementGroupTableData
from raysim.raycore.resources import UNIT, ResourceSet
from raysim.raystate.moment import Moment, NodeEntry
from raysim.raystate.names import node_name

Usage = Mapping[str, tuple[float, float]]
"""Resource to (used, total)."""

Shape = tuple[tuple[str, float], ...]

MOST_FAILURES = 20
"""AUTOSCALER_MAX_FAILURES_DISPLAYED of ray.autoscaler._private.constants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """One live node."""

    node_id: str
    name: str
    node_type: str
    usage: Usage
    idle_ms: int = 0
    """0: it is in use."""
    activity: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDemand:
    """A placement group that waits."""

    strategy: str
    state: str
    bundles: tuple[tuple[Mapping[str, float], int], ...]
    """Each shape with how many bundles have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingNode:
    """A node on its way: asked for (``launching``), or there without a raylet yet."""

    node_type: str
    launching: bool = True
    instance: str = ""
    details: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """Everything that ``ray status`` says."""

    t_ns: int
    active: tuple[NodeReport, ...] = ()
    idle: tuple[NodeReport, ...] = ()
    pending: tuple[PendingNode, ...] = ()
    failures: tuple[str, ...] = ()
    usage: Usage
    demands: tuple[tuple[Mapping[str, float], int], ...] = ()
    group_demands: tuple[GroupDemand, ...] = ()
    constraints: tuple[tuple[Mapping[str, float], int], ...] = ()
    """Of ``request_resources``."""


# ---- from a moment -------------------------------------------------------------------------------


def cluster_status(
    now: Moment,
    *,
    pending: Iterable[PendingNode] = (),
    constraints: Iterable[ResourceSet] = (),
) -> ClusterStatus:
    """The status just after ``now``; what the autoscaler alone knows comes as arguments."""
    alive = [node for _, node in sorted(now.nodes.items()) if node.alive]
    reports = [_report(now, node) for node in alive]
    asked = Counter(constraints)
    return ClusterStatus(
        t_ns=now.t_ns,
        active=tuple(r for r in reports if not r.idle_ms),
        idle=tuple(r for r in reports if r.idle_ms),
        pending=tuple(pending),
        failures=tuple(
            f" {_node_type(node)}: NodeTerminated (instance_id: {node_name(node.node_id)})"
            for _, node in sorted(now.nodes.items())
            if not node.alive
        ),
        usage=_sum(alive),
        demands=tuple(_demands(now)),
        group_demands=tuple(group_demands(now)),
        constraints=tuple((shape.quantities(), n) for shape, n in asked.items()),
    )


def _node_type(node: NodeEntry) -> str:
    named = node.data.node_type if node.data else ""
    return named or f"node_{hex_id('node', node.node_id)}"


def _sum(nodes: Iterable[NodeEntry]) -> dict[str, tuple[float, float]]:
    """Used and total of several nodes; added as whole steps, so sums have no dust."""
    used: dict[str, int] = {}
    total: dict[str, int] = {}
    for node in nodes:
        for name, n in node.total.items():
            total[name] = total.get(name, 0) + n
            used[name] = used.get(name, 0) + n - node.available.get(name, 0)
    return {name: (used[name] / UNIT, total[name] / UNIT) for name in total}


def _report(now: Moment, node: NodeEntry) -> NodeReport:
    busy = _busy_workers(now, node.node_id)
    idle_ns = 0 if node.idle_since_ns < 0 or busy else now.t_ns - node.idle_since_ns
    activity = [
        f"Resource: {name} currently in use."
        for name, n in node.total.items()
        if "_group_" not in name and node.available.get(name, 0) != n
    ]
    return NodeReport(
        node_id=hex_id("node", node.node_id),
        name=node_name(node.node_id),
        node_type=_node_type(node),
        usage=_sum([node]),
        idle_ms=idle_ns // 1_000_000,
        activity=(*activity, *(["Busy workers on node."] if busy else ())),
    )


def _busy_workers(now: Moment, node_id: NodeID) -> bool:
    return any(
        w.node_id == node_id and w.state in {"LEASED", "BLOCKED"} for w in now.workers.values()
    )


def _demands(now: Moment) -> Iterable[tuple[Mapping[str, float], int]]:
    """Shapes that wait, in the order in which they first appear, with how many of each."""
    waiting: dict[ResourceSet, int] = {}
    for attempt in now.tasks.values():
        spec = attempt.spec
        if spec is None or attempt.state != "PENDING_NODE_ASSIGNMENT":
            continue
        if spec.kind == "NORMAL_TASK":
            shape = spec.options.resources
            waiting[shape] = waiting.get(shape, 0) + 1
    for entry in now.actors.values():
        if entry.state in {"PENDING_CREATION", "RESTARTING"}:
            data = entry.data
            assert isinstance(data, ActorTableData), f"{entry.state} actor without a row"
            options = data.options
            shape = options.resources
            if options.placement_resources is not None:
                shape = options.placement_resources
            waiting[shape] = waiting.get(shape, 0) + 1
    for lease in now.leases.values():
        if lease.state == "PENDING_WORKER" and lease.spec and lease.spec.resources in waiting:
            waiting[lease.spec.resources] -= 1
    return [(shape.quantities(), n) for shape, n in waiting.items() if n > 0]


def group_demands(now: Moment) -> Iterable[GroupDemand]:
    """Placement groups that wait for room."""
    for entry in now.placement_groups.values():
        data = entry.data
        if entry.state not in {"PENDING", "RESCHEDULING"}:
            continue
        if isinstance(data, PlacementGroupTableData):
            lost = [b for b, node in zip(data.bundles, data.nodes, strict=False) if node < 0]
            shapes = Counter(b.resources for b in lost or data.bundles)
            yield GroupDemand(
                strategy=data.strategy,
                state=entry.state,
                bundles=tuple((shape.quantities(), n) for shape, n in shapes.items()),
            )


# ---- text ----------------------------------------------------------------------------------------


def status_text(status: ClusterStatus, *, verbose: bool = False, autoscaler: bool = True) -> str:
    """As ``ray status`` prints it; without autoscaler v2 there is no list of idle nodes."""
    header = f"======== Autoscaler status: {clock(status.t_ns)} ========"
    line = "-" * len(header)
    active = status.active if autoscaler else (*status.active, *status.idle)
    lines = [header, "Node status", line, "Active:"]
    lines += _types(active) or [" (no active nodes)"]
    if autoscaler:
        lines += ["Idle:", *(_types(status.idle) or [" (no idle nodes)"])]
    lines += ["Pending:", *(_pending(status.pending) or [" (no pending nodes)"])]
    lines += ["Recent failures:", *(status.failures[:MOST_FAILURES] or [" (no failures)"])]
    lines += ["", "Resources", line, "Total Usage:"]
    lines += [f" {text}" for text in usage_lines(status.usage, verbose=verbose)]
    lines += ["", "From request_resources:"]
    lines += [f" {dict(shape)}: {n} from request_resources()" for shape, n in status.constraints]
    lines += [] if status.constraints else [" (none)"]
    lines += ["Pending Demands:", *(_demand_lines(status) or [" (no resource demands)"])]
    if verbose:
        for node in (*status.active, *status.idle):
            lines += _node_lines(node, autoscaler=autoscaler)
    return "\n".join(lines).strip()


def clock(t_ns: int) -> str:
    """Virtual time as ``3:00:00`` or ``2 days, 1:15:00.250000``."""
    return str(timedelta(microseconds=t_ns // 1000))


def _types(nodes: Iterable[NodeReport]) -> list[str]:
    return [f" {n} {kind}" for kind, n in Counter(node.node_type for node in nodes).items()]


def _pending(pending: Iterable[PendingNode]) -> list[str]:
    nodes = list(pending)
    launching = Counter(node.node_type for node in nodes if node.launching)
    lines = [f" {kind}, {n} launching" for kind, n in launching.items()]
    return lines + [
        f" {node.instance}: {node.node_type}, {node.details.lower()}"
        for node in nodes
        if not node.launching
    ]


def _node_lines(node: NodeReport, *, autoscaler: bool) -> list[str]:
    shown = node.name if autoscaler else node.node_id
    lines = ["", f"Node: {shown} ({node.node_type})"]
    if autoscaler:
        lines.append(f" Id: {node.node_id}")
    if node.idle_ms > 0:
        lines.append(f" Idle: {node.idle_ms} ms")
    lines.append(" Usage:")
    lines += [f"  {text}" for text in usage_lines(node.usage, verbose=True)]
    if autoscaler or node.activity:
        lines.append(" Activity:")
        lines += [f"  {reason}" for reason in node.activity] or ["  (no activity)"]
    return lines


_INDEXED = re.compile(r"(.+)_group_(\d+)_([0-9a-zA-Z]+)")
_WILDCARD = re.compile(r"(.+)_group_([0-9a-zA-Z]+)")


def _in_group(name: str) -> tuple[str, bool, bool]:
    """(plain name, of a placement group, counts): indexed names repeat the wildcard ones."""
    if match := _INDEXED.match(name):
        return match[1], True, False
    if match := _WILDCARD.match(name):
        return match[1], True, True
    return name, False, True


def usage_lines(usage: Usage, *, verbose: bool) -> list[str]:
    """``0.0/2.0 CPU (0.0 used of 1.0 reserved in placement groups)`` and so on, by name."""
    group_used: dict[str, float] = {}
    group_total: dict[str, float] = {}
    for name, (used, total) in usage.items():
        plain, in_group, counts = _in_group(name)
        if in_group:
            group_used[plain] = group_used.get(plain, 0) + (used if counts else 0)
            group_total[plain] = group_total.get(plain, 0.0) + (total if counts else 0)
    lines = []
    for name, (used, total) in sorted(usage.items()):
        hidden = name.startswith("accelerator_type:") and not verbose
        if "node:" in name or _in_group(name)[1] or hidden:
            continue
        show = format_memory if name in {"memory", "object_store_memory"} else str
        reserved, shown = "", used
        if name in group_used:
            of_groups = f"{show(group_used[name])} used of {show(group_total[name])}"
            reserved = f" ({of_groups} reserved in placement groups)"
            # A group's reservation counts as used by the node: what runs in it is what is used.
            shown = used - group_total[name] + group_used[name]
        lines.append(f"{show(shown)}/{show(total)} {name}{reserved}")
    return lines


def format_memory(n_bytes: float) -> str:
    """``6.94GiB``, ``12B``."""
    for suffix, unit in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n_bytes >= unit:
            return f"{n_bytes / unit:.2f}{suffix}"
    return f"{int(n_bytes)}B"


def _demand_lines(status: ClusterStatus) -> list[str]:
    count: dict[Shape, int] = {}
    grouped: dict[Shape, int] = {}
    for shape, n in status.demands:
        plain: dict[str, float] = {}
        within = False
        for name, quantity in shape.items():
            stem, in_group, _ = _in_group(name)
            plain[stem] = quantity
            within = within or in_group
        if within:
            plain.pop("bundle", None)
        if not plain:
            continue
        key = tuple(sorted(plain.items()))
        count[key] = count.get(key, 0) + n
        if within:
            grouped[key] = grouped.get(key, 0) + n
    lines = []
    for key, n in count.items():
        line = f" {dict(key)}: {n}+ pending tasks/actors"
        lines.append(
            line + (f" ({grouped[key]}+ using placement groups)" if key in grouped else "")
        )
    return lines + _group_lines(status.group_demands)


def _group_lines(demands: Sequence[GroupDemand]) -> list[str]:
    """Groups of one strategy and state count together, under the last one's bundles, as in Ray."""
    kinds = Counter((demand.strategy, demand.state) for demand in demands)
    last = {(demand.strategy, demand.state): demand for demand in demands}
    lines = []
    for kind, n in kinds.items():
        shapes = ", ".join(f"{dict(shape)} * {k}" for shape, k in last[kind].bundles)
        lines.append(f" {shapes} ({kind[0]}): {n}+ pending placement groups")
    return lines
