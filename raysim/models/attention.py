"""Attention as eager Hugging Face models run it: rotary embedding and the core, by implementation.

``sdpa``, ``flash_attention_1``, ``_2``, ``_3`` and ``triton`` keep query, key, value, output and an
fp32 log-sum-exp per row and head. ``triton`` is FlashAttention written in Triton, which MPT's own
code ran (``attn_impl: triton``) until March 2024. ``eager`` materialises the scores: it keeps
softmax and, where it is upcast, its 16-bit copy. With a mask that ``is_causal`` cannot express (a
window, ALiBi, a position bias) sdpa takes a float mask of its own per layer and repeats grouped
key-value heads (``transformers/integrations/sdpa_attention.py``).

FLOPs are those of the full score matrix, causal or not, as ``torch.utils.flop_counter`` and the MFU
convention count them; ``Attention.causal`` and ``window`` say what a kernel can skip.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from raysim.models.table import Attention, Implementation, Operator, Saved, TensorDtype
from raysim.models.tape import JOINED, Tape, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """One attention core and how its family's eager code spells it."""

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    implementation: Implementation
    causal: bool = True
    window: int | None = None
    dropout: float = 0.0
    masked: bool = False
    """A mask or bias that the fused kernels' causal flag cannot express."""
    masked_eager: bool | None = None
    """Whether eager adds a mask; None: when causal or masked."""
    upcast_softmax: bool = True
    """Eager softmax in fp32, cast back."""
    upcast_scores: bool = False
    """Eager query and key cast to fp32 before the product (GPT-J, GPT-Neo)."""
    softcap: bool = False
    biased: bool = False
    """Eager adds a position bias to the scores (ALiBi, T5)."""
    scales: bool = True
    """Eager scales the scores in a kernel of its own (BLOOM's product does it)."""
    keeps_mask: bool = False
    """Eager fills masked scores and keeps the mask per layer (MPT)."""
    unfused: bool = False
    """sdpa gets shapes no fused kernel takes, or a bias that is trained, and runs PyTorch's math
    path, in fp32."""
    fused_softmax: bool = False
    """Eager with Megatron's ``masked_softmax_fusion``: the product reads strided views and scales,
    one kernel masks and normalises."""
    copies_output: bool = False
    """The output comes out head-major and is copied before the output projection."""

    @property
    def needs_mask(self) -> bool:
        """Whether sdpa gets an explicit mask."""
        return self.masked or self.window is not None


def attend(
    tape: Tape, name: str, q: Tensor, k: Tensor, v: Tensor, core: Core, *, cls: str
) -> Tensor:
    """Softmax-weighted values; ``q`` has ``heads * head_dim`` columns, rows are positions."""
    out = Tensor(
        name=f"{name}.core.out",
        rows=q.rows,
        width=core.heads * core.v_head_dim,
        sharded=q.sharded,
    )
    forks = tape.forks(q, k, v)
    if core.implementation == "eager":
        cost = _eager(q, k, v, out, core)
    elif core.unfused and core.implementation == "sdpa":
        cost = _unfused(q, k, v, out, core)
    else:
        cost = _fused(q, k, v, out, core)
    pairs = q.rows * k.rows
    shape = Attention(
        q_len=round(q.rows),
        kv_len=round(k.rows),
        heads=core.heads,
        kv_heads=core.kv_heads,
        head_dim=core.head_dim,
        v_head_dim=core.v_head_dim,
        causal=core.causal,
        window=core.window,
        masked=core.needs_mask and core.implementation == "sdpa",
        implementation="eager"
        if core.unfused and core.implementation == "sdpa"
        else core.implementation,
        fused_softmax=core.fused_softmax and core.implementation == "eager",
    )
    operator = Operator(
        name=f"{name}.core",
        kind="attention",
        flops=2.0 * pairs * core.heads * (core.head_dim + core.v_head_dim),
        moved=cost.moved,
        moved_backward=cost.moved_backward + sum(3 * x.numel for x in forks),
        indexed=cost.indexed,
        indexed_backward=cost.indexed_backward,
        attention=shape,
        exact=core.unfused and core.implementation == "sdpa",
        saves=tuple(cost.saves),
        output=out.numel,
        split="heads" if q.sharded else "none",
        kernels=cost.kernels,
        kernels_backward=cost.kernels_backward + len(forks),
        dispatches=cost.kernels + _views(core),
        reads=(q.read(), k.read(), v.read()),
        joined=tuple([x.name for x in forks]),
        result=out.name,
        autocast="half",
    )
    tape.append(name, cls, operator)
    return out


