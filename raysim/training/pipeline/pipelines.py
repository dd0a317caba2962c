"""Every pipeline schedule raysim plays: where stages sit, and what each rank does, sends included.

Exchange between ranks is ``blocking`` (DeepSpeed: on the compute stream, a late neighbour stalls
both), ``batched`` (Megatron without overlap: several sends and receives side by side, then
everything waits for all of them) or ``asynchronous`` (a receive is posted one pass ahead and only
the pass that needs it waits; torch.distributed.pipelining, Megatron's ``overlap_p2p_comm``). Within
one process that has spread its model over several GPUs, ``in_turn``, a copy is asked for when the
pass is that needs it, and waits for what is before it on both GPUs' streams.

Simplification: asynchronous exchange is also that of warm-up and drain, where Megatron batches
unless ``overlap_p2p_comm_warmup_flush`` is set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from raysim.training.pipeline import megatron, orders
from raysim.training.pipeline.layout import Layout, Shape
from raysim.training.pipeline.orders import Action
from raysim.training.pipeline.schedule import (
    BACKWARDS,
    END_OF_BATCH,
    Do,
    Instruction,
    gpipe_schedule,
    inference_schedule,
    train_schedule,
)
from raysim.training.pipeline.unsharding import Moves, moves
from raysim.training.pipeline.v_orders import BLOCKS, v_orders
from raysim.training.settings.deepspeed import InTurn, PipelineSettings, ScheduleName

Exchange = Literal["blocking", "batched", "asynchronous"]
Steps = Iterator[list[Instruction]]
FEWEST = 8
"""Micro-batches always simulated in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What holds for a schedule on any number of ranks."""

    runs: str
    """What runs it."""
    exchange: Exchange = "asynchronous"
    shape: Shape = "loop"
    chunks: int | None = 1
    """Stages per rank; None: as many as asked for."""
    keeps_output: bool = False
    """Whether a stage's output lives until its backward; else until it is sent."""
    edge: int = 1
    """Micro-batches per rank in which the pipeline fills or drains."""


_TORCH = "torch.distributed.pipelining"
_ZERO_BUBBLE = "its authors' Megatron-LM (sail-sg/zero-bubble-pipeline-parallelism)"
KINDS: dict[ScheduleName, Kind] = {
    "1f1b": Kind(runs="DeepSpeed's PipelineModule", exchange="blocking", keeps_output=True),
    "gpipe": Kind(runs=_TORCH, keeps_output=True),
    "megatron_1f1b": Kind(runs="Megatron-LM", exchange="batched"),
    "interleaved": Kind(runs=f"Megatron-LM or {_TORCH}", chunks=None, edge=2),
    "looped_bfs": Kind(runs=_TORCH, chunks=None, keeps_output=True),
    "zb_h1": Kind(runs=_TORCH, chunks=None, keeps_output=True, edge=2),
    "zb_h2": Kind(runs=_ZERO_BUBBLE, edge=3),
    "v_half": Kind(runs=_ZERO_BUBBLE, shape="v", chunks=2, edge=3),
    "v_min": Kind(runs=_ZERO_BUBBLE, shape="v", chunks=2, edge=3),
    "zb_v": Kind(runs=_TORCH, shape="v", chunks=2, keeps_output=True, edge=3),
    "dualpipe_v": Kind(runs=f"DualPipe or {_TORCH}", shape="v", chunks=2, edge=4),
    "dualpipe": Kind(runs="DualPipe", shape="both", chunks=2, edge=4),
}

IN_TURN = Kind(runs="one process, whose model lies on several GPUs", chunks=None)
"""No scenario asks for it."""


def kind_of(schedule: ScheduleName | InTurn) -> Kind:
    """What holds for a schedule."""
    return IN_TURN if schedule == "in_turn" else KINDS[schedule]


