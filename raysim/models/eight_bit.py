"""A layer table whose linear layers have 8-bit weights, as bitsandbytes keeps them for LLM.int8().

``MatMul8bitLt`` (``autograd/_functions.py``, bitsandbytes 0.45 on): a kernel quantizes the input's
rows to 8 bits, the product is of integers, another makes its 32-bit sums 16-bit. With a
``threshold`` columns of outliers are looked for first, for whose number the host waits, and go
through a product of their own. Backward makes the weight 16-bit whole again and multiplies by that;
the input is kept all the same. A row of weights shares an fp32 scale.

Simplified: the product of integers takes what the 16-bit one does, though the GPU's peak is twice
as high (assumed: nobody's measurement is at hand); outliers are no columns.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from raysim.models.lora import product_of
from raysim.models.table import Layer, Model, Module, Operator, Saved

WEIGHT_BYTES, SCALE_BYTES = 1.0, 4.0
_NARROW, _SUMS = 0.5, 2.0
"""An 8-bit element and a 32-bit one, in elements of 16 bits."""


def in_eight_bits(model: Model, chosen: Collection[str], *, threshold: float) -> Model:
    """The model with those linear layers in 8 bits whose weights are ``chosen``."""

    def told(layer: Layer) -> tuple[bool, ...]:
        return tuple(
            any(layer.full(p.name) in chosen for p in m.parameters) for m in layer.body.modules
        )

    return model.with_layers(
        told,
        lambda layer: replace(
            layer.body,
            modules=tuple(
                _module(m, outliers=threshold > 0) if eight else m
                for m, eight in zip(layer.body.modules, told(layer), strict=True)
            ),
        ),
    )


def _module(module: Module, *, outliers: bool) -> Module:
    o = product_of(module)
    if o is None or o.gemm is None:
        return module
    numel = float(o.gemm.n) * o.gemm.k
    given, made = o.gemm.rows * o.gemm.k, o.gemm.rows * o.gemm.n
    whole = Saved(name=f"{o.name}.dequantized", numel=numel, fixed=True)
    narrow = Saved(name=f"{o.name}.quantized", numel=given, dtype="bool")  # a byte each
    sums = Saved(name=f"{o.name}.sums", numel=made, dtype="int32")
    # Looks at every element, finds columns, zeroes them.
    look = Operator(
        name=f"{o.name}.outliers", kind="sync", moved=2.0 * given if outliers else 0.0,
        moved_backward=0.0, kernels=5, kernels_backward=0, dispatches=6,
    )  # fmt: skip
    quantize = Operator(
        name=f"{o.name}.quantize", kind="other", moved=given * (1.0 + _NARROW), moved_backward=0.0,
        kernels_backward=0, scratch=(narrow,),
    )  # fmt: skip
    dequantize = Operator(
        name=f"{o.name}.dequantize", kind="other", moved=made * (_SUMS + 1.0), moved_backward=0.0,
        moved_fixed_backward=numel * (_NARROW + 1.0 + 2.0), kernels_backward=2, scratch=(sums,),
    )  # fmt: skip
    product = replace(o, scratch=(sums,), scratch_backward=(whole,))
    around = (*((look,) if outliers else ()), quantize, product, dequantize)
    return replace(
        module,
        operators=tuple(
            x for each in module.operators for x in (around if each is o else (each,))
        ),
        parameters=tuple(
            replace(p, stored_bytes=WEIGHT_BYTES + SCALE_BYTES / o.gemm.k)
            if len(p.shape) > 1 else p
            for p in module.parameters
        ),
    )  # fmt: skip
