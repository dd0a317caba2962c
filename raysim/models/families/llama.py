"""Decoders of Llama's shape: RMSNorm, rotary embedding, grouped queries, gated unit or experts.

``transformers/models/{llama,mistral,mixtral,qwen2,qwen2_moe,qwen3,qwen3_moe,gemma,gemma2,gemma3,phi3}``.
Each family's function reads its keys, with its configuration class's defaults, into one
``Decoder``; the layers are built once per distinct kind and shared. Mixture-of-experts weights are
named and stacked as transformers 5 does (``mlp.experts.gate_up_proj``), the router's auxiliary loss
is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from raysim.models.activations import ACTIVATIONS
from raysim.models.attention import Core, attend, rotary
from raysim.models.config import MOST_LAYERS, Reader
from raysim.models.families.internevo import intern_model
from raysim.models.families.megatron_core import Grouped, Mixture, megatron_model
from raysim.models.families.torchtitan import titan_model
from raysim.models.feedforward import Experts, Names, glu, moe
from raysim.models.mixers import Mixer
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

ALL: tuple[Implementation, ...] = ("eager", "sdpa", "flash_attention_2")
ANSWERS_AS_TRANSFORMER = (
    "llama", "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "seed_oss", "smollm3",
    "exaone4",
)  # fmt: skip
"""Families whose question answering head calls the base model ``transformer``."""
LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparse:
    """The mixture of experts of a layer."""

    spec: Experts
    shared_width: int = 0
    """Width of the shared expert; 0: none."""
    shared_name: str = "mlp.shared_expert"
    shared_gate: bool = False
    """Qwen2-MoE weighs the shared expert by a sigmoid gate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Dimensions and switches of one family at one configuration."""

    cls: str
    vocab: int
    hidden: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    act: str
    positions: int
    tied: bool
    style: Literal["llama", "gemma", "olmo"] = "llama"
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norms_whole: bool = False
    """OLMo's norms of query and key are of all heads at once, not of each."""
    fused: bool = False
    """Phi-3: one projection for q, k, v and one for gate and up."""
    pre_norms: bool = True
    """OLMo 2 and 3 norm what attention and feed-forward give, not what they take."""
    post_norms: bool = False
    """Gemma 2 and 3: a norm after attention and after the feed-forward block too."""
    attention_dropout: float = 0.0
    residual_dropout: float = 0.0
    embedding_dropout: float = 0.0
    softcap: bool = False
    final_softcap: bool = False
    scaled_embedding: bool = False
    scales: bool = False
    """Granite multiplies embeddings and branches by a number, and divides logits by one."""
    causal: bool = True
    windows: tuple[int | None, ...] = ()
    """Per layer; empty: full attention."""
    sparse: tuple[Sparse | None, ...] = ()
    """Per layer; empty: dense."""
    mixers: tuple[Mixer | None, ...] = ()
    """Per layer, what stands in attention's place; empty: attention everywhere."""
    output_gate: bool = False
    """Qwen3-Next: queries are projected with a gate, whose sigmoid scales attention's output."""
    rotary_dim: int | None = None
    """Columns of a head that are rotated; None: all."""
    turns: tuple[bool, ...] = ()
    """Per layer, whether anything is rotated; empty: everywhere."""
    supported: tuple[Implementation, ...] = ALL


