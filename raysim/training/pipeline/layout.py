"""Which rank of a pipeline holds which stages, and who comes before and after each.

A rank may hold several stages ("model chunks", "virtual stages"). ``loop`` deals them out round
after round (Megatron's interleaving), ``v`` goes up the ranks and down again (ZB-V, DualPipeV),
``both`` runs two copies of the model through the ranks in opposite directions (DualPipe): stages
``ranks`` and up are then the second copy. ``placed`` says it stage by stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Shape = Literal["loop", "v", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Stages on ranks.

    >>> [Layout(ranks=3, chunks=2, shape="v").stages_of(rank) for rank in range(3)]
    [(0, 5), (1, 4), (2, 3)]
    """

    ranks: int
    chunks: int = 1
    """Stages per rank."""
    shape: Shape = "loop"
    placed: tuple[int, ...] = ()
    """The rank of each stage, of which each may have another number; (): by ``shape``."""

    @property
    def stages(self) -> int:
        """Stages on all ranks, those of a second copy of the model included."""
        return len(self.placed) or self.ranks * self.chunks

    @property
    def depth(self) -> int:
        """Stages that one micro-batch passes."""
        return self.ranks if self.shape == "both" else self.stages

    def rank_of(self, stage: int) -> int:
        """The rank that holds ``stage``."""
        if self.placed:
            return self.placed[stage]
        turn, place = divmod(stage, self.ranks)
        return self._turned(turn, place)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Stages of a rank, by chunk."""
        if self.placed:
            return tuple(stage for stage, home in enumerate(self.placed) if home == rank)
        return tuple(turn * self.ranks + self._turned(turn, rank) for turn in range(self.chunks))

    def _turned(self, turn: int, place: int) -> int:
        back = self.shape != "loop" and turn % 2 == 1
        return self.ranks - 1 - place if back else place

    def of_model(self, stage: int) -> int:
        """Which part of the model ``stage`` is."""
        return stage % self.depth

    def before(self, stage: int) -> int | None:
        """The stage that hands activations to ``stage``; None: it is the model's first."""
        return stage - 1 if stage % self.depth else None

    def after(self, stage: int) -> int | None:
        """The stage that ``stage`` hands activations to; None: it is the model's last."""
        return stage + 1 if (stage + 1) % self.depth else None

    def homes(self, part: int) -> frozenset[int]:
        """Ranks that hold a part of the model."""
        return frozenset(self.rank_of(stage) for stage in range(part, self.stages, self.depth))
