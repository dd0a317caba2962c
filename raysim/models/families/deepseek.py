"""DeepSeek V2 and V3: multi-head latent attention, routed and shared experts.

``transformers/models/{deepseek_v2,deepseek_v3}``. Queries (where ``q_lora_rank`` is set) and keys
and values pass through low-rank projections; one rotated key per token is shared by all heads; key
and value heads differ in width. The first layers are dense. Multi-token-prediction layers are not
built (``from_pretrained`` ignores them), and the router's correction bias is a buffer, not a
parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from raysim.models.activations import ACTIVATIONS
from raysim.models.attention import Core, attend
from raysim.models.config import MOST_LAYERS, Reader
from raysim.models.families import megatron_core
from raysim.models.families.gpt import embedding_layer
from raysim.models.families.llama import ALL, gated
from raysim.models.feedforward import Experts, moe
from raysim.models.request import (
    Request,
    assemble,
    block_layer,
    decoder_heads,
    norm_layer,
    prefix,
)
from raysim.models.table import Body, Implementation, Layer, Model
from raysim.models.tape import Tape, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Dimensions of one DeepSeek model."""

    cls: str
    vocab: int
    hidden: int
    width: int
    layers: int
    heads: int
    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    v_dim: int
    bias: bool
    mlp_bias: bool
    """DeepSeek-V2 alone: of dense and shared units."""
    act: str
    dropout: float
    positions: int
    tied: bool
    dense_layers: int
    experts: Experts
    shared_width: int


def _read(r: Reader, cls: str, defaults: dict[str, int], *, grouped: bool) -> Latent:
    """The keys of ``DeepseekV2Config`` and ``DeepseekV3Config``."""

    def integer(key: str, *others: str, least: int = 1, most: int = 2**27) -> int:
        return r.integer(key, *others, default=defaults[key], least=least, most=most)

    act = r.choice("hidden_act", default="silu", among=ACTIVATIONS)
    width = integer("moe_intermediate_size")
    routed = integer("n_routed_experts", "num_experts", "num_local_experts")
    chosen = r.optional_integer("num_experts_per_tok", default=defaults.get("num_experts_per_tok"))
    if chosen is None:
        r.refuse("num_experts_per_tok", "missing; it has no default")
    elif chosen > routed:
        r.refuse("num_experts_per_tok", f"{chosen} of only {routed} experts")
    groups = r.optional_integer("n_group", default=defaults.get("n_group")) or 1
    if grouped:
        r.divides("n_group", groups, "n_routed_experts", routed)
    return Latent(
        cls=cls,
        vocab=integer("vocab_size"),
        hidden=integer("hidden_size"),
        width=integer("intermediate_size"),
        layers=integer("num_hidden_layers", most=MOST_LAYERS),
        heads=integer("num_attention_heads"),
        q_rank=r.optional_integer("q_lora_rank", default=1536),
        kv_rank=integer("kv_lora_rank"),
        nope=integer("qk_nope_head_dim"),
        rope=integer("qk_rope_head_dim"),
        v_dim=integer("v_head_dim"),
        bias=r.flag("attention_bias", default=False),
        mlp_bias=not grouped and r.flag("mlp_bias", default=False),
        act=act,
        dropout=r.probability("attention_dropout"),
        positions=integer("max_position_embeddings"),
        tied=r.flag("tie_word_embeddings", default=False),
        dense_layers=integer("first_k_dense_replace", least=0),
        experts=Experts(
            experts=routed, per_token=chosen or 1, width=width, act=act, cls=cls,
            router="grouped" if grouped else "fp32",
        ),
        shared_width=width * integer("n_shared_experts"),
    )  # fmt: skip


