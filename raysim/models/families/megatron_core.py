"""Decoders as Megatron-core runs them on Transformer Engine, from the same ``config.json``.

``megatron/core/models/gpt`` with ``get_gpt_layer_with_transformer_engine_spec``: norms fused into
the projection behind them (``TELayerNormColumnParallelLinear``), one projection for query, key and
value, fused rotary embedding, fused attention, fused SwiGLU; of GPT-3's shape, learned positions,
biases, fused GELU, dropout in the residual's kernel. The loss is Transformer Engine's
``parallel_cross_entropy`` (``--cross-entropy-loss-fusion``), which writes the gradient over the
logits, or Megatron's own in fp32. Names are those of Megatron's ``state_dict``.

Not modelled: fp8 weights, multi-token prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from raysim.models.attention import Core, attend
from raysim.models.config import Reader
from raysim.models.feedforward import Experts, grouped
from raysim.models.request import Request, assemble, block_layer
from raysim.models.table import Body, Layer, Model, Operator, Parameter, Saved, Split
from raysim.models.tape import Joined, Tape, Tensor

BLOCK = "TransformerLayer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """A layer of routed experts, and a shared one beside them."""

    experts: Experts
    shared_width: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Multi-head latent attention (``MLASelfAttention``)."""

    heads: int
    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    v_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Grouped-query attention."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    qk_norm: bool = False
    qkv_bias: bool = False
    proj_bias: bool = False
    rotary: bool = True
    dropout: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """An MLP without a gate: GELU in one kernel with its bias, or squared ReLU."""

    width: int
    bias: bool = False


