"""How one rank's share of a layer is cut, and what its peers exchange around each module.

Tensor parallelism divides what an operator's ``split`` says; Megatron's sequence parallelism also
divides everything between the divided operators, so that all-reduces become reduce-scatters and
all-gathers (Korthikanti et al., arXiv 2205.05198). Context parallelism divides the sequence
everywhere and exchanges around the attention core: heads against positions (``a2a``, as DeepSpeed's
Ulysses), or keys and values passed around a ring beside it (``p2p``) or gathered before it
(``all_gather``). Expert parallelism divides the experts and exchanges tokens.

Simplifications: routing is balanced, and where a token goes once per rank its experts are spread at
random; rows gathered over tensor-parallel peers (of experts, and of inputs that ``keeps_gathered``
keeps whole) are counted as divided in memory, heads of keys that Ulysses repeats as kept once; a
ring's messages are one all-gather that runs beside the core; an asynchronous exchange's first piece
is exposed, all others run beside one product.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from raysim.models.table import FIXED_DTYPE_BYTES, Module, Operator, Saved

ContextExchange = Literal["p2p", "a2a", "all_gather"]
"""Megatron's ``--cp-comm-type``; DeepSpeed's Ulysses is ``a2a``."""

_INT64_BYTES, _FP32_BYTES = 8, 4
SCATTER_PIECES, SCATTER_SMS = 4, 16
"""``num_splits`` and ``num_sm`` of the ``pipeline`` that user buffers scatter with."""
TokenDispatcher = Literal["alltoall", "flex"]
"""Megatron's ``--moe-token-dispatcher-type``; ``flex`` is DeepEP or HybridEP: a token travels once
to each rank that holds any of its experts, not once per expert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Degrees that divide a layer over ranks of one replica."""

    tp: int = 1
    sequence_parallel: bool = False
    cp: int = 1
    cp_exchange: ContextExchange = "p2p"
    cp_returns_fp32: bool = False
    """Gradients of keys and values go around in fp32, back to where they began, as torch's do
    (``_templated_ring_attention_backward``)."""
    ulysses: bool = False
    """DeepSpeed's layer around the core (``UlyssesSPAttentionHF``): tensors are permuted before and
    after each ``a2a``, too few heads of keys are repeated, positions and losses are gathered."""
    ep: int = 0
    """Expert-parallel degree of Megatron's mixtures, 1 for experts on every rank; 0: other modules,
    whose experts are divided over tensor-parallel ranks."""
    dispatcher: TokenDispatcher = "alltoall"
    overlaps: bool = False
    """Whether backward's tensor-parallel exchanges run beside the weight gradient (Megatron's
    ``LinearWithGradAccumulationAndAsyncCommunication``, Transformer Engine's linears)."""

    keeps_gathered: bool = False
    """Sequence-parallel inputs stay whole until backward, as DTensor keeps them; else only a rank's
    share does, and is gathered once more."""
    dtensor: bool = False
    """Whether sequence-parallel exchanges are DTensor's, which cuts activations along their second
    dimension: collectives cut the first, so that what they move is copied once more
    (``torch/distributed/_functional_collectives.py``)."""
    pipelined: bool = False
    """Products and the exchanges of their operands run in ``tp`` pieces beside each other (torch's
    asynchronous tensor parallelism): all but the first piece is hidden."""
    user_buffers: bool = False
    """Transformer Engine's way to the same (Megatron's ``--tp-comm-overlap``), methods as by
    default (``initialize_ub`` of ``transformer_engine/pytorch/module/base.py``): gathers go round
    while products of the pieces at hand run, scatters follow a product's four pieces, what weight
    gradients need or leave is exchanged beside other products."""

    def samples(self, o: Operator, batch: float) -> float:
        """Samples' worth of an operator that one rank runs, its ``split`` aside."""
        share = batch / self.cp
        if self.sequence_parallel and o.split == "none":
            share /= self.tp
        return share

    def kept(self, saved: Saved) -> int:
        """By how many ranks a saved tensor is divided."""
        if saved.fixed:
            return self.tp if saved.sharded else 1
        divided = self.sequence_parallel or saved.sharded
        return (self.tp if divided else 1) * self.cp

    def exposed(self, op: str) -> float:
        """Of a product's own exchange, the share that the product does not hide."""
        if self.user_buffers:
            return 1.0 / SCATTER_PIECES if op == "reduce_scatter" else 0.0
        return 1.0 / self.tp if self.pipelined else 1.0

    def exchange(self, op: str, size_bytes: int, batch: float) -> Exchange:
        """A sequence-parallel one; a single sample's pieces are in order as they come.

        Asynchronously only the rank's own piece is copied before a gather, but after a scatter the
        peers' pieces are summed by a kernel (``torch/distributed/_symmetric_memory``). User buffers
        gather from where the input is written and sum as they scatter.
        """
        moved = 0.0
        if self.pipelined:
            moved = size_bytes / self.tp
            moved += size_bytes if op == "reduce_scatter" else moved
        elif self.dtensor and batch > 1.0:
            moved = 2.0 * size_bytes
        return Exchange(op, "tp", size_bytes, moved)

    @property
    def hidden(self) -> int:
        """By how many ranks the hidden state between layers is divided."""
        return (self.tp if self.sequence_parallel else 1) * self.cp


