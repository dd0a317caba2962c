"""Feed-forward blocks: two-layer MLP, gated unit, and a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from raysim.models.table import Gemm, Operator, Parameter, Saved
from raysim.models.tape import Tape, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What a family calls the modules of its feed-forward block, relative to the layer."""

    first: str
    second: str
    act: str
    gate: str = ""


def mlp(
    tape: Tape,
    names: Names,
    x: Tensor,
    width: int,
    act: str,
    *,
    bias: bool = True,
    linear: str = "Linear",
    transposed: bool = False,
    dropout: float = 0.0,
    act_cls: str = "",
    views: int = 0,
) -> Tensor:
    """``second(act(first(x)))``; ``dropout`` between activation and second projection (T5).

    ``views``: of each projection, as in :meth:`Tape.linear`.
    """
    hidden = x.width
    h = tape.linear(
        names.first, x, width, bias=bias, split="column", cls=linear, transposed=transposed,
        views=views,
    )  # fmt: skip
    h = tape.activation(names.act, h, act, cls=act_cls)
    h = tape.dropout(f"{names.second}.dropout", h, dropout)
    return tape.linear(
        names.second, h, hidden, bias=bias, split="row", cls=linear, transposed=transposed,
        views=views,
    )  # fmt: skip


def glu(
    tape: Tape,
    names: Names,
    x: Tensor,
    width: int,
    act: str,
    *,
    cls: str,
    bias: bool = False,
    fused: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """``second(act(gate(x)) * first(x))``; ``fused`` projects both by ``first`` in one GEMM."""
    parent = names.act.rpartition(".")[0]
    if fused:
        both = tape.linear(names.first, x, 2 * width, bias=bias, split="column")
        gate, up = tape.split(parent, both, [width, width], cls=cls)
        gate = tape.activation(names.act, gate, act)
    else:
        gate = tape.linear(names.gate, x, width, bias=bias, split="column")
        gate = tape.activation(names.act, gate, act)
        up = tape.linear(names.first, x, width, bias=bias, split="column")
    h = tape.multiply(parent, gate, up, cls=cls)
    h = tape.dropout(f"{parent}.dropout", h, dropout)
    return tape.linear(names.second, h, x.width, bias=bias, split="row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Routed experts of one layer."""

    experts: int
    per_token: int
    width: int
    act: str
    cls: str
    """Class prefix, for example ``Mixtral``."""
    gate: str = "mlp.gate"
    bank: str = "mlp.experts"
    router: Literal["softmax", "normalised", "fp32", "grouped", "chosen"] = "softmax"
    """softmax: 16-bit logits, fp32 softmax, weights cast back; normalised: the chosen weights are
    divided by their sum; fp32: the gate itself in fp32 (DeepSeek-V2); grouped: sigmoid scores and
    top-k within groups (DeepSeek-V3); chosen: softmax over the chosen logits only (Granite)."""
    weights_fp32: bool = True
    """Routing weights stay in fp32, so that the weighted outputs are fp32."""
    gated: bool = True
    """An expert's first projection is of a gate too."""
    biased: bool = False
    """Both projections of an expert have a bias; modelled in Megatron-core only."""


def moe(tape: Tape, x: Tensor, spec: Experts, *, narrowed: Tensor | None = None) -> Tensor:
    """Route, gather rows by expert, two grouped GEMMs around a gated unit, and weighted sum.

    ``narrowed``: what the experts get in place of what the router sees.

    The work of ``transformers``' ``grouped_mm`` experts (its default for bf16 on recent GPUs):
    weights are two stacked tensors per layer, ``gate_up_proj`` and ``down_proj``. Routing is taken
    as balanced: every expert gets the same share of rows.
    """
    _route(tape, x, spec)
    x = narrowed or x
    rows = x.rows * spec.per_token
    bank, cls = spec.bank, f"{spec.cls}Experts"
    gathered = Tensor(name=f"{bank}.gathered", rows=rows, width=x.width)
    ids = [Saved(name=f"{bank}.{n}", numel=rows, dtype="int64") for n in ("token", "order")]
    # sort, divide, gather rows and weights, cast, histogram, running sum, cast; backward scatters
    # into zeros by a sorting index_put
    tape.run(
        bank,
        cls,
        kind="routing",
        operator=f"{bank}.dispatch",
        inputs=(x,),
        output=gathered,
        moved=2 * gathered.numel,
        kernels=8,
        moved_backward=2 * gathered.numel + x.numel,
        kernels_backward=4,
        saves=(x.saved(), *ids),
        split="column",
    )
    if spec.gated:
        wide = grouped(tape, spec, gathered, 2 * spec.width, "gate_up_proj", first=True)
        gate, up = tape.split(bank, wide, [spec.width, spec.width], cls=cls)
        h = tape.activation(f"{bank}.act_fn", gate, spec.act)
        h = tape.multiply(bank, h, up, cls=cls)
    else:
        h = grouped(tape, spec, gathered, spec.width, "up_proj", first=True)
        h = tape.activation(f"{bank}.act_fn", h, spec.act)
    y = grouped(tape, spec, h, x.width, "down_proj", first=False)
    weight = Saved(
        name=f"{bank}.weights", numel=rows, dtype="fp32" if spec.weights_fp32 else "compute"
    )
    inverse = Saved(name=f"{bank}.inverse", numel=rows, dtype="int64")
    out = Tensor(name=f"{bank}.out", rows=x.rows, width=x.width)
    fp32 = spec.weights_fp32
    # weigh rows, invert the order (2), gather back, sum over the chosen experts, cast; backward
    # expands the sum, scatters into zeros, multiplies for rows and for weights, sums the latter
    return tape.run(
        bank,
        cls,
        kind="routing",
        operator=f"{bank}.combine",
        inputs=(y,),
        output=out,
        moved=(9 if fp32 else 5) * y.numel + (5 if fp32 else 1) * out.numel,
        kernels=6 if fp32 else 5,
        moved_backward=(24 if fp32 else 11) * y.numel + (3 * out.numel if fp32 else 0),
        kernels_backward=8 if fp32 else 6,
        saves=(y.saved(), weight, inverse),
        split="row",
    )


def grouped(
    tape: Tape, spec: Experts, x: Tensor, width: int, weight: str, *, first: bool
) -> Tensor:
    """One GEMM per expert over its own rows, with weights stacked as [experts, out, in]."""
    name = f"{spec.bank}.{weight}"
    parameter = Parameter(
        name=name,
        shape=(spec.experts, width, x.width),
        shard=1 if first else 2,
        expert=True,
    )
    activations = x.rows * (x.width + width)
    op = Operator(
        name=name,
        kind="gemm",
        flops=2.0 * x.rows * x.width * width,
        moved=activations,
        moved_backward=2 * activations,
        gemm=Gemm(rows=x.rows, n=width, k=x.width, groups=spec.experts),
        saves=(x.saved(),),
        output=x.rows * width,
        split="expert",
        kernels=1,
        kernels_backward=2,
        reads=(x.read(),),
        result=f"{name}.out",
        autocast="half",
    )
    tape.append(spec.bank, f"{spec.cls}Experts", op, parameters=(parameter,))
    return Tensor(name=f"{name}.out", rows=x.rows, width=width, sharded=first)


_ROUTER_KERNELS = {
    "softmax": (4, 4), "normalised": (6, 11), "fp32": (3, 4), "grouped": (17, 11), "chosen": (4, 5),
}  # fmt: skip
"""Small kernels after the gate's GEMM, forward and backward."""


def _route(tape: Tape, x: Tensor, spec: Experts) -> None:
    """The router: a small GEMM and a top-k over its scores."""
    gate, cls = spec.gate, f"{spec.cls}TopKRouter"
    scores, chosen = x.rows * spec.experts, x.rows * spec.per_token
    source = x
    if spec.router in ("fp32", "grouped"):
        source = replace(x, name=f"{gate}.x32", dtype="fp32", storage=0)
        tape.run(
            gate, cls, operator=f"{gate}.upcast", inputs=(x,), output=source,
            moved=3 * x.numel, moved_backward=3 * x.numel,
        )  # fmt: skip
    logits = tape.linear(gate, source, spec.experts, bias=False, cls=cls)
    kept = chosen if spec.router == "chosen" else scores
    saves = [
        Saved(name=f"{gate}.scores", numel=kept, dtype="fp32"),
        Saved(name=f"{gate}.chosen", numel=chosen, dtype="int64"),
    ]
    kernels, kernels_backward = _ROUTER_KERNELS[spec.router]
    if spec.router in ("normalised", "grouped"):
        saves += [
            Saved(name=f"{gate}.sum", numel=x.rows, dtype="fp32"),
            Saved(name=f"{gate}.top", numel=chosen, dtype="fp32"),
        ]
    if spec.router == "grouped":
        saves.append(Saved(name=f"{gate}.outside", numel=scores, dtype="bool"))
    tape.run(
        gate,
        cls,
        kind="routing",
        operator=f"{gate}.topk",
        inputs=(logits,),
        output=Tensor(name=f"{gate}.out", rows=x.rows, width=spec.per_token, dtype="fp32"),
        moved=(3 + 4 + 2) * scores,
        kernels=kernels,
        moved_backward=(2 + 6 + 3) * scores,
        kernels_backward=kernels_backward,
        saves=tuple(saves),
    )
