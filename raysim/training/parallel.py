"""The parallel mesh: axes ``pp``, ``dp``, ``tp``, and which rank stands where.

Rank order is DeepSpeed's ``PipeModelDataParallelTopology`` and Megatron's default without context
or expert parallelism: ``rank = (pp * DP + dp) * TP + tp`` (``deepspeed/runtime/pipe/topology.py``),
so tensor-parallel peers are neighbours and pipeline stages are farthest apart.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinate:
    """Where one rank stands on the mesh."""

    pp: int
    dp: int
    tp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Degrees of pipeline, data and tensor parallelism."""

    pp: int = 1
    dp: int = 1
    tp: int = 1

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.pp * self.dp * self.tp

    def rank(self, at: Coordinate) -> int:
        """Global rank of a coordinate."""
        return (at.pp * self.dp + at.dp) * self.tp + at.tp

    def coordinate(self, rank: int) -> Coordinate:
        """Coordinate of a global rank."""
        rest, tp = divmod(rank, self.tp)
        pp, dp = divmod(rest, self.dp)
        return Coordinate(pp=pp, dp=dp, tp=tp)

    def dp_group(self, at: Coordinate) -> tuple[int, ...]:
        """Ranks that hold the same model shard."""
        return tuple(self.rank(Coordinate(pp=at.pp, dp=d, tp=at.tp)) for d in range(self.dp))

    def tp_group(self, at: Coordinate) -> tuple[int, ...]:
        """Ranks that share one layer."""
        return tuple(self.rank(Coordinate(pp=at.pp, dp=at.dp, tp=t)) for t in range(self.tp))

    def pp_group(self, at: Coordinate) -> tuple[int, ...]:
        """Ranks of one pipeline, first stage first."""
        return tuple(self.rank(Coordinate(pp=p, dp=at.dp, tp=at.tp)) for p in range(self.pp))
