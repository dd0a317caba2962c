"""Memory that torch's trackers recorded on fake tensors, beside raysim's ledger."""

from __future__ import annotations

import pytest

from raysim.validate.points import Point
from raysim.validate.torch_memory import torch_memory_points
from tests.deepspeed_reference import DATA

POINTS = list(torch_memory_points(DATA.parent))


def of(*categories: str) -> list[Point]:
    return [p for p in POINTS if p.name.split(maxsplit=3)[-1] in categories]


def test_every_case_was_recorded_alone_and_on_8_and_64_ranks() -> None:
    cases = {tuple(p.name.split()[:3]) for p in POINTS}
    assert len(cases) == 4 * 3


@pytest.mark.parametrize("point", of("Parameter", "Gradient", "Optstate"), ids=lambda p: p.name)
def test_states_of_the_unsharded_model_are_equal_to_the_byte(point: Point) -> None:
    assert point.predicted == point.measured


@pytest.mark.parametrize("point", of("Activation"), ids=lambda p: p.name)
def test_what_autograd_saves_is_within_a_thousandth(point: Point) -> None:
    """The rest are tables of positions and integer inputs, which raysim leaves out."""
    assert point.predicted == pytest.approx(point.measured, rel=1e-3)


@pytest.mark.parametrize("point", of("Total"), ids=lambda p: p.name)
def test_the_peak_is_within_a_thousandth(point: Point) -> None:
    assert point.predicted == pytest.approx(point.measured, rel=1e-3)


@pytest.mark.parametrize(
    "point", of("Sharded Param", "Sharded Grad", "OptState"), ids=lambda p: p.name
)
def test_shards_are_zero_3s(point: Point) -> None:
    """To the byte where the ranks divide every first dimension.

    GPT-2's 50,257 tokens they do not: FSDP2 gives rank 0 whole rows, ZeRO-3 elements.
    """
    assert point.predicted == pytest.approx(
        point.measured, rel=5e-4 if point.name.startswith("gpt2") else 0
    )
