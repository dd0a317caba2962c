"""Llama 4: ``transformers/models/llama4``, the text model alone or inside the multimodal one.

Three layers in four have rotary embedding, normalised queries and keys, and attention in chunks;
the fourth has neither position nor chunk. Experts run eagerly as batched GEMMs over *every* token
and expert, inputs scaled by router scores of which all but the chosen are zero: that is what
transformers executes, so that is what the FLOPs count. Images are not part of a sample (see
``vision``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from raysim.models.activations import ACTIVATIONS
from raysim.models.attention import Core, attend
from raysim.models.config import MOST_LAYERS, Reader
from raysim.models.families.gpt import embedding_layer
from raysim.models.families.llama import LAYER_TYPES, gated
from raysim.models.families.vision import llama4_vision
from raysim.models.request import (
    Request,
    assemble,
    block_layer,
    decoder_heads,
    norm_layer,
    prefix,
)
from raysim.models.table import Body, Gemm, Implementation, Layer, Model, Operator, Parameter, Saved
from raysim.models.tape import Tape, Tensor

NO_FLASH: tuple[Implementation, ...] = ("eager", "sdpa")
CLS = "Llama4Text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Dimensions of ``Llama4TextConfig``."""

    vocab: int
    hidden: int
    width: int
    dense_width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    act: str
    dropout: float
    positions: int
    tied: bool
    bias: bool
    experts: int
    qk_norm: bool
    tuned: bool
    """Layers without positions scale their queries by length."""
    rotated: tuple[bool, ...]
    windows: tuple[int | None, ...]
    sparse: tuple[bool, ...]


