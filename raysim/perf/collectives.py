"""Seconds of one collective, and the bytes it puts on links, for a group of ranks.

A group inside one node whose GPU was measured reads its time from ``tables/nccl.csv``; every other
group takes NCCL's own predictor (``nccl``) with the bandwidth plateaus nccl-tests reaches. The
time is ``latency_s + size_bytes / bytes_per_s`` with the links to itself; ``intra_bytes_per_rank``
and ``inter_bytes_per_node`` let the network charge the links when they are shared.

Not modelled: stragglers, NIC congestion. What NCCL takes from concurrent compute: ``contention``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise
from math import log2
from typing import Literal

from raysim.hardware.specs import CpuRankSpec, GpuSpec, NicSpec, NodeSpec, Provenance
from raysim.perf import tables
from raysim.perf.borrowed import measured_system
from raysim.perf.cpu_rank import gloo_s
from raysim.perf.nccl import (
    NO_FILL,
    P2P_FILL,
    Algorithm,
    Candidate,
    Operation,
    Protocol,
    Wires,
    bus_factor,
    busiest_node,
    candidates_by_size,
    candidates_of_any_size,
)
from raysim.perf.tables import Basis, Curve

__all__ = ["CollectiveCost", "GroupShape", "Operation", "bus_factor", "collective"]

Fabric = Literal["nvswitch", "nvlink_mesh", "pcie"]

RING_SHARE = {"volta": 0.80, "ampere": 0.783, "hopper": 0.816, "blackwell": 0.758}
"""Ring bus bandwidth at large sizes over the sum of NVLink rates: 8 A100 235 of 300 GB/s, 8 H200
367 of 450, 8 B200 682 of 900 (ml-engineering, nccl-tests); V100 20 of 25 per link (NCCL
``topo.h``)."""
NVLS_SHARE = {"hopper": 0.60, "blackwell": 0.53}
"""NVLS algorithm bandwidth over the sum of NVLink rates: 8 H200 270 GB/s, 8 B200 477."""
NVLS_MIN_RANKS = {"hopper": 5, "blackwell": 6}
"""NCCL stays on rings for fewer (8 GiB all-reduce on H200 and B200, ml-engineering)."""
PCIE_SHARE = {2: 0.80, 3: 0.21}
"""Ring bus bandwidth over a pinned copy's, for two ranks and for more (8 L40S on one host)."""
MEASURED_LINKS = {
    "a100": 300e9, "h100": 450e9, "h200": 450e9, "b200": 900e9, "gb200": 900e9, "l40s": 24.5e9,
}  # fmt: skip
"""Bytes per second of the links under the measured curves, as the catalog counts them."""
EFA_PROXY_S = 9.5e-6
"""Per hop of a collective over EFA beyond the wire; nccl-tests, as ``nccl``'s constants are."""
NVLS_TREE_SHARE = {"hopper": 0.554, "blackwell": 0.48}
"""The same of NVLS across nodes, where a tree over the network joins the switches; nccl-tests."""
SOCKETS_SHARE = ((1.25e9, 0.93), (3.125e9, 0.70), (12.5e9, 0.48))
"""Of a NIC's line rate (bytes/s), what NCCL gets through the kernel's TCP: headers at 10 Gb/s; what
FSDP1's exchanges on 16 g4dn.4xlarge take of 25 (Ray's dolly example, a calibration row of
``ray_train.json``; 0.54 on Azure, nccl-tests issue 83; 22 to 31 of 32 on GCP, NCCL issue 209); 48
of 100 (two p3dn, NCCL issue 398; 32 to 48, issue 450). Between and above them by the logarithm."""
SOCKETS_LEAST = 0.1
P2P_SHARE = 0.80
P2P_NET_SHARE = 0.88
"""Of what rings get out of a NIC: all-to-all over two nodes, 8 A100 and 8 B200 each."""
P2P_PLATEAU_BYTES = 256 * 2**20
"""A message between two ranks has 16 channels until a channel's part passes 32 chunks of 512 KiB;
then 32 (``addP2pToPlan`` of NCCL's ``src/enqueue.cc``)."""
P2P_LATENCY_S = {"intra": 8e-6, "inter": 14e-6}
ALL_TO_ALL_LATENCY_S = (26.0e-6, 1.27e-6)
"""Across nodes: at once, and per rank, which NCCL's proxies serve in turn; the same two tables."""