def read_decoder(r: Reader, cls: str, defaults: dict[str, int], **switches: object) -> Decoder:
    """The keys all these families share; ``defaults`` are the configuration class's."""
    hidden = r.integer("hidden_size", default=defaults["hidden_size"])
    heads = r.integer("num_attention_heads", default=defaults["num_attention_heads"])
    kv = r.optional_integer("num_key_value_heads", default=defaults.get("num_key_value_heads"))
    head_dim = r.optional_integer("head_dim", default=defaults.get("head_dim"))
    if head_dim is None:
        r.divides("num_attention_heads", heads, "hidden_size", hidden)
        head_dim = max(1, hidden // heads)
    kv = heads if kv is None else kv
    r.divides("num_key_value_heads", kv, "num_attention_heads", heads)
    act_key = "hidden_activation" if cls in ("Gemma2", "Gemma3") else "hidden_act"
    gemma = cls.startswith("Gemma")
    decoder = Decoder(
        cls=cls,
        vocab=r.integer("vocab_size", default=defaults["vocab_size"]),
        hidden=hidden,
        width=r.integer("intermediate_size", default=defaults["intermediate_size"]),
        layers=r.integer(
            "num_hidden_layers", default=defaults["num_hidden_layers"], most=MOST_LAYERS
        ),
        heads=heads,
        kv_heads=kv,
        head_dim=head_dim,
        act=r.choice(act_key, default="gelu_pytorch_tanh" if gemma else "silu", among=ACTIVATIONS),
        positions=r.integer(
            "max_position_embeddings", default=defaults["max_position_embeddings"], most=2**27
        ),
        tied=r.flag("tie_word_embeddings", default=gemma),
        attention_dropout=r.probability("attention_dropout"),
    )
    return replace(decoder, **switches)  # type: ignore[arg-type]


def rotated(r: Reader, head_dim: int, default: float) -> int:
    """Columns of a head that are rotated; transformers 5 has the key in ``rope_parameters``."""
    said = r.section("rope_parameters").number("partial_rotary_factor", default=None)
    share = r.number("partial_rotary_factor", default=default) if said is None else said
    if share is None or not 0 < share <= 1:
        r.refuse("partial_rotary_factor", "expected a share in (0, 1]")
        return head_dim
    return int(head_dim * share)


def layer_body(d: Decoder, index: int, tokens: int, implementation: Implementation) -> Body:
    """One decoder layer, as ``LlamaDecoderLayer.forward`` and its variants run."""
    tape = Tape()
    layer_cls, norm_cls = f"{d.cls}DecoderLayer", f"{d.cls}RMSNorm"
    x = Tensor(name="hidden", rows=tokens, width=d.hidden)
    h = tape.rms_norm("input_layernorm", x, cls=norm_cls, style=d.style) if d.pre_norms else x
    mixer = d.mixers[index] if d.mixers else None
    h = mixer.run(tape, h) if mixer else _attention(tape, d, index, h, implementation)
    if d.post_norms:
        h = tape.rms_norm("post_attention_layernorm", h, cls=norm_cls, style=d.style)
    h = tape.dropout("resid_attn_dropout", h, d.residual_dropout)
    h = tape.scale("self_attn", h, cls=layer_cls) if d.scales else h
    x = tape.add("", x, h, cls=layer_cls, operator="attention_residual")
    before = "pre_feedforward_layernorm" if d.post_norms else "post_attention_layernorm"
    h = tape.rms_norm(before, x, cls=norm_cls, style=d.style) if d.pre_norms else x
    h = _feedforward(tape, d, index, h)
    if d.post_norms:
        h = tape.rms_norm("post_feedforward_layernorm", h, cls=norm_cls, style=d.style)
    h = tape.dropout("resid_mlp_dropout", h, d.residual_dropout)
    h = tape.scale("mlp", h, cls=layer_cls) if d.scales else h
    tape.add("", x, h, cls=layer_cls, operator="mlp_residual")
    return tape.body(built_first=("linear_attn", "self_attn", "mlp"))


def _attention(
    tape: Tape, d: Decoder, index: int, h: Tensor, implementation: Implementation
) -> Tensor:
    name, cls = "self_attn", f"{d.cls}Attention"
    q_width, kv_width = d.heads * d.head_dim, d.kv_heads * d.head_dim
    if d.fused:
        qkv = tape.linear(f"{name}.qkv_proj", h, q_width + 2 * kv_width, bias=False, split="column")
        q, k, v = tape.split(name, qkv, [q_width, kv_width, kv_width], cls=cls)
    else:
        gates = 1 + d.output_gate
        q, k, v = (
            tape.linear(f"{name}.{p}_proj", h, w, bias=d.qkv_bias, split="column")
            for p, w in (("q", gates * q_width), ("k", kv_width), ("v", kv_width))
        )
    gate = None
    if d.output_gate:
        q, gate = tape.split(name, q, [q_width, q_width], cls=cls)
        gate = tape.copy(f"{name}.gate", gate, cls=cls)
    if d.qk_norm:
        norm = f"{d.cls}RMSNorm"
        q, k = (
            tape.rms_norm(
                f"{name}.{p}_norm", t if d.norms_whole else t.regroup(d.head_dim), cls=norm,
                style=d.style,
            )
            for p, t in (("q", q), ("k", k))
        )  # fmt: skip
        q, k = (replace(t, rows=h.rows, width=w) for t, w in ((q, q_width), (k, kv_width)))
    style: Literal["half", "half_cat", "half_fp32"] = "half_cat" if d.fused else "half"
    style = "half_fp32" if d.style == "olmo" else style
    turned = d.rotary_dim or d.head_dim
    if not d.turns or d.turns[index]:
        q, k = rotary(tape, name, [q, k], d.head_dim, turned, cls=cls, style=style)
    window = d.windows[index] if d.windows else None
    core = Core(
        heads=d.heads,
        kv_heads=d.kv_heads,
        head_dim=d.head_dim,
        v_head_dim=d.head_dim,
        implementation=implementation,
        causal=d.causal,
        # A window as long as the sequence is none: transformers then passes no mask.
        window=window if window is not None and window < h.rows else None,
        dropout=d.attention_dropout,
        softcap=d.softcap,
        copies_output=d.fused or turned < d.head_dim,  # joined queries lie head by head
    )
    out = attend(tape, name, q, k, v, core, cls=cls)
    if gate is not None:
        gate = tape.activation(f"{name}.gate", gate, "sigmoid", cls=cls)
        out = tape.multiply(name, out, gate, cls=cls)
    return tape.linear(f"{name}.o_proj", out, d.hidden, bias=d.o_bias, split="row")


def _feedforward(tape: Tape, d: Decoder, index: int, h: Tensor) -> Tensor:
    sparse = d.sparse[index] if d.sparse else None
    if sparse is None:
        return gated(
            tape, "mlp", h, d.width, d.act, cls=f"{d.cls}MLP", bias=d.mlp_bias, fused=d.fused
        )
    if not sparse.shared_width:
        return moe(tape, h, sparse.spec)
    name, cls = sparse.shared_name, f"{d.cls}SparseMoeBlock"
    shared = gated(tape, name, h, sparse.shared_width, d.act, cls=f"{d.cls}MLP")
    routed = moe(tape, h, sparse.spec)
    if sparse.shared_gate:
        gate = tape.linear(f"{name}_gate", h, 1, bias=False)
        gate = tape.activation("mlp.sigmoid", gate, "sigmoid")
        shared = tape.run(
            "mlp", cls, operator="mlp.shared_scale", inputs=(gate, shared),
            output=replace(shared, name="mlp.shared_scaled"), moved=2 * shared.numel,
            moved_backward=5 * shared.numel, kernels_backward=3,
            saves=(gate.saved(), shared.saved()),
        )  # fmt: skip
    return tape.add("mlp", routed, shared, cls=cls)


def gated(
    tape: Tape,
    name: str,
    x: Tensor,
    width: int,
    act: str,
    *,
    cls: str,
    bias: bool = False,
    fused: bool = False,
    act_name: str = "act_fn",
) -> Tensor:
    """``down_proj(act(gate_proj(x)) * up_proj(x))`` under ``name``."""
    names = Names(
        first=f"{name}.gate_up_proj" if fused else f"{name}.up_proj",
        gate=f"{name}.gate_proj",
        second=f"{name}.down_proj",
        act=f"{name}.{'activation_fn' if fused else act_name}",
    )
    return glu(tape, names, x, width, act, cls=cls, bias=bias, fused=fused)


def build_decoder(
    request: Request,
    r: Reader,
    top: Reader,
    d: Decoder,
    *,
    base: str = "model",
    before: Sequence[Layer] = (),
) -> Model:
    """The whole model; ``top`` is the outer config, ``base`` the name its text model goes by.

    ``before``: layers ahead of the embedding that text does not pass through.
    """
    tokens = request.positions(r, d.positions)
    implementation = request.implementation(d.supported, r)
    r.check()
    if request.library == "megatron_core":
        return _megatron(request, top, d, tokens)
    if request.library == "torchtitan":
        return titan_model(
            request, top, tokens=tokens, hidden=d.hidden, width=d.width, layers=d.layers,
            heads=d.heads, kv_heads=d.kv_heads, vocab=d.vocab, divisible=divisible_keys(d),
        )  # fmt: skip
    if request.library == "internevo":
        return intern_model(
            request, top, tokens=tokens, hidden=d.hidden, width=d.width, layers=d.layers,
            heads=d.heads, vocab=d.vocab, divisible=divisible_keys(d),
        )  # fmt: skip
    answering = "transformer" if request.model_type in ANSWERS_AS_TRANSFORMER else ""
    name = prefix(request, base, answering=answering)
    hidden = float(tokens * d.hidden)
    layers = [*before, _embedding(f"{name}embed_tokens", d, tokens)]
    bodies: dict[tuple[int | None, Sparse | None, Mixer | None, bool], Body] = {}
    for i in range(d.layers):
        kind = (
            d.windows[i] if d.windows else None, d.sparse[i] if d.sparse else None,
            d.mixers[i] if d.mixers else None, not d.turns or d.turns[i],
        )  # fmt: skip
        if kind not in bodies:
            bodies[kind] = layer_body(d, i, tokens, implementation)
        layers.append(
            block_layer(f"{name}layers.{i}", f"{d.cls}DecoderLayer", bodies[kind], hidden)
        )
    layers.append(norm_layer(f"{name}norm", f"{d.cls}RMSNorm", tokens, d.hidden, style=d.style))
    layers += decoder_heads(
        request,
        top,
        tokens=tokens,
        hidden=d.hidden,
        vocab=d.vocab,
        tied_to=f"{name}embed_tokens.weight" if d.tied else None,
        softcap=d.final_softcap,
        divided=d.scales,
    )
    return assemble(
        request, top, layers, seq_len=tokens, hidden=d.hidden, vocab=d.vocab,
        divisible=divisible_keys(d),
    )  # fmt: skip


def _megatron(request: Request, r: Reader, d: Decoder, tokens: int) -> Model:
    """The same model of Megatron-core's modules."""
    blocks = []
    for i in range(d.layers):
        sparse = d.sparse[i] if d.sparse else None
        attention = Grouped(
            heads=d.heads, kv_heads=d.kv_heads, head_dim=d.head_dim, qk_norm=d.qk_norm,
            qkv_bias=d.qkv_bias, window=d.windows[i] if d.windows else None,
        )  # fmt: skip
        rest = d.width if sparse is None else Mixture(
            experts=sparse.spec, shared_width=sparse.shared_width
        )  # fmt: skip
        blocks.append((attention, rest))
    return megatron_model(
        request, r, blocks, tokens=tokens, hidden=d.hidden, vocab=d.vocab, tied=d.tied,
        divisible=divisible_keys(d),
    )  # fmt: skip


def divisible_keys(d: Decoder) -> list[tuple[str, int]]:
    """What tensor parallelism divides: heads, and the widths of whatever feed-forwards there are.

    Not the vocabulary, which Megatron pads and DTensor shards unevenly.
    """
    keys = [("num_attention_heads", d.heads), ("num_key_value_heads", d.kv_heads)]
    if not d.sparse or None in d.sparse:
        keys.append(("intermediate_size", d.width))
    for sparse in dict.fromkeys(s for s in d.sparse if s is not None):
        plain = d.cls in ("Mixtral", "Olmoe", "MiniMaxM2")
        own = "intermediate_size" if plain else "moe_intermediate_size"
        keys.append((own, sparse.spec.width))
        if sparse.shared_gate:  # else its width is a multiple of an expert's
            keys.append(("shared_expert_intermediate_size", sparse.shared_width))
    for mixer in dict.fromkeys(m for m in d.mixers if m is not None):
        keys += mixer.divisible
    return keys


def _embedding(name: str, d: Decoder, tokens: int) -> Layer:
    tape = Tape()
    cls = f"{d.cls}TextScaledWordEmbedding" if d.scaled_embedding else "Embedding"
    x = tape.embedding("", tokens, d.hidden, d.vocab, vocab_parallel=True, cls=cls)
    if d.scaled_embedding or d.scales:
        x = tape.scale("", x, cls=cls)
    tape.dropout("dropout", x, d.embedding_dropout)
    return Layer(
        name=name, kind="embedding", cls=cls, body=tape.body(), output=float(tokens * d.hidden)
    )


def llama(request: Request, r: Reader) -> Model:
    """``LlamaConfig``."""
    bias = r.flag("attention_bias", default=False)
    d = read_decoder(
        r,
        "Llama",
        {
            "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
            "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 2048,
        },
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=r.flag("mlp_bias", default=False),
    )  # fmt: skip
    return build_decoder(request, r, r, d)


def layer_windows(
    r: Reader, layers: int, window: int | None, sliding: Callable[[int], bool]
) -> tuple[int | None, ...]:
    """The window of each layer: from ``layer_types``, else where ``sliding(index)`` says."""
    types = r.texts("layer_types", length=layers, among=LAYER_TYPES)
    if types is not None:
        return tuple(None if t == "full_attention" else window for t in types)
    if window is None:
        return ()
    return tuple(window if sliding(i) else None for i in range(layers))


def mistral(request: Request, r: Reader) -> Model:
    """``MistralConfig``: every layer has the sliding window, 4096 unless the config says null."""
    d = read_decoder(
        r,
        "Mistral",
        {
            "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
        },
    )  # fmt: skip
    window = r.optional_integer("sliding_window", default=4096)
    return build_decoder(request, r, r, replace(d, windows=(window,) * d.layers))


def qwen_windows(r: Reader, layers: int, first: int = 28) -> tuple[int | None, ...]:
    """Qwen2 and Qwen3: with ``use_sliding_window``, layers from ``max_window_layers`` on."""
    first = r.integer("max_window_layers", default=first, least=0)
    window = r.optional_integer("sliding_window", default=4096)
    if not r.flag("use_sliding_window", default=False):
        window = None
    return layer_windows(r, layers, window, lambda i: i >= first)


def qwen2(request: Request, r: Reader) -> Model:
    """``Qwen2Config``: biases on query, key and value only."""
    d = read_decoder(r, "Qwen2", QWEN, qkv_bias=True)
    return build_decoder(request, r, r, replace(d, windows=qwen_windows(r, d.layers)))


def qwen3(request: Request, r: Reader) -> Model:
    """``Qwen3Config``: query and key are normalised per head; head_dim is a key of its own."""
    bias = r.flag("attention_bias", default=False)
    d = read_decoder(r, "Qwen3", QWEN | {"head_dim": 128}, qkv_bias=bias, o_bias=bias, qk_norm=True)
    return build_decoder(request, r, r, replace(d, windows=qwen_windows(r, d.layers)))


def phi3(request: Request, r: Reader) -> Model:
    """``Phi3Config``: fused projections, dropout on the residual branches."""
    d = read_decoder(
        r,
        "Phi3",
        {
            "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
            "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 4096,
        },
        fused=True,
        residual_dropout=r.probability("resid_pdrop"),
    )  # fmt: skip
    window = r.optional_integer("sliding_window")
    return build_decoder(request, r, r, replace(d, windows=(window,) * d.layers))


QWEN = {
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
}  # fmt: skip
