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

    def __post_init__(self) -> None:
        for name in ("size", "min_size"):
            said = getattr(self, name)
            if said is not None and said < 1:
                raise ValueError(f"{name} must be >= 1", said)

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

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise ValueError("`size` must be >= 1", self.size)

    @property
    def concurrency(self) -> int | None:
        """As ``map_batches(concurrency=)``."""
        return self.size