Feedforward = int | Plain | Mixture
"""An integer: width of a SwiGLU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """What GPT-3 has and Llama has not."""

    layer_norm: bool = False
    """Norms have a bias too, which costs nothing beside their traffic."""
    positions: int = 0
    """Of a learned table; 0: none."""
    drop: float = 0.0
    """Behind embedding, attention and MLP."""


LLAMA = Style()


def norm_linear(
    tape: Tape,
    name: str,
    x: Tensor,
    width: int,
    *,
    bias: bool = False,
    shifted: bool = False,
) -> Tensor:
    """``TELayerNormColumnParallelLinear``: RMSNorm and projection, one module.

    Keeps the input, the reciprocal deviation per row, and the normalised input for the weight
    gradient (``_LayerNormLinear.forward`` of Transformer Engine).
    """
    cls = "TELayerNormColumnParallelLinear"
    forks = tape.forks(x)
    normed = Tensor(name=f"{name}.ln_out", rows=x.rows, width=x.width)
    rstd = Saved(name=f"{name}.rsigma", numel=x.rows, dtype="fp32")
    norm = Operator(
        name=f"{name}.layer_norm", kind="norm", moved=2 * x.numel,
        moved_backward=3 * x.numel + sum(3 * t.numel for t in forks),
        saves=(x.saved(), rstd), output=x.numel, kernels=1, kernels_backward=2 + len(forks),
    )  # fmt: skip
    linear, parameters, out = _linear(name, normed, width, bias=bias, split="column")
    scales = ("weight", "bias") if shifted else ("weight",)
    own = (Parameter(name=f"{name}.layer_norm_{scale}", shape=(x.width,)) for scale in scales)
    tape.append(name, cls, norm, linear, parameters=(*own, *parameters))
    return out


def _linear(
    name: str, x: Tensor, width: int, *, bias: bool, split: Split
) -> tuple[Operator, tuple[Parameter, ...], Tensor]:
    tape = Tape()
    out = tape.linear(name, x, width, bias=bias, split=split)
    return tape.modules[0].operators[0], tape.modules[0].parameters, out


def _block(
    tokens: int, hidden: int, attention: Grouped | Latent, feedforward: Feedforward, style: Style
) -> Body:
    """One ``TransformerLayer``."""
    tape = Tape()
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    if isinstance(attention, Grouped):
        h = _grouped_attention(tape, x, attention, shifted=style.layer_norm)
        biased = attention.proj_bias
    else:
        h, biased = _latent_attention(tape, x, attention), False
    h = tape.linear("self_attention.linear_proj", h, hidden, bias=biased, split="row",
                    cls="TERowParallelLinear")  # fmt: skip
    x = _dropout_add(tape, "self_attn_bda", x, h, style.drop)
    if isinstance(feedforward, Mixture):
        h = _mixture(tape, x, feedforward)
    else:
        h = _mlp(tape, x, feedforward, shifted=style.layer_norm)
    _dropout_add(tape, "mlp_bda", x, h, style.drop)
    return tape.body()


def _mlp(tape: Tape, x: Tensor, f: int | Plain, *, shifted: bool) -> Tensor:
    biased = isinstance(f, Plain) and f.bias
    if isinstance(f, Plain):
        h = norm_linear(tape, "mlp.linear_fc1", x, f.width, bias=biased, shifted=shifted)
        h = _activated(tape, h)
    else:
        h = norm_linear(tape, "mlp.linear_fc1", x, 2 * f)
        h = swiglu(tape, "mlp", h, f)
    return tape.linear("mlp.linear_fc2", h, x.width, bias=biased, split="row",
                       cls="TERowParallelLinear")  # fmt: skip


def _dropout_add(tape: Tape, name: str, residual: Tensor, h: Tensor, drop: float) -> Tensor:
    """``bias_dropout_add_fused_train``: one kernel; keeps the mask, a byte per element."""
    if not drop:
        return tape.add(name, residual, h, cls=BLOCK)
    n = h.numel
    return tape.run(
        name, BLOCK, inputs=(residual, h),
        saves=(Saved(name=f"{name}.mask", numel=n, dtype="bool"),),
        output=Tensor(name=f"{name}.out", rows=h.rows, width=h.width),
        moved=3.5 * n, moved_backward=2.5 * n, kernels_backward=1,
    )  # fmt: skip


def _activated(tape: Tape, x: Tensor) -> Tensor:
    """``bias_gelu``, or ``squared_relu`` under ``jit_fuser``: one kernel each way."""
    return tape.run(
        "mlp", "MLP", operator="mlp.activation", inputs=(x,),
        output=replace(x, name="mlp.activated", storage=0), moved=2 * x.numel,
        moved_backward=3 * x.numel, saves=(x.saved(),),
    )  # fmt: skip


def swiglu(tape: Tape, name: str, x: Tensor, width: int) -> Tensor:
    """``bias_swiglu_fusion``: one kernel each way, keeps its input of both halves."""
    n = x.rows * width
    return tape.run(
        name, "SwiGLUFunction", operator=f"{name}.swiglu", inputs=(x,),
        output=Tensor(name=f"{name}.activated", rows=x.rows, width=width, sharded=x.sharded),
        moved=3 * n, moved_backward=5 * n, saves=(x.saved(),),
    )  # fmt: skip


def _copy(tape: Tape, name: str, x: Tensor, *, cls: str) -> Tensor:
    """``contiguous()`` of a view; ``split``'s backward copies the gradient."""
    return tape.run(
        name, cls, inputs=(x,), output=replace(x, name=name, storage=0), moved=2 * x.numel,
        moved_backward=0, kernels_backward=0,
    )  # fmt: skip


def _rope(tape: Tape, name: str, x: Tensor, *, part: str) -> Tensor:
    """``fused_apply_rotary_pos_emb``: one kernel each way; the tables are shared."""
    out = replace(x, name=f"{name}.{part}_rope", storage=0)
    return tape.run(
        name, "FusedRoPEFunc", operator=f"{name}.{part}_rope", inputs=(x,), output=out,
        moved=2 * x.numel, moved_backward=2 * x.numel,
    )  # fmt: skip


