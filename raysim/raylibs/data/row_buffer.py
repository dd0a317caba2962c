"""Rows that wait to become batches: first come, first served, or mixed.

Real counterpart: ``Batcher`` and ``ShufflingBatcher`` of ``_internal/batcher.py``. Ray draws one
permutation of its buffer when that has been filled up, here each batch draws its own rows of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raysim.raylibs.data.blocks import Block, Part


class RowBuffer:
    """Blocks with rows that nobody has taken.

    Parameters
    ----------
    rng
        Draws which rows come next; None: in their order.
    """

    def __init__(self, rng: Any = None) -> None:
        self.rows = 0
        self._rng = rng
        self._held: list[tuple[Block, Any, Any]] = []
        """Block, content, and the numbers of its rows that are left."""

    def add(self, block: Block, content: Any) -> None:
        """A block has come."""
        if block.rows:
            self._held.append((block, content, np.arange(block.start, block.start + block.rows)))
            self.rows += block.rows

    def take(self, rows: int) -> tuple[tuple[Part, ...], float, list[Block]]:
        """So many rows, their bytes, and blocks of which nothing is left."""
        self.rows -= rows
        return self._first(rows) if self._rng is None else self._drawn(rows)

    def _first(self, rows: int) -> tuple[tuple[Part, ...], float, list[Block]]:
        parts, size_bytes, used = [], 0.0, []
        while rows:
            block, content, left = self._held[0]
            some = min(rows, len(left))
            parts.append(Part(content, int(left[0]), some))
            size_bytes += block.size_bytes * some / block.rows
            rows -= some
            if some < len(left):
                self._held[0] = block, content, left[some:]
            else:
                used.append(self._held.pop(0)[0])
        return tuple(parts), size_bytes, used

    def _drawn(self, rows: int) -> tuple[tuple[Part, ...], float, list[Block]]:
        owner = np.concatenate([np.full(len(h[2]), i) for i, h in enumerate(self._held)])
        numbers = np.concatenate([h[2] for h in self._held])
        drawn = self._rng.permutation(len(owner))[:rows]
        parts, size_bytes = [], 0.0
        for at in drawn.tolist():
            block, content, _ = self._held[owner[at]]
            parts.append(Part(content, int(numbers[at]), 1))
            size_bytes += block.size_bytes / block.rows
        stays = np.ones(len(owner), dtype=bool)
        stays[drawn] = False
        held, self._held, used = self._held, [], []
        for index, (block, content, _) in enumerate(held):
            left = numbers[stays & (owner == index)]
            if len(left):
                self._held.append((block, content, left))
            else:
                used.append(block)
        return tuple(parts), size_bytes, used