def _views(core: Core) -> int:
    """ATen operators without a kernel: heads split, transposed, expanded, flattened and joined.

    Counted by dispatching transformers' attention (``tests/real/test_models_dispatches.py``).
    """
    if core.implementation != "eager" and not core.unfused:
        return 9
    if core.fused_softmax:  # Megatron: q, k, v sliced out, one product over all heads
        return 20
    repeats = 8 if core.kv_heads < core.heads else 0
    return 16 + repeats


@dataclass(slots=True)
class _Cost:
    """Kernels launched and elements moved, summed line by line."""

    kernels: int = 0
    moved: float = 0.0
    kernels_backward: int = 0
    moved_backward: float = 0.0
    indexed: float = 0.0
    indexed_backward: float = 0.0
    saves: list[Saved] = field(default_factory=list)

    def line(
        self,
        kernels: int,
        moved: float,
        kernels_backward: int,
        moved_backward: float,
        indexed: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """One line of Python: its kernels and traffic, forward and backward."""
        self.indexed += indexed[0]
        self.indexed_backward += indexed[1]
        self.kernels += kernels
        self.moved += moved
        self.kernels_backward += kernels_backward
        self.moved_backward += moved_backward


def _fused(q: Tensor, k: Tensor, v: Tensor, out: Tensor, core: Core) -> _Cost:
    """One kernel forward; backward: row sums of dO * O, then dK, dV and dQ, then a cast of dQ."""
    cost = _Cost()
    repeats = core.heads // core.kv_heads
    mask = core.needs_mask and core.implementation == "sdpa"
    if mask and repeats > 1:
        k, v = _repeat(cost, k, v, repeats)
    bias = []
    if mask:  # the boolean mask becomes a float bias of this call's own
        bias = [Saved(name=f"{out.name}.mask", numel=q.rows * k.rows)]
        cost.line(1, 2 * bias[0].numel, 0, 0)
    moved = q.numel + k.numel + v.numel + out.numel
    cost.line(1, moved, 3, 2 * moved + out.numel)
    if core.copies_output:
        cost.line(1, 2 * out.numel, 1, 2 * out.numel)
    rows = Saved(name=f"{out.name}.lse", numel=q.rows * core.heads, dtype="fp32", sharded=q.sharded)
    raw = replace(out, name=f"{out.name}.raw") if core.copies_output else out
    cost.saves = [q.saved(), k.saved(), v.saved(), raw.saved(), rows, *bias]
    return cost


def _repeat(cost: _Cost, k: Tensor, v: Tensor, repeats: int) -> tuple[Tensor, Tensor]:
    """``repeat_kv``: copies with one key-value head per query head."""
    wide = [
        replace(t, name=f"{t.name}.repeated_{part}", width=t.width * repeats, storage=0)
        for part, t in (("k", k), ("v", v))
    ]
    copies = sum(t.numel for t in wide)
    moved = k.numel + v.numel + copies
    cost.line(2, moved, 2, moved, (copies, 0.0))
    return wide[0], wide[1]


def _head_major(out: Tensor, part: str, x: Tensor, dtype: TensorDtype = "compute") -> Tensor:
    """The copy that matmul makes of a transposed operand; the copy is what stays."""
    return replace(x, name=f"{out.name}.{part}", storage=0, dtype=dtype)


def _unfused(q: Tensor, k: Tensor, v: Tensor, out: Tensor, core: Core) -> _Cost:
    """``_scaled_dot_product_attention_math`` in 16 bits: everything cast to fp32 and kept so."""
    cost = _Cost()
    widths = [core.heads * core.head_dim, core.heads * core.head_dim, out.width]
    full = [
        replace(_head_major(out, part, t, "fp32"), width=w)
        for part, t, w in zip("qkv", (q, k, v), widths, strict=True)
    ]
    scores = Tensor(
        name=f"{out.name}.softmax", rows=q.rows * k.rows * core.heads, width=1, dtype="fp32",
        sharded=q.sharded,
    )  # fmt: skip
    dropped = replace(scores, name=f"{out.name}.dropped")
    n, operands = scores.numel, sum(t.numel for t in full)
    inputs = q.numel + k.numel + v.numel
    cost.line(3, 3 * inputs, 3, 3 * inputs, (inputs, inputs))  # casts
    cost.line(2, 4 * (q.numel + k.numel), 2, 4 * (q.numel + k.numel))  # scale of q and k
    cost.line(3, 4 * operands, 2, 4 * operands)  # expanded copies
    cost.line(1, 2 * (full[0].numel + full[1].numel + n), 2, 4 * (n + full[0].numel))
    learnt = core.biased and not core.masked  # a bias's gradient is summed over the batch
    if core.masked or core.causal or learnt:
        cost.line(1, 4 * n, int(learnt), 2 * n * learnt, (n, 0.0))
    cost.line(1, 4 * n, 2, 12 * n)  # softmax; backward as in ``_softmax``
    cost.line(3, 7 * n, 0, 0, (n, 0.0))  # ``_safe_softmax``: rows that are all masked become 0
    if core.dropout:
        cost.line(1, 4.5 * n, 1, 4.5 * n)
    cost.line(1, 3 * n, 0, 0, (n, 0.0))  # the returned weights, cast
    cost.line(1, 2 * (n + full[2].numel + out.numel), 2, 4 * (n + full[2].numel + out.numel))
    cost.line(2, 5 * out.numel, 2, 5 * out.numel)  # cast and copy of the output
    cost.saves = [*(t.saved() for t in full), scores.saved()]
    if core.dropout:
        mask = replace(scores, name=f"{out.name}.kept", dtype="bool")
        cost.saves += [mask.saved(), dropped.saved()]
    return cost


def _eager(q: Tensor, k: Tensor, v: Tensor, out: Tensor, core: Core) -> _Cost:
    """The score matrix in memory: a kernel and a pass per line of ``eager_attention_forward``."""
    cost = _Cost()
    repeats = core.heads // core.kv_heads
    if repeats > 1:
        k, v = _repeat(cost, k, v, repeats)
    dtype: TensorDtype = "fp32" if core.upcast_scores else "compute"
    wide = 2 if core.upcast_scores else 1
    if core.upcast_scores:
        cast = q.numel + k.numel
        cost.line(2, 3 * cast, 2, 3 * cast, (cast, cast))
    if not core.fused_softmax:
        copied = q.numel * wide + (k.numel * wide + v.numel if repeats == 1 else 0)
        strided = q.numel + (k.numel + v.numel if repeats == 1 else 0)
        cost.line(3 if repeats == 1 else 1, 2 * copied, 0, 0, (strided, 0.0))
        q, k = (_head_major(out, part, t, dtype) for part, t in (("q", q), ("k", k)))
        v = _head_major(out, "v", v)
    n = q.rows * k.rows * core.heads
    score = Tensor(name=f"{out.name}.scores", rows=n, width=1, sharded=out.sharded)
    operands = (q.numel + k.numel) * wide
    cost.line(1, operands + wide * n, 2, 2 * operands + 2 * wide * n)
    cost.saves = [q.saved(), k.saved(), v.saved()]
    if not core.fused_softmax:
        _score_lines(cost, core, score, wide)
    probabilities = _softmax(cost, core, score)
    cost.saves.append(probabilities.saved())
    cost.line(1, n + v.numel + out.numel, 2, 2 * (n + v.numel + out.numel))
    # token-major copy of the output
    cost.line(1, 2 * out.numel, 1, 2 * out.numel, (out.numel, out.numel))
    return cost


def _score_lines(cost: _Cost, core: Core, score: Tensor, wide: int) -> None:
    """Scale, bias, mask and cap of the raw scores."""
    n = score.numel
    if core.scales:
        cost.line(1, 2 * wide * n, 1, 2 * wide * n)
    if core.softcap:  # divide, tanh, multiply
        cost.line(3, 6 * wide * n, 3, 7 * wide * n)
        cost.saves.append(replace(score, name=f"{score.name}.tanh").saved())
    if core.biased:
        cost.line(1, 2 * wide * n, 0, 0, (n, 0.0))
    masked = core.masked_eager if core.masked_eager is not None else core.causal or core.masked
    if masked:  # one for all heads
        cost.line(1, 2 * wide * n, 0, 0, (n, 0.0))
    if core.keeps_mask:
        mask = replace(score, name=f"{score.name}.filled", rows=score.numel / core.heads)
        cost.saves.append(replace(mask, dtype="bool").saved())


def _softmax(cost: _Cost, core: Core, score: Tensor) -> Tensor:
    """Softmax in fp32 or as it is, cast back, dropout; returns what multiplies the values.

    Megatron's kernel reads the causal half of a row and writes all of it. torch's backward
    multiplies gradient and output first, in a kernel of its own (``softmax_backward_cuda_out``).
    """
    n = score.numel
    fp32 = (core.upcast_softmax or core.upcast_scores) and not core.fused_softmax
    if fp32 and not core.upcast_scores:
        cost.line(1, 3 * n, 1, 3 * n, (n, n))
    if core.fused_softmax:
        cost.line(1, 1.5 * n, 1, 2 * n)
    else:
        cost.line(1, (4 if fp32 else 2) * n, 2, (12 if fp32 else 6) * n)
    result = replace(score, name=f"{score.name}.softmax", dtype="fp32" if fp32 else "compute")
    cost.saves.append(result.saved())
    if fp32:
        cost.line(1, 3 * n, 1, 3 * n, (n, n))
        result = replace(result, name=f"{score.name}.probabilities", dtype="compute")
    if core.dropout:
        cost.line(1, 2.5 * n, 1, 2.5 * n)
        cost.saves.append(replace(score, name=f"{score.name}.mask", dtype="bool").saved())
        result = replace(result, name=f"{score.name}.dropped")
    return result


def rotary(
    tape: Tape,
    name: str,
    tensors: list[Tensor],
    head_dim: int,
    rotated: int,
    *,
    cls: str,
    style: Literal["half", "half_cat", "half_fp32", "interleaved"] = "half",
) -> list[Tensor]:
    """Rotary position embedding of ``rotated`` of each head's ``head_dim`` columns.

    ``half`` is Llama's ``x * cos + rotate_half(x) * sin`` (mul, neg, cat, mul, add); ``half_cat``
    and partial rotation join the rest of the head by one more copy; ``interleaved`` is GPT-J's,
    whose tables are repeated per tensor; ``half_fp32`` OLMo's, whose tables are fp32 and so are the
    products with them. The tables themselves are shared by the batch and not
    counted.
    """
    share = rotated / head_dim
    cat = rotated < head_dim or style == "half_cat"
    wide = style == "half_fp32"
    out = []
    for i, x in enumerate(tensors):
        y = replace(x, name=f"{name}.rotary{i}", storage=0)
        tape.run(
            name,
            cls,
            operator=f"{name}.rotary{i}",
            inputs=(x,),
            output=y,
            moved=(10 * share + 2 * cat + 8 * wide) * x.numel,
            kernels=5 + cat + wide + 2 * (style == "interleaved"),
            views=3 + 2 * cat,  # both halves, and the tables' new dimension
            moved_backward=(15 * share + 4 * cat + 13 * wide) * x.numel,
            kernels_backward=9 + 3 * cat + 3 * wide,
            # all on views of the heads, with tables that every head shares: two products, half a
            # negation, the sum, and joined halves; backward's joins are copies into zeros
            indexed=(
                ((3.5 + JOINED) * share + JOINED * cat + wide) * x.numel,
                (5 * share + 2 * cat + wide) * x.numel,
            ),
        )
        out.append(y)
    return out
