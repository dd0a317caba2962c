"""Samplers and bins keep a bounded number of rows, and lose nothing of what they add up."""

from __future__ import annotations

from itertools import pairwise

import pytest

from raysim.kernel.sampler import Sampler, SpreadBins, spread


def test_rows_are_bounded_and_evenly_far_apart() -> None:
    sampler = Sampler(most=64)
    for t_ns in range(0, 10**10, 10**6):
        if sampler.due(t_ns):
            sampler.add(t_ns, float(t_ns))
    assert 32 <= len(sampler.rows) <= 64
    times = [t_ns for t_ns, _ in sampler.rows]
    gaps = {b - a for a, b in pairwise(times)}
    assert gaps == {sampler.every_ns}
    assert all(values == (t_ns,) for t_ns, values in sampler.rows)


def test_nothing_is_kept_that_is_not_due() -> None:
    sampler = Sampler()
    sampler.add(0, 1.0)
    assert not sampler.due(sampler.every_ns - 1)
    assert sampler.due(sampler.every_ns)


def test_bins_keep_the_sum_whatever_the_length_of_the_run() -> None:
    bins = SpreadBins(most=10)
    for k in range(50):
        bins.add(7.0, k * 10**8, (k + 3) * 10**8)
    assert sum(bins.amounts) == pytest.approx(50 * 7.0)
    assert len(bins.amounts) <= 10
    assert bins.width_ns * 10 > 52 * 10**8


def test_an_amount_is_spread_evenly_over_its_time() -> None:
    bins = [0.0] * 4
    spread(bins, 10.0, 5, 30, 10)
    assert bins == pytest.approx([2.0, 4.0, 4.0, 0.0])
    spread(bins, 1.0, 35, 40, 10)
    assert bins[3] == pytest.approx(1.0)
