"""Dense decoders that vary Llama's in one place: granite, seed_oss, smollm3, exaone4, olmo2, olmo3.

``transformers/models/{granite,seed_oss,smollm3,exaone4,olmo2,olmo3}``. SmolLM 3 leaves every fourth
layer without rotation, EXAONE 4 those without a window; EXAONE and OLMo norm what a branch gives in
place of what it takes, OLMo queries and keys whole.

Not modelled: what tensor parallelism gathers for norms of whole queries and keys.
"""

from __future__ import annotations

from dataclasses import replace

from raysim.models.config import Reader
from raysim.models.families.llama import Decoder, build_decoder, layer_windows, read_decoder
from raysim.models.request import Request
from raysim.models.table import Model


def granite(request: Request, r: Reader) -> Model:
    """``GraniteConfig``: numbers that multiply, also where they are 1."""
    bias = r.flag("attention_bias", default=False)
    d = read_decoder(
        r,
        "Granite",
        {
            "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
            "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 2048,
        },
        qkv_bias=bias, o_bias=bias, mlp_bias=r.flag("mlp_bias", default=False), scales=True,
    )  # fmt: skip
    return build_decoder(request, r, r, d)


def seed_oss(request: Request, r: Reader) -> Model:
    """``SeedOssConfig``: biases on query, key and value, dropout by default."""
    d = read_decoder(
        r,
        "SeedOss",
        {
            "vocab_size": 155136, "hidden_size": 4096, "intermediate_size": 27648,
            "num_hidden_layers": 64, "num_attention_heads": 80, "num_key_value_heads": 8,
            "head_dim": 128, "max_position_embeddings": 524288,
        },
        qkv_bias=r.flag("attention_bias", default=True),
        o_bias=r.flag("attention_out_bias", default=False),
        mlp_bias=r.flag("mlp_bias", default=False),
        attention_dropout=r.probability("attention_dropout", default=0.1),
        residual_dropout=r.probability("residual_dropout", default=0.1),
    )  # fmt: skip
    return build_decoder(request, r, r, d)


def smollm3(request: Request, r: Reader) -> Model:
    """``SmolLM3Config``: rotated where ``no_rope_layers`` says 1."""
    bias = r.flag("attention_bias", default=False)
    d = read_decoder(
        r,
        "SmolLM3",
        {
            "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008,
            "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
        },
        tied=r.flag("tie_word_embeddings", default=True), qkv_bias=bias, o_bias=bias,
        mlp_bias=r.flag("mlp_bias", default=False),
    )  # fmt: skip
    turns = _turns(r, d.layers)
    window = r.optional_integer("sliding_window")
    windows = layer_windows(r, d.layers, window, lambda i: not turns[i])
    if not r.flag("use_sliding_window", default=False):
        windows = ()
    return build_decoder(request, r, r, replace(d, turns=turns, windows=windows))


def _turns(r: Reader, layers: int) -> tuple[bool, ...]:
    """Whether each layer rotates: as listed, else all but every n-th."""
    listed = r.integers("no_rope_layers")
    if listed is not None and len(listed) < layers:
        r.refuse("no_rope_layers", f"{len(listed)} entries for {layers} layers")
        listed = None
    step = r.integer("no_rope_layer_interval", default=4)
    return tuple(bool(listed[i]) if listed else (i + 1) % step != 0 for i in range(layers))


def exaone4(request: Request, r: Reader) -> Model:
    """``Exaone4Config``: queries and keys normed by head; full layers are not rotated."""
    d = read_decoder(
        r,
        "Exaone4",
        {
            "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 16384,
            "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 2048,
        },
        qk_norm=True, pre_norms=False, post_norms=True,
    )  # fmt: skip
    window = r.optional_integer("sliding_window", default=4096)
    spelt = isinstance(r.values.get("sliding_window_pattern"), str)  # LLLG: layer_types say it
    step = 4 if spelt or window is None else r.integer("sliding_window_pattern", default=4)
    windows = layer_windows(r, d.layers, window, lambda i: (i + 1) % step != 0)
    turns = tuple(w is not None for w in windows) if window is not None else ()
    return build_decoder(request, r, r, replace(d, windows=windows, turns=turns))


def olmo2(request: Request, r: Reader) -> Model:
    """``Olmo2Config``."""
    return build_decoder(request, r, r, _olmo(r, "Olmo2"))


def olmo3(request: Request, r: Reader) -> Model:
    """``Olmo3Config``: three windowed layers, then a full one."""
    d = _olmo(r, "Olmo3")
    window = r.optional_integer("sliding_window", default=4096)
    windows = layer_windows(r, d.layers, window, lambda i: (i + 1) % 4 != 0)
    return build_decoder(request, r, r, replace(d, windows=windows))


def _olmo(r: Reader, cls: str) -> Decoder:
    bias = r.flag("attention_bias", default=False)
    return read_decoder(
        r,
        cls,
        {
            "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008,
            "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 2048,
        },
        style="olmo", qkv_bias=bias, o_bias=bias, qk_norm=True, norms_whole=True, pre_norms=False,
        post_norms=True,
    )  # fmt: skip
