"""NCCL's own performance predictor: the candidates it weighs for one collective, with their times.

Real counterpart: ``src/graph/tuning.cc`` of NCCL 2.29: a candidate (algorithm, protocol) takes
``latency + bytes / bandwidth``; NCCL runs the fastest. Latency and correction tables are NCCL's.
The bandwidths are what nccl-tests reaches on real links rather than NCCL's search over channel
graphs: its graphs need the machine's PCI tree, and agree with the plateaus to a few percent.

Not modelled: SHARP and CollNet, NCCL_* environment variables, user tuner plugins, MNNVL trees.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import Literal

Operation = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv"
]
Algorithm = Literal["ring", "tree", "nvls", "nvls_tree", "pat", "p2p"]
Protocol = Literal["LL", "LL128", "Simple"]

PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")
_GENERATION = {"volta": 0, "turing": 0, "ampere": 1, "ada": 1, "cdna3": 1, "hopper": 2}

# Microseconds by protocol LL / LL128 / Simple (tuning.cc, baseLatencies and hwLatencies).
_RING_BASE = (6.6, 14.0, 8.4)
_TREE_BASE = (6.8, 14.0, 8.4)
_RING_NVLINK, _TREE_NVLINK = (0.6, 1.9, 3.4), (0.6, 1.25, 4.0)
_RING_PCI, _TREE_PCI = (1.0, 2.5, 5.7), (1.0, 1.9, 4.0)
_RING_NET, _TREE_NET = (2.7, 4.0, 14.0), (5.0, 8.5, 14.0)
_NVLS_INTRA, _NVLS_TREE_NET = 25.0, 20.9
_PAT_BASE, _PAT_NET = 8.0, 14.0
_NET_OVERHEAD = (1.0, 1.0, 3.0)

# GB/s an LL collective cannot exceed: by generation on one node, by 2 and more nodes (Intel row).
_LL_MAX_ONE_NODE = (39.0, 87.7, 141.0, 282.0)
_LL_MAX_NODES = (39.0, 20.4)

_TREE_CORRECTION: dict[Protocol, tuple[float, ...]] = {
    "LL": (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9),
    "LL128": (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9),
    "Simple": (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8,
               .9, .9, .9),
}  # fmt: skip
"""Factor on a tree all-reduce's bandwidth, by log2(bytes / 64); 1 beyond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wires:
    """What the predictor needs of a group's machines; bandwidths as large messages see them."""

    ranks: int
    nodes: int
    ranks_per_node: int
    architecture: str
    nvlink: bool
    nvls: bool
    """NVSwitch that multicasts and reduces, and a GPU that can ask for it."""
    ring_bytes_per_s: float
    """Bus bandwidth of a ring inside one node."""
    nvls_bytes_per_s: float
    """Algorithm bandwidth of an NVLS all-reduce inside one node."""
    ordered_network: bool
    """Stores of 128 bytes arrive whole across nodes, which LL128 needs."""
    net_bytes_per_s: float
    """One node's network, one direction."""
    net_latency_s: float
    """One hop, beyond what NCCL's tables hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to run the collective: ``latency_s + size / bytes_per_s``."""

    algorithm: Algorithm
    protocol: Protocol
    latency_s: float
    bytes_per_s: float
    """Algorithm bandwidth: the full buffer's bytes per second."""


