"""``ray.experimental.tqdm_ray``: progress bars of all processes, which are counted and not drawn.

Real counterpart: ``python/ray/experimental/tqdm_ray.py`` of ray 2.60. A bar is not part of what a
program prints: Ray draws it on a terminal's standard error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any


class tqdm:  # noqa: N801  (Ray's name)
    """``tqdm_ray.tqdm``."""

    def __init__(
        self,
        iterable: Iterable[Any] | None = None,
        desc: str | None = None,
        total: int | None = None,
        unit: str | None = None,
        *,
        position: int | None = None,
        flush_interval_s: float | None = None,
    ) -> None:
        del position, flush_interval_s
        self._iterable = iterable
        self.desc = desc or ""
        self.total = total if total is not None or iterable is None else _length(iterable)
        self.unit = unit or "it"
        self.n = 0

    def __iter__(self) -> Iterator[Any]:
        """What it goes over."""
        if self._iterable is None:
            raise ValueError("No iterable provided")
        for item in self._iterable:
            self.update(1)
            yield item

    def set_description(self, desc: str) -> None:
        """Another title."""
        self.desc = desc

    def update(self, n: int = 1) -> None:
        """So many more are done."""
        self.n += n

    def refresh(self) -> None:
        """Nothing is drawn."""

    def close(self) -> None:
        """It has ended."""


def _length(iterable: Iterable[Any]) -> int | None:
    return len(iterable) if isinstance(iterable, Sized) else None


safe_print = print
"""No bar is in its way."""


__all__ = ["safe_print", "tqdm"]
