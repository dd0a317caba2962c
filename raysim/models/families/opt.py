"""OPT: ``transformers/models/opt``. Learned positions offset by two; relu; pre- or post-norm."""

from __future__ import annotations

from raysim.models.activations import ACTIVATIONS
from raysim.models.attention import Core, attend
from raysim.models.config import MOST_LAYERS, Reader
from raysim.models.feedforward import Names, mlp
from raysim.models.request import (
    Request,
    assemble,
    block_layer,
    decoder_heads,
    prefix,
)
from raysim.models.table import Body, Implementation, Layer, Model
from raysim.models.tape import Tape, Tensor

ALL: tuple[Implementation, ...] = ("eager", "sdpa", "flash_attention_2")
POSITION_OFFSET = 2
"""``OPTLearnedPositionalEmbedding`` keeps two rows for padding."""


def opt(request: Request, r: Reader) -> Model:
    """``OPTConfig``."""
    vocab = r.integer("vocab_size", default=50272)
    hidden = r.integer("hidden_size", default=768)
    heads = r.integer("num_attention_heads", default=12)
    count = r.integer("num_hidden_layers", default=12, most=MOST_LAYERS)
    inner = r.integer("ffn_dim", default=3072)
    limit = r.integer("max_position_embeddings", default=2048, most=2**27)
    projected = r.optional_integer("word_embed_proj_dim") or hidden
    act = r.choice("activation_function", default="relu", among=ACTIVATIONS)
    drop = r.probability("dropout", default=0.1)
    attn_drop = r.probability("attention_dropout")
    before = r.flag("do_layer_norm_before", default=True)
    final = before and not r.flag("_remove_final_layer_norm", default=False)
    bias = r.flag("enable_bias", default=True)
    affine = r.flag("layer_norm_elementwise_affine", default=True)
    tied = r.flag("tie_word_embeddings", default=True)
    r.divides("num_attention_heads", heads, "hidden_size", hidden)
    tokens = request.positions(r, limit, hard=True, key="max_position_embeddings")
    head_dim = max(1, hidden // heads)
    core = Core(
        heads=heads, kv_heads=heads, head_dim=head_dim, v_head_dim=head_dim, dropout=attn_drop,
        implementation=request.implementation(ALL, r),
    )  # fmt: skip
    r.check()
    body = _block(tokens, hidden, inner, act, drop, core, before=before, bias=bias, affine=affine)
    base = prefix(request, "model") + "decoder"
    output = float(tokens * hidden)
    layers = [_embedding(base, tokens, hidden, projected, vocab, limit)]
    layers += [
        block_layer(f"{base}.layers.{i}", "OPTDecoderLayer", body, output) for i in range(count)
    ]
    layers += _end(base, tokens, hidden, projected, final=final, affine=affine)
    layers += decoder_heads(
        request, r, tokens=tokens, hidden=projected, vocab=vocab,
        tied_to=f"{base}.embed_tokens.weight" if tied else None,
    )  # fmt: skip
    return assemble(
        request, r, layers, seq_len=tokens, hidden=hidden, vocab=vocab,
        divisible=[("num_attention_heads", heads), ("ffn_dim", inner)],
    )  # fmt: skip


def _embedding(
    base: str, tokens: int, hidden: int, projected: int, vocab: int, limit: int
) -> Layer:
    tape = Tape()
    x = tape.embedding("embed_tokens", tokens, projected, vocab, vocab_parallel=True)
    if projected != hidden:
        x = tape.linear("project_in", x, hidden, bias=False)
    p = tape.embedding(
        "embed_positions", tokens, hidden, limit + POSITION_OFFSET, ids="position_ids",
        cls="OPTLearnedPositionalEmbedding",
    )  # fmt: skip
    tape.add("", x, p, cls="OPTDecoder")
    return Layer(
        name=base, kind="embedding", cls="OPTEmbedding", body=tape.body(),
        output=float(tokens * hidden),
    )  # fmt: skip


def _block(
    tokens: int,
    hidden: int,
    inner: int,
    act: str,
    drop: float,
    core: Core,
    *,
    before: bool,
    bias: bool,
    affine: bool,
) -> Body:
    """``OPTDecoderLayer.forward``; ``before``: norms ahead of their block (all but OPT-350M)."""
    tape, cls = Tape(), "OPTDecoderLayer"
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    h = tape.layer_norm("self_attn_layer_norm", x, affine=affine) if before else x
    q = tape.linear("self_attn.q_proj", h, hidden, bias=bias, split="column")
    q = tape.scale("self_attn", q, cls="OPTAttention")
    k, v = (tape.linear(f"self_attn.{p}_proj", h, hidden, bias=bias, split="column") for p in "kv")
    h = attend(tape, "self_attn", q, k, v, core, cls="OPTAttention")
    h = tape.linear("self_attn.out_proj", h, hidden, bias=bias, split="row")
    h = tape.dropout("attention_dropout", h, drop)
    x = tape.add("", x, h, cls=cls, operator="attention_residual")
    if not before:
        x = tape.layer_norm("self_attn_layer_norm", x, affine=affine)
    h = tape.layer_norm("final_layer_norm", x, affine=affine) if before else x
    names = Names(first="fc1", second="fc2", act="activation_fn")
    h = mlp(tape, names, h, inner, act, bias=bias)
    h = tape.dropout("mlp_dropout", h, drop)
    x = tape.add("", x, h, cls=cls, operator="mlp_residual")
    if not before:
        tape.layer_norm("final_layer_norm", x, affine=affine)
    return tape.body()


def _end(
    base: str, tokens: int, hidden: int, projected: int, *, final: bool, affine: bool
) -> list[Layer]:
    """The final norm, and OPT-350M's projection back to the embedding's width."""
    tape = Tape()
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    if final:
        x = tape.layer_norm("final_layer_norm", x, affine=affine)
    if projected != hidden:
        x = tape.linear("project_out", x, projected, bias=False)
    if not tape.modules:
        return []
    return [Layer(name=base, kind="norm", cls="LayerNorm", body=tape.body(), output=x.numel)]
