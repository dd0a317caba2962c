"""In which order a rank runs the passes of its stages, per schedule; what is sent follows from it.

Sources: Megatron-LM ``core/pipeline_parallel/schedules.py`` (interleaved, Narayanan et al. 2021),
``torch/distributed/pipelining/schedules.py`` of torch 2.13 (ZB1P, that is ZB-H1 with any number of
stages per rank, ZB-V: Qi et al. 2023), deepseek-ai/DualPipe ``dualpipe.py`` and ``dualpipev.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from raysim.training.pipeline.schedule import Do


class Action(NamedTuple):
    """One pass of one micro-batch through one of the rank's stages."""

    do: Do
    chunk: int
    """Which of the rank's stages."""
    micro_batch: int
    paired: bool = False
    """A backward that runs as one with the forward before it: they start when both have their
    input, and their outputs leave together."""


F, B, I, W = Do.FORWARD_PASS, Do.BACKWARD_PASS, Do.BACKWARD_INPUT, Do.BACKWARD_WEIGHT  # noqa: E741
Turn = tuple[int, int]
"""Chunk and micro-batch."""


def turns(micro_batches: int, chunks: int, group: int) -> list[Turn]:
    """Megatron's schedule table: ``group`` micro-batches pass a chunk before the next chunk.

    >>> turns(5, 2, 3)
    [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (0, 4), (1, 3), (1, 4)]
    """
    return [
        (chunk, micro_batch)
        for start in range(0, micro_batches, group)
        for chunk in range(chunks)
        for micro_batch in range(start, min(start + group, micro_batches))
    ]


def _backward_turns(forward: list[Turn], chunks: int) -> list[Turn]:
    return [(chunks - 1 - chunk, micro_batch) for chunk, micro_batch in forward]


def interleaved_warm_up(rank: int, ranks: int, chunks: int, passes: int, group: int) -> int:
    """Forwards before the first backward (``get_pp_rank_microbatches``)."""
    return min(2 * (ranks - 1 - rank) + (chunks - 1) * group, passes)


def interleaved(rank: int, ranks: int, chunks: int, micro_batches: int, group: int) -> list[Action]:
    """Interleaved 1F1B; torch's ``ScheduleInterleaved1F1B`` is the same order."""
    forward = turns(micro_batches, chunks, group)
    backward = _backward_turns(forward, chunks)
    warm = interleaved_warm_up(rank, ranks, chunks, len(forward), group)
    order = [Action(F, *turn) for turn in forward[:warm]]
    for ahead, back in zip(forward[warm:], backward, strict=False):
        order += (Action(F, *ahead), Action(B, *back))
    return order + [Action(B, *turn) for turn in backward[len(forward) - warm :]]


def breadth_first(chunks: int, micro_batches: int) -> list[Action]:
    """All forwards of a chunk before the next, then back: torch's ``ScheduleLoopedBFS``.

    Lamy-Poirier 2022, "Breadth-First Pipeline Parallelism".
    """
    forward = [Action(F, chunk, m) for chunk in range(chunks) for m in range(micro_batches)]
    return forward + [Action(B, chunk, m) for _, chunk, m, _ in reversed(forward)]


def zero_bubble(rank: int, ranks: int, chunks: int, micro_batches: int, group: int) -> list[Action]:
    """ZB-H1: weight gradients come ``rank`` passes after input gradients, and fill the drain.

    torch's ``ScheduleInterleavedZeroBubble``; warm-up and activations are 1F1B's.
    """
    forward = turns(micro_batches, chunks, group)
    return _deferred(forward, chunks, ranks - 1 - rank + (chunks - 1) * group, rank)


