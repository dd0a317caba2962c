"""What links carried: rings by their closed form, ranks folded or not."""

from __future__ import annotations

from itertools import pairwise

import pytest

from raysim.kernel.simulation import Simulation
from raysim.training.link_use import LinkUse, link_use
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import simulate
from tests.training_parts import cluster, plan


def by_name(**settings) -> dict[str, LinkUse]:
    step = simulate(plan(**settings), cluster(1), simulation=Simulation())
    return {use.link.name: use for use in link_use(step)}


def test_a_ring_sends_and_receives_the_same() -> None:
    found = by_name(stage=1, gradient_accumulation_steps=1, mesh=Mesh(dp=4))
    out, into = (found[f"node-0/gpu-0/nvlink-{way}"] for way in ("out", "in"))
    assert out.rates == into.rates
    assert 0 < out.mean_frac < out.peak_frac <= 1.0
    assert out.carried_bytes == pytest.approx(
        out.mean_frac * out.link.bytes_per_s * out.step_ns / 1e9
    )


def test_every_rate_ends_at_zero_and_changes_at_each_moment() -> None:
    for use in by_name(stage=3, mesh=Mesh(dp=4)).values():
        assert use.rates[-1][1] == 0
        assert all(a[1] != b[1] and a[0] < b[0] for a, b in pairwise(use.rates))


def test_a_pipeline_sends_both_ways_between_its_stages() -> None:
    found = by_name(stage=1, mesh=Mesh(pp=2, dp=2))
    assert {name.partition("/gpu-")[2][0] for name in found} >= {"0", "2"}