def bus_factor(op: Operation, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth (nccl-tests, ``doc/PERFORMANCE.md``)."""
    if ranks <= 1:
        return 0.0
    if op == "all_reduce":
        return 2.0 * (ranks - 1) / ranks
    if op in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0


def candidates(op: Operation, size_bytes: float, w: Wires) -> list[Candidate]:
    """Every (algorithm, protocol) NCCL weighs for a ring-family collective on these wires."""
    found = []
    for i, protocol in enumerate(PROTOCOLS):
        if protocol == "LL128" and not (w.nvlink and w.ordered_network):
            continue
        found.append(_ring(op, size_bytes, w, i))
        if op == "all_reduce" and w.ranks > 2:
            found.append(_tree(size_bytes, w, i))
    if op == "all_reduce" and w.nvls:
        found.append(_nvls(w))
    if w.nodes > 1 and w.ranks_per_node == 1 and op in ("all_gather", "reduce_scatter"):
        found.append(_pat(op, w))
    return found


def _ll_max(w: Wires) -> float:
    if w.nodes == 1:
        return _LL_MAX_ONE_NODE[_GENERATION.get(w.architecture, 3)] * 1e9
    return _LL_MAX_NODES[0 if w.nodes == 2 else 1] * 1e9


def _ring(op: Operation, size_bytes: float, w: Wires, i: int) -> Candidate:
    """A ring: ``nsteps`` hops, of which some cross nodes."""
    n, protocol = w.ranks, PROTOCOLS[i]
    bus = w.ring_bytes_per_s if w.ranks_per_node > 1 else float("inf")
    if w.nodes > 1:
        bus = min(bus, w.net_bytes_per_s)
    if protocol == "LL":
        bus = min(_ll_max(w), 0.5 * bus)
    elif protocol == "LL128":
        bus = 0.92 * bus
    reduces = op == "all_reduce"
    steps = 2 * (n - 1) if reduces else n - 1
    crossings = (2 if reduces else 1) * (w.nodes - 1)
    hop = (_RING_NVLINK if w.nvlink else _RING_PCI)[i]
    # With one rank per node NCCL takes the tree's network latency for rings too.
    net = (_TREE_NET if w.ranks_per_node == 1 else _RING_NET)[i]
    net += w.net_latency_s * 1e6 * (2.0 if protocol == "Simple" else 1.0)
    if w.nodes > 1:
        hop = max(hop, _NET_OVERHEAD[i])
    latency = _RING_BASE[i] + (steps - crossings) * hop + crossings * net
    if protocol == "Simple" and w.nodes > 1 and reduces and size_bytes >= 64 * 16 * n:
        latency *= 1.9 if w.architecture in ("volta", "turing") else 1.4
    return Candidate(
        algorithm="ring", protocol=protocol, latency_s=latency * 1e-6,
        bytes_per_s=bus / bus_factor(op, n),
    )  # fmt: skip


def _tree(size_bytes: float, w: Wires, i: int) -> Candidate:
    """A double binary tree over nodes with a chain inside each: up and down once."""
    protocol = PROTOCOLS[i]
    inside = w.ring_bytes_per_s if w.ranks_per_node > 1 else float("inf")
    half = 0.5 * 0.92 * inside
    if w.nodes > 1:
        half = min(half, w.net_bytes_per_s / (2.0 * (w.nodes - 1) / w.nodes))
    if protocol == "LL":
        half = min(half / 3.8, 0.5 * _ll_max(w))
    elif protocol == "LL128":
        half *= 7.0 / 9.0 if w.nodes == 1 else 120.0 / 128.0
    if w.nodes == 1:
        half *= 0.85
    half *= _tree_correction(protocol, size_bytes)
    hop = (_TREE_NVLINK if w.nvlink else _TREE_PCI)[i]
    net = _TREE_NET[i] + w.net_latency_s * 1e6 * (2.0 if protocol == "Simple" else 1.0)
    latency = _TREE_BASE[i] + 2.0 * ((w.ranks_per_node - 1) * hop + log2(w.nodes) * net)
    return Candidate(
        algorithm="tree", protocol=protocol, latency_s=latency * 1e-6, bytes_per_s=half
    )


def _tree_correction(protocol: Protocol, size_bytes: float) -> float:
    """NCCL's factor, joined linearly between its steps so that time never falls with size."""
    table = _TREE_CORRECTION[protocol]
    place = log2(max(size_bytes, 64.0) / 64.0)
    step = int(place)
    if step >= len(table):
        return 1.0
    after = table[step + 1] if step + 1 < len(table) else 1.0
    return table[step] + (place - step) * (after - table[step])


def _nvls(w: Wires) -> Candidate:
    """The switch reduces and multicasts; across nodes, a tree joins the switches (NVLSTree)."""
    if w.nodes == 1:
        return Candidate(
            algorithm="nvls", protocol="Simple", latency_s=_NVLS_INTRA * 1e-6,
            bytes_per_s=w.nvls_bytes_per_s,
        )  # fmt: skip
    net = _NVLS_TREE_NET + 2.0 * w.net_latency_s * 1e6
    latency = _NVLS_INTRA + 2.0 * log2(w.nodes) * net
    rate = min(w.nvls_bytes_per_s, w.net_bytes_per_s / (2.0 * (w.nodes - 1) / w.nodes))
    return Candidate(
        algorithm="nvls_tree", protocol="Simple", latency_s=latency * 1e-6, bytes_per_s=rate
    )


def _pat(op: Operation, w: Wires) -> Candidate:
    """Parallel aggregated trees: logarithmic steps, one GPU per node only."""
    net = _PAT_NET + 2.0 * w.net_latency_s * 1e6
    latency = _PAT_BASE + log2(w.nodes) * net / 3.5 + 2.8 * w.ranks
    return Candidate(
        algorithm="pat", protocol="Simple", latency_s=latency * 1e-6,
        bytes_per_s=0.75 * w.net_bytes_per_s / bus_factor(op, w.ranks),
    )  # fmt: skip
