"""RMSNorm in one kernel, in a table of transformers' modules: flash-attn's, Transformer Engine's.

It keeps its input and a root per row; backward is two kernels.
"""

from __future__ import annotations

from dataclasses import replace

from raysim.models.table import Body, Module, Operator, Saved


def with_fused_norms(body: Body) -> Body:
    """The layer with every norm so."""
    return replace(body, modules=tuple(map(fused_norm, body.modules)))


def fused_norm(module: Module) -> Module:
    """The module, whose operators are a norm or none is one."""
    if not any(o.kind == "norm" for o in module.operators):
        return module
    return replace(module, operators=tuple(map(_fused, module.operators)))


def _fused(o: Operator) -> Operator:
    (x, *_), rstd = o.reads, next(s for s in o.saves if s.name.endswith(".rstd"))
    kept = Saved(name=x.name, numel=x.numel)
    return replace(
        o, moved=2.0 * o.output, moved_backward=5.0 * o.output, indexed=0.0, indexed_backward=0.0,
        kernels=1, kernels_backward=2, dispatches=1, saves=(kept, rstd),
    )  # fmt: skip
