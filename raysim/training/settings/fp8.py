"""fp8 training: what Transformer Engine and torchao do around a product, by recipe and GPU.

Transformer Engine casts operands in kernels of its own: one per tensor writes the copy that forward
or the input gradient reads and, where tensor cores take operands in one layout only (before
Blackwell), its transpose for the weight gradient; under block scales both copies, each with its
scales, on any GPU. It keeps the copy that the weight gradient reads. torchao keeps the 16-bit input
and casts it again in backward. Sources: ``transformer_engine/pytorch/module/linear.py``,
``layernorm_linear.py``, ``csrc/quantizer.cpp``, ``csrc/extensions/normalization.cpp``,
``tensor/float8_tensor.py``; ``torchao/float8/float8_linear.py``, ``fsdp_utils.py``; Megatron-LM's
``core/transformer/attention.py`` (``set_save_original_input``).

Formats (e4m3, hybrid) and the length of the amax history change neither time nor memory.
Not modelled: amax buffers, swizzling of scales, fp8 attention, quantised token exchange.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from raysim.models.quantized import Cast, Casts, Choice, quantized
from raysim.models.table import Layer, Model, Module, Operator

Recipe = Literal["delayed", "tensorwise", "mxfp8", "blockwise", "rowwise"]
Library = Literal["transformer_engine", "torchao"]
Linears = Literal["blocks", "all", "all_but_first_and_last"]

RECIPES: dict[str, tuple[Recipe, ...]] = {
    "transformer_engine": ("delayed", "tensorwise", "mxfp8", "blockwise"),
    "torchao": ("tensorwise", "rowwise"),
}
"""Of each library, its default first."""
BLOCK_SCALED = ("mxfp8", "blockwise")
SCALE_BYTES = {"mxfp8": 1 / 32, "blockwise": 4 / 128}
"""Per element: one E8M0 byte for 32 elements, one fp32 for 128 of a row or column."""
WEIGHT_SCALE_BYTES = {"mxfp8": 1 / 32, "blockwise": 4 / 128**2}
BOTH_LAYOUTS = "blackwell"
"""Architecture whose fp8 tensor cores read operands in any layout: no transposes
(``is_non_tn_fp8_gemm_supported``)."""
ARCHITECTURES = {
    "delayed": ("ada", "hopper", "blackwell"),
    "tensorwise": ("ada", "hopper", "blackwell"),
    "rowwise": ("hopper", "blackwell"),
    "blockwise": ("hopper", "blackwell"),
    "mxfp8": ("blackwell",),
}
"""GPUs a recipe runs on (``check_fp8_support``, ``check_mxfp8_support``,
``check_fp8_block_scaling_support``; torch's row-wise ``_scaled_mm``)."""
_EAGER_BYTES, _EAGER_KERNELS = 33.0, 6
"""torchao without a compiler, per element: abs, max, to fp32, scale, clamp and cast, each a kernel
(``hp_tensor_to_float8_dynamic``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Settings:
    """What of a training program runs in fp8, and how."""

    library: Library = "transformer_engine"
    recipe: Recipe = "delayed"
    linears: Linears = "blocks"
    """Of the blocks; every ``torch.nn.Linear``; or all of these but the first and the last."""
    classes: tuple[str, ...] = ("Linear",)
    """Classes of modules that are converted; () is all but routers."""
    bf16_first: int = 0
    """Blocks at the model's start that stay in 16 bits."""
    bf16_last: int = 0
    caches_weights: bool = False
    """Quantised weights are kept from a step's first micro-batch on (``is_first_microbatch``)."""
    keeps_core_output: bool = False
    """The projection behind attention's core keeps no copy of what the core keeps anyway."""
    primary_weights: bool = False
    """The model's own weights are fp8, and gathered so (``--fp8-param-gather``)."""
    reuses_gradient_buffer: bool = False
    """Weights of mxfp8 are gathered in 16 bits through the gradient buffer
    (``--reuse-grad-buf-for-mxfp8-param-ag``), else through a buffer of their own."""
    float8_all_gather: bool = False
    """FSDP2 gathers weights in fp8 (``enable_fsdp_float8_all_gather``)."""
    precomputes_scales: bool = False
    """After a step all weights' scales are agreed on at once
    (``precompute_float8_dynamic_scale_for_fsdp``), else each before its all-gather."""

    def transposes(self, architecture: str) -> bool:
        """Whether every operand exists in both layouts."""
        return self.recipe in BLOCK_SCALED or architecture != BOTH_LAYOUTS

    def weight_copies(self, architecture: str) -> float:
        """Bytes per element of a quantised weight in every layout that products read."""
        each = 1.0 + WEIGHT_SCALE_BYTES.get(self.recipe, 0.0)
        return each * (2 if self.transposes(architecture) else 1)

    def weight_cast(self, architecture: str) -> Cast:
        """Of a 16-bit weight into its copies."""
        amax = self.recipe in ("tensorwise", "rowwise")
        moved = (4.0 if amax else 2.0) + self.weight_copies(architecture)
        return Cast(moved_bytes=moved, kernels=2 if amax else 1)


def quantized_model(
    model: Model,
    settings: Fp8Settings | None,
    architecture: str,
    *,
    fsdp_version: int = 0,
    gathered: int = 1,
    compiled: bool = False,
) -> Model:
    """The model as its products run.

    Parameters
    ----------
    settings
        None: in 16 bits, and the model is the same object.
    architecture
        Of the GPU.
    fsdp_version
        0 without FSDP.
    gathered
        Tensor-parallel ranks that hold parts of the sequence.
    compiled
        By ``torch.compile``.
    """
    if settings is None:
        return model
    if settings.library == "torchao":
        casts = _torchao(settings, gathered, compiled=compiled)
    else:
        casts = _transformer_engine(settings, architecture, fsdp_version, gathered)
    return quantized(model, casts, _choice(model, settings))


def _choice(model: Model, settings: Fp8Settings) -> Choice:
    """Which products the library takes over."""
    blocks = [layer.name for layer in model.layers if layer.kind == "block"]
    plain = {*blocks[: settings.bf16_first], *blocks[len(blocks) - settings.bf16_last :]}
    linears = [
        (layer.name, m.name)
        for layer in model.layers
        for m in layer.body.modules
        if _converted(m, settings)
    ]
    ends = {linears[0], linears[-1]} if settings.linears == "all_but_first_and_last" else set()

    def chosen(layer: Layer, module: Module, o: Operator) -> bool:
        if layer.kind != "block" and settings.linears == "blocks":
            return False
        if layer.name in plain or (layer.name, module.name) in ends:
            return False
        return _converted(module, settings) and o.gemm is not None

    return chosen


def _converted(module: Module, settings: Fp8Settings) -> bool:
    if not any(o.gemm is not None and o.attention is None for o in module.operators):
        return False
    return module.cls in settings.classes if settings.classes else module.cls != "TopKRouter"


def _transformer_engine(
    s: Fp8Settings, architecture: str, fsdp_version: int, gathered: int
) -> Casts:
    each = 1.0 + SCALE_BYTES.get(s.recipe, 0.0)
    both = s.transposes(architecture)
    amax = s.recipe == "tensorwise"
    one = Cast(moved_bytes=2.0 + each + 2.0 * amax, kernels=1 + amax)
    cast = replace(one, moved_bytes=one.moved_bytes + each * both)
    normed = Cast(moved_bytes=2.0 + each * (1 + both), kernels=1)  # with its amax, if there is one
    if s.recipe == "delayed":  # the norm writes fp8 itself, and a kernel transposes that
        normed = Cast(moved_bytes=1.0 if both else -1.0, kernels=int(both))
    made = Casts(
        input=cast,
        normed=normed,
        gradient=cast,
        kept_bytes=each,
        again=one,
        keeps_core_output=s.keeps_core_output and s.recipe != "delayed",
        wire_bytes=each,
        gradient_wire_bytes=2 * each if s.recipe in BLOCK_SCALED else each,
        reduces_amax=amax,
    )
    if gathered > 1 and s.recipe not in BLOCK_SCALED and both:
        # Peers gather one layout and each transposes the whole.
        whole = Cast(moved_bytes=2.0, kernels=1).over(gathered)
        moved = one.moved_bytes + whole.moved_bytes
        made = replace(
            made,
            column_input=one,
            column_again=whole,
            row_gradient=Cast(moved_bytes=moved, kernels=one.kernels + 1),
            normed=Cast(moved_bytes=-1.0 if s.recipe == "delayed" else 3.0, kernels=int(amax)),
        )
    if s.caches_weights or s.primary_weights:
        return made
    copies = s.weight_cast(architecture)
    if fsdp_version == 2:  # backward finds the weight gathered anew, and casts it again
        return replace(made, weight=one, weight_again=copies)
    return replace(made, weight=copies, weight_kept_bytes=s.weight_copies(architecture))


def _torchao(s: Fp8Settings, gathered: int, *, compiled: bool) -> Casts:
    """A gradient is read by two products that want it in two layouts; so is a weight.

    Compiled: one kernel finds the scale of a tensor, one casts it; scales of rows take one.
    Tensor-parallel peers gather fp8 where a tensor has one scale, else 16 bits of which each casts
    the whole, as torchtitan does (``enable_float8_tensorwise_tp`` of its ``parallelize.py``).
    """
    amax = s.recipe == "tensorwise"
    if not compiled:
        one = Cast(moved_bytes=_EAGER_BYTES, kernels=_EAGER_KERNELS)
        gradient = Cast(moved_bytes=2 * _EAGER_BYTES, kernels=2 * _EAGER_KERNELS)
        again = one
    else:
        one = Cast(moved_bytes=5.0 if amax else 3.0, kernels=1 + amax)
        gradient = Cast(moved_bytes=6.0, kernels=2)
        again = Cast(moved_bytes=3.0, kernels=1)  # the scale is forward's
    turned = Cast(moved_bytes=2.0, kernels=1)
    made = Casts(
        input=one,
        normed=one,
        gradient=gradient,
        kept_bytes=None,
        again=again,
        weight=Cast() if s.float8_all_gather else one,
        weight_again=turned if s.float8_all_gather else again,
    )
    if amax:
        return made
    return replace(
        made,
        wire_bytes=2.0,
        gradient_wire_bytes=2.0,
        column_input=one.over(gathered),
        column_again=again.over(gathered),
        row_gradient=gradient.over(gathered),
    )