class Misfit(NamedTuple):
    """A setting that the schedule does not take."""

    key: str
    """Of ``PipelineSettings``."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One schedule on so many ranks."""

    schedule: ScheduleName | InTurn
    layout: Layout
    group: int
    """Micro-batches that pass a chunk before the next chunk."""
    exchange: Exchange

    @classmethod
    def of(cls, settings: PipelineSettings, ranks: int, micro_batches: int) -> Pipeline:
        """As the settings ask for it."""
        kind = kind_of(settings.schedule)
        chunks = kind.chunks or settings.virtual_stages or 1
        exchange = kind.exchange
        if settings.schedule == "interleaved" and not settings.overlap_p2p_comm:
            exchange = "batched"
        return cls(
            schedule=settings.schedule,
            layout=Layout(ranks=ranks, chunks=chunks, shape=kind.shape, placed=settings.homes),
            group=settings.microbatch_group_size_per_vp_stage
            or _group(settings.schedule, ranks, micro_batches),
            exchange=exchange,
        )

    @property
    def kind(self) -> Kind:
        """What holds on any number of ranks."""
        return kind_of(self.schedule)

    def micro_batches_of(self, micro_batches: int) -> int:
        """How many of a step's pass each of a rank's chunks."""
        return micro_batches // 2 if self.layout.shape == "both" else micro_batches

    def steps(self, rank: int, micro_batches: int) -> Steps:
        """What a rank does in an optimizer step."""
        ranks = self.layout.ranks
        if self.schedule == "1f1b":
            return train_schedule(rank, ranks, micro_batches)
        if self.schedule == "gpipe":
            return gpipe_schedule(rank, ranks, micro_batches)
        return self._own_steps(rank, micro_batches)

    def _own_steps(self, rank: int, micro_batches: int) -> Steps:
        if self.schedule == "megatron_1f1b":
            yield from megatron.one_forward_one_backward(rank, self.layout, micro_batches)
        elif self.exchange == "batched":
            yield from megatron.interleaved(rank, self.layout, micro_batches, self.group)
        else:
            yield from exchanged(self.order(rank, micro_batches), rank, self.layout)
        yield [Instruction(do) for do in END_OF_BATCH]

    def order(self, rank: int, micro_batches: int) -> list[Action]:
        """Passes of a rank under a schedule that is made of them."""
        ranks, chunks = self.layout.ranks, self.layout.chunks
        if self.schedule == "in_turn":
            return orders.in_turn(len(self.layout.stages_of(rank)), micro_batches)
        if self.schedule == "looped_bfs":
            return orders.breadth_first(chunks, micro_batches)
        if self.schedule == "zb_h1":
            return orders.zero_bubble(rank, ranks, chunks, micro_batches, self.group)
        if self.schedule == "zb_h2":
            return orders.zero_bubble_h2(rank, ranks, micro_batches)
        if self.schedule == "zb_v":
            return orders.zbv(rank, ranks, micro_batches)
        if self.schedule in BLOCKS:
            return list(v_orders(self.schedule, ranks, micro_batches)[rank])
        if self.schedule == "dualpipe_v":
            return orders.dualpipe_v(rank, ranks, micro_batches)
        if self.schedule == "dualpipe":
            return orders.dualpipe(rank, ranks, micro_batches)
        return orders.interleaved(rank, ranks, chunks, micro_batches, self.group)

    def due(self, rank: int, micro_batches: int) -> dict[int, tuple[int, ...]]:
        """Chunks whose weights Megatron begins to gather, by the forward pass of a step before it.

        The first two when the step begins, each other when the chunk before it begins; a rank does
        it as many passes early as ranks come before it, so that all do it at once
        (``param_sync_func`` of ``forward_backward_pipelining_with_interleaving``).
        """
        chunks = self.layout.chunks
        if self.schedule != "interleaved":
            return {}
        found: dict[int, tuple[int, ...]] = {0: (0, 1)}
        for k, (chunk, micro_batch) in enumerate(orders.turns(micro_batches, chunks, self.group)):
            if micro_batch == 0 and 1 < chunk + 1 < chunks:
                at = max(0, k - rank)
                found[at] = (*found.get(at, ()), chunk + 1)
        return found

    def moves(self, rank: int, micro_batches: int) -> Iterator[Moves]:
        """Of FSDP2's weights, ahead of every pass; none where torch leaves it to hooks."""
        return moves(self.order(rank, micro_batches)) if self.lowered else iter(())

    def evaluation(self, rank: int, batches: int) -> Steps:
        """Forward passes without gradients."""
        if self.schedule == "1f1b":
            return inference_schedule(rank, self.layout.ranks, batches)
        both, chunks = self.layout.shape == "both", len(self.layout.stages_of(rank))
        group = 1 if self.schedule == "in_turn" else self.layout.ranks
        order = orders.evaluation(chunks, batches, group, both=both)
        return exchanged(list(order), rank, self.layout)

    # Once it is full, a pipeline repeats itself every ``period`` micro-batches.

    @property
    def lowered(self) -> bool:
        """Whether torch has its weights come, go and be reduced as actions among the passes."""
        return self.exchange == "asynchronous" and self.schedule not in ("gpipe", "in_turn")

    @property
    def plain(self) -> bool:
        """1F1B of one stage per rank, which takes any number of micro-batches."""
        return self.schedule in ("1f1b", "megatron_1f1b")

    @property
    def period(self) -> int:
        """Micro-batches after which the steady pattern repeats."""
        if self.layout.shape == "both":
            return 2
        return self.group if self.layout.shape == "loop" and self.layout.chunks > 1 else 1

    @property
    def edge(self) -> int:
        """Micro-batches at either end of a step that are not steady."""
        return self.kind.edge * max(self.layout.ranks, self.period)

    @property
    def settling(self) -> int:
        """Micro-batches until it is steady.

        Of 1F1B twice those that fill it: a stage slower than the first holds it up only when all
        between them are full.
        """
        return 2 * self.layout.ranks if self.plain else self.edge

    @property
    def passes(self) -> int:
        """Backward passes of a rank per micro-batch."""
        return 1 if self.layout.shape == "both" else self.layout.chunks

    def enough(self, micro_batches: int) -> int:
        """Micro-batches that show filling, a steady stretch and draining; or all there are.

        GPipe and looped BFS are never steady: all forwards come before the first backward. In turn,
        ranks may differ in how many passes they have of each.
        """
        uneven = bool(self.layout.placed) and self.layout.stages > self.layout.ranks
        if self.schedule in ("gpipe", "looped_bfs") or uneven:
            return micro_batches
        if self.plain:
            return min(micro_batches, max(FEWEST, 4 * self.layout.ranks))
        least = 2 * self.edge + max(2 * self.period, self.layout.ranks)
        least += (micro_batches - least) % self.period
        return min(micro_batches, max(FEWEST, least))

    def filling(self, micro_batches: int) -> int:
        """Micro-batches that fill the pipeline, so that memory peaks."""
        return (
            min(micro_batches, self.layout.ranks + 1) if self.plain else self.enough(micro_batches)
        )

    def steady(self, simulated: int) -> tuple[int, int]:
        """Backward passes of a rank that bound whole periods of the steady stretch."""
        begin = self.settling
        whole = (simulated - begin - self.edge) // self.period * self.period
        return begin * self.passes, (begin + whole) * self.passes


