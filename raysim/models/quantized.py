"""A layer table whose products run in fp8: operands are cast, copies of them are kept.

``quantized`` rewrites a model's layers: products of the chosen linears read fp8, casts become
operators of their own before them (the output's gradient is cast in the backward of one of them),
and what a product keeps for its weight gradient becomes what the library keeps. What each of that
costs is a ``Casts``, made by ``raysim.training.settings.fp8`` from library, recipe and GPU.
Everything between the products stays in 16 bits, attention's core, router, embedding and loss too.

Where a norm and the projection behind it are one module, the norm is fused with the cast.
Simplified: casts around experts are divided over tensor-parallel ranks on either side.
Not modelled: fp8 copies that die within a product, products too small or unaligned for fp8 that a
library pads, quantised attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from raysim.models.table import (
    Body,
    Fp8Operands,
    Layer,
    Model,
    Module,
    Operator,
    Saved,
)

ALIGNMENT = 16
"""What both sides of a weight must be multiples of (``assert_dim_for_fp8_exec``; torchao's and
Accelerate's filters)."""
Choice = Callable[[Layer, Module, Operator], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Kernels over one tensor."""

    moved_bytes: float = 0.0
    """Read and written per element."""
    kernels: int = 0

    def over(self, ranks: int) -> Cast:
        """Of what so many ranks hold, each a part."""
        return Cast(moved_bytes=ranks * self.moved_bytes, kernels=self.kernels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Casts:
    """What one library and recipe do around a product, per element of the 16-bit tensor."""

    input: Cast
    """Forward, of an input made elsewhere."""
    normed: Cast
    """Forward, of one that a norm in the same module makes: beyond a norm that writes 16 bits."""
    gradient: Cast
    """Of the output's gradient."""
    kept_bytes: float | None
    """Of the quantised input, until its weight gradient is made; None: the 16-bit input is kept
    instead."""
    again: Cast
    """Backward, of an input kept in 16 bits."""
    keeps_core_output: bool = False
    """An input that attention's core keeps anyway is kept in 16 bits, whatever ``kept_bytes``."""
    column_input: Cast | None = None
    """Of a column-parallel product; None: as any."""
    column_again: Cast | None = None
    """Backward, of the same input, gathered again or kept whole; None: as any."""
    row_gradient: Cast | None = None
    """Of a row-parallel product, whose gradient is gathered; None: as any."""
    wire_bytes: float = 1.0
    """Of a quantised input on its way to tensor-parallel peers."""
    gradient_wire_bytes: float = 1.0
    reduces_amax: bool = False
    weight: Cast = Cast()
    """Of weights, in every forward."""
    weight_again: Cast = Cast()
    """The same in every backward."""
    weight_kept_bytes: float = 0.0
    """Of quantised weights, between a forward and its backward."""


def quantized(model: Model, casts: Casts, chosen: Choice) -> Model:
    """The model with the products of all ``chosen`` operators in fp8."""

    def names(layer: Layer) -> frozenset[str]:
        return frozenset(
            o.name
            for m in layer.body.modules
            for o in m.operators
            if _fits(o) and chosen(layer, m, o)
        )

    def change(layer: Layer) -> Body:
        found = names(layer)
        return _body(layer.body, found, casts) if found else layer.body

    return model.with_layers(names, change)


def _fits(o: Operator) -> bool:
    """A product of a linear with aligned sides."""
    if o.gemm is None or o.attention is not None or o.kind != "gemm":
        return False
    return o.gemm.n % ALIGNMENT == 0 and o.gemm.k % ALIGNMENT == 0


def _body(body: Body, names: frozenset[str], casts: Casts) -> Body:
    cores = {s.name for o in body.operators if o.attention is not None for s in o.saves}
    return replace(body, modules=tuple(_module(m, names, casts, cores) for m in body.modules))


def _module(module: Module, names: frozenset[str], casts: Casts, cores: set[str]) -> Module:
    found: list[Operator] = []
    made = False
    for o in module.operators:
        if o.name in names:
            made = True
            fused = any(before.kind == "norm" for before in found)
            found += _product(o, casts, fused=fused, core=o.saves[0].name in cores)
        else:
            found.append(o)
    if not made:
        return module
    parameters = (replace(p, fp8=len(p.shape) > 1) for p in module.parameters)
    return replace(module, operators=tuple(found), parameters=tuple(parameters))


def _product(o: Operator, casts: Casts, *, fused: bool, core: bool) -> list[Operator]:
    """The casts around a product, and the product on fp8."""
    assert o.gemm is not None
    source = o.saves[0]
    numel, outputs = o.gemm.rows * o.gemm.k, o.output
    kept_bytes = None if core and casts.keeps_core_output else casts.kept_bytes
    column = o.split in ("column", "vocab")
    again = casts.again if kept_bytes is None else Cast()
    if column and casts.column_again:
        again = casts.column_again
    entry = casts.column_input if column and casts.column_input else casts.input
    back = casts.row_gradient if o.split == "row" and casts.row_gradient else casts.gradient
    before = [
        _cast(o, "input", casts.normed if fused else entry, again, numel, o.split == "row"),
        _cast(o, "gradient", Cast(), back, outputs, column, out=True),
    ]
    saves = o.saves
    weights = float(o.gemm.n) * o.gemm.k * o.gemm.groups
    if casts.weight.kernels or casts.weight_again.kernels:
        kept = Saved(
            name=f"{o.name}.weight.fp8", numel=weights * casts.weight_kept_bytes, dtype="fp8",
            sharded=o.split != "none", fixed=True,
        )  # fmt: skip
        before.append(
            Operator(
                name=f"{o.name}.cast_weight",
                kind="other",
                moved_backward=0.0,
                moved_fixed=weights * casts.weight.moved_bytes / 2,
                moved_fixed_backward=weights * casts.weight_again.moved_bytes / 2,
                kernels=casts.weight.kernels,
                kernels_backward=casts.weight_again.kernels,
                saves=(kept,) if kept.numel else (),
                split="heads" if o.split != "none" else "none",
            )
        )
    if kept_bytes is not None:
        own = numel * kept_bytes if source.numel else 0.0  # 0: another layer keeps the input
        saves = (replace(source, name=f"{o.name}.fp8", numel=own, dtype="fp8"), *saves[1:])
    operands = Fp8Operands(
        source=source.name, input_bytes=casts.wire_bytes,
        gradient_bytes=casts.gradient_wire_bytes, reduces_amax=casts.reduces_amax,
    )  # fmt: skip
    casting = [c for c in before if c.moved or c.moved_backward or c.saves or c.kernels_backward]
    return [*casting, replace(o, fp8=operands, saves=saves)]


def _cast(
    o: Operator,
    what: str,
    forward: Cast,
    backward: Cast,
    numel: float,
    divided: bool,
    *,
    out: bool = False,
) -> Operator:
    """Kernels over one tensor, ``divided`` over tensor-parallel ranks or whole on each."""
    return Operator(
        name=f"{o.name}.cast_{what}",
        kind="other",  # opaque to torch.compile, or counted as it fuses them
        moved=numel * forward.moved_bytes / 2,
        moved_backward=numel * backward.moved_bytes / 2,
        kernels=forward.kernels,
        kernels_backward=backward.kernels,
        output=0.0 if out else numel / 2,
        split="heads" if divided or o.split == "expert" else "none",
    )