def _grouped_attention(tape: Tape, x: Tensor, a: Grouped, *, shifted: bool) -> Tensor:
    name, cls = "self_attention", "SelfAttention"
    q_width, kv_width = a.heads * a.head_dim, a.kv_heads * a.head_dim
    qkv = norm_linear(
        tape, f"{name}.linear_qkv", x, q_width + 2 * kv_width, bias=a.qkv_bias, shifted=shifted
    )
    # SplitAlongDim: attention writes its three gradients into one tensor; rotary kernels do not
    gradients: Joined = "contiguous" if a.rotary or a.kv_heads < a.heads else "in place"
    q, k, v = tape.split(name, qkv, [q_width, kv_width, kv_width], cls=cls, gradients=gradients)
    core = Core(
        heads=a.heads, kv_heads=a.kv_heads, head_dim=a.head_dim, v_head_dim=a.head_dim,
        implementation="transformer_engine", dropout=a.dropout,
        window=a.window if a.window is not None and a.window < x.rows else None,
    )  # fmt: skip
    if not a.rotary:  # attention reads the projection as it lies, head by head
        return attend(tape, name, q, k, v, core, cls="TEDotProductAttention")
    # query is reshaped out of its groups; Transformer Engine wants value contiguous as well
    # (get_qkv_layout), so that nothing keeps the projection's own output
    q, v = (_copy(tape, f"{name}.{p}", t, cls=cls) for p, t in (("q", q), ("v", v)))
    if a.qk_norm:
        q, k = (_head_norm(tape, f"{name}.{p}_layernorm", t, a.head_dim) for p, t in
                (("q", q), ("k", k)))  # fmt: skip
    q, k = (_rope(tape, name, t, part=p) for p, t in (("q", q), ("k", k)))
    return attend(tape, name, q, k, v, core, cls="TEDotProductAttention")


def _head_norm(tape: Tape, name: str, x: Tensor, head_dim: int) -> Tensor:
    """``qk_layernorm`` over each head: input and deviation kept."""
    rows = x.regroup(head_dim)
    rstd = Saved(name=f"{name}.rsigma", numel=rows.rows, dtype="fp32", sharded=x.sharded)
    return tape.run(
        name, "TENorm", kind="norm", inputs=(x,),
        output=replace(x, name=f"{name}.out", storage=0), moved=2 * x.numel,
        moved_backward=3 * x.numel, kernels_backward=2, saves=(x.saved(), rstd),
        parameters=(Parameter(name=f"{name}.weight", shape=(head_dim,)),),
    )  # fmt: skip


def _latent_attention(tape: Tape, x: Tensor, a: Latent) -> Tensor:
    """``MLASelfAttention``: the norm stands before both down projections, which read its output.

    ``linear_q_up_proj`` and ``linear_kv_up_proj`` have the norms of the compressed tensors fused.
    Keys are joined from the up-projected part and one rotated part for all heads.
    """
    name, cls, qk = "self_attention", "MLASelfAttention", a.nope + a.rope
    h = norm(tape, "input_layernorm", x)
    if a.q_rank is None:
        q = tape.linear(f"{name}.linear_q_proj", h, a.heads * qk, bias=False, split="column")
    else:
        low = tape.linear(f"{name}.linear_q_down_proj", h, a.q_rank, bias=False)
        q = norm_linear(tape, f"{name}.linear_q_up_proj", low, a.heads * qk)
    both = tape.linear(f"{name}.linear_kv_down_proj", h, a.kv_rank + a.rope, bias=False)
    compressed, rotated = tape.split(name, both, [a.kv_rank, a.rope], cls=cls)
    wide = norm_linear(tape, f"{name}.linear_kv_up_proj", compressed, a.heads * (a.nope + a.v_dim))
    nope, v = tape.split(name, wide, [a.heads * a.nope, a.heads * a.v_dim], cls=cls)
    # fused_apply_mla_rope_for_q rotates in place; ..._for_kv writes whole keys and values
    turned = q.rows * a.heads * a.rope
    query = tape.run(
        name, cls, operator=f"{name}.query_rope", inputs=(q,), output=q, moved=2 * turned,
        moved_backward=2 * turned,
    )  # fmt: skip
    key = replace(query, name=f"{name}.key")
    value = replace(v, name=f"{name}.value", storage=0)
    written = key.numel + value.numel
    tape.run(
        name, cls, operator=f"{name}.key_value_rope", inputs=(rotated, nope), output=key,
        moved=wide.numel + rotated.numel + written,
        moved_backward=wide.numel + rotated.numel + written,
    )  # fmt: skip
    core = Core(
        heads=a.heads, kv_heads=a.heads, head_dim=qk, v_head_dim=a.v_dim,
        implementation="transformer_engine",
    )  # fmt: skip
    return attend(tape, name, query, key, value, core, cls="TEDotProductAttention")


