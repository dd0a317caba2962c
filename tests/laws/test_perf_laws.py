"""Closed forms that the cost models must obey."""

from __future__ import annotations

from itertools import pairwise

import pytest

from raysim.perf.nccl import Wires, bus_factor, candidates

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


def wires(ranks: int, nodes: int, *, net_bytes_per_s: float = 200e9) -> Wires:
    return Wires(
        ranks=ranks, nodes=nodes, ranks_per_node=ranks // nodes, architecture="ampere",
        nvlink=True, nvls=False, ring_bytes_per_s=235e9, nvls_bytes_per_s=0.0,
        ordered_network=True, net_bytes_per_s=net_bytes_per_s, net_latency_s=2e-6,
    )  # fmt: skip


def fastest(op: str, size: float, w: Wires, algorithm: str) -> float:
    found = candidates(op, size, w)  # type: ignore[arg-type]
    return min(c.latency_s + size / c.bytes_per_s for c in found if c.algorithm == algorithm)


@pytest.mark.parametrize("ranks", [2, 3, 8, 16])
@pytest.mark.parametrize("op", OPS)
def test_large_rings_reach_the_bus_bandwidth_of_the_links(op: str, ranks: int) -> None:
    """time -> factor * bytes / links: 2(n-1)/n for all-reduce, (n-1)/n for its two halves."""
    size = 1e12
    factor = {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1.0, "reduce": 1.0}.get(
        op, (ranks - 1) / ranks
    )
    seconds = fastest(op, size, wires(ranks, 1), "ring")
    assert seconds == pytest.approx(factor * size / 235e9, rel=1e-3)
    assert bus_factor(op, ranks) == pytest.approx(factor)  # type: ignore[arg-type]


def test_all_reduce_is_reduce_scatter_and_all_gather() -> None:
    w, size = wires(8, 1), 1e12
    halves = fastest("reduce_scatter", size, w, "ring") + fastest("all_gather", size, w, "ring")
    assert fastest("all_reduce", size, w, "ring") == pytest.approx(halves, rel=1e-3)


@pytest.mark.parametrize("nodes", [4, 16, 128])
def test_trees_beat_rings_for_small_messages_over_many_nodes(nodes: int) -> None:
    """A ring takes 2(n-1) hops, a tree 2 log2(nodes) between nodes."""
    w = wires(8 * nodes, nodes)
    assert fastest("all_reduce", 4096, w, "tree") < fastest("all_reduce", 4096, w, "ring")


def test_tree_latency_grows_with_the_logarithm_of_nodes() -> None:
    small = [fastest("all_reduce", 64, wires(8 * k, k), "tree") for k in (4, 8, 16, 32)]
    steps = [b - a for a, b in pairwise(small)]
    assert steps == pytest.approx([steps[0]] * 3)


def test_ring_latency_grows_with_the_number_of_ranks() -> None:
    small = [fastest("all_gather", 1e-6, wires(n, 1), "ring") for n in (4, 8, 12, 16)]
    steps = [b - a for a, b in pairwise(small)]
    assert steps == pytest.approx([steps[0]] * 3)


def test_a_ring_over_nodes_is_no_faster_than_its_network() -> None:
    slow = fastest("all_gather", 1e12, wires(16, 2, net_bytes_per_s=50e9), "ring")
    assert slow == pytest.approx(15 / 16 * 1e12 / 50e9, rel=1e-3)
    fast = fastest("all_gather", 1e12, wires(16, 2, net_bytes_per_s=1e15), "ring")
    assert fast == pytest.approx(15 / 16 * 1e12 / 235e9, rel=1e-3)
