"""FSDP2's weights and gradients among the passes of a rank with several stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raysim.training.engines.choice import piped
from raysim.training.engines.context import Engine
from raysim.training.pipeline.pipelines import Pipeline
from raysim.training.pipeline.unsharding import Moves


class StageWeights:
    """Of a rank's chunks; of other engines', nothing."""

    def __init__(self, engines: Sequence[Engine], pipeline: Pipeline) -> None:
        self.engines = [piped(engine) for engine in engines]
        self.pipeline = pipeline
        self.moves: Iterator[Moves] = iter(())
        self.finished: list[int] = []
        """Chunks whose last backward has run, until they are reduced."""

    def begin(self, rank: int, micro_batches: int) -> None:
        """A step."""
        sharded = self.engines[0] is not None
        self.moves = self.pipeline.moves(rank, micro_batches) if sharded else iter(())

    def move(self) -> None:
        """Ahead of a pass: weights of chunks whose next pass is far off or near."""
        leave, come = next(self.moves, ((), ()))
        for chunk in leave:
            if (engine := self.engines[chunk]) is not None:
                engine.give_back()
        for chunk in come:
            if (engine := self.engines[chunk]) is not None:
                engine.gather_ahead()

    def reduce(self) -> None:
        """Behind a pass and what it sends: gradients of chunks that are through."""
        for chunk in self.finished if self.pipeline.lowered else ():
            if (engine := self.engines[chunk]) is not None:
                engine.reduce_gradients()
        self.finished.clear()
