"""Seeds of random operations: the same for every execution of a dataset, or one for each.

Real counterpart: ``RandomSeedConfig`` of ``_internal/random_config.py``. Numbers drawn are not
those of the real Ray; without a seed they begin with the run's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raysim.rayapi.library_code import session_here


@dataclass
class RandomSeedConfig:
    """``ray.data.RandomSeedConfig``."""

    seed: int | None = None
    reseed_after_execution: bool = True
    use_timestamp_as_default: bool = False

    def __post_init__(self) -> None:
        """As Ray checks it."""
        if self.seed is not None and not isinstance(self.seed, int):
            raise ValueError("Seed must be an integer or None.")


def draws_of(seed: Any) -> Callable[[], int]:
    """What gives each execution its seed.

    Raises
    ------
    ValueError
        It is neither a number nor a ``RandomSeedConfig``.
    """
    if seed is not None and not isinstance(seed, int | RandomSeedConfig):
        raise ValueError(f"Invalid seed type: {type(seed)}")
    if not isinstance(seed, RandomSeedConfig):
        seed = RandomSeedConfig(seed, reseed_after_execution=False)
    if seed.seed is None:
        return itertools.count(session_here().sim.seed).__next__
    if seed.reseed_after_execution:
        return itertools.count(seed.seed).__next__
    return itertools.repeat(seed.seed).__next__