def norm(tape: Tape, name: str, x: Tensor, *, cls: str = "TENorm", shifted: bool = False) -> Tensor:
    """A norm of its own: one kernel; keeps its input and a number per row."""
    scales = ("weight", "bias") if shifted else ("weight",)
    rstd = Saved(name=f"{name}.rsigma", numel=x.rows, dtype="fp32", sharded=x.sharded)
    return tape.run(
        name, cls, kind="norm", inputs=(x,),
        output=Tensor(name=f"{name}.out", rows=x.rows, width=x.width, sharded=x.sharded),
        moved=2 * x.numel, moved_backward=3 * x.numel, kernels_backward=2,
        saves=(x.saved(), rstd),
        parameters=tuple(
            Parameter(name=f"{name}.{scale}" if name else scale, shape=(x.width,))
            for scale in scales
        ),
    )  # fmt: skip


def _mixture(tape: Tape, x: Tensor, m: Mixture) -> Tensor:
    """``MoELayer`` with the all-to-all dispatcher, fused permutation and grouped GEMM.

    Tokens are permuted by expert, exchanged, sorted by the experts held here, run through them
    (``expert`` GEMMs between a ``column`` dispatch and a ``row`` combine), and all of it back.
    """
    e, cls = m.experts, "MoELayer"
    h = norm(tape, "pre_mlp_layernorm", x)
    scores = h.rows * e.experts
    logits = tape.linear("mlp.router", h, e.experts, bias=False, cls="TopKRouter")
    tape.run(
        "mlp.router", "TopKRouter", kind="routing", operator="mlp.router.topk", inputs=(logits,),
        output=Tensor(name="mlp.probs", rows=h.rows, width=e.experts, dtype="fp32"),
        moved=9 * scores, kernels=12, moved_backward=11 * scores, kernels_backward=10,
        saves=(
            Saved(name="mlp.router.scores", numel=scores, dtype="fp32"),
            Saved(name="mlp.router.map", numel=scores, dtype="bool"),
        ),
    )  # fmt: skip
    rows = h.rows * e.per_token
    permuted = Tensor(name="mlp.permuted", rows=rows, width=h.width)
    rows_map = Saved(name="mlp.row_id_map", numel=h.rows * e.experts, dtype="int32")
    tape.run(
        "mlp.token_dispatcher", cls, kind="routing", operator="mlp.dispatch", inputs=(h,),
        output=permuted, moved=h.numel + 3 * permuted.numel, kernels=4,
        moved_backward=h.numel + 3 * permuted.numel, kernels_backward=2, saves=(rows_map,),
        split="column",
    )  # fmt: skip
    bank = replace(e, bank="mlp.experts")
    wide = grouped(tape, bank, permuted, 2 * e.width, "linear_fc1.weight", first=True)
    h2 = swiglu(tape, "mlp.experts", wide, e.width)
    y = grouped(tape, bank, h2, x.width, "linear_fc2.weight", first=False)
    if e.biased:
        y = _expert_biases(tape, y, wide, e)
    out = Tensor(name="mlp.combined", rows=x.rows, width=x.width)
    routed = tape.run(
        "mlp.token_dispatcher", cls, kind="routing", operator="mlp.combine", inputs=(y,),
        output=out, moved=3 * y.numel + out.numel, kernels=2,
        moved_backward=3 * y.numel + out.numel, kernels_backward=2, split="row",
    )  # fmt: skip
    if not m.shared_width:
        return routed
    s = tape.linear("mlp.shared_experts.linear_fc1", h, 2 * m.shared_width, bias=False,
                    split="column")  # fmt: skip
    s = swiglu(tape, "mlp.shared_experts", s, m.shared_width)
    s = tape.linear("mlp.shared_experts.linear_fc2", s, x.width, bias=False, split="row")
    return tape.add("mlp", routed, s, cls=cls)


def _expert_biases(tape: Tape, y: Tensor, wide: Tensor, e: Experts) -> Tensor:
    """``TEGroupedMLP._apply_bias``: each expert's bias times its tokens' probabilities, in fp32.

    Forward, in 16-bit passes over the outputs: bias times probability (2), sum (5), concatenation
    (4), cast (3). Backward: cast (3), the outputs' gradients cast and joined again (5), products
    and sums for bias and probability (6 each). The first projection's bias rides on its products;
    its gradient is one sum over them.
    """
    name, n = "mlp.experts.bias", y.numel
    return tape.run(
        "mlp.experts", "TEGroupedMLP", operator=name, inputs=(y,),
        output=replace(y, name=f"{name}.out", storage=0), moved=14 * n, kernels=8,
        moved_backward=20 * n + wide.numel, kernels_backward=12,
        parameters=tuple(
            Parameter(name=f"mlp.experts.{layer}.bias", shape=(e.experts, width), expert=True)
            for layer, width in (("linear_fc1", 2 * e.width), ("linear_fc2", y.width))
        ),
    )  # fmt: skip


