"""Decoders of GPT's shape with LayerNorm: gpt2, gpt_neo, gptj, gpt_neox, phi.

``transformers/models/{gpt2,gpt_neo,gptj,gpt_neox,phi}``. GPT-J, GPT-NeoX and Phi run attention and
MLP in parallel from the block's input; GPT-Neo alternates global and local layers. GPT-J and
GPT-Neo have no sdpa and cast query and key to fp32 for the scores.
"""

from __future__ import annotations

from typing import Any

from raysim.models.activations import ACTIVATIONS
from raysim.models.attention import Core, attend, rotary
from raysim.models.config import MOST_LAYERS, Reader
from raysim.models.feedforward import Names, mlp
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
NO_SDPA: tuple[Implementation, ...] = ("eager", "flash_attention_2")


def embedding_layer(
    name: str,
    tokens: int,
    hidden: int,
    vocab: int,
    *,
    table: str,
    positions: tuple[str, int] | None = None,
    dropout: float = 0.0,
    drop_name: str = "drop",
) -> Layer:
    """Token embedding, learned positions where ``positions`` names their table, dropout."""
    tape = Tape()
    x = tape.embedding(table, tokens, hidden, vocab, vocab_parallel=True)
    if positions is not None:
        p = tape.embedding(positions[0], tokens, hidden, positions[1], per_sample=False)
        x = tape.add("", x, p, cls="Embedding")
    tape.dropout(drop_name, x, dropout)
    return Layer(
        name=name, kind="embedding", cls="Embedding", body=tape.body(),
        output=float(tokens * hidden),
    )  # fmt: skip


def decoder(
    request: Request,
    r: Reader,
    *,
    base: str,
    embedding: Layer,
    bodies: list[Body],
    stack: str,
    block_cls: str,
    final_norm: str,
    tokens: int,
    hidden: int,
    vocab: int,
    divisible: list[tuple[str, int]],
    head: dict[str, Any],
    norm_bias: bool = True,
) -> Model:
    """Embedding, blocks, final LayerNorm and head; ``bodies`` has one entry per block."""
    name = prefix(request, base)
    output = float(tokens * hidden)
    layers = [embedding]
    layers += [
        block_layer(f"{name}{stack}.{i}", block_cls, body, output) for i, body in enumerate(bodies)
    ]
    layers.append(norm_layer(f"{name}{final_norm}", "LayerNorm", tokens, hidden, bias=norm_bias))
    layers += decoder_heads(request, r, tokens=tokens, hidden=hidden, vocab=vocab, **head)
    return assemble(
        request, r, layers, seq_len=tokens, hidden=hidden, vocab=vocab,
        divisible=divisible,
    )  # fmt: skip


