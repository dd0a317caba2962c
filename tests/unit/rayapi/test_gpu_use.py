"""How an iteration divides, of spans that are written down here."""

from __future__ import annotations

from raysim.rayapi.ranks.gpu_use import Phase, Spent
from raysim.rayapi.ranks.summary import busy_ns, rounds, union_ns


def spent(phase: Phase, begin_ns: int, end_ns: int, gpu: int = 0) -> Spent:
    return Spent(phase=phase, places=((0, gpu),), begin_ns=begin_ns, end_ns=end_ns)


def test_overlaps_count_once_and_short_gaps_count() -> None:
    spans = [(0, 4), (2, 6), (9, 10), (30, 31)]
    assert union_ns(spans) == 6 + 1 + 1
    assert union_ns(spans, gap_ns=3) == 10 + 1
    assert union_ns([]) == 0


def test_what_two_processes_do_on_one_gpu_counts_once() -> None:
    together = [spent("rollout", 0, 10), spent("update", 5, 12), spent("update", 0, 10, gpu=1)]
    assert busy_ns(together) == 12 + 10


def test_rollouts_without_an_update_between_them_are_one() -> None:
    first = [spent("rollout", 0, 2), spent("rollout", 3, 4), spent("update", 5, 6)]
    second = [spent("rollout", 8, 9, gpu=1), spent("update", 10, 11), spent("update", 11, 12)]
    assert rounds(first) == 1
    assert rounds(first + second) == 2
    assert rounds([spent("update", 0, 1)]) == 0
