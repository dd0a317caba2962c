"""Collectives that a script calls by itself take what NCCL takes between its ranks' GPUs."""

from __future__ import annotations

import ast

import pytest

pytestmark = pytest.mark.real
pytest.importorskip("torch")

from raysim.perf.collectives import GroupShape, Operation, collective  # noqa: E402
from tests.real.test_launched_scripts import launched, machines  # noqa: E402

SCRIPT = "collectives_by_hand.py"
MIB = 2**20


def taken(ranks: int) -> dict[str, float]:
    """Seconds of each, as rank 0 has timed them."""
    printed, _ = launched("deepspeed", "--num_gpus", str(ranks), SCRIPT)
    found: dict[str, float] = ast.literal_eval(printed[-1])
    return found


@pytest.mark.parametrize("ranks", [2, 8])
def test_each_takes_what_it_takes_by_itself(ranks: int) -> None:
    (group,) = machines().groups

    def seconds(operation: Operation, size_bytes: int, ranks: int = ranks) -> float:
        shape = GroupShape.on(group.node, ranks=ranks)
        return collective(operation, size_bytes, shape).seconds

    expected = {
        "all_reduce": seconds("all_reduce", 16 * MIB),
        "all_gather": seconds("all_gather", 16 * MIB * ranks),
        "reduce_scatter": seconds("reduce_scatter", 16 * MIB * ranks),
        "all_to_all": seconds("all_to_all", 16 * MIB * ranks),
        "broadcast": seconds("broadcast", 16 * MIB),
        "of a pair": seconds("all_reduce", 16 * MIB, 2),
    }
    assert taken(ranks) == pytest.approx(expected, rel=0.1, abs=2e-5)  # and a few calls' time
