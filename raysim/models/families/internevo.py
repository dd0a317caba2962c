"""InternLM as InternEvo trains it, from a ``config.json`` of Llama's keys.

``internlm/model/{modeling_internlm,multi_head_attention,linear,embedding,loss}.py`` of July 2023 on
torch 1.13 and flash-attn 1.0.5: one projection with a bias for queries, keys and values, which are
rotated in place and stay where they are; apex's RMSNorm of an fp32 copy; gate and up projected
apart, SiLU and product a kernel each; flash-attn's cross-entropy, whose backward overwrites the
logits. Where layers are not checkpointed, residual addition and norm are
(``dropout_selective_checkpoint``): backward runs them again, and no fp32 copy stays.

Each layer asks the GPU for the largest position (``RotaryEmbedding``), and the host waits for it.

Simplifications: the embedding, divided by columns, is exchanged as one divided by vocabulary; gate
and up sum their inputs' gradients over tensor-parallel ranks once, not each; samples are full.
"""

from __future__ import annotations

from collections.abc import Sequence

from raysim.models.attention import Core, attend
from raysim.models.config import Reader
from raysim.models.feedforward import Names, glu
from raysim.models.request import Request, assemble, block_layer
from raysim.models.table import Body, Layer, Model, Operator, Parameter, Saved
from raysim.models.tape import Tape, Tensor

BLOCK, ATTENTION = "PackedFlashBaseLayer1D", "MHA"


def intern_model(
    request: Request,
    r: Reader,
    *,
    tokens: int,
    hidden: int,
    width: int,
    layers: int,
    heads: int,
    vocab: int,
    divisible: Sequence[tuple[str, int]],
) -> Model:
    """``PackedFlashInternLm1D``: embedding, equal blocks, norm, head of its own."""
    selective = r.flag("dropout_selective_checkpoint", default=True)
    body, size = _block(tokens, hidden, width, heads, selective=selective), float(tokens * hidden)
    embedding, final = Tape(), Tape()
    embedding.embedding("", tokens, hidden, vocab, vocab_parallel=True, cls="Embedding1D")
    _norm(final, "", Tensor(name="hidden", rows=tokens, width=hidden), again=False)
    parts = [
        Layer(name="embedding", kind="embedding", cls="Embedding1D", body=embedding.body(),
              output=size),
        *(block_layer(f"blocks.{i}", BLOCK, body, size) for i in range(layers)),
        Layer(name="norm", kind="norm", cls="MixedFusedRMSNorm", body=final.body(), output=size),
        _head(tokens, hidden, vocab),
    ]  # fmt: skip
    return assemble(
        request, r, parts, seq_len=tokens, hidden=hidden, vocab=vocab, divisible=divisible
    )


def _block(tokens: int, hidden: int, width: int, heads: int, *, selective: bool) -> Body:
    tape = Tape()
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    h = _norm(tape, "norm1", x, again=selective)
    h = _attention(tape, h, heads)
    x, added = tape.add("", x, h, cls=BLOCK, operator="attention_residual"), (x, h)
    h = _norm(tape, "norm2", x, again=selective, added=added)
    names = Names(first="mlp.w2", gate="mlp.w1", second="mlp.w3", act="mlp.silu")
    h = glu(tape, names, h, width, "silu", cls="FeedForward")
    tape.add("", x, h, cls=BLOCK, operator="mlp_residual")
    return tape.body()


def _attention(tape: Tape, x: Tensor, heads: int) -> Tensor:
    qkv = tape.linear("mixer.Wqkv", x, 3 * x.width, split="column", cls="ColumnParallelLinear")
    largest = Operator(
        name="mixer.rotary_emb.max", kind="sync", kernels=1, kernels_backward=0, dispatches=2
    )
    tape.append("mixer.rotary_emb", "RotaryEmbedding", largest)
    rotated = 2.0 * x.numel  # queries and keys
    tables = Saved(name="mixer.rotary_emb.tables", numel=x.rows * x.width / heads)
    tape.run(
        "mixer.rotary_emb", "RotaryEmbedding", operator="mixer.rotary", inputs=(qkv,), output=qkv,
        moved=2 * rotated, kernels=4, moved_backward=2 * rotated, kernels_backward=2, views=10,
        saves=(tables,),
    )  # fmt: skip
    q, k, v = (qkv.view(x.width) for _ in range(3))
    core = Core(
        heads=heads, kv_heads=heads, head_dim=x.width // heads, v_head_dim=x.width // heads,
        implementation="flash_attention_1",
    )  # fmt: skip
    h = attend(tape, "mixer", q, k, v, core, cls=ATTENTION)
    return tape.linear("mixer.out_proj", h, x.width, split="row", cls="RowParallelLinear")


def _norm(
    tape: Tape, name: str, x: Tensor, *, again: bool, added: tuple[Tensor, ...] = ()
) -> Tensor:
    """``MixedFusedRMSNorm(x.float())``; ``again``: backward runs it once more from ``added`` on.

    In 16-bit passes over the input: the cast reads one and writes two, the norm reads two and
    writes one. Backward: the input's gradient reads three and writes two, the weight's reads three
    and adds up parts, the cast back is three.
    """
    n, passes = x.numel, 6.0
    wide = Saved(name=f"{name}.x32", numel=n, dtype="fp32")
    rstd = Saved(name=f"{name}.rstd", numel=x.rows, dtype="fp32")
    repeated = (passes + (3.0 if added else 0.0)) * again
    return tape.run(
        name, "MixedFusedRMSNorm", kind="norm", inputs=(x,),
        output=Tensor(name=f"{name}.out", rows=x.rows, width=x.width),
        moved=passes * n, kernels=2, moved_backward=(11.0 + repeated) * n,
        kernels_backward=4 + again * (2 + bool(added)), indexed=(n, (1.0 + again) * n),
        saves=tuple(t.saved() for t in added or (x,)) if again else (wide, rstd),
        parameters=(Parameter(name=f"{name}.weight" if name else "weight", shape=(x.width,)),),
    )  # fmt: skip


def _head(tokens: int, hidden: int, vocab: int) -> Layer:
    """Logits in 16 bits; their loss reads them twice and keeps a number per row."""
    tape = Tape()
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    logits = tape.linear("", x, vocab, bias=False, split="column", cls="ScaleColumnParallelLinear")
    lse = Saved(name="loss.lse", numel=tokens, dtype="fp32")
    labels = Saved(name="labels", numel=tokens, dtype="int64")
    tape.run(
        "", "FlashCrossEntropyLoss", kind="loss", operator="loss", inputs=(logits,),
        output=Tensor(name="loss.out", rows=1, width=1), moved=2 * logits.numel,
        moved_backward=2 * logits.numel, saves=(logits.saved(), lse, labels),
        split="heads" if logits.sharded else "none",
    )  # fmt: skip
    return Layer(name="head", kind="head", cls="ScaleColumnParallelLinear", body=tape.body(),
                 output=1)  # fmt: skip
