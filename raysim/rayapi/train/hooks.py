"""What a training worker is told of its GPUs, and most have no use for; ``rayapi.ranks`` has."""

from __future__ import annotations

from typing import Any


class Hooks:
    """Of a worker."""

    steps = 0
    """Training steps taken."""
    prices_first = False
    """Forwards before any training step take their time too."""

    def rests_with(self, who: int, size_bytes: float) -> None:
        """Weights of a module that only answers."""

    def took(self, found: Any) -> None:
        """A training step, as it was predicted."""
        del found
        self.steps += 1

    def empties_cache(self) -> None:
        """``torch.cuda.empty_cache()``."""

    def gathers(self, size_bytes: float) -> None:
        """``deepspeed.zero.GatheredParameters``: ranks put together what they share."""

    def offloads(self, share: float) -> None:
        """Of what rests on its GPUs, so much is in main memory now (0: all is back)."""
