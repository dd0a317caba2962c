"""Mixtures of experts of Llama's shape: mixtral, olmoe, minimax_m2, Qwen's, glm4_moe, gpt_oss.

Not modelled of gpt_oss: its Hugging Face modules; in Megatron-core the learned attention sinks and
the bias of the output projection, which are vectors.
"""

from __future__ import annotations

from dataclasses import replace

from raysim.models.config import Reader
from raysim.models.families.llama import (
    QWEN,
    Sparse,
    build_decoder,
    layer_windows,
    read_decoder,
    rotated,
)
from raysim.models.feedforward import Experts
from raysim.models.request import TRACED, Request
from raysim.models.table import Model


def chosen(r: Reader, experts: int, default: int) -> int:
    """``num_experts_per_tok``, at most all of them."""
    chosen = r.integer("num_experts_per_tok", default=min(default, experts))
    if chosen > experts:
        r.refuse("num_experts_per_tok", f"{chosen} of only {experts} experts")
    return chosen


def mixtral(request: Request, r: Reader) -> Model:
    """``MixtralConfig``: every layer routes each token to two of eight experts."""
    d = read_decoder(
        r,
        "Mixtral",
        {
            "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
        },
    )  # fmt: skip
    experts = r.integer("num_local_experts", "num_experts", default=8)
    spec = Experts(
        experts=experts, per_token=chosen(r, experts, 2), width=d.width, act=d.act,
        cls="Mixtral", router="normalised",
    )  # fmt: skip
    window = r.optional_integer("sliding_window")
    d = replace(d, sparse=(Sparse(spec=spec),) * d.layers, windows=(window,) * d.layers)
    return build_decoder(request, r, r, d)


def olmoe(request: Request, r: Reader) -> Model:
    """``OlmoeConfig``: queries and keys normed whole."""
    bias = r.flag("attention_bias", default=False)
    d = read_decoder(
        r,
        "Olmoe",
        {
            "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048,
            "num_hidden_layers": 16, "num_attention_heads": 16, "max_position_embeddings": 4096,
        },
        qkv_bias=bias, o_bias=bias, qk_norm=True, norms_whole=True,
    )  # fmt: skip
    experts = r.integer("num_experts", "num_local_experts", default=64)
    spec = Experts(
        experts=experts, per_token=chosen(r, experts, 8), width=d.width, act=d.act, cls="Olmoe",
        router="normalised" if r.flag("norm_topk_prob", default=False) else "softmax",
        weights_fp32=False,
    )  # fmt: skip
    return build_decoder(request, r, r, replace(d, sparse=(Sparse(spec=spec),) * d.layers))


def minimax_m2(request: Request, r: Reader) -> Model:
    """``MiniMaxM2Config``: queries and keys normed whole, experts weighed by sigmoids."""
    d = read_decoder(
        r,
        "MiniMaxM2",
        {
            "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 1536,
            "num_hidden_layers": 62, "num_attention_heads": 48, "num_key_value_heads": 8,
            "head_dim": 128, "max_position_embeddings": 196608,
        },
        qk_norm=True, norms_whole=True,
    )  # fmt: skip
    # as published: columns, not a share of them
    turned = r.integer("rotary_dim", default=rotated(r, d.head_dim, 1.0))
    experts = r.integer("num_local_experts", "num_experts", default=256)
    spec = Experts(
        experts=experts, per_token=chosen(r, experts, 8), width=d.width, act=d.act,
        cls="MiniMaxM2", router="normalised",
    )  # fmt: skip
    d = replace(d, rotary_dim=turned, sparse=(Sparse(spec=spec),) * d.layers)
    return build_decoder(request, r, r, d)


def pattern(r: Reader, layers: int, sparse: Sparse) -> tuple[Sparse | None, ...]:
    """Qwen's choice of dense layers: ``mlp_only_layers``, and all but every n-th."""
    dense = set(r.integers("mlp_only_layers") or ())
    step = r.integer("decoder_sparse_step", default=1)
    return tuple(None if i in dense or (i + 1) % step else sparse for i in range(layers))


