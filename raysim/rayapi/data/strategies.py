"""``compute=`` of maps: tasks, or a pool of actors.

Real counterpart: ``ray/data/_internal/compute.py``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ActorPoolStrategy:
    """``ray.data.ActorPoolStrategy``."""

    size: int | None = None
    min_size: int | None = None
    max_size: int | None = None

    @property
    def concurrency(self) -> int | tuple[int, int] | None:
        """As ``map_batches(concurrency=)``."""
        if self.size is not None:
            return self.size
        return (self.min_size or 1, self.max_size or 1_000_000)


@dataclass(frozen=True)
class TaskPoolStrategy:
    """``ray.data.TaskPoolStrategy``."""

    size: int | None = None

    @property
    def concurrency(self) -> int | None:
        """As ``map_batches(concurrency=)``."""
        return self.size