def megatron_model(
    request: Request,
    r: Reader,
    blocks: Sequence[tuple[Grouped | Latent, Feedforward]],
    *,
    tokens: int,
    hidden: int,
    vocab: int,
    tied: bool,
    divisible: Sequence[tuple[str, int]],
    style: Style = LLAMA,
) -> Model:
    """``GPTModel`` of these blocks: attention, and width of the MLP or its experts."""
    bodies = {kind: _block(tokens, hidden, *kind, style) for kind in dict.fromkeys(blocks)}
    first, last = _ends(request, tokens, hidden, vocab, tied=tied, style=style)
    layers = [
        block_layer(f"decoder.layers.{i}", BLOCK, bodies[kind], float(tokens * hidden))
        for i, kind in enumerate(blocks)
    ]
    return assemble(
        request, r, [first, *layers, *last], seq_len=tokens, hidden=hidden, vocab=vocab,
        divisible=divisible,
    )  # fmt: skip


def _ends(
    request: Request, tokens: int, hidden: int, vocab: int, *, tied: bool, style: Style
) -> tuple[Layer, list[Layer]]:
    """Embedding before the blocks; final norm, output layer and loss after them.

    The vocabulary is padded by ``request.vocab_multiple``.
    """
    vocab = -(-vocab // request.vocab_multiple) * request.vocab_multiple
    size = float(tokens * hidden)
    tape = Tape()
    tape.embedding("word_embeddings", tokens, hidden, vocab, vocab_parallel=True,
                   cls="VocabParallelEmbedding")  # fmt: skip
    x = Tensor(name="hidden", rows=tokens, width=hidden)
    if style.positions:
        table = tape.embedding(
            "position_embeddings", tokens, hidden, style.positions, per_sample=False
        )
        x = tape.add("", x, table, cls="LanguageModelEmbedding")
    tape.dropout("embedding_dropout", x, style.drop)
    first = Layer(name="embedding", kind="embedding", cls="LanguageModelEmbedding",
                  body=tape.body(), output=size)  # fmt: skip
    tape = Tape()
    norm(tape, "", x, shifted=style.layer_norm)
    last = Layer(name="decoder.final_layernorm", kind="norm", cls="TENorm", body=tape.body(),
                 output=size)  # fmt: skip
    tape = Tape()
    logits = tape.linear(
        "", x, vocab, bias=False, split="column", cls="ColumnParallelLinear",
        tied_to="embedding.word_embeddings.weight" if tied else None,
    )  # fmt: skip
    _loss(tape, logits, fused=request.fused_loss)
    head = Layer(name="output_layer", kind="head", cls="ColumnParallelLinear", body=tape.body(),
                 output=1)  # fmt: skip
    return first, [last, head]


def _loss(tape: Tape, logits: Tensor, *, fused: bool) -> None:
    """Cross-entropy over logits divided by vocabulary.

    Fused: an online softmax reads them, a second kernel reads and overwrites them with their
    gradient, which backward scales in place. Else fp32 softmax is kept beside them.
    """
    n = logits.numel
    if fused:
        tape.run(
            "", "CrossEntropyFunction", kind="loss", operator="loss", inputs=(logits,),
            output=Tensor(name="loss.out", rows=logits.rows, width=1), moved=3 * n, kernels=2,
            moved_backward=2 * n, kernels_backward=1, saves=(logits.saved(),),
            split="heads" if logits.sharded else "none",
        )  # fmt: skip
        return
    softmax = Saved(name="loss.softmax", numel=n, dtype="fp32", sharded=logits.sharded)
    tape.run(
        "", "VocabParallelCrossEntropy", kind="loss", operator="loss", inputs=(logits,),
        output=Tensor(name="loss.out", rows=logits.rows, width=1), moved=19 * n, kernels=12,
        moved_backward=7 * n, kernels_backward=5, saves=(softmax,),
        split="heads" if logits.sharded else "none",
    )  # fmt: skip