_COMMON = {
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip


def deepseek_v2(request: Request, r: Reader) -> Model:
    """``DeepseekV2Config``."""
    defaults = _COMMON | {
        "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008,
        "moe_intermediate_size": 1407, "num_hidden_layers": 32, "num_attention_heads": 32,
        "n_routed_experts": 64, "n_shared_experts": 2, "first_k_dense_replace": 0,
        "max_position_embeddings": 2048,
    }  # fmt: skip
    return _build(request, r, _read(r, "DeepseekV2", defaults, grouped=False))


def deepseek_v3(request: Request, r: Reader) -> Model:
    """``DeepseekV3Config``."""
    defaults = _COMMON | {
        "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
        "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
        "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8,
        "first_k_dense_replace": 3, "max_position_embeddings": 4096,
    }  # fmt: skip
    return _build(request, r, _read(r, "DeepseekV3", defaults, grouped=True))


def _build(request: Request, r: Reader, d: Latent) -> Model:
    tokens = request.positions(r, d.positions)
    implementation = request.implementation(ALL, r)
    r.check()
    if request.library == "megatron_core":
        return _megatron(request, r, d, tokens)
    name = prefix(request, "model")
    output = float(tokens * d.hidden)
    dense = _layer(d, tokens, implementation, sparse=False)
    sparse = _layer(d, tokens, implementation, sparse=True)
    layers: list[Layer] = [
        embedding_layer(f"{name}embed_tokens", tokens, d.hidden, d.vocab, table="")
    ]
    for i in range(d.layers):
        body = dense if i < d.dense_layers else sparse
        layers.append(block_layer(f"{name}layers.{i}", f"{d.cls}DecoderLayer", body, output))
    layers.append(norm_layer(f"{name}norm", f"{d.cls}RMSNorm", tokens, d.hidden, style="llama"))
    layers += decoder_heads(
        request, r, tokens=tokens, hidden=d.hidden, vocab=d.vocab,
        tied_to=f"{name}embed_tokens.weight" if d.tied else None,
    )  # fmt: skip
    return assemble(
        request, r, layers, seq_len=tokens, hidden=d.hidden, vocab=d.vocab, divisible=_divisible(d)
    )


def _divisible(d: Latent) -> Sequence[tuple[str, int]]:
    return (
        ("num_attention_heads", d.heads),
        ("intermediate_size", d.width),
        ("moe_intermediate_size", d.experts.width),
    )


def _megatron(request: Request, r: Reader, d: Latent, tokens: int) -> Model:
    """The same model of Megatron-core's modules."""
    attention = megatron_core.Latent(
        heads=d.heads, q_rank=d.q_rank, kv_rank=d.kv_rank, nope=d.nope, rope=d.rope, v_dim=d.v_dim
    )
    sparse = megatron_core.Mixture(experts=d.experts, shared_width=d.shared_width)
    return megatron_core.megatron_model(
        request, r,
        [(attention, d.width if i < d.dense_layers else sparse) for i in range(d.layers)],
        tokens=tokens, hidden=d.hidden, vocab=d.vocab, tied=d.tied, divisible=_divisible(d),
    )  # fmt: skip


def _layer(d: Latent, tokens: int, implementation: Implementation, *, sparse: bool) -> Body:
    tape, cls, norm = Tape(), f"{d.cls}DecoderLayer", f"{d.cls}RMSNorm"
    x = Tensor(name="hidden", rows=tokens, width=d.hidden)
    h = tape.rms_norm("input_layernorm", x, cls=norm)
    h = _attention(tape, d, h, implementation)
    x = tape.add("", x, h, cls=cls, operator="attention_residual")
    h = tape.rms_norm("post_attention_layernorm", x, cls=norm)
    if sparse:
        routed = moe(tape, h, d.experts)
        shared = gated(
            tape, "mlp.shared_experts", h, d.shared_width, d.act, cls=f"{d.cls}MLP",
            bias=d.mlp_bias,
        )  # fmt: skip
        h = tape.add("mlp", routed, shared, cls=f"{d.cls}MoE")
    else:
        h = gated(tape, "mlp", h, d.width, d.act, cls=f"{d.cls}MLP", bias=d.mlp_bias)
    tape.add("", x, h, cls=cls, operator="mlp_residual")
    return tape.body()


def _attention(tape: Tape, d: Latent, h: Tensor, implementation: Implementation) -> Tensor:
    """``DeepseekV3Attention.forward``: low-rank queries, compressed keys and values, expanded."""
    name, cls, norm = "self_attn", f"{d.cls}Attention", f"{d.cls}RMSNorm"
    qk = d.nope + d.rope
    if d.q_rank is None:
        q = tape.linear(f"{name}.q_proj", h, d.heads * qk, bias=False, split="column")
    else:
        low = tape.linear(f"{name}.q_a_proj", h, d.q_rank, bias=d.bias)
        low = tape.rms_norm(f"{name}.q_a_layernorm", low, cls=norm)
        q = tape.linear(f"{name}.q_b_proj", low, d.heads * qk, bias=False, split="column")
    both = tape.linear(f"{name}.kv_a_proj_with_mqa", h, d.kv_rank + d.rope, bias=d.bias)
    compressed, rotated = tape.split(name, both, [d.kv_rank, d.rope], cls=cls)
    low = tape.rms_norm(f"{name}.kv_a_layernorm", compressed, cls=norm)
    wide = tape.linear(
        f"{name}.kv_b_proj", low, d.heads * (d.nope + d.v_dim), bias=False, split="column"
    )
    nope, v = tape.split(name, wide, [d.heads * d.nope, d.heads * d.v_dim], cls=cls)
    q, k = _join(tape, d, q, nope, rotated)
    core = Core(
        heads=d.heads, kv_heads=d.heads, head_dim=qk, v_head_dim=d.v_dim,
        implementation=implementation, dropout=d.dropout,
    )  # fmt: skip
    out = attend(tape, name, q, k, v, core, cls=cls)
    return tape.linear(f"{name}.o_proj", out, d.hidden, bias=d.bias, split="row")


def _join(tape: Tape, d: Latent, q: Tensor, nope: Tensor, rotated: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary embedding of the rotated parts, then queries and keys put together in new tensors.

    Interleaved rotation on even and odd halves: four products, two sums, one join.
    """
    name, cls = "self_attn", f"{d.cls}Attention"
    turned_numel = q.rows * d.heads * d.rope
    full = replace(q, name=f"{name}.q", storage=0)
    tape.run(
        name, cls, operator=f"{name}.rotary_q", inputs=(q,), output=full,
        moved=9 * turned_numel + 2 * full.numel, kernels=8,
        moved_backward=16 * turned_numel + 4 * full.numel, kernels_backward=15,
    )  # fmt: skip
    k = replace(full, name=f"{name}.k")
    tape.run(
        name, cls, operator=f"{name}.rotary_k", inputs=(rotated, nope), output=k,
        moved=9 * rotated.numel + 2 * k.numel, kernels=9,
        moved_backward=16 * rotated.numel + 3 * k.numel, kernels_backward=16,
    )  # fmt: skip
    return full, k