def _read(r: Reader) -> Text:
    heads = r.integer("num_attention_heads", default=40)
    kv = r.optional_integer("num_key_value_heads", default=8) or heads
    hidden = r.integer("hidden_size", default=5120)
    count = r.integer("num_hidden_layers", default=48, most=MOST_LAYERS)
    r.divides("num_key_value_heads", kv, "num_attention_heads", heads)
    experts = r.integer("num_local_experts", default=16)
    chosen = r.integer("num_experts_per_tok", default=1)
    if chosen > experts:
        r.refuse("num_experts_per_tok", f"{chosen} of only {experts} experts")
    rotated = _rotated(r, count)
    types = r.texts("layer_types", length=count, among=LAYER_TYPES)
    chunk = r.optional_integer("attention_chunk_size", default=8192)
    chunked = [t != "full_attention" for t in types] if types else list(rotated)
    step = r.integer("interleave_moe_layer_step", default=1)
    listed = r.integers("moe_layers")
    moe_layers = set(range(step - 1, count, step) if listed is None else listed)
    return Text(
        vocab=r.integer("vocab_size", default=202048),
        hidden=hidden,
        width=r.integer("intermediate_size", default=8192),
        dense_width=r.integer("intermediate_size_mlp", default=16384),
        layers=count,
        heads=heads,
        kv_heads=kv,
        head_dim=r.optional_integer("head_dim", default=128) or max(1, hidden // heads),
        act=r.choice("hidden_act", default="silu", among=ACTIVATIONS),
        dropout=r.probability("attention_dropout"),
        positions=r.integer("max_position_embeddings", default=131072, most=2**27),
        tied=r.flag("tie_word_embeddings", default=False),
        bias=r.flag("attention_bias", default=False),
        experts=experts,
        qk_norm=r.flag("use_qk_norm", default=True),
        tuned=r.flag("attn_temperature_tuning", default=True),
        rotated=rotated,
        windows=tuple(chunk if c else None for c in chunked),
        sparse=tuple(i in moe_layers for i in range(count)),
    )


def _rotated(r: Reader, count: int) -> tuple[bool, ...]:
    """``no_rope_layers`` has 1 where a layer does use rotary embedding."""
    listed = r.integers("no_rope_layers")
    every = r.integer("no_rope_layer_interval", default=4)
    if not listed:
        return tuple((i + 1) % every != 0 for i in range(count))
    if len(listed) < count:
        r.refuse("no_rope_layers", f"expected {count} entries, got {len(listed)}")
        return (True,) * count
    return tuple(bool(v) for v in listed[:count])


def llama4_text(request: Request, r: Reader) -> Model:
    """``Llama4TextConfig``."""
    return _build(request, r, r, _read(r), prefix(request, "model"), [])


def llama4(request: Request, r: Reader) -> Model:
    """``Llama4Config``; ``Llama4ForCausalLM`` takes the text alone."""
    text = r.language()
    d = _read(text)
    if request.head != "ForConditionalGeneration":
        return _build(request, text, r, d, prefix(request, "model"), [])
    vision = llama4_vision(r.section("vision_config"), d.hidden)
    return _build(request, text, r, d, "language_model.model.", vision)


def _build(
    request: Request, r: Reader, top: Reader, d: Text, name: str, before: list[Layer]
) -> Model:
    tokens = request.positions(r, d.positions)
    implementation = request.implementation(NO_FLASH, r)
    r.check()
    output = float(tokens * d.hidden)
    layers = [*before, embedding_layer(f"{name}embed_tokens", tokens, d.hidden, d.vocab, table="")]
    bodies: dict[tuple[bool, int | None, bool], Body] = {}
    for i, kind in enumerate(zip(d.rotated, d.windows, d.sparse, strict=True)):
        if kind not in bodies:
            bodies[kind] = _layer(d, tokens, implementation, *kind)
        layers.append(block_layer(f"{name}layers.{i}", f"{CLS}DecoderLayer", bodies[kind], output))
    layers.append(norm_layer(f"{name}norm", f"{CLS}RMSNorm", tokens, d.hidden, style="llama"))
    layers += decoder_heads(
        request, top, tokens=tokens, hidden=d.hidden, vocab=d.vocab,
        tied_to=f"{name}embed_tokens.weight" if d.tied else None,
        lm_name=f"{name.removesuffix('model.')}lm_head",
    )  # fmt: skip
    return assemble(
        request, top, layers, seq_len=tokens, hidden=d.hidden, vocab=d.vocab,
        divisible=(
            ("num_attention_heads", d.heads), ("num_key_value_heads", d.kv_heads),
            ("intermediate_size", d.width), ("intermediate_size_mlp", d.dense_width),
        ),
    )  # fmt: skip


def _layer(
    d: Text,
    tokens: int,
    implementation: Implementation,
    rotated: bool,
    window: int | None,
    sparse: bool,
) -> Body:
    tape, cls, norm = Tape(), f"{CLS}DecoderLayer", f"{CLS}RMSNorm"
    x = Tensor(name="hidden", rows=tokens, width=d.hidden)
    h = tape.rms_norm("input_layernorm", x, cls=norm)
    h = _attention(tape, d, h, implementation, rotated=rotated, window=window)
    x = tape.add("", x, h, cls=cls, operator="attention_residual")
    h = tape.rms_norm("post_attention_layernorm", x, cls=norm)
    if sparse:
        h = _experts(tape, d, h)
    else:
        h = gated(
            tape, "feed_forward", h, d.dense_width, d.act, cls=f"{CLS}MLP",
            act_name="activation_fn",
        )  # fmt: skip
    tape.add("", x, h, cls=cls, operator="mlp_residual")
    return tape.body()


def _attention(
    tape: Tape,
    d: Text,
    h: Tensor,
    implementation: Implementation,
    *,
    rotated: bool,
    window: int | None,
) -> Tensor:
    name, cls = "self_attn", f"{CLS}Attention"
    widths = {"q": d.heads * d.head_dim, "k": d.kv_heads * d.head_dim, "v": d.kv_heads * d.head_dim}
    q, k, v = (
        tape.linear(f"{name}.{p}_proj", h, w, bias=d.bias, split="column")
        for p, w in widths.items()
    )
    if rotated:
        q, k = (_rotate(tape, p, t) for p, t in (("q", q), ("k", k)))
        if d.qk_norm:
            q, k = (_l2(tape, p, t, d.head_dim) for p, t in (("q", q), ("k", k)))
    elif d.tuned:
        q = tape.run(
            name, cls, operator=f"{name}.temperature", inputs=(q,),
            output=replace(q, name=f"{name}.tuned"), moved=6 * q.numel, kernels=2,
            moved_backward=6 * q.numel, kernels_backward=2,
        )  # fmt: skip
    core = Core(
        heads=d.heads, kv_heads=d.kv_heads, head_dim=d.head_dim, v_head_dim=d.head_dim,
        implementation=implementation, dropout=d.dropout, upcast_softmax=False,
        window=window if window is not None and window < h.rows else None,
    )  # fmt: skip
    out = attend(tape, name, q, k, v, core, cls=cls)
    return tape.linear(f"{name}.o_proj", out, d.hidden, bias=d.bias, split="row")


def _rotate(tape: Tape, part: str, x: Tensor) -> Tensor:
    """Complex rotation: cast to fp32, one product, cast back."""
    out = replace(x, name=f"self_attn.rotary_{part}")
    return tape.run(
        "self_attn", f"{CLS}Attention", operator=f"self_attn.rotary_{part}", inputs=(x,),
        output=out, moved=10 * x.numel, kernels=3, moved_backward=10 * x.numel,
        kernels_backward=5,
    )  # fmt: skip


def _l2(tape: Tape, part: str, x: Tensor, head_dim: int) -> Tensor:
    """``Llama4TextL2Norm`` per head, without weights."""
    name = f"self_attn.qk_norm_{part}"
    y = tape.rms_norm(name, x.regroup(head_dim), cls=f"{CLS}L2Norm", style="plain")
    return replace(y, rows=x.rows, width=x.width)


def _experts(tape: Tape, d: Text, h: Tensor) -> Tensor:
    """``Llama4TextMoe.forward``: every expert on every token, and one shared expert."""
    name, cls = "feed_forward", f"{CLS}Moe"
    rows = h.rows * d.experts
    scores = tape.linear(f"{name}.router", h, d.experts, bias=False, cls="Llama4Router")
    scores = tape.run(
        f"{name}.router", "Llama4Router", kind="routing", operator=f"{name}.router.topk",
        inputs=(scores,), output=replace(scores, name=f"{name}.scores"), moved=14 * rows,
        kernels=6, moved_backward=14 * rows, kernels_backward=6,
        saves=(
            Saved(name=f"{name}.chosen", numel=h.rows, dtype="int64"),
            Saved(name=f"{name}.sigmoid", numel=rows, dtype="fp32"),
        ),
    )  # fmt: skip
    repeated = Tensor(name=f"{name}.repeated", rows=rows, width=d.hidden)
    tape.run(
        name, cls, kind="routing", operator=f"{name}.repeat", inputs=(h,), output=repeated,
        moved=2 * repeated.numel, moved_backward=repeated.numel, split="column",
        saves=(h.saved(),),
    )  # fmt: skip
    routed_in = tape.run(
        name, cls, kind="routing", operator=f"{name}.weigh", inputs=(repeated,),
        output=replace(repeated, name=f"{name}.routed_in"), moved=2 * repeated.numel, kernels=2,
        moved_backward=5 * repeated.numel, kernels_backward=3,
        saves=(
            Saved(name=f"{name}.weights", numel=rows), repeated.saved(),
        ),
    )  # fmt: skip
    wide = _bank(tape, d, routed_in, 2 * d.width, "gate_up_proj", shard=2)
    gate, up = tape.split(f"{name}.experts", wide, [d.width, d.width], cls=f"{CLS}Experts")
    act = tape.activation(f"{name}.experts.act_fn", gate, d.act)
    act = tape.multiply(f"{name}.experts", act, up, cls=f"{CLS}Experts")
    y = _bank(tape, d, act, d.hidden, "down_proj", shard=1)
    shared = gated(
        tape, f"{name}.shared_expert", h, d.width, d.act, cls=f"{CLS}MLP",
        act_name="activation_fn",
    )  # fmt: skip
    total = tape.run(
        name, cls, kind="routing", operator=f"{name}.sum", inputs=(y,),
        output=replace(h, name=f"{name}.routed"), moved=y.numel + h.numel,
        moved_backward=y.numel + h.numel, kernels_backward=1, split="row",
    )  # fmt: skip
    return tape.add(name, shared, total, cls=cls)


def _bank(tape: Tape, d: Text, x: Tensor, width: int, weight: str, *, shard: int) -> Tensor:
    """One batched GEMM over all experts; weights are stored as [experts, in, out]."""
    name = f"feed_forward.experts.{weight}"
    parameter = Parameter(name=name, shape=(d.experts, x.width, width), shard=shard, expert=True)
    activations = x.rows * (x.width + width)
    op = Operator(
        name=name, kind="gemm", flops=2.0 * x.rows * x.width * width, moved=activations,
        moved_backward=2 * activations,
        gemm=Gemm(rows=x.rows, n=width, k=x.width, groups=d.experts), saves=(x.saved(),),
        output=x.rows * width, split="expert", kernels=1, kernels_backward=2,
    )  # fmt: skip
    tape.append("feed_forward.experts", f"{CLS}Experts", op, parameters=(parameter,))
    return Tensor(name=f"{name}.out", rows=x.rows, width=width, sharded=shard == 2)