class Exchange(NamedTuple):
    """One collective of a micro-batch."""

    op: str
    group: str
    size_bytes: int
    moved_bytes: float = 0.0
    """By a kernel of its own, before a reduce-scatter or after an all-gather."""
    of_weights: bool = False
    """Of a replicated weight's gradient, which nothing in the pass reads."""


@dataclass(slots=True)
class Exchanges:
    """What a run of modules exchanges, and when."""

    before_forward: list[Exchange] = field(default_factory=list)
    after_forward: list[Exchange] = field(default_factory=list)
    before_backward: list[Exchange] = field(default_factory=list)
    after_backward: list[Exchange] = field(default_factory=list)
    beside_forward: list[Exchange] = field(default_factory=list)
    beside_backward: list[Exchange] = field(default_factory=list)
    """Needed only at the end of the compute they run beside."""

    @property
    def opens(self) -> bool:
        """Whether something must happen between the modules before and these."""
        return bool(self.before_forward or self.after_backward or self.beside_forward)

    @property
    def closes(self) -> bool:
        """Whether something must happen between these and the modules behind."""
        return bool(self.after_forward or self.before_backward)

    @property
    def beside(self) -> bool:
        """Whether something runs beside the modules themselves."""
        return bool(self.beside_forward or self.beside_backward)

    def size_bytes(self, group: str) -> int:
        """What all of them over a group take, forward and backward."""
        lists = (
            self.before_forward, self.after_forward, self.before_backward, self.after_backward,
            self.beside_forward, self.beside_backward,
        )  # fmt: skip
        return sum(e.size_bytes for some in lists for e in some if e.group == group)

    def forward_only(self) -> Exchanges:
        """Those of modules that backward does not get to."""
        return Exchanges(
            before_forward=self.before_forward,
            after_forward=self.after_forward,
            beside_forward=self.beside_forward,
        )

    def add(self, other: Exchanges) -> None:
        """Those of the next module of a run."""
        self.before_forward += other.before_forward
        self.after_forward += other.after_forward
        self.before_backward += other.before_backward
        self.after_backward += other.after_backward
        self.beside_forward += other.beside_forward
        self.beside_backward += other.beside_backward


def exchanges(
    module: Module,
    sharding: Sharding,
    *,
    width: float,
    batch: float = 1.0,
    known: Iterable[str] = (),
) -> Exchanges:
    """What one module exchanges.

    Parameters
    ----------
    width
        Bytes of a micro-batch per element per sample: batch times size of the compute type.
    batch
        Samples of a micro-batch.
    known
        Names of column inputs that an earlier module of the layer has exchanged already.
    """
    found = Exchanges()
    width /= sharding.cp
    if sharding.user_buffers and not module.cls.startswith("TE"):
        sharding = replace(sharding, user_buffers=False)
    for o in module.operators:
        if o.kind == "routing" and o.split != "none" and sharding.ep:
            _tokens(found, o, sharding, width)
        elif sharding.tp > 1:
            _tensor(found, o, sharding, width, batch, known)
        if o.collectives:
            _traced(found, o, sharding, width, batch)
        if o.attention is not None and sharding.cp > 1:
            _context(found, o, sharding, width, batch)
        if o.kind == "loss" and sharding.ulysses:
            _loss(found, sharding)
    return found


