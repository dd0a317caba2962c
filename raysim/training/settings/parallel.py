"""The parallel mesh: its axes, and which rank stands where.

Rank order is DeepSpeed's ``PipeModelDataParallelTopology`` (``runtime/pipe/topology.py``) and
Megatron's default ``tp-cp-ep-dp-pp`` (``core/parallel_state.py``):
``rank = ((pp * DP + dp) * CP + cp) * TP + tp``, so tensor-parallel peers are neighbours and
pipeline stages are farthest apart. Expert-parallel peers are neighbours among the ranks that hold
the same dense weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinate:
    """Where one rank stands on the mesh."""

    pp: int
    dp: int
    tp: int
    cp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Degrees of parallelism; ``ep`` divides the ``dp * cp`` ranks and adds none."""

    pp: int = 1
    dp: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.pp * self.dp * self.cp * self.tp

    @property
    def weight_ranks(self) -> int:
        """Ranks that hold the same dense weights, over which gradients are reduced: DP x CP."""
        return self.dp * self.cp

    @property
    def expert_ranks(self) -> int:
        """Ranks that hold the same experts."""
        return self.weight_ranks // self.ep

    def rank(self, at: Coordinate) -> int:
        """Global rank of a coordinate."""
        return ((at.pp * self.dp + at.dp) * self.cp + at.cp) * self.tp + at.tp

    def coordinate(self, rank: int) -> Coordinate:
        """Coordinate of a global rank."""
        rest, tp = divmod(rank, self.tp)
        rest, cp = divmod(rest, self.cp)
        pp, dp = divmod(rest, self.dp)
        return Coordinate(pp=pp, dp=dp, tp=tp, cp=cp)

    def _ranks(
        self, pp: Sequence[int], dp: Sequence[int], cp: Sequence[int], tp: Sequence[int]
    ) -> tuple[int, ...]:
        """Ranks of a box of the mesh, in order."""
        return tuple(
            self.rank(Coordinate(pp=p, dp=d, cp=c, tp=t)) for p, d, c, t in product(pp, dp, cp, tp)
        )

    def dp_group(self, at: Coordinate) -> tuple[int, ...]:
        """Ranks that hold the same dense weights."""
        return self._ranks([at.pp], range(self.dp), range(self.cp), [at.tp])

    def tp_group(self, at: Coordinate) -> tuple[int, ...]:
        """Ranks that share one layer."""
        return self._ranks([at.pp], [at.dp], [at.cp], range(self.tp))

    def cp_group(self, at: Coordinate) -> tuple[int, ...]:
        """Ranks that share one sequence."""
        return self._ranks([at.pp], [at.dp], range(self.cp), [at.tp])

    def pp_group(self, at: Coordinate) -> tuple[int, ...]:
        """Ranks of one pipeline, first stage first."""
        return self._ranks(range(self.pp), [at.dp], [at.cp], [at.tp])

    def model_group(self, at: Coordinate) -> tuple[int, ...]:
        """Ranks that together hold one copy of the model."""
        return self._ranks(range(self.pp), [at.dp], [at.cp], range(self.tp))

    def ep_group(self, at: Coordinate) -> tuple[int, ...]:
        """Ranks that share one layer's experts."""
        peers = self.dp_group(at)
        first = (at.dp * self.cp + at.cp) // self.ep * self.ep
        return peers[first : first + self.ep]

    def expert_dp_group(self, at: Coordinate) -> tuple[int, ...]:
        """Ranks that hold the same experts."""
        return self.dp_group(at)[(at.dp * self.cp + at.cp) % self.ep :: self.ep]
