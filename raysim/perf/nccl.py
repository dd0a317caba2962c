"""NCCL's own performance predictor: the candidates it weighs for one collective, with their times.

Real counterpart: ``src/graph/tuning.cc`` of NCCL 2.29: a candidate (algorithm, protocol) takes
``latency + bytes / bandwidth``. Latency tables are NCCL's. The bandwidths are what nccl-tests
reaches on real links rather than NCCL's search over channel graphs: its graphs need the machine's
PCI tree, and agree with the plateaus to a few percent.

NCCL predicts in order to choose; between nodes its times are 20-45 % below measured ones for
1-256 MiB. There :class:`Candidate` adds what filling the pipeline of chunks costs, and the
constants below marked "nccl-tests" replace NCCL's: least absolute error in log(time) over the
tables of ``validation/data/published/nccl_multi_node.json`` marked calibration. On one node NCCL's
correction of trees by size stays; measured curves are used there wherever there are any.

The fastest candidate is taken: NCCL's own choice is at times slower, and its switches between
protocols are not modelled across nodes. Nor are SHARP and CollNet, NCCL_* environment variables,
tuner plugins (AWS's among them), MNNVL trees.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, sqrt
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

# Across nodes, fitted on nccl-tests.
LATENCY_SHARE = {"ring": 1.27, "tree": 1.10, "nvls_tree": 1.12, "pat": 1.0}
"""Measured latency over NCCL's tables, by algorithm; PAT was not measured."""
FILL = {
    "ring": (0.245, 3.07), "tree": (0.363, 3.07), "nvls_tree": (0.36, 0.77), "pat": (0.245, 3.07),
}  # fmt: skip
NO_FILL = (0.0, 0.0)
P2P_FILL = (0.30, 3.07)
"""What filling the pipeline costs (``Candidate.fill``); PAT's is taken for a ring's."""
LL_SHARE = 0.45
_LL128_SHARE = 120.0 / 128.0
"""Payload of LL128's 128-byte stores; the rest are flags."""
LL128_TREE_SHARE = {"volta": 0.78, "turing": 0.78, "ampere": 0.78}
"""Trees reach less with it before Hopper."""
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
    """Algorithm bandwidth of an NVLS all-reduce inside every node."""
    ordered_network: bool
    """Stores of 128 bytes arrive whole across nodes, which LL128 needs."""
    net_bytes_per_s: float
    """One node's network, one direction."""
    net_latency_s: float
    """One hop, beyond what NCCL's tables hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to run the collective: ``latency_s + size / bytes_per_s``, and the pipeline's fill.

    Chunks go through many hops; with the best chunk a pipeline of latency L and streaming time T
    takes ``(sqrt(L) + sqrt(T))**2``, so ``2 sqrt(L T)`` more than both. NCCL's chunks stop
    growing, so the surplus does too.
    """

    algorithm: Algorithm
    protocol: Protocol
    latency_s: float
    bytes_per_s: float
    """Algorithm bandwidth: the full buffer's bytes per second."""
    fill: tuple[float, float] = NO_FILL
    """Share of ``2 sqrt(L T)`` that is paid, and how many latencies at most; 0 inside a node."""

    def seconds(self, size_bytes: float) -> float:
        """Time for ``size_bytes``."""
        stream = size_bytes / self.bytes_per_s
        share, most = self.fill
        fill = min(2.0 * share * sqrt(self.latency_s * stream), most * self.latency_s)
        return self.latency_s + stream + fill


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
    return [*candidates_of_any_size(op, w), *candidates_by_size(op, size_bytes, w)]


def candidates_of_any_size(op: Operation, w: Wires) -> list[Candidate]:
    """Those whose bandwidth does not depend on the size: all but trees on one node."""
    found = []
    for i in _protocols(w):
        found.append(_ring(op, w, i))
        if op == "all_reduce" and w.ranks > 2 and w.nodes > 1:
            found.append(_tree_across(w, i))
    if op == "all_reduce" and w.nvls:
        found.append(_nvls(w))
    if w.nodes > 1 and w.ranks_per_node == 1 and op in ("all_gather", "reduce_scatter"):
        found.append(_pat(op, w))
    return found


def candidates_by_size(op: Operation, size_bytes: float, w: Wires) -> list[Candidate]:
    """Trees on one node."""
    if op != "all_reduce" or w.ranks <= 2 or w.nodes > 1:
        return []
    return [_tree(size_bytes, w, i) for i in _protocols(w)]


def _protocols(w: Wires) -> tuple[int, ...]:
    """Places in ``PROTOCOLS`` that work on these wires."""
    return (0, 1, 2) if w.nvlink and w.ordered_network else (0, 2)


def _ll_max(w: Wires) -> float:
    if w.nodes == 1:
        return _LL_MAX_ONE_NODE[_GENERATION.get(w.architecture, 3)] * 1e9
    return _LL_MAX_NODES[0 if w.nodes == 2 else 1] * 1e9


