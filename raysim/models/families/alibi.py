"""Decoders with linear position biases, and Falcon: ``transformers/models/{bloom,mpt,falcon}``.

BLOOM and MPT run eager attention only: the bias is added to the scores. Falcon rotates queries and
keys unless ``alibi`` is set, has one key-value head (7B) or a few (40B, expanded before attention),
and runs attention and MLP side by side. It calls sdpa with an explicit mask and, with one key-value
head, in shapes the fused kernels refuse, so PyTorch falls back to its unfused fp32 path.
"""

from __future__ import annotations

from dataclasses import replace

from raysim.models.activations import ACTIVATIONS
from raysim.models.attention import Core, attend, rotary
from raysim.models.config import MOST_LAYERS, Reader
from raysim.models.families.gpt import ALL, decoder, embedding_layer
from raysim.models.feedforward import Names, mlp
from raysim.models.request import Request, prefix
from raysim.models.table import Implementation, Layer, Model
from raysim.models.tape import Tape, Tensor

EAGER: tuple[Implementation, ...] = ("eager",)


def bloom(request: Request, r: Reader) -> Model:
    """``BloomConfig``; blocks as ``BloomBlock.forward``."""
    vocab = r.integer("vocab_size", default=250880)
    hidden = r.integer("hidden_size", "n_embed", default=64)
    heads = r.integer("n_head", "num_attention_heads", default=8)
    count = r.integer("n_layer", "num_hidden_layers", default=2, most=MOST_LAYERS)
    drop, attn_drop = r.probability("hidden_dropout"), r.probability("attention_dropout")
    post = r.flag("apply_residual_connection_post_layernorm", default=False)
    tied = r.flag("tie_word_embeddings", default=True)
    r.divides("n_head", heads, "hidden_size", hidden)
    tokens = request.positions(r, r.optional_integer("seq_length"))
    head_dim = max(1, hidden // heads)
    core = Core(
        heads=heads, kv_heads=heads, head_dim=head_dim, v_head_dim=head_dim, dropout=attn_drop,
        implementation=request.implementation(EAGER, r), scales=False,
    )  # fmt: skip
    r.check()
    tape, cls = Tape(), "BloomBlock"
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    h = tape.layer_norm("input_layernorm", x)
    residual = h if post else x
    attn = "self_attention"
    qkv = tape.linear(f"{attn}.query_key_value", h, 3 * hidden, split="column")
    q, k, v = tape.split(attn, qkv, [hidden] * 3, cls="BloomAttention")
    h = attend(tape, attn, q, k, v, core, cls="BloomAttention")
    h = tape.linear(f"{attn}.dense", h, hidden, split="row")
    h = tape.dropout(f"{attn}.dropout", h, drop)
    x = tape.add("", residual, h, cls=cls, operator="attention_residual")
    h = tape.layer_norm("post_attention_layernorm", x)
    residual = h if post else x
    names = Names(first="mlp.dense_h_to_4h", second="mlp.dense_4h_to_h", act="mlp.gelu_impl")
    h = mlp(tape, names, h, 4 * hidden, "bloom_gelu")
    h = tape.dropout("mlp.dropout", h, drop)
    tape.add("", residual, h, cls=cls, operator="mlp_residual")
    name = prefix(request, "transformer")
    embedding = _normed_embedding(name.removesuffix("."), tokens, hidden, vocab)
    return decoder(
        request, r, base="transformer", embedding=embedding, bodies=[tape.body()] * count,
        stack="h", block_cls=cls, final_norm="ln_f", tokens=tokens, hidden=hidden, vocab=vocab,
        divisible=[("n_head", heads)],
        head={"tied_to": f"{name}word_embeddings.weight" if tied else None, "dropout": 0.1},
    )  # fmt: skip


def _normed_embedding(name: str, tokens: int, hidden: int, vocab: int) -> Layer:
    """BLOOM normalises its embeddings."""
    tape = Tape()
    x = tape.embedding("word_embeddings", tokens, hidden, vocab, vocab_parallel=True)
    tape.layer_norm("word_embeddings_layernorm", x)
    return Layer(
        name=name, kind="embedding", cls="Embedding", body=tape.body(),
        output=float(tokens * hidden),
    )  # fmt: skip


def mpt(request: Request, r: Reader) -> Model:
    """``MptConfig``; blocks as ``MptBlock.forward``: no biases, and ALiBi always.

    ``attn_pdrop`` is also the dropout of both residual branches there; ``expansion_ratio`` is
    unread.
    """
    vocab = r.integer("vocab_size", default=50368)
    hidden = r.integer("d_model", "hidden_size", default=2048)
    heads = r.integer("n_heads", "num_attention_heads", default=16)
    count = r.integer("n_layers", "num_hidden_layers", default=24, most=MOST_LAYERS)
    limit = r.integer("max_seq_len", default=2048, most=2**27)
    section = r.section("attn_config")
    drop = section.probability("attn_pdrop")
    clip = bool(section.number("clip_qkv", default=None))
    tied = r.flag("tie_word_embeddings", default=True)
    r.divides("n_heads", heads, "d_model", hidden)
    tokens = request.positions(r, limit, hard=True, key="max_seq_len")
    head_dim = max(1, hidden // heads)
    core = Core(
        heads=heads, kv_heads=heads, head_dim=head_dim, v_head_dim=head_dim, dropout=drop,
        implementation=request.implementation(EAGER, r), biased=True, keeps_mask=True,
    )  # fmt: skip
    r.check()
    tape, cls = Tape(), "MptBlock"
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    h = tape.layer_norm("norm_1", x, bias=False)
    qkv = tape.linear("attn.Wqkv", h, 3 * hidden, bias=False, split="column")
    if clip:
        qkv = tape.run(
            "attn", "MptAttention", operator="attn.clip", inputs=(qkv,),
            output=replace(qkv, name="attn.clipped"), moved=2 * qkv.numel,
            moved_backward=3 * qkv.numel, saves=(qkv.saved(),),
        )  # fmt: skip
    q, k, v = tape.split("attn", qkv, [hidden] * 3, cls="MptAttention")
    h = attend(tape, "attn", q, k, v, core, cls="MptAttention")
    h = tape.linear("attn.out_proj", h, hidden, bias=False, split="row")
    h = tape.dropout("resid_attn_dropout", h, drop)
    x = tape.add("", h, x, cls=cls, operator="attention_residual")
    h = tape.layer_norm("norm_2", x, bias=False)
    names = Names(first="ffn.up_proj", second="ffn.down_proj", act="ffn.act")
    h = mlp(tape, names, h, 4 * hidden, "gelu", bias=False)
    h = tape.dropout("ffn.dropout", h, drop)
    tape.add("", h, x, cls=cls, operator="mlp_residual")
    name = prefix(request, "transformer")
    embedding = embedding_layer(name.removesuffix("."), tokens, hidden, vocab, table="wte")
    return decoder(
        request, r, base="transformer", embedding=embedding, bodies=[tape.body()] * count,
        stack="blocks", block_cls=cls, final_norm="norm_f", norm_bias=False, tokens=tokens,
        hidden=hidden, vocab=vocab, divisible=[("n_heads", heads)],
        head={"tied_to": f"{name}wte.weight" if tied else None, "dropout": 0.1},
    )  # fmt: skip


def falcon(request: Request, r: Reader) -> Model:
    """``FalconConfig``, and RefinedWeb's older keys; blocks as ``FalconDecoderLayer.forward``."""
    vocab = r.integer("vocab_size", default=65024)
    hidden = r.integer("hidden_size", "n_embed", default=4544)
    heads = r.integer("num_attention_heads", "n_head", default=71)
    count = r.integer("num_hidden_layers", "n_layer", default=32, most=MOST_LAYERS)
    new = r.flag("new_decoder_architecture", default=False) or r.has("n_head_kv")
    multi = r.flag("multi_query", default=True)
    parallel = r.flag("parallel_attn", default=True)
    bias, alibi = r.flag("bias", default=False), r.flag("alibi", default=False)
    kv = r.optional_integer("num_kv_heads", "n_head_kv") or heads
    inner = r.optional_integer("ffn_hidden_size") or 4 * hidden
    act = r.choice("activation", default="gelu", among=ACTIVATIONS)
    drop, attn_drop = r.probability("hidden_dropout"), r.probability("attention_dropout")
    norms = r.optional_integer("num_ln_in_parallel_attn") or (2 if new else 1)
    tied = r.flag("tie_word_embeddings", default=True)
    limit = r.integer("max_position_embeddings", default=2048, most=2**27)
    r.divides("num_attention_heads", heads, "hidden_size", hidden)
    r.divides("num_kv_heads", kv, "num_attention_heads", heads)
    tokens = request.positions(r, limit)
    implementation = request.implementation(ALL, r)
    r.check()
    head_dim = hidden // heads
    kv = kv if new else 1 if multi else heads
    core = Core(
        heads=heads, kv_heads=heads if new else kv, head_dim=head_dim, v_head_dim=head_dim,
        implementation=implementation, dropout=attn_drop if alibi else 0.0, masked=True,
        unfused=kv != heads and not new, upcast_softmax=False, biased=alibi,
    )  # fmt: skip
    tape, cls = Tape(), "FalconDecoderLayer"
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    two = parallel and norms == 2
    h = tape.layer_norm("ln_attn" if two else "input_layernorm", x)
    f = tape.layer_norm("ln_mlp", x) if two else h
    a = _falcon_attention(tape, h, hidden, kv, core, new=new, bias=bias, rotates=not alibi)
    residual = x
    if not new and not parallel:
        a = tape.dropout("attention_dropout", a, attn_drop)
        residual = tape.add("", x, a, cls=cls, operator="attention_residual")
        f = tape.layer_norm("post_attention_layernorm", residual)
    names = Names(first="mlp.dense_h_to_4h", second="mlp.dense_4h_to_h", act="mlp.act")
    f = mlp(tape, names, f, inner, act, bias=bias, linear="FalconLinear")
    if new or parallel:
        f = tape.add("", f, a, cls=cls, operator="branches")
    f = tape.dropout("mlp.dropout", f, drop)
    tape.add("", residual, f, cls=cls, operator="residual")
    name = prefix(request, "transformer")
    embedding = embedding_layer(
        name.removesuffix("."), tokens, hidden, vocab, table="word_embeddings"
    )
    return decoder(
        request, r, base="transformer", embedding=embedding, bodies=[tape.body()] * count,
        stack="h", block_cls=cls, final_norm="ln_f", tokens=tokens, hidden=hidden, vocab=vocab,
        divisible=[
            ("num_attention_heads", heads), ("num_kv_heads", kv), ("ffn_hidden_size", inner),
        ],
        head={"tied_to": f"{name}word_embeddings.weight" if tied else None, "dropout": 0.1},
    )  # fmt: skip


def _falcon_attention(
    tape: Tape,
    h: Tensor,
    hidden: int,
    kv: int,
    core: Core,
    *,
    new: bool,
    bias: bool,
    rotates: bool,
) -> Tensor:
    """Fused projection; keys and values picked out by index (copies), expanded in the 40B."""
    name, cls, heads = "self_attention", "FalconAttention", core.heads
    width = kv * core.head_dim
    qkv = tape.linear(
        f"{name}.query_key_value", h, hidden + 2 * width, bias=bias, split="column",
        cls="FalconLinear",
    )  # fmt: skip
    q, k, v = tape.split(name, qkv, [hidden, width, width], cls=cls)
    if kv < heads:
        k, v = (
            tape.run(
                name, cls, operator=f"{name}.pick_{part}", inputs=(t,),
                output=Tensor(
                    name=f"{name}.{part}", rows=t.rows, sharded=True,
                    width=hidden if new else width,
                ),
                moved=2 * t.numel + (2 * q.numel if new else 0), kernels=2 if new else 1,
                moved_backward=4 * t.numel + (2 * q.numel if new else 0),
                kernels_backward=3 if new else 2,
            )
            for part, t in (("key", k), ("value", v))
        )  # fmt: skip
    if rotates:
        q, k = rotary(tape, name, [q, k], core.head_dim, core.head_dim, cls=cls)
    out = attend(tape, name, q, k, v, core, cls=cls)
    return tape.linear(f"{name}.dense", out, hidden, bias=bias, split="row", cls="FalconLinear")
