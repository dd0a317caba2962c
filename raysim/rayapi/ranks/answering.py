"""Workers that answer with models before they train any, if they ever do: batch inference.

What they have their GPU do until somebody makes an optimizer passes on its stream (``answers.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from raysim.rayapi.ranks.answers import Answers
from raysim.rayapi.ranks.gpu_use import Phase, Place, gpu_use
from raysim.rayapi.train.worker import Run, Worker

if TYPE_CHECKING:
    from raysim.hardware.specs import NodeSpec
    from raysim.rayapi.process_state import ProcessState
    from raysim.rayapi.shapes.prediction import Forward
    from raysim.raylibs.train.context import TrainContext


class Answering(Worker):
    """One process.

    Parameters
    ----------
    run, context, state
        As for ``Worker``.
    name
        Of its row in the report.
    places
        Its GPUs.
    """

    prices_first = True

    def __init__(
        self, *, run: Run, context: TrainContext, state: ProcessState, name: str,
        places: Sequence[Place],
    ) -> None:  # fmt: skip
        super().__init__(run=run, context=context, state=state)
        self.places = tuple(places)
        self.name = name
        self.rest_bytes = 0.0
        self._answering: dict[int, tuple[Any, dict[int, float]]] = {}
        """Models that it holds and has not trained: what they were, bytes of their storages."""
        self._on: dict[int, str] = {}
        """The GPU of each storage, where it is known."""
        self.answering = Answers(self)
        self.only_answers = False
        """Nobody trains in it: a stage of Ray Data, a replica of Serve."""

    @property
    def answers(self) -> bool:
        """Nothing of it has trained or is about to."""
        steps = self.torch_steps
        alone = bool(self.places) and self.context.world_size == 1
        return alone and steps.latest is None and not steps.optimizers.made

    def only_asks(self, module: Any) -> bool:
        """A model that is evaluated before anybody has made an optimizer."""
        return self.answers and (self.only_answers or not module.training)

    def queues(self, forward: Forward) -> int:
        """On the stream of a process that answers nobody waits twice."""
        if not self.answers:
            return super().queues(forward)
        self.answering.forward(forward)
        return 0

    def copies(self, size_bytes: float, kind: Any, *, pinned: bool) -> None:
        """On its stream."""
        if self.answers:
            self.answering.copies(size_bytes, kind, pinned=pinned)

    def awaits_stream(self) -> None:
        """Whatever is on it."""
        if self.places:
            self.answering.wait()

    @property
    def weights(self) -> dict[int, float]:
        """Storages of models that only answer, and their bytes."""
        return {key: n for _, found in self._answering.values() for key, n in found.items()}

    @property
    def weights_bytes(self) -> float:
        """Of them, those on the fullest of its GPUs."""
        found = self._by_gpu()
        return found.pop("", 0) + max(found.values(), default=0)

    def _by_gpu(self) -> Counter[str]:
        """Bytes of weights; ``""``: nobody has said where."""
        found = Counter[str]()
        for key, size_bytes in self.weights.items():
            found[self._on.get(key, "")] += size_bytes  # type: ignore[assignment]
        return found

    def answered_on(self, gpu: str) -> tuple[int, int, int] | None:
        """As in ``Hooks``; beside its weights each has what the fullest has at its peak."""
        found = self._by_gpu()
        if len(found) < 2:
            return None
        own, fullest = int(found[gpu]), int(self.weights_bytes)
        allocated, reserved = (own + max(0, peak - fullest) for peak in self.answering.peak_bytes)
        return (own, allocated, reserved) if own else (0, 0, 0)

    def rests_with(self, module: Any, share: float = 1.0) -> None:
        """Weights of a module that only answers are on its GPU, or such a share of them."""
        from raysim.rayapi.shapes.devices import gpu_of
        from raysim.rayapi.shapes.fetched import storages
        from raysim.tracing.storages import key_of

        if self.torch_steps.latest is not None or not self.places:
            return
        known, kind = self._answering.get(id(module)), (self.torch_steps.signature(module), share)
        if known is None or known[0] != kind:
            away = storages(self.torch_steps)
            found = {
                key_of(p): p.numel() * p.element_size() * share for p in module.parameters()
                if key_of(p) not in away
            }  # fmt: skip
            self._answering[id(module)] = kind, found
            self._on |= {key_of(p): gpu_of(p) for p in module.parameters()}
            self.rest_bytes = self.weights_bytes + self._context_bytes
            self.holds(self.rest_bytes, phase="forward")
            self.answering.rested()

    def holds(self, size_bytes: float, *, phase: Phase | None = None) -> None:
        """So much of each of its GPUs, at least while a phase lasts.

        Raises
        ------
        torch.OutOfMemoryError
            Others leave less.
        """
        import torch

        use = gpu_use(self.run.session)
        missing = use.misses(self, self.places, size_bytes)
        if missing:
            during = f" ({phase})" if phase else ""
            raise torch.OutOfMemoryError(f"CUDA out of memory{during}: {missing}.")
        use.hold(self, self.places, size_bytes)

    @property
    def answered_bytes(self) -> tuple[int, int]:
        """As torch counts them at the peak."""
        return self.answering.peak_bytes

    @property
    def hardware(self) -> NodeSpec:
        """Of its node."""
        return self.run.session.env.nodes[self.places[0][0]].spec

    @property
    def _context_bytes(self) -> int:
        """CUDA's, and kernels that are loaded."""
        gpu = self.hardware.gpu
        return int(gpu.context_bytes) if gpu is not None else 0
