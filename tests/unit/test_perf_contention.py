"""SMs that NCCL holds while compute runs beside it."""

from __future__ import annotations

import pytest

from raysim.perf.collectives import GroupShape
from raysim.perf.contention import channels, compute_slowdown
from tests.unit.test_perf_collectives import NDR, group


def across(gpu: str, nodes: int, nics: int) -> GroupShape:
    return group(gpu, 8 * nodes, nodes, inter_bytes_per_s=nics * NDR.bytes_per_s)


@pytest.mark.parametrize(
    ("shape", "algorithm", "expected"),
    [
        (group(), "ring", 24),  # blocks of ncclAllGather on 8 H100, NVIDIA developer forum 337991
        (group(), "nvls", 16),
        (group("B200"), "nvls", 24),
        (across("B200", 2, 8), "nvls_tree", 32),
        (across("H100-SXM-80GB", 4, 8), "ring", 16),
        (across("H100-SXM-80GB", 4, 4), "ring", 16),
        (across("A100-SXM-80GB", 4, 4), "ring", 8),
        (group(ranks=1), "ring", 0),
    ],
)
def test_channels_are_as_nccl_counts_them(shape: GroupShape, algorithm: str, expected: int) -> None:
    assert channels(shape, algorithm) == expected  # type: ignore[arg-type]


def test_products_have_the_other_sms() -> None:
    assert compute_slowdown(group(), "nvls") == pytest.approx(132 / (132 - 16))
    assert compute_slowdown(group(ranks=1), "ring") == 1.0


def test_more_nics_take_more_sms() -> None:
    few, many = across("A100-SXM-80GB", 4, 2), across("A100-SXM-80GB", 4, 8)
    assert 1.0 < compute_slowdown(few, "ring") < compute_slowdown(many, "ring") < 1.5
