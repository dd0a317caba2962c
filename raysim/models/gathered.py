"""A loss of what several copies of a model have made: of their outputs, gathered.

Real counterpart: ``torch/nn/parallel/data_parallel.py``: each GPU's copy has its share of a batch,
and what the first GPU does with their outputs is of all of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from raysim.models.shapes import Collective
from raysim.models.table import Model, Module, Operator, Saved

LOSS = "loss"
"""The module of a traced table that has what a script computes of a model's outputs."""


@lru_cache(maxsize=16)
def gathered(model: Model, copies: int) -> Model:
    """The table whose loss is of so many copies' outputs, which come and whose gradients go back.

    Of a model that computes its loss itself nothing is gathered but that.
    """
    if copies == 1 or not is_of_outputs(model):
        return model
    layers, output = [], 0.0
    for layer in model.layers:
        modules = []
        for module in layer.body.modules:
            is_loss = module.name == LOSS and bool(module.operators)
            modules.append(_of_all(module, copies, output) if is_loss else module)
            output = next((o.output for o in reversed(module.operators) if o.output), output)
        layers.append(replace(layer, body=replace(layer.body, modules=tuple(modules))))
    return replace(model, layers=tuple(layers))


def is_of_outputs(model: Model) -> bool:
    """Whether its loss is the script's, of what it returns."""
    return any(m.name == LOSS for x in model.layers for m in x.body.modules)


def _of_all(module: Module, copies: int, output: float) -> Module:
    first, *others = (_times(o, copies) for o in module.operators)
    comes = Collective(op="all_gather", when="forward", numel=output * copies, group="dp")
    goes = Collective(op="reduce_scatter", when="backward", numel=output * copies, group="dp")
    first = replace(first, collectives=(*first.collectives, comes, goes))
    return replace(module, operators=(first, *others))


def _times(o: Operator, copies: int) -> Operator:
    def all_of(tensors: Iterable[Saved]) -> tuple[Saved, ...]:
        return tuple(t if t.fixed else replace(t, numel=t.numel * copies) for t in tensors)

    def or_none(value: float | None) -> float | None:
        return None if value is None else value * copies

    return replace(
        o,
        flops=o.flops * copies, flops_backward=or_none(o.flops_backward),
        moved=o.moved * copies, moved_backward=or_none(o.moved_backward),
        indexed=o.indexed * copies, indexed_backward=o.indexed_backward * copies,
        output=o.output * copies, gradient=or_none(o.gradient),
        fullest_backward=o.fullest_backward * copies,
        saves=all_of(o.saves), reads=all_of(o.reads), scratch=all_of(o.scratch),
        scratch_backward=all_of(o.scratch_backward), waiting=all_of(o.waiting),
        left=tuple((size * copies, after, late) for size, after, late in o.left),
    )  # fmt: skip
