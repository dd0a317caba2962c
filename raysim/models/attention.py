"""Attention as eager Hugging Face models run it: rotary embedding and the core, by implementation.

``sdpa`` and ``flash_attention_2`` keep query, key, value, output and an fp32 log-sum-exp per row and
head. ``eager`` materialises the scores: it keeps softmax and, where it is upcast, its 16-bit copy.
With a mask that ``is_causal`` cannot express (a window, ALiBi, a position bias) sdpa takes a float mask
of its own per layer and repeats grouped key-value heads (``transformers/integrations/sdpa_attention.py``).

FLOPs are those of the full score matrix, causal or not, as ``torch.utils.flop_counter`` and the MFU
convention count them; ``Attention.causal`` and ``window`` say what a kernel can skip.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from raysim.models.table import Attention, Operator, Saved
from raysim.models.tape import Tape, Tensor

Implementation = Literal["eager", "sdpa", "flash_attention_2"]


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
    cost = _eager if core.implementation == "eager" else _fused
    kernels, moved, kernels_backward, moved_backward, saves = cost(q, k, v, out, core)
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
        implementation=core.implementation,
    )
    operator = Operator(
        name=f"{name}.core",
        kind="attention",
        flops=2.0 * pairs * core.heads * (core.head_dim + core.v_head_dim),
        moved=moved,
        moved_backward=moved_backward,
        attention=shape,
        saves=tuple(saves),
        output=out.numel,
        split="heads" if q.sharded else "none",
        kernels=kernels,
        kernels_backward=kernels_backward + len(forks),
    )
    tape.append(name, cls, operator)
    return out


_Cost = tuple[int, float, int, float, list[Saved]]


def _fused(q: Tensor, k: Tensor, v: Tensor, out: Tensor, core: Core) -> _Cost:
    """One kernel forward; backward: row sums of dO * O, then dK, dV and dQ, then a cast of dQ."""
    kernels, kernels_backward = 1, 3
    extra = 0.0
    repeats = core.heads // core.kv_heads
    saves = []
    mask = core.needs_mask and core.implementation == "sdpa"
    if mask and repeats > 1:
        k, v, extra = _repeat(k, v, repeats)
        kernels, kernels_backward = kernels + 2, kernels_backward + 2
    if mask:
        bias = Saved(name=f"{out.name}.mask", numel=q.rows * k.rows)
        kernels += 1
        extra += 2 * bias.numel
        saves.append(bias)
    if core.copies_output:
        kernels, kernels_backward = kernels + 1, kernels_backward + 1
        extra += 2 * out.numel
    moved = q.numel + k.numel + v.numel + out.numel
    rows = Saved(name=f"{out.name}.lse", numel=q.rows * core.heads, dtype="fp32", sharded=q.sharded)
    raw = replace(out, name=f"{out.name}.raw").saved() if core.copies_output else out.saved()
    saves = [q.saved(), k.saved(), v.saved(), raw, rows, *saves]
    return kernels, moved + extra, kernels_backward, 2 * moved + out.numel + extra, saves


def _repeat(k: Tensor, v: Tensor, repeats: int) -> tuple[Tensor, Tensor, float]:
    """``repeat_kv``: copies with one key-value head per query head, and the elements moved."""
    full = [
        replace(t, name=f"{t.name}.repeated", width=t.width * repeats, storage=0) for t in (k, v)
    ]
    moved = k.numel + v.numel + sum(t.numel for t in full)
    return full[0], full[1], moved


def _eager(q: Tensor, k: Tensor, v: Tensor, out: Tensor, core: Core) -> _Cost:
    """The score matrix in memory: one kernel and one pass per line of ``eager_attention_forward``."""
    repeats = core.heads // core.kv_heads
    kernels, kernels_backward, moved = 0, 0, 0.0
    if repeats > 1:
        k, v, moved = _repeat(k, v, repeats)
        kernels, kernels_backward = 2, 2
    # matmul on transposed views copies each operand first; the copy is what stays.
    dtype = "fp32" if core.upcast_scores else "compute"
    q, k = (replace(t, name=f"{t.name}.head", storage=0, dtype=dtype) for t in (q, k))
    v = replace(v, name=f"{v.name}.head", storage=0)
    wide = 2 if core.upcast_scores else 1
    copied = q.numel + (k.numel + v.numel if repeats == 1 else 0)
    kernels += (3 if repeats == 1 else 1) + 2 * core.upcast_scores
    moved += 2 * copied + 3 * (wide - 1) * (q.numel + k.numel)
    scores = q.rows * k.rows * core.heads
    score = replace(out, name=f"{out.name}.scores", width=1, rows=scores, storage=0)

    def keep(tag: str, dtype: Literal["compute", "fp32", "bool"]) -> Saved:
        return replace(score, name=f"{score.name}.{tag}", dtype=dtype).saved()

    saves = [q.saved(), k.saved(), v.saved()]
    masked = core.masked_eager if core.masked_eager is not None else core.causal or core.masked
    passes, back = 1.0 * wide, 1.0 * wide  # written by the product; its gradient read
    kernels, kernels_backward = kernels + 1, kernels_backward + 2
    lines = 1 + masked + core.biased + 3 * core.softcap  # scale, mask, bias, cap
    passes += 2 * wide * lines
    kernels += lines
    kernels_backward += 1 + 3 * core.softcap
    back += 2 * wide * (1 + 3 * core.softcap)
    if core.softcap:
        saves.append(keep("tanh", "compute"))
    if core.upcast_softmax and not core.upcast_scores:
        kernels, kernels_backward = kernels + 1, kernels_backward + 1
        passes, back = passes + 3, back + 3  # cast up
    upcast = core.upcast_softmax or core.upcast_scores
    passes, back = passes + (4 if upcast else 2), back + (6 if upcast else 3)
    kernels, kernels_backward = kernels + 1, kernels_backward + 1
    saves.append(keep("softmax", "fp32" if upcast else "compute"))
    if upcast:
        kernels, kernels_backward = kernels + 1, kernels_backward + 1
        passes, back = passes + 3, back + 3  # cast down
        if not core.dropout:
            saves.append(keep("probabilities", "compute"))
    if core.dropout:
        kernels, kernels_backward = kernels + 1, kernels_backward + 1
        passes, back = passes + 2.5, back + 2.5
        saves += [keep("mask", "bool"), keep("dropped", "compute")]
    # The product with the values, and the copy of its output to token-major order.
    kernels, kernels_backward = kernels + 2, kernels_backward + 3
    passes, back = passes + 1, back + 2
    moved += passes * scores + (q.numel + k.numel) * wide + v.numel + 3 * out.numel
    moved_backward = back * scores + 3 * (q.numel + k.numel) * wide + 3 * v.numel + 4 * out.numel
    return kernels, moved, kernels_backward, moved_backward, saves


def rotary(
    tape: Tape,
    name: str,
    tensors: list[Tensor],
    head_dim: int,
    rotated: int,
    *,
    cls: str,
    style: Literal["half", "half_cat", "interleaved"] = "half",
) -> list[Tensor]:
    """Rotary position embedding of ``rotated`` of each head's ``head_dim`` columns.

    ``half`` is Llama's ``x * cos + rotate_half(x) * sin`` (mul, neg, cat, mul, add); ``half_cat`` and
    partial rotation join the rest of the head by one more copy; ``interleaved`` is GPT-J's, whose
    tables are repeated per tensor. The tables themselves are shared by the batch and not counted.
    """
    share = rotated / head_dim
    cat = rotated < head_dim or style == "half_cat"
    out = []
    for i, x in enumerate(tensors):
        y = replace(x, name=f"{name}.rotary{i}", storage=0)
        tape.run(
            name,
            cls,
            operator=f"{name}.rotary{i}",
            inputs=(x,),
            output=y,
            moved=(10 * share + 2 * cat) * x.numel,
            kernels=5 + cat + 2 * (style == "interleaved"),
            moved_backward=(15 * share + 4 * cat) * x.numel,
            kernels_backward=9 + 3 * cat,
        )
        out.append(y)
    return out