def zero_bubble_h2(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """ZB-H2: twice ZB-H1's forwards before the first backward, and twice its delay of weights.

    Every rank holds 2 ranks - 1 micro-batches and waits for nothing once it has begun, where the
    three passes take equally long (Qi et al. 2023, section 2.2, figure 3). Simplification: their
    optimizer steps before it has heard of all ranks' gradient norm; here every rank waits for it.
    """
    return _deferred(turns(micro_batches, 1, ranks), 1, 2 * (ranks - 1 - rank), 2 * rank)


def _deferred(forward: list[Turn], chunks: int, warm: int, late: int) -> list[Action]:
    """One forward, one input gradient, and the weight gradient of ``late`` passes before."""
    backward = _backward_turns(forward, chunks)
    warm = min(warm, len(forward))
    order = [Action(F, *turn) for turn in forward[:warm]]
    for k, turn in enumerate(backward):
        if warm + k < len(forward):
            order.append(Action(F, *forward[warm + k]))
        order.append(Action(I, *turn))
        if k >= late:
            order.append(Action(W, *backward[k - late]))
    return order + [Action(W, *turn) for turn in backward[max(0, len(backward) - late) :]]


class _Counter:
    """Appends passes, numbering each kind's micro-batches."""

    def __init__(self) -> None:
        self.order: list[Action] = []
        self.count: dict[tuple[Do, int], int] = {}
        self.deferred: deque[Turn] = deque()
        """Weight gradients due, first come first served."""

    def of(self, do: Do, chunk: int) -> int:
        """How many there are."""
        return self.count.get((do, chunk), 0)

    def add(self, do: Do, chunk: int) -> None:
        """The chunk's next micro-batch."""
        kind = I if do == B else do  # a whole backward takes the next number of both halves
        number = self.of(kind, chunk)
        self.count[kind, chunk] = number + 1
        self.order.append(Action(do, chunk, number))
        if do == I:
            self.deferred.append((chunk, number))

    def pair(self, ahead: int, back: int) -> None:
        """A forward of one chunk and a backward of another as one."""
        self.add(F, ahead)
        self.add(B, back)
        self.order[-1] = self.order[-1]._replace(paired=True)

    def split(self, chunk: int) -> None:
        """Both halves of a backward, one after the other."""
        self.add(I, chunk)
        self.order.append(Action(W, *self.deferred.pop()))

    def weight(self) -> None:
        """The oldest weight gradient that is due."""
        self.order.append(Action(W, *self.deferred.popleft()))

    def weights(self, chunk: int) -> None:
        """All of a chunk."""
        for turn in [t for t in self.deferred if t[0] == chunk]:
            self.deferred.remove(turn)
            self.order.append(Action(W, *turn))


def zbv(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """ZB-V: two stages per rank, up and down; torch's ``ScheduleZBVZeroBubble``.

    Made for at least 2 ranks - 1 micro-batches; of fewer, the others' passes are left out.
    """
    many = max(2 * ranks - 1, micro_batches)
    c = _Counter()
    for _ in range(2 * (ranks - rank) - 1):
        c.add(F, 0)
    for _ in range(rank):
        c.add(F, 1)
        c.add(F, 0)
    for _ in range(ranks - rank):
        c.add(F, 1)
        c.split(1)
    while c.of(F, 1) < c.of(F, 0) or c.of(F, 0) < many:
        if c.of(F, 0) < many:
            c.add(F, 0)
        c.split(0)
        c.add(F, 1)
        c.split(1)
    for _ in range(rank):
        c.add(I, 0)
        c.add(I, 1)
    for _ in range(ranks - rank):
        c.add(I, 0)
        first = next(turn for turn in c.deferred if turn[0] == 0)
        c.deferred.remove(first)
        c.order.append(Action(W, *first))
    c.weights(1)
    c.weights(0)
    return [action for action in c.order if action.micro_batch < micro_batches]


def _two_way(half: int, place: int, micro_batches: int) -> list[Action]:
    """The eight phases of DualPipe, with chunks in the order in which the rank first meets them.

    ``half``: ranks from either end to the middle; ``place``: the rank's distance from its end;
    ``micro_batches``: through each chunk.
    """
    inner = half - place - 1
    c = _Counter()
    for _ in range(2 * inner):
        c.add(F, 0)
    for _ in range(place + 1):
        c.add(F, 0)
        c.add(F, 1)
    for _ in range(inner):
        c.add(I, 1)
        c.weight()
        c.add(F, 1)
    for turn in range(micro_batches - 2 * half + place + 1):
        if turn or inner:
            c.pair(0, 1)
        else:  # in the middle the first two do not wait for each other
            c.add(F, 0)
            c.add(B, 1)
        c.pair(1, 0)
    for _ in range(inner):
        c.add(B, 1)
        c.pair(1, 0)
    middle = place + 1  # the second half of the next backwards is split, odd places a turn earlier
    for turn in range(2 * (place + 1)):
        c.add(B if turn < middle else I, 1 - turn % 2)
    for _ in range(inner):
        c.weight()
        c.add(I, 0)
    for _ in range(place + 1):
        c.weight()
    return c.order


def dualpipe_v(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """DualPipeV: DualPipe cut in half, two stages per rank; torch's ``ScheduleDualPipeV``."""
    return _two_way(ranks, rank, micro_batches)


def dualpipe(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """DualPipe: chunk 0 is of the copy that runs up the ranks, chunk 1 of the one down.

    The first half of the micro-batches enters at the first rank, the others at the last.
    Simplification: the kernels of a pair run one after the other, as they do in the published code
    for modules without an ``overlapped_forward_backward`` of their own.
    """
    each, second = micro_batches // 2, rank >= ranks // 2
    order = _two_way(ranks // 2, min(rank, ranks - 1 - rank), each)
    chunks = [action.chunk ^ second for action in order]
    return [
        a._replace(chunk=chunk, micro_batch=a.micro_batch + each * chunk)
        for a, chunk in zip(order, chunks, strict=True)
    ]


def in_turn(chunks: int, micro_batches: int) -> list[Action]:
    """Each micro-batch forward and back before the next begins, as one process calls them."""
    order = list[Action]()
    for m in range(micro_batches):
        order += (Action(F, chunk, m) for chunk in range(chunks))
        order += (Action(B, chunk, m) for chunk in reversed(range(chunks)))
    return order


def evaluation(chunks: int, batches: int, ranks: int, *, both: bool) -> Iterator[Action]:
    """Forward passes only: rounds of batches through each chunk, or each in its direction."""
    if both:
        return (Action(F, batch % 2, batch) for batch in range(batches))
    return (Action(F, *turn) for turn in turns(batches, chunks, ranks))