def gpt2(request: Request, r: Reader) -> Model:
    """``GPT2Config``; blocks as ``GPT2Block.forward``."""
    vocab = r.integer("vocab_size", default=50257)
    hidden = r.integer("n_embd", "hidden_size", default=768)
    heads = r.integer("n_head", "num_attention_heads", default=12)
    count = r.integer("n_layer", "num_hidden_layers", default=12, most=MOST_LAYERS)
    limit = r.integer("n_positions", "max_position_embeddings", default=1024, most=2**27)
    inner = r.optional_integer("n_inner") or 4 * hidden
    act = r.choice("activation_function", default="gelu_new", among=ACTIVATIONS)
    drop, attn_drop = (
        r.probability("resid_pdrop", default=0.1),
        r.probability("attn_pdrop", default=0.1),
    )
    embd_drop = r.probability("embd_pdrop", default=0.1)
    tied = r.flag("tie_word_embeddings", default=True)
    upcast = r.flag("reorder_and_upcast_attn", default=False)
    if r.flag("add_cross_attention", default=False):
        r.refuse("add_cross_attention", "cross-attention is not modelled")
    r.divides("n_head", heads, "n_embd", hidden)
    tokens = request.positions(r, limit, hard=True, key="n_positions")
    core = Core(
        heads=heads, kv_heads=heads, head_dim=max(1, hidden // heads),
        v_head_dim=max(1, hidden // heads), implementation=request.implementation(ALL, r),
        dropout=attn_drop, upcast_softmax=False, upcast_scores=upcast,
    )  # fmt: skip
    r.check()
    name = prefix(request, "transformer")
    embedding = embedding_layer(
        name.removesuffix("."), tokens, hidden, vocab,
        table="wte", positions=("wpe", limit), dropout=embd_drop,
    )  # fmt: skip
    body = _gpt2_block(tokens, hidden, inner, act, drop, core)
    return decoder(
        request, r, base="transformer", embedding=embedding, bodies=[body] * count, stack="h",
        block_cls="GPT2Block", final_norm="ln_f", tokens=tokens, hidden=hidden, vocab=vocab,
        divisible=[("n_head", heads), ("n_inner", inner)],
        head={"tied_to": f"{name}wte.weight" if tied else None, "dropout": 0.1},
    )  # fmt: skip


def _gpt2_block(tokens: int, hidden: int, inner: int, act: str, drop: float, core: Core) -> Body:
    tape, cls = Tape(), "GPT2Attention"
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    h = tape.layer_norm("ln_1", x)
    qkv = tape.linear("attn.c_attn", h, 3 * hidden, split="column", cls="Conv1D", transposed=True)
    q, k, v = tape.split("attn", qkv, [hidden] * 3, cls=cls)
    h = attend(tape, "attn", q, k, v, core, cls=cls)
    h = tape.linear("attn.c_proj", h, hidden, split="row", cls="Conv1D", transposed=True)
    h = tape.dropout("attn.resid_dropout", h, drop)
    x = tape.add("", x, h, cls="GPT2Block", operator="attention_residual")
    h = tape.layer_norm("ln_2", x)
    names = Names(first="mlp.c_fc", second="mlp.c_proj", act="mlp.act")
    h = mlp(tape, names, h, inner, act, linear="Conv1D", transposed=True)
    h = tape.dropout("mlp.dropout", h, drop)
    tape.add("", x, h, cls="GPT2Block", operator="mlp_residual")
    return tape.body()


def _gpt_neo_layers(r: Reader, count: int) -> list[str]:
    """``attention_types`` spelled out: [[["global", "local"], 12]] is 24 alternating layers."""
    value = r.values.get("attention_types")
    if value is None:
        value = [[["global", "local"], 12]]
    names: list[str] = []
    try:
        for kinds, repeats in value:
            names += [str(k) for k in kinds] * min(max(repeats, 0), MOST_LAYERS)
    except (TypeError, ValueError):
        r.refuse("attention_types", 'expected a list such as [[["global", "local"], 12]]')
        return ["global"] * count
    if set(names) - {"global", "local"}:
        r.refuse("attention_types", 'expected "global" and "local" only')
    if len(names) != count:
        r.refuse("attention_types", f"describes {len(names)} layers, num_layers is {count}")
        return ["global"] * count
    return names


def gpt_neo(request: Request, r: Reader) -> Model:
    """``GPTNeoConfig``; blocks as ``GPTNeoBlock.forward``."""
    vocab = r.integer("vocab_size", default=50257)
    hidden = r.integer("hidden_size", default=2048)
    heads = r.integer("num_heads", "num_attention_heads", default=16)
    count = r.integer("num_layers", "num_hidden_layers", default=24, most=MOST_LAYERS)
    limit = r.integer("max_position_embeddings", default=2048, most=2**27)
    inner = r.optional_integer("intermediate_size") or 4 * hidden
    act = r.choice("activation_function", default="gelu_new", among=ACTIVATIONS)
    drop = r.probability("resid_dropout")
    attn_drop, embed_drop = r.probability("attention_dropout"), r.probability("embed_dropout")
    window = r.integer("window_size", default=256)
    tied = r.flag("tie_word_embeddings", default=True)
    kinds = _gpt_neo_layers(r, count)
    r.divides("num_heads", heads, "hidden_size", hidden)
    tokens = request.positions(r, limit, hard=True, key="max_position_embeddings")
    implementation = request.implementation(NO_SDPA, r)
    r.check()
    by_kind = {}
    for kind in dict.fromkeys(kinds):
        core = Core(
            heads=heads, kv_heads=heads, head_dim=hidden // heads, v_head_dim=hidden // heads,
            implementation=implementation, dropout=attn_drop, upcast_scores=True, biased=True,
            window=window if kind == "local" and window < tokens else None,
        )  # fmt: skip
        by_kind[kind] = _gpt_neo_block(tokens, hidden, inner, act, drop, core)
    name = prefix(request, "transformer")
    embedding = embedding_layer(
        name.removesuffix("."), tokens, hidden, vocab,
        table="wte", positions=("wpe", limit), dropout=embed_drop,
    )  # fmt: skip
    return decoder(
        request, r, base="transformer", embedding=embedding, bodies=[by_kind[k] for k in kinds],
        stack="h", block_cls="GPTNeoBlock", final_norm="ln_f", tokens=tokens, hidden=hidden,
        vocab=vocab, divisible=[("num_heads", heads), ("intermediate_size", inner)],
        head={"tied_to": f"{name}wte.weight" if tied else None, "dropout": 0.1},
    )  # fmt: skip


def _gpt_neo_block(tokens: int, hidden: int, inner: int, act: str, drop: float, core: Core) -> Body:
    tape = Tape()
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    h = tape.layer_norm("ln_1", x)
    attn = "attn.attention"
    q, k, v = (
        tape.linear(f"{attn}.{p}_proj", h, hidden, bias=False, split="column") for p in "qkv"
    )
    h = attend(tape, attn, q, k, v, core, cls="GPTNeoSelfAttention")
    h = tape.linear(f"{attn}.out_proj", h, hidden, split="row")
    h = tape.dropout(f"{attn}.resid_dropout", h, drop)
    x = tape.add("", x, h, cls="GPTNeoBlock", operator="attention_residual")
    h = tape.layer_norm("ln_2", x)
    h = mlp(tape, Names(first="mlp.c_fc", second="mlp.c_proj", act="mlp.act"), h, inner, act)
    h = tape.dropout("mlp.dropout", h, drop)
    tape.add("", x, h, cls="GPTNeoBlock", operator="mlp_residual")
    return tape.body()


def gptj(request: Request, r: Reader) -> Model:
    """``GPTJConfig``; blocks as ``GPTJBlock.forward``: one norm, attention and MLP in parallel."""
    vocab = r.integer("vocab_size", default=50400)
    hidden = r.integer("n_embd", "hidden_size", default=4096)
    heads = r.integer("n_head", "num_attention_heads", default=16)
    count = r.integer("n_layer", "num_hidden_layers", default=28, most=MOST_LAYERS)
    limit = r.integer("n_positions", "max_position_embeddings", default=2048, most=2**27)
    inner = r.optional_integer("n_inner") or 4 * hidden
    rotated = r.optional_integer("rotary_dim", default=64)
    act = r.choice("activation_function", default="gelu_new", among=ACTIVATIONS)
    drop, attn_drop = r.probability("resid_pdrop"), r.probability("attn_pdrop")
    embd_drop = r.probability("embd_pdrop")
    tied = r.flag("tie_word_embeddings", default=False)
    r.divides("n_head", heads, "n_embd", hidden)
    head_dim = max(1, hidden // heads)
    if rotated is not None and rotated > head_dim:
        r.refuse("rotary_dim", f"{rotated} exceeds the head dimension {head_dim}")
    tokens = request.positions(r, limit, hard=True, key="n_positions")
    core = Core(
        heads=heads, kv_heads=heads, head_dim=head_dim, v_head_dim=head_dim, dropout=attn_drop,
        implementation=request.implementation(NO_SDPA, r), upcast_scores=True,
    )  # fmt: skip
    r.check()
    tape = Tape()
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    h = tape.layer_norm("ln_1", x)
    q, k, v = (tape.linear(f"attn.{p}_proj", h, hidden, bias=False, split="column") for p in "qkv")
    q, k = rotary(
        tape, "attn", [q, k], head_dim, rotated or head_dim, cls="GPTJAttention",
        style="interleaved",
    )  # fmt: skip
    a = attend(tape, "attn", q, k, v, core, cls="GPTJAttention")
    a = tape.linear("attn.out_proj", a, hidden, bias=False, split="row")
    a = tape.dropout("attn.resid_dropout", a, drop)
    f = mlp(tape, Names(first="mlp.fc_in", second="mlp.fc_out", act="mlp.act"), h, inner, act)
    f = tape.dropout("mlp.dropout", f, drop)
    y = tape.add("", a, f, cls="GPTJBlock", operator="branches")
    tape.add("", y, x, cls="GPTJBlock", operator="residual")
    name = prefix(request, "transformer")
    embedding = embedding_layer(
        name.removesuffix("."), tokens, hidden, vocab, table="wte", dropout=embd_drop
    )
    return decoder(
        request, r, base="transformer", embedding=embedding, bodies=[tape.body()] * count,
        stack="h", block_cls="GPTJBlock", final_norm="ln_f", tokens=tokens, hidden=hidden,
        vocab=vocab, divisible=[("n_head", heads), ("n_inner", inner)],
        head={"tied_to": f"{name}wte.weight" if tied else None, "lm_bias": True},
    )  # fmt: skip


def rotary_share(r: Reader, key: str, default: float) -> float:
    """Rotated share of each head: ``partial_rotary_factor``, or the family's older key."""
    section = r.section("rope_parameters" if r.has("rope_parameters") else "rope_scaling")
    nested = section.number("partial_rotary_factor", default=None)
    share = (
        nested if nested is not None else r.number(key, "partial_rotary_factor", default=default)
    )
    if share is None or not 0 < share <= 1:
        r.refuse(key, "expected a share in (0, 1]")
        return default
    return share


def gpt_neox(request: Request, r: Reader) -> Model:
    """``GPTNeoXConfig``; blocks as ``GPTNeoXLayer.forward``."""
    vocab = r.integer("vocab_size", default=50432)
    hidden = r.integer("hidden_size", default=6144)
    heads = r.integer("num_attention_heads", default=64)
    count = r.integer("num_hidden_layers", default=44, most=MOST_LAYERS)
    limit = r.integer("max_position_embeddings", default=2048, most=2**27)
    inner = r.integer("intermediate_size", default=24576)
    act = r.choice("hidden_act", default="gelu", among=ACTIVATIONS)
    drop, attn_drop = r.probability("hidden_dropout"), r.probability("attention_dropout")
    bias = r.flag("attention_bias", default=True)
    parallel = r.flag("use_parallel_residual", default=True)
    tied = r.flag("tie_word_embeddings", default=False)
    share = rotary_share(r, "rotary_pct", 0.25)
    r.divides("num_attention_heads", heads, "hidden_size", hidden)
    tokens = request.positions(r, limit)
    head_dim = max(1, hidden // heads)
    core = Core(
        heads=heads, kv_heads=heads, head_dim=head_dim, v_head_dim=head_dim, dropout=attn_drop,
        implementation=request.implementation(ALL, r), copies_output=True,
    )  # fmt: skip
    r.check()
    tape, cls = Tape(), "GPTNeoXAttention"
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    h = tape.layer_norm("input_layernorm", x)
    qkv = tape.linear("attention.query_key_value", h, 3 * hidden, bias=bias, split="column")
    q, k, v = tape.split("attention", qkv, [hidden] * 3, cls=cls)
    rotated = max(1, int(head_dim * share))
    q, k = rotary(tape, "attention", [q, k], head_dim, rotated, cls=cls, style="half_cat")
    a = attend(tape, "attention", q, k, v, core, cls=cls)
    a = tape.linear("attention.dense", a, hidden, bias=bias, split="row")
    a = tape.dropout("post_attention_dropout", a, drop)
    if not parallel:
        x = tape.add("", a, x, cls="GPTNeoXLayer", operator="attention_residual")
    h = tape.layer_norm("post_attention_layernorm", x)
    names = Names(first="mlp.dense_h_to_4h", second="mlp.dense_4h_to_h", act="mlp.act")
    f = mlp(tape, names, h, inner, act)
    f = tape.dropout("post_mlp_dropout", f, drop)
    if parallel:
        f = tape.add("", f, a, cls="GPTNeoXLayer", operator="branches")
    tape.add("", f, x, cls="GPTNeoXLayer", operator="mlp_residual")
    name = prefix(request, "gpt_neox")
    embedding = embedding_layer(
        name.removesuffix("."), tokens, hidden, vocab, table="embed_in", dropout=drop,
        drop_name="emb_dropout",
    )  # fmt: skip
    return decoder(
        request, r, base="gpt_neox", embedding=embedding, bodies=[tape.body()] * count,
        stack="layers", block_cls="GPTNeoXLayer", final_norm="final_layer_norm", tokens=tokens,
        hidden=hidden, vocab=vocab,
        divisible=[("num_attention_heads", heads), ("intermediate_size", inner)],
        head={"tied_to": f"{name}embed_in.weight" if tied else None, "dropout": 0.1},
    )  # fmt: skip


def phi(request: Request, r: Reader) -> Model:
    """``PhiConfig``; blocks as ``PhiDecoderLayer.forward``: one norm, two parallel branches."""
    vocab = r.integer("vocab_size", default=51200)
    hidden = r.integer("hidden_size", default=2048)
    heads = r.integer("num_attention_heads", default=32)
    kv = r.optional_integer("num_key_value_heads") or heads
    count = r.integer("num_hidden_layers", default=24, most=MOST_LAYERS)
    limit = r.integer("max_position_embeddings", default=2048, most=2**27)
    inner = r.integer("intermediate_size", default=8192)
    act = r.choice("hidden_act", default="gelu_new", among=ACTIVATIONS)
    drop, attn_drop = r.probability("resid_pdrop"), r.probability("attention_dropout")
    embd_drop = r.probability("embd_pdrop")
    qk_norm = r.flag("qk_layernorm", default=False)
    tied = r.flag("tie_word_embeddings", default=False)
    share = rotary_share(r, "partial_rotary_factor", 0.5)
    r.divides("num_attention_heads", heads, "hidden_size", hidden)
    r.divides("num_key_value_heads", kv, "num_attention_heads", heads)
    tokens = request.positions(r, limit)
    head_dim = max(1, hidden // heads)
    core = Core(
        heads=heads, kv_heads=kv, head_dim=head_dim, v_head_dim=head_dim, dropout=attn_drop,
        implementation=request.implementation(ALL, r), copies_output=True,
    )  # fmt: skip
    r.check()
    tape, cls = Tape(), "PhiAttention"
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    h = tape.layer_norm("input_layernorm", x)
    q, k, v = (
        tape.linear(f"self_attn.{p}_proj", h, n * head_dim, split="column")
        for p, n in (("q", heads), ("k", kv), ("v", kv))
    )
    if qk_norm:
        q = tape.layer_norm("self_attn.q_layernorm", q.regroup(head_dim)).regroup(q.width)
        k = tape.layer_norm("self_attn.k_layernorm", k.regroup(head_dim)).regroup(k.width)
    rotated = max(1, int(head_dim * share))
    q, k = rotary(tape, "self_attn", [q, k], head_dim, rotated, cls=cls, style="half_cat")
    a = attend(tape, "self_attn", q, k, v, core, cls=cls)
    a = tape.linear("self_attn.dense", a, hidden, split="row")
    a = tape.dropout("resid_dropout", a, drop)
    f = mlp(tape, Names(first="mlp.fc1", second="mlp.fc2", act="mlp.activation_fn"), h, inner, act)
    f = tape.dropout("resid_dropout_mlp", f, drop)
    y = tape.add("", a, f, cls="PhiDecoderLayer", operator="branches")
    tape.add("", y, x, cls="PhiDecoderLayer", operator="residual")
    name = prefix(request, "model")
    embedding = embedding_layer(
        f"{name}embed_tokens", tokens, hidden, vocab, table="", dropout=embd_drop
    )
    return decoder(
        request, r, base="model", embedding=embedding, bodies=[tape.body()] * count,
        stack="layers", block_cls="PhiDecoderLayer", final_norm="final_layernorm", tokens=tokens,
        hidden=hidden, vocab=vocab,
        divisible=[
            ("num_attention_heads", heads), ("num_key_value_heads", kv),
            ("intermediate_size", inner),
        ],
        head={"tied_to": f"{name}embed_tokens.weight" if tied else None, "lm_bias": True},
    )  # fmt: skip
