"""Llama as torchtitan writes it, from the same ``config.json``.

``torchtitan/models/llama/model.py`` of December 2024: rotary embedding by complex products in fp32,
key-value heads copied for every query head, RMSNorm in fp32, sdpa; the loss of ``train.py`` takes
an fp32 copy of the logits, which are dropped before backward. Names are those of its modules.

Simplification: the logits, gone before the peak of backward, are not counted beside the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raysim.models.attention import Core, attend
from raysim.models.config import Reader
from raysim.models.feedforward import Names, glu
from raysim.models.request import Request, assemble, block_layer, norm_layer
from raysim.models.table import Body, Implementation, Layer, Model, Saved
from raysim.models.tape import Tape, Tensor

BLOCK, ATTENTION = "TransformerBlock", "Attention"


def titan_model(
    request: Request,
    r: Reader,
    *,
    tokens: int,
    hidden: int,
    width: int,
    layers: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    divisible: Sequence[tuple[str, int]],
) -> Model:
    """``Transformer``: embedding, equal blocks, norm, output layer of its own."""
    body = _block(tokens, hidden, width, heads, kv_heads, request.attention)
    size = float(tokens * hidden)
    tape = Tape()
    tape.embedding("", tokens, hidden, vocab, vocab_parallel=True)
    parts = [
        Layer(name="tok_embeddings", kind="embedding", cls="Embedding", body=tape.body(),
              output=size),
        *(block_layer(f"layers.{i}", BLOCK, body, size) for i in range(layers)),
        norm_layer("norm", "RMSNorm", tokens, hidden, style="llama"),
        _output(tokens, hidden, vocab),
    ]  # fmt: skip
    return assemble(
        request, r, parts, seq_len=tokens, hidden=hidden, vocab=vocab, divisible=divisible
    )


def _block(
    tokens: int, hidden: int, width: int, heads: int, kv_heads: int, attention: Implementation
) -> Body:
    tape = Tape()
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    h = tape.rms_norm("attention_norm", x, cls="RMSNorm")
    h = _attention(tape, h, heads, kv_heads, hidden // heads, attention)
    x = tape.add("", x, h, cls=BLOCK, operator="attention_residual")
    h = tape.rms_norm("ffn_norm", x, cls="RMSNorm")
    names = Names(
        first="feed_forward.w3", gate="feed_forward.w1", second="feed_forward.w2",
        act="feed_forward.silu",
    )  # fmt: skip
    h = glu(tape, names, h, width, "silu", cls="FeedForward")
    tape.add("", x, h, cls=BLOCK, operator="feed_forward_residual")
    return tape.body(built_first=("attention", "feed_forward"))


def _attention(
    tape: Tape, x: Tensor, heads: int, kv_heads: int, head_dim: int, implementation: Implementation
) -> Tensor:
    q, k, v = (
        tape.linear(f"attention.{name}", x, count * head_dim, bias=False, split="column")
        for name, count in (("wq", heads), ("wk", kv_heads), ("wv", kv_heads))
    )
    q, k = (_rotated(tape, part, t) for part, t in (("q", q), ("k", k)))
    if kv_heads < heads:
        k, v = (_repeated(tape, part, t, heads // kv_heads) for part, t in (("k", k), ("v", v)))
    core = Core(
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        implementation=implementation,
    )
    h = attend(tape, "attention", q, k, v, core, cls=ATTENTION)
    return tape.linear("attention.wo", h, x.width, bias=False, split="row")


def _rotated(tape: Tape, part: str, x: Tensor) -> Tensor:
    """``apply_rotary_emb``: to fp32, complex product with the table, back to 16 bits."""
    name = f"attention.{part}_rotary"
    return tape.run(
        "attention", ATTENTION, operator=name, inputs=(x,),
        output=replace(x, name=f"{name}.out", storage=0), moved=(3 + 4 + 3) * x.numel, kernels=3,
        moved_backward=(3 + 4 + 3) * x.numel, kernels_backward=3, views=6,
        indexed=(2.5 * x.numel, 2.5 * x.numel),  # two casts, and pairs with a table of all heads
    )  # fmt: skip


def _repeated(tape: Tape, part: str, x: Tensor, times: int) -> Tensor:
    """``repeat_kv``: one copy; backward sums over the copies."""
    name = f"attention.{part}_repeated"
    out = replace(x, name=f"{name}.out", width=x.width * times, storage=0)
    return tape.run(
        "attention", ATTENTION, operator=name, inputs=(x,), output=out,
        moved=x.numel + out.numel, moved_backward=x.numel + out.numel, views=3,
        indexed=(out.numel, x.numel),
    )  # fmt: skip


def _output(tokens: int, hidden: int, vocab: int) -> Layer:
    """Logits, and cross-entropy of their fp32 copy: only the log-softmax stays."""
    tape = Tape()
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    logits = tape.linear("", x, vocab, bias=False, split="column")
    n = logits.numel
    softmax = Saved(name="loss.log_softmax", numel=n, dtype="fp32", sharded=logits.sharded)
    labels = Saved(name="labels", numel=tokens, dtype="int64")
    # forward: cast, log-softmax; backward: zeroed gradient of the likelihood, log-softmax, cast
    tape.run(
        "", "CrossEntropyLoss", kind="loss", operator="loss", inputs=(logits,),
        output=Tensor(name="loss.out", rows=1, width=1), moved=(3 + 8) * n, kernels=3,
        moved_backward=(2 + 8 + 3) * n, indexed=(n, n), kernels_backward=4, saves=(softmax, labels),
        split="heads" if logits.sharded else "none",
    )  # fmt: skip
    return Layer(name="output", kind="head", cls="Linear", body=tape.body(), output=1)