def _traced(
    found: Exchanges, o: Operator, sharding: Sharding, width: float, batch: float
) -> None:  # fmt: skip
    """What torch was heard to exchange."""
    lists = {
        "forward": found.after_forward, "backward": found.before_backward,
        "gradient": found.after_backward,
    }  # fmt: skip
    for c in o.collectives:
        each = width if c.dtype == "compute" else FIXED_DTYPE_BYTES[c.dtype] * batch
        size = round(c.numel * each / (batch if c.fixed else 1.0))
        if size and (c.group != "tp" or sharding.tp > 1):
            of_weights = c.when == "gradient"
            lists[c.when].append(Exchange(c.op, c.group, size, of_weights=of_weights))


def column_input(o: Operator) -> Saved | None:
    """The tensor whose gradient tensor-parallel peers sum."""
    return source_of(o) if o.split == "column" and o.saves else None


def source_of(o: Operator) -> Saved:
    """An operator's input as its gradient is: not quantised, and there if it was not kept."""
    if o.gemm is None or (o.fp8 is None and o.of_weights):
        return o.saves[0]
    name = o.saves[0].name if o.fp8 is None else o.fp8.source
    return replace(
        o.saves[0], name=name, numel=o.gemm.rows * o.gemm.k, dtype="compute", fixed=False
    )


def _tensor(
    found: Exchanges,
    o: Operator,
    sharding: Sharding,
    width: float,
    batch: float,
    known: Iterable[str],
) -> None:
    """Tensor-parallel peers sum a ``row`` output, and the gradient of a ``column`` input."""
    if o.split == "row" or (o.split == "vocab" and o.kind == "embedding"):
        size = round(o.output * width)
        if sharding.sequence_parallel:
            scatter = sharding.exchange("reduce_scatter", size, batch)
            wire = size if o.fp8 is None else round(size * o.fp8.gradient_bytes / 2)
            found.before_backward += _scale(o)
            _pieces(scatter, sharding, found.after_forward, found.beside_forward)
            gather = sharding.exchange("all_gather", wire, batch)
            _pieces(gather, sharding, found.before_backward, found.beside_backward)
        else:
            found.after_forward.append(Exchange("all_reduce", "tp", size))
    source = column_input(o)
    if source is None or source.name in known:
        return
    # An operator behind a fused norm reads what the norm wrote: both have the source's size.
    size = round(source.numel * width)
    if sharding.sequence_parallel:
        wire = size if o.fp8 is None else round(size * o.fp8.input_bytes / 2)
        gather = sharding.exchange("all_gather", wire, batch)
        found.before_forward += _scale(o)
        _pieces(gather, sharding, found.before_forward, found.beside_forward)
        if not sharding.keeps_gathered:
            # once more for the weight gradient: only the shard was kept
            again = found.beside_backward if sharding.overlaps else found.before_backward
            again.append(gather)
        scatter = sharding.exchange("reduce_scatter", size, batch)
        if sharding.user_buffers:  # "bulk": beside the weight gradient, as without them
            found.after_backward.append(scatter)
        else:
            _pieces(scatter, sharding, found.after_backward, found.beside_backward)
    elif size:
        found.after_backward.append(Exchange("all_reduce", "tp", size))


def _pieces(
    exchange: Exchange, sharding: Sharding, apart: list[Exchange], beside: list[Exchange]
) -> None:
    """All of it apart from the product, or a part of it and the others beside.

    ``_fused_all_gather_matmul`` and ``_fused_matmul_reduce_scatter`` move pieces with copy engines,
    which take no SMs, as user buffers do on a ring.
    """
    first = round(exchange.size_bytes * sharding.exposed(exchange.op))
    rest = exchange.size_bytes - first
    if first:
        apart.append(exchange._replace(size_bytes=first))
    if rest:
        beside.append(exchange._replace(size_bytes=rest, moved_bytes=0.0))


def _scale(o: Operator) -> list[Exchange]:
    """What peers tell each other before they quantise their parts of one tensor: its amax."""
    return [Exchange("all_reduce", "tp", 4)] if o.fp8 is not None and o.fp8.reduces_amax else []


