"""Scripts that look at gradients: they are there after backward, and what is done with them counts.

``tests/programs/launched/gradients.py`` also runs with real torch on a CPU: ``python gradients.py
by_hand`` ends without an error.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

pytestmark = pytest.mark.real
pytest.importorskip("torch")

from tests.real.test_launched_scripts import launched  # noqa: E402

STEPS = 6


@cache
def row(kind: str) -> Any:
    """Its only row of steps: name, count, seconds."""
    _, report = launched("python", "gradients.py", kind)
    (found,) = report.tables[0].rows
    return found


@pytest.mark.parametrize("kind", ["policies", "by_hand", "clipped"])
def test_every_step_is_taken(kind: str) -> None:
    assert row(kind)[1] == STEPS


def test_an_update_by_hand_takes_as_long_as_an_optimizer_without_states() -> None:
    assert row("by_hand")[2] == pytest.approx(row("plain")[2], rel=0.3)


def test_norms_and_scales_of_gradients_take_their_time() -> None:
    """Two passes over 33 M weights, and launches: a read, a read and a write."""
    passes_s = 3 * 4 * 8 * 2048**2 / 3.35e12
    assert row("clipped")[2] > row("plain")[2] + 0.5 * passes_s
