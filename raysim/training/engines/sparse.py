"""Tables whose look-ups make sparse gradients: rows and their indices in place of whole tensors.

Real counterparts: ``nn.Embedding(sparse=True)``, ``torch.optim.SparseAdam``, and SGD and Adagrad,
which take such gradients too. States are as large as the table; further micro-batches' rows are put
behind the first one's (``add_out_sparse_cuda``).

Not modelled: indices that are alike, whose rows are one once they are coalesced; what is no part of
the optimizer's step (clipping and unscaling go over the rows once).
"""

from __future__ import annotations

from dataclasses import replace

from raysim.errors import ScenarioError
from raysim.perf.optimizer import SPARSE, SparsePart, optimizer_key
from raysim.training.engines.context import EngineContext
from raysim.training.layers.sections import Gradient, Unit
from raysim.training.states.zero import optimizer_state_bytes


def tables(c: EngineContext) -> list[Gradient]:
    """What they are on this rank."""
    return [g for u in c.units for g in u.gradients if g.rows]


def states(c: EngineContext, width: int) -> tuple[int, ...]:
    """Bytes of the optimizer states of all tables, one by one."""
    o = c.plan.optimizer
    each = optimizer_state_bytes(replace(o, type=o.sparse or o.type))
    count = round(each / 4)
    return tuple(g.size_bytes(width) for g in tables(c) for _ in range(count))


def grow(c: EngineContext, unit: Unit, width: int) -> None:
    """A further micro-batch's rows."""
    more = [g.gradient_bytes(width) for g in unit.gradients if g.rows]
    c.builder.alloc("gradient", sum(more), f"rows of {unit.name}", tensors=more)


def step(c: EngineContext, width: int) -> None:
    """The optimizer's kernels, table by table.

    Raises
    ------
    ScenarioError
        It is not known to take sparse gradients.
    """
    o, b = c.plan.optimizer, c.builder
    name = o.sparse or o.type
    b.make_states()
    for table in tables(c):
        own = SPARSE.get(optimizer_key(name, momentum=o.momentum))
        if own is None:
            raise ScenarioError(
                f"{name} of sparse gradients is not modelled; SparseAdam, Adagrad and SGD without "
                "momentum are"
            )
        size = table.rows * table.row_numel * width * c.plan.gradient_accumulation_steps
        b.alloc("temporary", own.held * size, f"rows of {table.name}", tensors=[size] * own.held)
        first, rest = own.start, own.rest
        if first is not None:
            b.sync(f"rows of {table.name}", (_run(c, f"coalesce {table.name}", first, size),))
        _run(c, f"{name} of {table.name}", rest, size)
        b.free("temporary", own.held * size, f"rows of {table.name}")


def _run(c: EngineContext, name: str, part: SparsePart, size: int) -> int:
    host = c.costs.host
    host_s = host.forward_s(part.operators, part.kernels)
    seconds = c.costs.memory_s(part.passes * size, kernels=part.kernels)
    return c.builder.compute(name, "optimizer", seconds, host_s=host_s)