def _tokens(found: Exchanges, o: Operator, sharding: Sharding, width: float) -> None:
    """Dispatch sends each token's copies to their experts, combine sends them back.

    ``MoEAlltoAllTokenDispatcher``: all-to-all over expert-parallel ranks, then an all-gather over
    tensor-parallel ones, whose experts hold slices; combine is its mirror image.
    """
    dispatch = o.split == "column"
    copies = o.output if dispatch else (o.moved - o.output) / 3  # three passes over the copies
    tp = sharding.tp if sharding.sequence_parallel else 1
    sent = copies
    if sharding.dispatcher == "flex":
        tokens = o.moved - 3 * o.output if dispatch else o.output
        sent = tokens * distinct_ranks(copies / tokens, sharding.ep)
    there = Exchange("all_to_all", "ep", round(sent * width / tp))
    whole = round(copies * width)
    if dispatch:
        if sharding.ep > 1:
            found.after_forward.append(there)
        if tp > 1:
            found.after_forward.append(Exchange("all_gather", "tp", whole))
            found.before_backward.append(Exchange("reduce_scatter", "tp", whole))
        if sharding.ep > 1:
            found.before_backward.append(there)
        return
    if tp > 1:
        found.before_forward.append(Exchange("reduce_scatter", "tp", whole))
    if sharding.ep > 1:
        found.before_forward.append(there)
        found.after_backward.append(there)
    if tp > 1:
        found.after_backward.append(Exchange("all_gather", "tp", whole))


def _loss(found: Exchanges, sharding: Sharding) -> None:
    """Each rank's mean and number of tokens, as transformers' ``deepspeed_sp_compute_loss``."""
    means = Exchange("all_gather", "cp", _FP32_BYTES * sharding.cp)
    tokens = Exchange("all_gather", "cp", _INT64_BYTES * sharding.cp)
    found.after_forward += [means, tokens]
    found.before_backward.append(Exchange("reduce_scatter", "cp", means.size_bytes))


def routed_passes(o: Operator, sharding: Sharding) -> Operator:
    """A dispatch or combine as this dispatcher's kernels run it, exchange aside.

    With all-to-all, tokens are copied by expert, sent, and sorted by the experts held here.
    ``flex`` sends rows as they are; what arrives is copied once, by expert. Combine mirrors it.
    """
    if sharding.dispatcher != "flex" or o.kind != "routing" or o.split == "none":
        return o
    dispatch = o.split == "column"
    copies = o.output if dispatch else (o.moved - o.output) / 3
    tokens = o.moved - 3 * o.output if dispatch else o.output
    moved = copies + tokens * distinct_ranks(copies / tokens, sharding.ep)
    return replace(o, moved=moved, moved_backward=moved)


def distinct_ranks(experts: float, ranks: int) -> float:
    """Ranks that hold any of a token's experts, which are spread over them at random.

    >>> distinct_ranks(1, 8)
    1.0
    """
    missed: float = (1.0 - 1.0 / ranks) ** experts
    return ranks * (1.0 - missed)


def _context(found: Exchanges, o: Operator, sharding: Sharding, width: float, batch: float) -> None:
    """Context-parallel peers see each other's keys and values, or swap heads for positions."""
    a = o.attention
    assert a is not None
    tp = sharding.tp if o.split != "none" else 1
    q = round(a.q_len * a.heads * a.head_dim * width / tp)
    k = round(a.kv_len * a.kv_heads * a.head_dim * width / tp)
    v = round(a.kv_len * a.kv_heads * a.v_head_dim * width / tp)
    out = round(o.output * width / tp)
    if sharding.cp_exchange == "a2a":
        if sharding.ulysses:
            positions = round(a.q_len * batch * _INT64_BYTES)
            found.before_forward.append(Exchange("all_gather", "cp", positions))
            repeats = max(1, sharding.cp // a.kv_heads)
            k, v = k * repeats, v * repeats
        swaps = [Exchange("all_to_all", "cp", size) for size in (q, k, v)]
        back = Exchange("all_to_all", "cp", out)
        found.before_forward += swaps
        found.after_forward.append(back)
        found.before_backward.append(back)
        found.after_backward += swaps
        return
    whole = (k + v) * sharding.cp
    returned = 4.0 * batch / width / (sharding.cp - 1) if sharding.cp_returns_fp32 else 1.0
    gather = Exchange("all_gather", "cp", whole)
    scatter = Exchange("reduce_scatter", "cp", round(whole * returned))
    if sharding.cp_exchange == "all_gather":
        found.before_forward.append(gather)
        found.before_backward.append(gather)
        found.after_backward.append(scatter)
    else:
        found.beside_forward.append(gather)
        found.beside_backward += [gather, scatter]
