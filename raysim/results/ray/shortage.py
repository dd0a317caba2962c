"""What a lease request lacks where it stands: resources, labels, arguments, a share of its class.

The numbers are those last published by the nodes, which is what schedulers decide on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raysim.raycore.config import RayConfig
from raysim.raycore.ids import NodeID, ObjectID
from raysim.raycore.protocol import LeaseSpec
from raysim.raycore.resources import CPU, UNIT
from raysim.raycore.tasks import LabelMatch, NodeAffinity, NodeLabels, Ref
from raysim.raystate.moment import LeaseEntry, Moment, NodeEntry, ObjectEntry
from raysim.raystate.names import node_name
from raysim.units import format_bytes


def seconds(t_ns: int) -> str:
    """``1.25 s``."""
    return f"{t_ns / 1e9:.6g} s"


def plural(n: int, word: str) -> str:
    """``1 task``, ``2 tasks``, ``3 processes``."""
    return f"{n} {word}" if n == 1 else f"{n} {word}{'es' if word.endswith('s') else 's'}"


def size(now: Moment, number: ObjectID) -> int:
    """Bytes, 0 if unknown."""
    entry = now.objects.get(number)
    return max(0, entry.size_bytes) if entry else 0


def missing_on(now: Moment, refs: Iterable[object], node_id: NodeID) -> list[ObjectID]:
    """Of these arguments, the references to what is neither inline nor in the node's memory."""
    numbers = [ref.object_id for ref in refs if isinstance(ref, Ref)]
    return [number for number in numbers if _away(now.objects.get(number), node_id)]


def _away(entry: ObjectEntry | None, node_id: NodeID) -> bool:
    return entry is None or not (entry.inline or node_id in entry.copies)


def fetching(now: Moment, missing: list[ObjectID]) -> str:
    """How much, from where."""
    if not missing:
        return ""
    total_bytes = sum(size(now, number) for number in missing)
    entry = now.objects.get(missing[0])
    text = f": {plural(len(missing), 'object')}, {format_bytes(total_bytes)}"
    if entry is not None and entry.copies:
        return f"{text}, the first in the memory of {_nodes(entry.copies)}"
    if entry is not None and entry.spilled:
        return f"{text}, the first spilled on {_nodes(entry.spilled)}"
    return f"{text}, the first nowhere at this moment"


def shortage(spec: LeaseSpec, node: NodeEntry | None) -> str:
    """What is asked for against what was last published as free."""
    need = f"it needs {_shape(spec.resources.units)}"
    if node is None:
        return need
    short = {n: node.available.get(n, 0) for n, q in spec.resources.units.items()
             if node.available.get(n, 0) < q}  # fmt: skip
    name = node_name(node.node_id)
    if short:
        free = ", ".join(
            f"{_amount(n, q)} of {_amount(n, node.total.get(n, 0))} {n}" for n, q in short.items()
        )
        return f"{need}, and {name} has {free} free"
    return f"{need}, which {name} last said it has free"


def free_anywhere(now: Moment, need: Mapping[str, int]) -> str:
    """How many live nodes could run it at all, and how many said that they could now."""
    nodes = [node for node in now.nodes.values() if node.alive]
    feasible = [n for n in nodes if all(n.total.get(name, 0) >= q for name, q in need.items())]
    free = sum(all(n.available.get(name, 0) >= q for name, q in need.items()) for n in feasible)
    return (
        f"it needs {_shape(need)}; {len(feasible)} of {plural(len(nodes), 'node')} could run it,"
        f" {free} said to have that free"
    )


def closest(now: Moment, spec: LeaseSpec) -> str:
    """What no node has, and the node that comes nearest."""
    need = spec.resources.units
    text = f"it needs {_shape(need)}"
    nodes = [node for _, node in sorted(now.nodes.items()) if node.alive]
    if not nodes:
        return f"{text}, and no node is alive"
    strategy = spec.options.strategy
    if isinstance(strategy, NodeAffinity):
        there = now.nodes.get(strategy.node_id)
        if there is None or not there.alive:
            return f"{text} on {node_name(strategy.node_id)}, which is not alive"
        nodes = [there]
    hard = (*spec.options.label_selector,
            *(strategy.hard if isinstance(strategy, NodeLabels) else ()))  # fmt: skip
    fitting = [node for node in nodes if _labelled(node, hard)]
    if hard and not fitting:
        keys = ", ".join(match.key for match in hard)
        return f"none of {plural(len(nodes), 'node')} has the labels it selects ({keys})"
    best = min(fitting, key=lambda node: _lack(need, node.total))
    lacking = [name for name, n in need.items() if best.total.get(name, 0) < n]
    never = [n for n in need if all(node.total.get(n, 0) < need[n] for node in fitting)]
    whose = f"no node has that much {' or '.join(never)}" if never else "no node has all of it"
    has = ", ".join(f"{_amount(n, best.total.get(n, 0))} {n}" for n in lacking or need)
    return f"{text}, {whose}; the closest, {node_name(best.node_id)}, has {has}"


def class_cap(now: Moment, lease: LeaseEntry, held: list[LeaseEntry], config: RayConfig) -> str:
    """The class's share of the node's CPUs is granted, some of it to tasks that block."""
    assert lease.spec is not None, f"lease {lease.lease_id} of nothing"
    blocked = sum(
        (worker := now.workers.get(e.worker_id)) is not None and worker.state == "BLOCKED"
        for e in held
    )
    node = now.nodes.get(lease.node_id)
    cpus = node.total.get(CPU, 0) if node else 0
    room = round(cpus / lease.spec.resources.units.get(CPU, UNIT))
    wait_ms = min(
        config.worker_cap_initial_backoff_delay_ms << max(0, min(len(held) - room, 30)),
        config.worker_cap_max_backoff_delay_ms,
    )
    return (
        f"{plural(len(held), 'worker')} of its class {'is' if len(held) == 1 else 'are'} granted"
        f" there ({blocked} blocked in ray.get or ray.wait) where {cpus / UNIT:g} CPU are room for"
        f" {room}; one more is let through {wait_ms / 1000:g} s after it came to be so"
    )


def _lack(need: Mapping[str, int], total: Mapping[str, int]) -> tuple[int, float]:
    """How many resources fall short, and by which share in all."""
    shares = [1 - total.get(name, 0) / n for name, n in need.items() if total.get(name, 0) < n]
    return len(shares), sum(shares)


def _labelled(node: NodeEntry, hard: Iterable[LabelMatch]) -> bool:
    labels = dict(node.data.labels) if node.data else {}
    return all(match.matches(labels) for match in hard)


def _amount(name: str, units: int) -> str:
    quantity = units / UNIT
    return format_bytes(quantity) if "memory" in name else f"{quantity:g}"


def _shape(units: Mapping[str, int]) -> str:
    return ", ".join(f"{_amount(name, n)} {name}" for name, n in units.items()) or "no resources"


def _nodes(numbers: Iterable[NodeID]) -> str:
    names = [node_name(number) for number in numbers]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
