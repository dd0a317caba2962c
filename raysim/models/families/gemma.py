"""Gemma 1, 2 and 3 (``transformers/models/{gemma,gemma2,gemma3}``).

Embeddings scaled by sqrt(hidden), norms that multiply by ``1 + weight`` in fp32, head_dim apart
from the hidden size, tied embeddings. Gemma 2 caps scores and logits, which sdpa cannot, and so
runs eager; 2 and 3 put a norm after each branch and alternate windowed layers with full ones. The
multimodal Gemma 3 is its text model (``text_config``) with the parameters of its vision tower.
"""

from __future__ import annotations

from dataclasses import replace

from raysim.models.config import Reader
from raysim.models.families.llama import build_decoder, layer_windows, read_decoder
from raysim.models.families.vision import siglip
from raysim.models.request import Request
from raysim.models.table import Implementation, Layer, Model

NO_SDPA: tuple[Implementation, ...] = ("eager", "flash_attention_2")


def gemma(request: Request, r: Reader) -> Model:
    """``GemmaConfig``."""
    bias = r.flag("attention_bias", default=False)
    d = read_decoder(
        r,
        "Gemma",
        {
            "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576,
            "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16,
            "head_dim": 256, "max_position_embeddings": 8192,
        },
        style="gemma", scaled_embedding=True, qkv_bias=bias, o_bias=bias,
    )  # fmt: skip
    return build_decoder(request, r, r, d)


_SMALL = {
    "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 8192,
}  # fmt: skip


def gemma2(request: Request, r: Reader) -> Model:
    """``Gemma2Config``: even layers windowed, scores and logits capped."""
    bias = r.flag("attention_bias", default=False)
    d = read_decoder(
        r, "Gemma2", _SMALL, style="gemma", scaled_embedding=True, qkv_bias=bias, o_bias=bias,
        post_norms=True, supported=NO_SDPA,
        softcap=r.number("attn_logit_softcapping", default=50.0) is not None,
        final_softcap=r.number("final_logit_softcapping", default=30.0) is not None,
    )  # fmt: skip
    window = r.optional_integer("sliding_window", default=4096)
    windows = layer_windows(r, d.layers, window, lambda i: i % 2 == 0)
    return build_decoder(request, r, r, replace(d, windows=windows))


def gemma3_text(request: Request, r: Reader) -> Model:
    """``Gemma3TextConfig``."""
    return _gemma3(request, r, r, base="model", vision=[])


def gemma3(request: Request, r: Reader) -> Model:
    """``Gemma3Config``: text and vision; ``Gemma3ForCausalLM`` takes the text alone."""
    text = r.language()
    if request.head == "ForCausalLM":
        return _gemma3(request, text, r, base="model", vision=[])
    name = "" if request.head == "Model" else "model."
    hidden = text.integer("hidden_size", default=2304)
    vision = siglip(r.section("vision_config"), name, hidden)
    return _gemma3(request, text, r, base="model.language_model", vision=vision)


def _gemma3(request: Request, r: Reader, top: Reader, *, base: str, vision: list[Layer]) -> Model:
    bias = r.flag("attention_bias", default=False)
    d = read_decoder(
        r, "Gemma3", _SMALL | {"vocab_size": 262208, "max_position_embeddings": 131072},
        style="gemma", scaled_embedding=True, qkv_bias=bias, o_bias=bias, qk_norm=True,
        post_norms=True,
        softcap=r.number("attn_logit_softcapping", default=None) is not None,
        final_softcap=r.number("final_logit_softcapping", default=None) is not None,
    )  # fmt: skip
    if r is not top:  # the outer class ties, whatever the text configuration says
        d = replace(d, tied=top.flag("tie_word_embeddings", default=True))
    pattern = r.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
    window = r.optional_integer("sliding_window", default=4096)
    windows = layer_windows(r, d.layers, window, lambda i: (i + 1) % pattern != 0)
    return build_decoder(request, r, top, replace(d, windows=windows), base=base, before=vision)
