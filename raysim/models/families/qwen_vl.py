"""Qwen2-VL, 2.5 and 3: Qwen's decoders beside a vision tower that text leaves idle.

``transformers/models/{qwen2_vl,qwen2_5_vl,qwen3_vl,qwen3_vl_moe}``. Qwen3's tower hands features of
several of its layers to the first layers of text, each through a merger of its own; text alone gets
none. Qwen2's configurations, as published, have the keys of text outside of ``text_config``.
"""

from __future__ import annotations

from dataclasses import replace

from raysim.models.config import Reader
from raysim.models.families.llama import (
    QWEN,
    Decoder,
    Sparse,
    build_decoder,
    qwen_windows,
    read_decoder,
)
from raysim.models.families.mixture import chosen, pattern
from raysim.models.families.vision import qwen2_5_vision, qwen2_vision, qwen_vision
from raysim.models.feedforward import Experts
from raysim.models.request import Request
from raysim.models.table import Layer, Model

_LARGE = {
    "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 32768,
}  # fmt: skip
"""Of ``Qwen2VLTextConfig`` and ``Qwen2_5_VLTextConfig``."""
DEEPSTACK = (8, 16, 24)
"""Layers of the tower whose features text gets besides, where the config lists none."""
POSITIONS = 128000


def multimodal(
    request: Request,
    r: Reader,
    text: Reader,
    d: Decoder,
    cls: str,
    *,
    deepstack: tuple[int, ...] = (),
) -> Model:
    """A text model inside one of text and images; ``...ForCausalLM`` takes the text alone."""
    if request.head == "ForCausalLM":
        return build_decoder(request, text, text, d)
    # the outer class ties, whatever the text configuration says
    d = replace(d, tied=r.flag("tie_word_embeddings", default=False))
    vision = r.section("vision_config")
    if deepstack:
        deepstack = tuple(vision.integers("deepstack_visual_indexes") or deepstack)
    name = "" if request.head == "Model" else "model."
    tower = qwen_vision(vision, f"{name}visual", cls, deepstack=len(deepstack))
    return build_decoder(request, text, r, d, base="model.language_model", before=tower)


def qwen2_vl(request: Request, r: Reader) -> Model:
    """``Qwen2VLConfig``."""
    name = "visual" if request.head == "Model" else "model.visual"
    return _qwen2(request, r, "Qwen2VL", qwen2_vision(r.section("vision_config"), name))


def qwen2_5_vl(request: Request, r: Reader) -> Model:
    """``Qwen2_5_VLConfig``."""
    name = "visual" if request.head == "Model" else "model.visual"
    return _qwen2(request, r, "Qwen2_5_VL", qwen2_5_vision(r.section("vision_config"), name))


def _qwen2(request: Request, r: Reader, cls: str, tower: list[Layer]) -> Model:
    """Qwen2 with biases on query, key and value; tied if either configuration says so."""
    text = r.section("text_config") if r.has("text_config") else r
    d = read_decoder(
        text, cls, _LARGE, qkv_bias=True,
        tied=any(c.flag("tie_word_embeddings", default=False) for c in (r, text)),
    )  # fmt: skip
    d = replace(d, windows=qwen_windows(text, d.layers, first=80))
    return build_decoder(request, text, r, d, base="model.language_model", before=tower)


def qwen3_vl(request: Request, r: Reader) -> Model:
    """``Qwen3VLConfig``."""
    text = r.language()
    bias = text.flag("attention_bias", default=False)
    d = read_decoder(
        text, "Qwen3VLText", QWEN | {"head_dim": 128, "max_position_embeddings": POSITIONS},
        qk_norm=True, qkv_bias=bias, o_bias=bias,
    )  # fmt: skip
    return multimodal(request, r, text, d, "Qwen3VL", deepstack=DEEPSTACK)


def qwen3_vl_moe(request: Request, r: Reader) -> Model:
    """``Qwen3VLMoeConfig``."""
    text = r.language()
    bias = text.flag("attention_bias", default=False)
    d = read_decoder(
        text, "Qwen3VLMoeText",
        {
            "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632,
            "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16,
            "max_position_embeddings": POSITIONS,
        },
        qk_norm=True, qkv_bias=bias, o_bias=bias,
    )  # fmt: skip
    experts = text.integer("num_experts", "num_local_experts", default=60)
    spec = Experts(
        experts=experts, per_token=chosen(text, experts, 4), act=d.act, cls="Qwen3VLMoeText",
        width=text.integer("moe_intermediate_size", default=1408), weights_fp32=False,
        router="normalised",
    )  # fmt: skip
    d = replace(d, sparse=pattern(text, d.layers, Sparse(spec=spec)))
    return multimodal(request, r, text, d, "Qwen3VLMoe", deepstack=DEEPSTACK)
