"""Qwen3-Next and Qwen3.5: three layers in four of a gated delta rule, the fourth of attention.

``transformers/models/{qwen3_next,qwen3_5,qwen3_5_moe}``. Attention's queries come with a gate on
its output, and a quarter of each head is rotated; norms multiply by ``1 + weight``. Feed-forwards
are gated units or experts beside a shared one with a gate. The multimodal Qwen3.5 is its text model
(``text_config``) with the parameters of its vision tower.

The head that predicts a second token (``mtp_num_hidden_layers``) is in the checkpoints and not in
these classes: ``from_pretrained`` ignores it, and so it is not built. What runs in place of
transformers' loop over chunks, and that none of it was timed, is said in ``models.mixers``.
"""

from __future__ import annotations

from dataclasses import replace

from raysim.models.config import Reader
from raysim.models.families.llama import Decoder, Sparse, build_decoder, read_decoder, rotated
from raysim.models.families.mixture import chosen, pattern
from raysim.models.families.qwen_vl import multimodal
from raysim.models.feedforward import Experts
from raysim.models.mixers import DeltaNet
from raysim.models.request import Request
from raysim.models.table import Model

LINEAR = "linear_attention"
LAYER_TYPES = ("full_attention", LINEAR)
ROTATED_SHARE = 0.25


def _read(r: Reader, cls: str, defaults: dict[str, int]) -> Decoder:
    """The keys of all three; feed-forwards are dense."""
    bias = r.flag("attention_bias", default=False)
    d = read_decoder(
        r, cls, _COMMON | defaults, style="gemma", qk_norm=True, qkv_bias=bias, o_bias=bias,
        output_gate=True,
    )  # fmt: skip
    key_heads = r.integer("linear_num_key_heads", default=16)
    value_heads = r.integer("linear_num_value_heads", default=32)
    r.divides("linear_num_key_heads", key_heads, "linear_num_value_heads", value_heads)
    delta = DeltaNet(
        cls=cls, key_heads=key_heads, value_heads=value_heads,
        key_dim=r.integer("linear_key_head_dim", default=128),
        value_dim=r.integer("linear_value_head_dim", default=128),
        taps=r.integer("linear_conv_kernel_dim", default=4), fused=cls == "Qwen3Next",
    )  # fmt: skip
    types = r.texts("layer_types", length=d.layers, among=LAYER_TYPES)
    every = r.integer("full_attention_interval", default=4)
    linear = [t == LINEAR for t in types] if types else [(i + 1) % every for i in range(d.layers)]
    return replace(
        d,
        rotary_dim=rotated(r, d.head_dim, ROTATED_SHARE),
        mixers=tuple(delta if is_ else None for is_ in linear),
    )


def _experts(r: Reader, d: Decoder, experts: int, each: int, *, normalised: bool) -> Sparse:
    count = r.integer("num_experts", default=experts)
    spec = Experts(
        experts=count, per_token=chosen(r, count, each), act=d.act, cls=d.cls,
        width=r.integer("moe_intermediate_size", default=512), weights_fp32=False,
        router="normalised" if normalised else "softmax",
    )  # fmt: skip
    shared = r.integer("shared_expert_intermediate_size", default=512)
    return Sparse(spec=spec, shared_width=shared, shared_gate=True)


_COMMON = {
    "vocab_size": 248320, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 48,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "max_position_embeddings": 32768,
}  # fmt: skip
_DENSE = {
    "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
    "num_key_value_heads": 4,
}  # fmt: skip


def qwen3_next(request: Request, r: Reader) -> Model:
    """``Qwen3NextConfig``."""
    d = _read(r, "Qwen3Next", {"vocab_size": 151936})
    normalised = r.flag("norm_topk_prob", default=True)
    sparse = _experts(r, d, 512, 10, normalised=normalised)
    return build_decoder(request, r, r, replace(d, sparse=pattern(r, d.layers, sparse)))


def _dense(r: Reader) -> Decoder:
    return _read(r, "Qwen3_5", _DENSE)


def _mixture(r: Reader) -> Decoder:
    d = _read(r, "Qwen3_5Moe", {"num_hidden_layers": 40})
    return replace(d, sparse=(_experts(r, d, 256, 8, normalised=True),) * d.layers)


def qwen3_5_text(request: Request, r: Reader) -> Model:
    """``Qwen3_5TextConfig``."""
    return build_decoder(request, r, r, _dense(r))


def qwen3_5_moe_text(request: Request, r: Reader) -> Model:
    """``Qwen3_5MoeTextConfig``."""
    return build_decoder(request, r, r, _mixture(r))


def qwen3_5(request: Request, r: Reader) -> Model:
    """``Qwen3_5Config``: text and vision; ``Qwen3_5ForCausalLM`` takes the text alone."""
    text = r.language()
    return multimodal(request, r, text, _dense(text), "Qwen3_5")


def qwen3_5_moe(request: Request, r: Reader) -> Model:
    """``Qwen3_5MoeConfig``: text and vision; ``Qwen3_5MoeForCausalLM`` takes the text alone."""
    text = r.language()
    return multimodal(request, r, text, _mixture(text), "Qwen3_5Moe")