_FORMULA = Provenance(
    basis="assumed",
    source="NCCL 2.29 src/graph/tuning.cc; bandwidths and, between nodes, latencies of nccl-tests",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupShape:
    """A communicator: how many ranks on how many nodes, what joins them; compared by identity."""

    ranks: int
    nodes: int
    ranks_per_node: int
    architecture: str
    fabric: Fabric
    gpu: GpuSpec
    intra_bytes_per_s: float
    """One GPU to its node peers, one direction, datasheet."""
    nic: NicSpec
    inter_bytes_per_s: float
    """One node's NICs near these ranks, one direction, line rate."""
    inter_latency_s: float
    """One way between nodes."""

    @classmethod
    def on(
        cls, node: NodeSpec, *, ranks: int, islands: int = 1, per_island: int | None = None,
        near: int = 0, latency_s: float = 0.0,
    ) -> GroupShape:  # fmt: skip
        """Of GPUs of nodes like one.

        Parameters
        ----------
        islands, per_island
            How many scale-up domains its ranks are in, and how many are in the fullest.
        near
            NICs that serve one island's ranks.
        latency_s
            One way between islands.
        """
        gpu = node.gpu
        assert gpu is not None, f"rank placed on {node.name}, which has no GPU"
        pcie = node.gpu_fabric in (None, "pcie")
        return cls(
            ranks=ranks, nodes=islands, ranks_per_node=per_island or ranks,
            architecture=gpu.architecture, fabric=node.gpu_fabric or "pcie", gpu=gpu,
            intra_bytes_per_s=gpu.pcie_bytes_per_s if pcie else gpu.scale_up_bytes_per_s,
            nic=node.nic,
            inter_bytes_per_s=near * node.nic.bytes_per_s if islands > 1 else math.inf,
            inter_latency_s=latency_s,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCost:
    """What one collective takes alone, and what it puts on the links."""

    op: Operation
    size_bytes: float
    ranks: int
    algorithm: Algorithm
    protocol: Protocol
    latency_s: float
    bytes_per_s: float
    """Algorithm bandwidth after the latency: never above the plateau of large sizes."""
    intra_bytes_per_rank: float
    """Bytes every rank sends, and receives, over its scale-up link."""
    inter_bytes_per_node: float
    """Bytes every node sends, and receives, over its NICs; of a tree, the busiest node."""
    basis: Basis
    provenance: Provenance

    @property
    def seconds(self) -> float:
        """Time with the links to itself."""
        if self.size_bytes <= 0:
            return self.latency_s
        return self.latency_s + self.size_bytes / self.bytes_per_s

    @property
    def bus_bytes_per_s(self) -> float:
        """Bus bandwidth as nccl-tests prints it."""
        seconds = self.seconds
        factor = bus_factor(self.op, self.ranks)
        return self.size_bytes * factor / seconds if seconds > 0 else 0.0


@lru_cache(maxsize=1 << 16)
def collective(op: Operation, size_bytes: float, group: GroupShape) -> CollectiveCost:
    """Cost of ``op`` over ``group``; ``size_bytes`` is the full buffer.

    The full buffer is all-gather's output, reduce-scatter's input, one rank's all-to-all buffer,
    and the message of a ``send_recv`` between two ranks.
    """
    if isinstance(group.gpu, CpuRankSpec):
        return _gloo(op, size_bytes, group, group.gpu)
    best = _formula(op, size_bytes, group)
    if group.ranks > 1 and group.nodes == 1 and size_bytes > 0:
        measured = _measured(op, size_bytes, group, best)
        if measured is not None:
            return measured
    return _cost(op, size_bytes, group, best)


def _gloo(op: Operation, size_bytes: float, g: GroupShape, rank: CpuRankSpec) -> CollectiveCost:
    """Over loopback, every step paid by the ranks' own cores."""
    latency_s, seconds = gloo_s(op, size_bytes, g.ranks, rank)
    rate = size_bytes / seconds if seconds else float("inf")
    candidate = Candidate(
        algorithm="ring", protocol="Simple", latency_s=latency_s, bytes_per_s=rate
    )
    return _cost(op, size_bytes, g, candidate, provenance=rank.provenance["gloo_bytes_per_s"])


def _formula(op: Operation, size_bytes: float, group: GroupShape) -> Candidate:
    """NCCL's choice by its own predictor."""
    if group.ranks <= 1:
        return Candidate(
            algorithm="p2p", protocol="Simple", latency_s=0.0, bytes_per_s=float("inf")
        )
    if op == "send_recv":
        return _send_recv(group)
    if op == "all_to_all":
        return _all_to_all(group)
    found = (*_fixed(op, group), *candidates_by_size(op, size_bytes, _wires(group)))
    return min(found, key=lambda c: c.seconds(size_bytes))


@lru_cache(maxsize=1 << 12)
def _fixed(op: Operation, group: GroupShape) -> tuple[Candidate, ...]:
    """Candidates that are the same for every size."""
    return tuple(candidates_of_any_size(op, _wires(group)))


def _measured(
    op: Operation, size_bytes: float, g: GroupShape, best: Candidate
) -> CollectiveCost | None:
    """The measured time inside one node, split into latency and bandwidth; None: not measured.

    Between measured rank counts time is interpolated in the logarithm of ranks. Where the group's
    links are not those measured, the bandwidth part is scaled by their ratio.
    """
    if op == "send_recv":
        return _measured_send(size_bytes, g, best)
    found = _curves(op, g)
    if found is None:
        return None
    system, exact, low, high, share = found
    seconds, basis = low.at(size_bytes)
    slope, start = low.last_slope, low.values[0]
    if share > 0.0:
        above, basis = high.at(size_bytes)
        seconds = seconds ** (1 - share) * above**share
        slope = slope ** (1 - share) * high.last_slope**share
        start = start ** (1 - share) * high.values[0] ** share
    # The rate never exceeds the plateau, so that a shared link is charged what it can carry.
    latency = min(start, max(0.0, seconds - size_bytes * slope), 0.99 * seconds)
    rate = size_bytes / (seconds - latency) * g.intra_bytes_per_s / MEASURED_LINKS[system]
    algorithm: Algorithm = "p2p" if op == "all_to_all" else best.algorithm
    return _cost(
        op, size_bytes, g,
        Candidate(
            algorithm=algorithm, protocol=best.protocol, latency_s=latency, bytes_per_s=rate
        ),
        basis=basis, provenance=_origin(system, exact=exact),
    )  # fmt: skip


def _measured_send(size_bytes: float, g: GroupShape, best: Candidate) -> CollectiveCost | None:
    """A message between two ranks of a node: half of their all-to-all, whose other half stays.

    That all-to-all is one send and one receive with the peer, over the two-rank communicator that
    PyTorch and DeepSpeed make for a pipeline's neighbours. None: not measured.
    """
    found = _curves("all_to_all", g) if g.ranks == 2 else None
    if found is None:
        return None
    system, exact, curve, _, _ = found
    alone, basis = curve.at(2.0 * min(size_bytes, P2P_PLATEAU_BYTES))
    latency = min(curve.values[0], 0.99 * alone)
    seconds = latency + (alone - latency) * MEASURED_LINKS[system] / g.intra_bytes_per_s
    rate = min(size_bytes, P2P_PLATEAU_BYTES) / (seconds - latency)
    if size_bytes > P2P_PLATEAU_BYTES:
        rate = max(rate, best.bytes_per_s)
        latency, basis = max(best.latency_s, seconds - size_bytes / rate), "formula"
    measured = replace(best, latency_s=latency, bytes_per_s=rate)
    origin = _FORMULA if basis == "formula" else _origin(system, exact=exact)
    return _cost("send_recv", size_bytes, g, measured, basis=basis, provenance=origin)


@lru_cache(maxsize=1 << 12)
def _curves(op: Operation, g: GroupShape) -> tuple[str, bool, Curve, Curve, float] | None:
    """Measured system, whether it is this GPU, curves around the rank count, place between them."""
    system, exact = measured_system(g.gpu)
    fits = g.fabric == "pcie" if system == "l40s" else g.fabric == "nvswitch"
    if not fits or (system == "l40s" and not exact) or g.architecture in ("volta", "cdna3"):
        return None
    known = tables.nccl_curves(system)
    counts = sorted(n for name, n in known if name == op)
    below = [n for n in counts if n <= g.ranks]
    above = [n for n in counts if n >= g.ranks]
    if not below or not above:
        return None
    low, high = below[-1], above[0]
    share = log2(g.ranks / low) / log2(high / low) if high > low else 0.0
    return system, exact, known[op, low], known[op, high], share


@cache
def _origin(system: str, *, exact: bool) -> Provenance:
    """Provenance of a measured curve, or of one borrowed within the architecture."""
    source = f"{tables.meta('nccl')['source']}; curves of {system}"
    if exact:
        return Provenance(basis="measured", source=source)
    return Provenance(basis="assumed", source=f"{source}, scaled by link bandwidth")


def _ring_bytes_per_s(g: GroupShape) -> float:
    """Ring bus bandwidth inside a node at large sizes."""
    if g.fabric == "pcie":
        return g.intra_bytes_per_s * PCIE_SHARE[2 if g.ranks_per_node <= 2 else 3]
    return g.intra_bytes_per_s * RING_SHARE.get(g.architecture, 0.75)


@lru_cache(maxsize=1 << 12)
def _wires(g: GroupShape) -> Wires:
    nvls = g.fabric == "nvswitch" and g.ranks_per_node >= NVLS_MIN_RANKS.get(
        g.architecture, 1 << 30
    )
    share = (NVLS_SHARE if g.nodes == 1 else NVLS_TREE_SHARE).get(g.architecture, 0.0)
    return Wires(
        ranks=g.ranks, nodes=g.nodes, ranks_per_node=g.ranks_per_node, architecture=g.architecture,
        nvlink=g.fabric != "pcie", nvls=nvls, ring_bytes_per_s=_ring_bytes_per_s(g),
        nvls_bytes_per_s=g.intra_bytes_per_s * share,
        net_bytes_per_s=g.inter_bytes_per_s * network_share(g.nic), net_latency_s=_hop_s(g),
        ordered_network=g.nodes == 1 or g.nic.kind in ("infiniband", "roce"),
    )  # fmt: skip


def network_share(nic: NicSpec) -> float:
    """Share of a NIC's line rate that large messages of NCCL reach."""
    return nic.efficiency if nic.rdma else min(nic.efficiency, _sockets_share(nic.bytes_per_s))


@cache
def _sockets_share(bytes_per_s: float) -> float:
    """``SOCKETS_SHARE`` at a line rate."""
    pairs = pairwise(SOCKETS_SHARE)
    (slow, most), (fast, least) = next(
        (ends for ends in pairs if bytes_per_s <= ends[1][0]), SOCKETS_SHARE[-2:]
    )
    share = most + (least - most) * log2(bytes_per_s / slow) / log2(fast / slow)
    return min(SOCKETS_SHARE[0][1], max(share, SOCKETS_LEAST))


def _hop_s(g: GroupShape) -> float:
    """One way between nodes, with what the network plugin adds."""
    return g.inter_latency_s + (EFA_PROXY_S if g.nic.kind == "efa" else 0.0)


def _send_recv(g: GroupShape) -> Candidate:
    """One message between two ranks: one NIC between nodes, one GPU's links inside."""
    if g.nodes > 1:
        rate = min(g.nic.bytes_per_s, g.inter_bytes_per_s) * network_share(g.nic) * P2P_NET_SHARE
        latency, fill = P2P_LATENCY_S["inter"] + _hop_s(g), P2P_FILL
    else:
        rate, latency = g.intra_bytes_per_s * P2P_SHARE, P2P_LATENCY_S["intra"]
        fill = NO_FILL
    return Candidate(
        algorithm="p2p", protocol="Simple", latency_s=latency, bytes_per_s=rate, fill=fill
    )


def _all_to_all(g: GroupShape) -> Candidate:
    """Every rank sends ``1 / ranks`` of its buffer to each; the slower of two paths limits."""
    intra, inter = _loads("all_to_all", "p2p", g)
    per_byte = intra / _ring_bytes_per_s(g) if intra else 0.0
    latency, fill = P2P_LATENCY_S["intra"], NO_FILL
    if g.nodes > 1:
        net = g.inter_bytes_per_s * network_share(g.nic) * P2P_NET_SHARE
        per_byte = max(per_byte, inter / net)
        once, each = ALL_TO_ALL_LATENCY_S
        latency, fill = once + each * g.ranks + _hop_s(g), P2P_FILL
    return Candidate(
        algorithm="p2p", protocol="Simple", latency_s=latency, bytes_per_s=1.0 / per_byte, fill=fill
    )


def _loads(op: Operation, algorithm: Algorithm, g: GroupShape) -> tuple[float, float]:
    """Bytes on each rank's scale-up link and each node's NICs, per byte of the full buffer."""
    n, k, each = g.ranks, g.nodes, g.ranks_per_node
    if n <= 1:
        return 0.0, 0.0
    inside = (each - 1) / each if k > 1 else 1.0
    across = 1.0 if k > 1 else 0.0
    if algorithm in ("nvls", "nvls_tree"):
        return 1.0 + 1.0 / each, busiest_node(k)
    if algorithm == "tree":
        return 2.0 * (each - 1) / each, busiest_node(k)
    if op == "all_to_all":
        return (each - 1) / n, across * each * (n - each) / n
    if op in ("broadcast", "reduce"):
        return (n - 1) / n * inside, (k - 1) / k
    if op == "send_recv":
        return 1.0 - across, across
    factor = bus_factor(op, n)
    return factor * inside, factor * across


def _cost(
    op: Operation,
    size_bytes: float,
    g: GroupShape,
    c: Candidate,
    *,
    basis: Basis = "formula",
    provenance: Provenance = _FORMULA,
) -> CollectiveCost:
    intra, inter = _loads(op, c.algorithm, g)
    rate = c.bytes_per_s
    if c.fill != NO_FILL and size_bytes > 0:
        rate = size_bytes / (c.seconds(size_bytes) - c.latency_s)
    return CollectiveCost(
        op=op, size_bytes=size_bytes, ranks=g.ranks, algorithm=c.algorithm, protocol=c.protocol,
        latency_s=c.latency_s, bytes_per_s=rate,
        intra_bytes_per_rank=intra * size_bytes, inter_bytes_per_node=inter * size_bytes,
        basis=basis, provenance=provenance,
    )  # fmt: skip
