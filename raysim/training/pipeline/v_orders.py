"""V-Half and V-Min: two stages per rank in a V, and half or a third of 1F1B's activations.

Source: "Pipeline Parallelism with Controllable Memory" (Qi et al. 2024, arXiv 2405.15362) and its
authors' Megatron-LM (sail-sg/zero-bubble-pipeline-parallelism, ``scheduler/zbv_greedy.py``). Every
pass counts as one unit of time. A building block says when a rank passes its first micro-batch; it
repeats every six units, and weight gradients take the two that each block leaves free. Passes
before the first block is whole, and after the last has begun, then move forward to earlier free
units as long as the rank holds no more than the blocks do. What comes out is an order; it is played
as soon as data allow, which is the paper's squeezing. V-ZB, its third, is ZB-V (``orders.zbv``).

Simplification: of the authors' two rounds of moving, one. With a micro-batch per stage or more the
bubbles are theirs, but V-Min's where three divides the ranks: one unit longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from raysim.training.pipeline.orders import Action
from raysim.training.pipeline.schedule import Do

PERIOD = 6
"""Units between two blocks: three passes of two stages."""
PASSES = (
    (Do.FORWARD_PASS, 0), (Do.FORWARD_PASS, 1), (Do.BACKWARD_INPUT, 1), (Do.BACKWARD_INPUT, 0),
)  # fmt: skip
"""Passes of a block, and through which of the rank's stages, as a micro-batch meets them."""
UP = (True, False, True, False)
"""Whether a pass comes from the rank before or from the one behind."""


def v_half_block(rank: int, ranks: int) -> tuple[int, int, int, int]:
    """Forwards climb two units a rank; two blocks must not meet in one unit: hence the gap."""
    gap = 3 if ranks % 2 == 0 else 0
    return (
        2 * rank, 3 * ranks - rank - 2, 3 * ranks + gap + 2 * rank - 1, 6 * ranks + gap - rank - 2
    )  # fmt: skip


def v_min_block(rank: int, ranks: int) -> tuple[int, int, int, int]:
    """Every pass moves one unit a rank."""
    gap = 2 if ranks % 3 == 0 else 0
    return rank, 2 * ranks - rank - 1, 2 * ranks + gap + rank, 4 * ranks + gap - rank - 1


BLOCKS: dict[str, Callable[[int, int], tuple[int, int, int, int]]] = {
    "v_half": v_half_block, "v_min": v_min_block,
}  # fmt: skip


class _Rank:
    """Passes of one rank on a line of units."""

    def __init__(self, block: tuple[int, ...], micro_batches: int) -> None:
        self.times = [[at + PERIOD * m for m in range(micro_batches)] for at in block]
        """By kind, the unit of each micro-batch."""
        self.at = {unit: kind for kind, units in enumerate(self.times) for unit in units}

    @property
    def end(self) -> int:
        """The unit after its last pass."""
        return max(self.at) + 1

    def held(self, start: int, end: int, held: int = 0, due: int = 0) -> tuple[int, int, int]:
        """Most stages of activations between two units, and how many, and weight gradients due.

        Weight gradients take the units that others leave free, first come first served; each lets
        go of one stage's activations.
        """
        most = held
        for unit in range(start, end):
            kind = self.at.get(unit)
            if kind is None:
                held, due = held - (due > 0), max(0, due - 1)
            elif PASSES[kind][0] == Do.FORWARD_PASS:
                held += 1
                most = max(most, held)
            else:
                due += 1
        return most, held, due

    def move(self, kind: int, m: int, unit: int) -> None:
        """One pass to a free unit."""
        del self.at[self.times[kind][m]]
        self.times[kind][m] = unit
        self.at[unit] = kind

    def order(self) -> tuple[Action, ...]:
        """Passes in time, weight gradients among them."""
        numbered = {
            unit: (kind, m) for kind, units in enumerate(self.times) for m, unit in enumerate(units)
        }
        order: list[Action] = []
        due: list[Action] = []
        for unit in range(self.end):
            if unit in numbered:
                (do, chunk), m = PASSES[numbered[unit][0]], numbered[unit][1]
                order.append(Action(do, chunk, m))
                if do == Do.BACKWARD_INPUT:
                    due.append(Action(Do.BACKWARD_WEIGHT, chunk, m))
            elif due:
                order.append(due.pop(0))
        return (*order, *due)


@lru_cache(maxsize=64)
def v_orders(name: str, ranks: int, micro_batches: int) -> tuple[tuple[Action, ...], ...]:
    """Order of passes of every rank."""
    placed = [_Rank(BLOCKS[name](rank, ranks), micro_batches) for rank in range(ranks)]
    most = max(rank.held(0, rank.end)[0] for rank in placed)
    filled, draining = placed[0].times[3][0], placed[0].times[0][-1]
    events = sorted(
        (at, place, kind, m)
        for place, rank in enumerate(placed)
        for kind, units in enumerate(rank.times)
        for m, at in enumerate(units)
    )
    for at, place, kind, m in events:
        if at < filled:
            _advance(placed, place, kind, m, most, (0, filled, 0, 0))
    before = [rank.held(0, draining)[1:] for rank in placed]
    for at, place, kind, m in events:
        if at > max(filled, draining):
            window = draining, placed[place].end, *before[place]
            _advance(placed, place, kind, m, most, window)
    return tuple(rank.order() for rank in placed)


def _advance(
    placed: Sequence[_Rank],
    place: int,
    kind: int,
    m: int,
    most: int,
    window: tuple[int, int, int, int],
) -> None:
    """Move one pass to the earliest unit that data, the rank and its memory allow.

    ``window``: units between which passes move, and what the rank holds and has due before them.
    """
    rank = placed[place]
    own = rank.times[kind][m]
    for unit in range(max(window[0], _ready(placed, place, kind, m)), own):
        if unit not in rank.at:
            rank.move(kind, m, unit)
            if rank.held(*window)[0] <= most:
                return
            rank.move(kind, m, own)


def _ready(placed: Sequence[_Rank], place: int, kind: int, m: int) -> int:
    """The first unit at which what a pass needs is there, and those before it are over."""
    times = placed[place].times
    needs = [-1]
    neighbour = place - 1 if UP[kind] else place + 1
    if 0 <= neighbour < len(placed):
        needs.append(placed[neighbour].times[kind][m])
    if kind:
        needs.append(times[kind - 1][m])
    if m:
        needs.append(times[kind][m - 1])
    return max(needs) + 1
