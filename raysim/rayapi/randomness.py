"""Python's and numpy's global generators, which belong to the program while it runs.

Real counterpart: none; there every process has its own and none is seeded. Here all processes of a
program share them, and a program that seeds nothing draws the same each time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def global_generator() -> Any:
    """``numpy.random`` itself: what a program seeds, and libraries of Ray draw from."""
    from numpy import random as draws

    return draws


def seed_globals(seed: int) -> None:
    """Both of them."""
    random.seed(seed)
    global_generator().seed(seed)


@contextmanager
def seeded_globals(seed: int) -> Iterator[None]:
    """From the simulation's seed; the state of before comes back."""
    draws = global_generator()
    before, before_numpy = random.getstate(), draws.get_state()
    seed_globals(seed)
    try:
        yield
    finally:
        random.setstate(before)
        draws.set_state(before_numpy)
