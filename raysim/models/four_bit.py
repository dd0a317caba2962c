"""A layer table whose linear layers have 4-bit weights, as bitsandbytes keeps them for QLoRA.

A weight is made 16-bit again by a kernel of its own before each product that reads it, forward and
backward (``functional.dequantize_4bit`` in ``autograd/_functions.py``, ``MatMul4Bit``); that copy
lives as long as the product. Blocks of 64 weights share a scale in fp32, or, quantised twice, in 8
bits with one in fp32 per 256 blocks. Before bitsandbytes 0.44 (its pull request 1270) the product's
input was kept for a gradient of the weight that nobody asks for: ``keeps_inputs``. Its scales are
no part of the parameter (``quant_state``), so that FSDP does not shard them; torchao's are:
``shards_scales``.

Simplified: the kernel runs at the bandwidth of others. Not modelled: products of one row, which
read the 4 bits themselves; 8-bit weights; ``prepare_model_for_kbit_training``, which makes norms,
embedding and head fp32.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from raysim.models.lora import product_of
from raysim.models.table import Body, Layer, Model, Module, Operator, Saved

BLOCK, SUPER_BLOCK = 64, 256
WEIGHT_BYTES, WIDE_BYTES = 0.5, 2.0


def stored_bytes(*, double: bool) -> float:
    """Of one weight, scales included."""
    scale = (1.0 + 4.0 / SUPER_BLOCK) if double else 4.0
    return WEIGHT_BYTES + scale / BLOCK


def in_four_bits(
    model: Model,
    *,
    double: bool,
    skipped: tuple[str, ...] = (),
    chosen: Collection[str] | None = None,
    keeps_inputs: bool = False,
    shards_scales: bool = False,
) -> Model:
    """The model with linear layers in 4 bits.

    All but heads; if given, all but those ``skipped``, or those whose weights are ``chosen``.
    """
    each = stored_bytes(double=double)
    whole = 0.0 if shards_scales else each - WEIGHT_BYTES

    def stays(layer: Layer) -> tuple[bool, ...]:
        if chosen is None:
            return tuple(_stays(layer, m, skipped) for m in layer.body.modules)
        return tuple(
            all(layer.full(p.name) not in chosen for p in m.parameters) for m in layer.body.modules
        )

    def change(layer: Layer) -> Body:
        pairs = zip(layer.body.modules, stays(layer), strict=True)
        modules = tuple(
            m if stay else _module(m, each, whole, keeps_inputs=keeps_inputs) for m, stay in pairs
        )
        return replace(layer.body, modules=modules)

    return model.with_layers(stays, change)


def _stays(layer: Layer, module: Module, skipped: tuple[str, ...]) -> bool:
    name = layer.full(module.name)
    return any(s in name for s in skipped) if skipped else layer.kind == "head"


def _module(module: Module, each: float, scales: float, *, keeps_inputs: bool) -> Module:
    o = product_of(module)
    if o is None or o.gemm is None:
        return module
    numel = float(o.gemm.n) * o.gemm.k
    moved = numel * (each + WIDE_BYTES) / WIDE_BYTES
    whole = Saved(name=f"{o.name}.dequantized", numel=numel, fixed=True)
    dequantize = Operator(
        name=f"{o.name}.dequantize", kind="other", moved_backward=0.0, moved_fixed=moved,
        moved_fixed_backward=moved, kernels_backward=1,
    )  # fmt: skip
    kept = o.saves[:1] if keeps_inputs else ()
    saves = (*o.saves[:1], *kept, *o.saves[1:])  # what the weight's gradient needs goes with that
    product = replace(o, scratch=(whole,), scratch_backward=(whole,), saves=saves)
    return replace(
        module,
        operators=tuple(
            x for each_o in module.operators
            for x in ((dequantize, product) if each_o is o else (each_o,))
        ),
        parameters=tuple(
            replace(p, stored_bytes=each, whole_bytes=scales) if len(p.shape) > 1 else p
            for p in module.parameters
        ),
    )  # fmt: skip