def _wire_us(w: Wires, protocol: Protocol) -> float:
    """One hop of the wire, twice where what the NIC wrote must be flushed into the GPU's memory.

    GPUs before Hopper need that (``ncclTopoNeedFlush``); the predictor adds it for all.
    """
    flush = protocol == "Simple" and _GENERATION.get(w.architecture, 3) < 2
    return w.net_latency_s * 1e6 * (2.0 if flush else 1.0)


def _ring(op: Operation, w: Wires, i: int) -> Candidate:
    """A ring: ``nsteps`` hops, of which some cross nodes."""
    n, protocol = w.ranks, PROTOCOLS[i]
    across = w.nodes > 1
    bus = w.ring_bytes_per_s if w.ranks_per_node > 1 else float("inf")
    if across:
        bus = min(bus, w.net_bytes_per_s)
    if protocol == "LL":
        bus = min(_ll_max(w), (LL_SHARE if across else 0.5) * bus)
    elif protocol == "LL128":
        bus *= _LL128_SHARE if across else 0.92
    reduces = op == "all_reduce"
    steps = 2 * (n - 1) if reduces else n - 1
    crossings = (2 if reduces else 1) * (w.nodes - 1)
    hop = (_RING_NVLINK if w.nvlink else _RING_PCI)[i]
    # With one rank per node NCCL takes the tree's network latency for rings too.
    net = (_TREE_NET if w.ranks_per_node == 1 else _RING_NET)[i]
    net += _wire_us(w, protocol)
    if across:
        hop = max(hop, _NET_OVERHEAD[i])
    latency = _RING_BASE[i] + (steps - crossings) * hop + crossings * net
    return _candidate("ring", protocol, latency, bus / bus_factor(op, n), w)


def _candidate(
    algorithm: Algorithm, protocol: Protocol, latency_us: float, bytes_per_s: float, w: Wires
) -> Candidate:
    """One candidate; across nodes with measured latency and fill."""
    across = w.nodes > 1
    share = LATENCY_SHARE[algorithm] if across else 1.0
    return Candidate(
        algorithm=algorithm, protocol=protocol, latency_s=latency_us * share * 1e-6,
        bytes_per_s=bytes_per_s, fill=FILL[algorithm] if across else NO_FILL,
    )  # fmt: skip


def _tree(size_bytes: float, w: Wires, i: int) -> Candidate:
    """A chain over the ranks of one node: up and down once."""
    protocol = PROTOCOLS[i]
    half = 0.5 * 0.92 * w.ring_bytes_per_s
    if protocol == "LL":
        half = min(half / 3.8, 0.5 * _ll_max(w))
    elif protocol == "LL128":
        half *= 7.0 / 9.0
    half *= 0.85 * _tree_correction(protocol, size_bytes)
    hop = (_TREE_NVLINK if w.nvlink else _TREE_PCI)[i]
    latency = _TREE_BASE[i] + 2.0 * (w.ranks_per_node - 1) * hop
    return _candidate("tree", protocol, latency, half, w)


def _tree_across(w: Wires, i: int) -> Candidate:
    """A double binary tree over nodes with a chain inside each: up and down once."""
    protocol = PROTOCOLS[i]
    inside = w.ring_bytes_per_s if w.ranks_per_node > 1 else float("inf")
    rate = min(0.5 * 0.92 * inside, _tree_net(w))
    if protocol == "LL":
        rate = min(LL_SHARE * rate, 0.5 * _ll_max(w))
    elif protocol == "LL128":
        rate *= LL128_TREE_SHARE.get(w.architecture, _LL128_SHARE)
    hop = (_TREE_NVLINK if w.nvlink else _TREE_PCI)[i]
    net = _TREE_NET[i] + _wire_us(w, protocol)
    latency = _TREE_BASE[i] + 2.0 * ((w.ranks_per_node - 1) * hop + log2(w.nodes) * net)
    return _candidate("tree", protocol, latency, rate, w)


def busiest_node(nodes: int) -> float:
    """Times the buffer that the busiest node of NCCL's double binary tree sends and receives.

    From four nodes on 2: every node is inner in one of the two trees (half of the buffer to two
    children and a parent) and a leaf in the other.
    """
    return {1: 0.0, 2: 1.0, 3: 1.5}.get(nodes, 2.0)


def _tree_net(w: Wires) -> float:
    """Algorithm bandwidth of a tree over the nodes' NICs."""
    return w.net_bytes_per_s / busiest_node(w.nodes)


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
    net = _NVLS_TREE_NET + _wire_us(w, "Simple")
    latency = _NVLS_INTRA + 2.0 * log2(w.nodes) * net
    rate = min(w.nvls_bytes_per_s, _tree_net(w))
    return _candidate("nvls_tree", "Simple", latency, rate, w)


def _pat(op: Operation, w: Wires) -> Candidate:
    """Parallel aggregated trees: logarithmic steps, one GPU per node only."""
    net = _PAT_NET + _wire_us(w, "Simple")
    latency = _PAT_BASE + log2(w.nodes) * net / 3.5 + 2.8 * w.ranks
    rate = 0.75 * w.net_bytes_per_s / bus_factor(op, w.ranks)
    return _candidate("pat", "Simple", latency, rate, w)