def _group(schedule: ScheduleName | InTurn, ranks: int, micro_batches: int) -> int:
    """Megatron's default is one round of the ranks; torch fits rounds of its own to the batch."""
    if schedule == "zb_h1":
        return max(1, micro_batches // max(1, micro_batches // ranks))
    return ranks


def misfits(settings: PipelineSettings, ranks: int, micro_batches: int) -> Iterator[Misfit]:
    """What the schedule does not take, with what it would."""
    name, kind = settings.schedule, kind_of(settings.schedule)
    said, group = settings.virtual_stages, settings.microbatch_group_size_per_vp_stage
    if kind.chunks is not None and said not in (None, kind.chunks):
        yield Misfit("virtual_stages", f"{name} has {kind.chunks} per rank, not {said}")
    elif name == "interleaved" and (said or 1) < 2:
        yield Misfit("virtual_stages", "interleaved needs 2 or more stages per rank")
    if group and name != "interleaved":
        message = f"is of schedule interleaved, not of {name}"
        yield Misfit("microbatch_group_size_per_vp_stage", message)
    elif ranks > 1:
        each = group or _group(name, ranks, micro_batches)
        problem = _count_problem(name, ranks, micro_batches, each, said or 1)
        if problem:
            yield Misfit("microbatch_group_size_per_vp_stage" if group else "schedule", problem)


def _count_problem(
    name: ScheduleName | InTurn, ranks: int, micro_batches: int, group: int, chunks: int
) -> str | None:
    """Why a step of so many micro-batches cannot be scheduled."""
    rest = micro_batches % group
    if name == "interleaved":
        if not ranks <= group <= micro_batches:
            return (
                f"interleaved passes groups of {ranks} (stages) to {micro_batches} (gradient "
                f"accumulation steps) micro-batches through a chunk, not {group}"
            )
        if 0 < rest < ranks:
            return (
                f"interleaved: {micro_batches} gradient accumulation steps leave {rest} of groups "
                f"of {group}; make it a multiple, or choose microbatch_group_size_per_vp_stage so "
                f"that 0 or at least {ranks} (stages) are left"
            )
    if name == "zb_h1" and chunks > 1 and rest:
        return (
            f"zb_h1 with {chunks} stages per rank needs a multiple of {group} gradient "
            f"accumulation steps, not {micro_batches}"
        )
    least = 2 * ranks if name in ("dualpipe", "dualpipe_v") else 1
    if micro_batches < least:
        return f"{name} needs {least} gradient accumulation steps or more, not {micro_batches}"
    if name == "dualpipe" and (ranks % 2 or micro_batches % 2):
        return (
            "dualpipe needs an even number of stages and of gradient accumulation steps, not "
            f"{ranks} and {micro_batches}"
        )
    return None


def exchanged(order: Sequence[Action], rank: int, layout: Layout) -> Steps:
    """Passes with their sends after them and their receives one pass, or pair, ahead."""
    runs: list[list[Action]] = []
    for action in order:
        if action.paired:
            runs[-1].append(action)
        else:
            runs.append([action])
    for place, run in enumerate(runs):
        todo: list[Instruction] = []
        ahead = runs[place + 1 : place + 2] if place else runs[:2]
        if layout.placed:
            ahead = [run]
        for actions in ahead:
            todo += (i for action in actions for i in _received(action, rank, layout))
        todo += (Instruction(Do.AWAIT_GRAD, a.micro_batch, a.chunk) for a in run[1:])
        todo += (i for action in run for i in _passed(action, rank, layout))
        todo += (i for action in run for i in _sent(action, rank, layout))
        yield todo


def _passed(action: Action, rank: int, layout: Layout) -> Iterator[Instruction]:
    """The pass; the model's first and last stages load its data before the forward.

    One process loads all of it at once.
    """
    stage = layout.stages_of(rank)[action.chunk]
    ends = {layout.before(stage)} if layout.placed else {layout.before(stage), layout.after(stage)}
    if action.do == Do.FORWARD_PASS and None in ends:
        yield Instruction(Do.LOAD_MICRO_BATCH, action.micro_batch, action.chunk)
    yield Instruction(action.do, action.micro_batch, action.chunk)


def _sent(action: Action, rank: int, layout: Layout) -> Iterator[Instruction]:
    stage = layout.stages_of(rank)[action.chunk]
    if action.do == Do.FORWARD_PASS and _elsewhere(layout.after(stage), rank, layout):
        yield Instruction(Do.SEND_ACTIVATION, action.micro_batch, action.chunk)
    if action.do in BACKWARDS and _elsewhere(layout.before(stage), rank, layout):
        yield Instruction(Do.SEND_GRAD, action.micro_batch, action.chunk)


def _elsewhere(stage: int | None, rank: int, layout: Layout) -> bool:
    return stage is not None and layout.rank_of(stage) != rank


def _received(action: Action, rank: int, layout: Layout) -> Iterator[Instruction]:
    stage = layout.stages_of(rank)[action.chunk]
    if action.do == Do.FORWARD_PASS and _elsewhere(layout.before(stage), rank, layout):
        yield Instruction(Do.RECV_ACTIVATION, action.micro_batch, action.chunk)
    if action.do in BACKWARDS and _elsewhere(layout.after(stage), rank, layout):
        yield Instruction(Do.RECV_GRAD, action.micro_batch, action.chunk)
