"""Collectives that a trace has heard, around the modules of one rank's part."""

from __future__ import annotations

import pytest

from raysim.models.shapes import Collective
from raysim.models.table import Module, Operator
from raysim.training.layers.sharding import Exchange, Sharding, exchanges

HEARD = (
    Collective(op="all_gather", when="forward", numel=100.0),
    Collective(op="all_reduce", when="forward", numel=3.0, dtype="fp32"),
    Collective(op="reduce_scatter", when="backward", numel=100.0),
    Collective(op="all_reduce", when="gradient", numel=7.0, fixed=True),
)
MODULE = Module(
    name="norm", cls="RMSNorm", operators=(Operator(name="norm", kind="norm", collectives=HEARD),)
)


@pytest.mark.parametrize("batch", [1.0, 4.0])
def test_they_grow_with_samples_unless_they_are_of_weights(batch: float) -> None:
    found = exchanges(MODULE, Sharding(tp=2), width=2 * batch, batch=batch)
    assert found.after_forward == [
        Exchange("all_gather", "tp", round(200 * batch)),
        Exchange("all_reduce", "tp", round(12 * batch)),  # fp32, whatever is computed in
    ]
    assert found.before_backward == [Exchange("reduce_scatter", "tp", round(200 * batch))]
    assert found.after_backward == [Exchange("all_reduce", "tp", 14, of_weights=True)]


def test_one_rank_exchanges_nothing() -> None:
    found = exchanges(MODULE, Sharding(tp=1), width=2.0)
    assert not found.opens
    assert not found.closes
