"""Gradients that wait, within backward, for others to be added to them.

A tensor that two operators read gets two gradients: the first one made stays until the second is
there, beside all that runs between. Residual streams, skips of a U-Net, keys and values whose
projections come one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch

from raysim.tracing.storages import bytes_of, key_of

LEAST_BYTES = 2**20
"""Smaller ones come from the allocator's pool of small blocks."""
_C: Any = torch._C  # noqa: SLF001  (nothing else counts a storage's owners)


class Waiting:
    """Storages that backward has made; ``weights`` are shapes whose gradients the engines hold."""

    def __init__(self, weights: Iterable[torch.Size]) -> None:
        plain = {without_ones(shape) for shape in weights}
        self._weights = plain | {shape[::-1] for shape in plain}
        self._made: dict[int, int] = {}
        """Bytes, by identity."""
        self._sums: set[int] = set()
        """Storages of two gradients added."""

    def add(self, given: Sequence[torch.Tensor], out: torch.Tensor) -> bool:
        """Two were added: by the engine, under the node that made the second, if both are known."""
        known = len(given) > 1 and all(key_of(t) in self._made for t in given)
        if known:
            self._sums.add(key_of(out))
        return known

    def has_sum(self, given: Iterable[torch.Tensor]) -> bool:
        """Whether one of these is such a sum, of which nobody was told."""
        found = {key_of(t) for t in given} & self._sums
        self._sums -= found
        return bool(found)

    def there(self, but: Collection[int]) -> int:
        """Bytes of all gradients that are there, ``but`` those of these storages."""
        return sum(size for key, size in self._made.items() if key not in but)

    def beside(
        self,
        given: Iterable[torch.Tensor],
        made: Iterable[torch.Tensor],
        key: Callable[[torch.Tensor], int],
    ) -> dict[int, int]:
        """Those alive, with bytes, that an operator neither reads nor makes; ``made`` is noted.

        ``key`` is a storage's identity and its owner from then on, so that no other one takes it.
        """
        self._made = {
            k: size for k, size in self._made.items() if _C._storage_Use_Count(k) > 1  # noqa: SLF001
        }  # fmt: skip
        outputs = {key(t): t for t in made if without_ones(t.shape) not in self._weights}
        taken = {key(t) for t in given} | set(outputs)
        waits = (each for each in self._made.items() if each[0] not in taken)
        found = {k: size for k, size in waits if size >= LEAST_BYTES}
        self._made |= {k: bytes_of(t) for k, t in outputs.items()}
        return found


def without_ones(shape: Sequence[int]) -> tuple[int, ...]:
    """A bias's gradient is summed to one row first."""
    return tuple(n for n in shape if n > 1)