def qwen2_moe(request: Request, r: Reader) -> Model:
    """``Qwen2MoeConfig``: a gated shared expert beside sixty routed ones."""
    d = read_decoder(
        r,
        "Qwen2Moe",
        QWEN | {
            "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
            "num_attention_heads": 16, "num_key_value_heads": 16,
        },
        qkv_bias=r.flag("qkv_bias", default=True),
    )  # fmt: skip
    experts = r.integer("num_experts", default=60)
    spec = Experts(
        experts=experts, per_token=chosen(r, experts, 4), act=d.act, cls="Qwen2Moe",
        width=r.integer("moe_intermediate_size", default=1408), weights_fp32=False,
        router="normalised" if r.flag("norm_topk_prob", default=False) else "softmax",
    )  # fmt: skip
    shared = r.integer("shared_expert_intermediate_size", default=5632)
    sparse = Sparse(spec=spec, shared_width=shared, shared_gate=True)
    first = r.integer("max_window_layers", default=28, least=0)
    # transformers 5 writes a window that is not used as 0
    window = r.optional_integer("sliding_window", default=4096, least=0) or None
    if not r.flag("use_sliding_window", default=False):
        window = None
    windows = layer_windows(r, d.layers, window, lambda i: i % 2 == 0 and i < first)
    d = replace(d, sparse=pattern(r, d.layers, sparse), windows=windows)
    return build_decoder(request, r, r, d)


def qwen3_moe(request: Request, r: Reader) -> Model:
    """``Qwen3MoeConfig``: no shared expert; head_dim defaults to hidden_size / heads."""
    bias = r.flag("attention_bias", default=False)
    d = read_decoder(
        r,
        "Qwen3Moe",
        QWEN | {
            "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
            "num_key_value_heads": 4,
        },
        qkv_bias=bias, o_bias=bias, qk_norm=True,
    )  # fmt: skip
    experts = r.integer("num_experts", "num_local_experts", default=128)
    spec = Experts(
        experts=experts, per_token=chosen(r, experts, 8), act=d.act, cls="Qwen3Moe",
        width=r.integer("moe_intermediate_size", default=768), weights_fp32=False,
        router="normalised" if r.flag("norm_topk_prob", default=False) else "softmax",
    )  # fmt: skip
    window = r.optional_integer("sliding_window", default=4096)
    if not r.flag("use_sliding_window", default=False):
        window = None
    d = replace(d, sparse=pattern(r, d.layers, Sparse(spec=spec)), windows=(window,) * d.layers)
    return build_decoder(request, r, r, d)


def glm4_moe(request: Request, r: Reader) -> Model:
    """``Glm4MoeConfig``: Llama's attention, half of it rotated, before DeepSeek-V3's experts."""
    hidden, heads = (
        r.integer("hidden_size", default=4096),
        r.integer("num_attention_heads", default=96),
    )
    d = read_decoder(
        r, "Glm4Moe",
        {
            "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944,
            "num_hidden_layers": 46, "num_attention_heads": 96, "num_key_value_heads": 8,
            "head_dim": max(1, hidden // heads), "max_position_embeddings": 131072,
        },
        qkv_bias=r.flag("attention_bias", default=False),
        qk_norm=r.flag("use_qk_norm", default=False),
    )  # fmt: skip
    d = replace(d, rotary_dim=rotated(r, d.head_dim, 0.5))
    experts = r.integer("n_routed_experts", "num_local_experts", default=128)
    groups = r.integer("n_group", default=1)
    r.divides("n_group", groups, "n_routed_experts", experts)
    width = r.integer("moe_intermediate_size", default=1408)
    spec = Experts(
        experts=experts, per_token=chosen(r, experts, 8), width=width, act=d.act, cls="Glm4Moe",
        router="grouped",
    )  # fmt: skip
    sparse = Sparse(
        spec=spec, shared_width=width * r.integer("n_shared_experts", default=1),
        shared_name="mlp.shared_experts",
    )  # fmt: skip
    dense = r.integer("first_k_dense_replace", default=1, least=0)
    d = replace(d, sparse=tuple(None if i < dense else sparse for i in range(d.layers)))
    return build_decoder(request, r, r, d)


def gpt_oss(request: Request, r: Reader) -> Model:
    """``GptOssConfig``, in Megatron-core only: every second layer has a sliding window."""
    if request.library != "megatron_core":
        r.refuse("model_type", f"gpt_oss has a table of Megatron-core's modules only; {TRACED}")
        r.check()
    d = read_decoder(
        r,
        "GptOss",
        {
            "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
            "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
            "head_dim": 64, "max_position_embeddings": 131072,
        },
        qkv_bias=True,
    )  # fmt: skip
    experts = r.integer("num_local_experts", "num_experts", default=128)
    spec = Experts(
        experts=experts, per_token=chosen(r, experts, 4), width=d.width, act=d.act, cls="GptOss",
        router="normalised", biased=True,
    )  # fmt: skip
    window = r.optional_integer("sliding_window", default=128)
    windows = layer_windows(r, d.layers, window, lambda i: i % 2 == 0)
    d = replace(d, sparse=(Sparse(spec=spec),) * d.layers, windows=windows)
    return build_decoder(request, r, r, d)
