"""When whole stages are gathered and given back: torch's ``_add_unshard_reshard``.

Source: ``torch/distributed/pipelining/schedules.py`` of torch 2.13. A rank has the weights of the
three stages whole that its next passes are of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raysim.training.pipeline.orders import Action

ACTIVE = 3
"""``max_active_stages``."""
Moves = tuple[tuple[int, ...], tuple[int, ...]]
"""Chunks that leave and chunks that come ahead of a pass."""


def moves(order: Sequence[Action]) -> Iterator[Moves]:
    """Of every pass of a rank in turn.

    >>> from raysim.training.pipeline.orders import B, F
    >>> passes = [Action(F, 0, 0), Action(F, 1, 0), Action(B, 1, 0), Action(B, 0, 0)]
    >>> list(moves(passes))
    [((), (0, 1)), ((), ()), ((), ()), ((1,), ())]
    """
    here: dict[int, None] = {}
    following: list[tuple[int, ...]] = [()]
    for action in reversed(order):
        later = tuple(chunk for chunk in following[-1] if chunk != action.chunk)
        following.append((action.chunk, *later))
    for nearest in following[:0:-1]:
        wanted = nearest[:ACTIVE]
        leave = tuple(chunk for chunk in here if chunk not in wanted)
        come = tuple(chunk for chunk in wanted if chunk not in here)
        for chunk in leave:
            del here[chunk]
        here |= dict.fromkeys(come)
        yield leave, come
