"""What a training worker is told of its GPUs, and most have no use for; ``rayapi.ranks`` has."""

from __future__ import annotations

from typing import Any

from raysim.units import to_ns


class Hooks:
    """Of a worker."""

    offloaded_bytes = 0.0
    """Of a DeepSpeed engine's states, what is in main memory for now."""
    steps = 0
    """Training steps taken."""
    prices_first = False
    """Forwards before any training step take their time too."""

    @property
    def answers(self) -> bool:
        """Nothing of it has trained yet: what it has the GPU do passes on a stream of its own."""
        return False

    @property
    def answered_bytes(self) -> tuple[int, int]:
        """What torch has allocated and reserved at most, of a worker that has not trained."""
        return 0, 0

    @property
    def weights(self) -> dict[int, float]:
        """Storages of models that only answer, and their bytes."""
        return {}

    def answered_on(self, gpu: str) -> tuple[int, int, int] | None:
        """Of one of several GPUs that such models lie on: allocated now, at most, reserved at most.

        None: they do not lie on several.
        """
        del gpu
        return None

    def only_asks(self, module: Any) -> bool:
        """Whether no backward will follow its forward, though gradients are on."""
        del module
        return False

    def queues(self, forward: Any) -> int:
        """A forward that learns nothing; nanoseconds of it that whoever waits for the GPU waits."""
        length_ns: int = forward.ns
        return length_ns

    def copies(self, size_bytes: float, kind: Any, *, pinned: bool) -> None:
        """A script's own, of a process that ``answers``."""

    def awaits_stream(self) -> None:
        """Somebody asks for a value."""

    def rests_with(self, module: Any, share: float = 1.0) -> None:
        """Weights of a module that only answers."""

    def took(self, found: Any) -> None:
        """A training step, as it was predicted."""
        del found
        self.steps += 1

    def empties_cache(self) -> None:
        """``torch.cuda.empty_cache()``."""

    def gathers(self, size_bytes: float) -> None:
        """``deepspeed.zero.GatheredParameters``: ranks put together what they share."""

    def offloads(self, size_bytes: float, seconds: float) -> None:
        """Of what rests on its GPU, so much is in main memory now; moving it takes so long."""
        self.offloaded_bytes = size_bytes
        self.sleep_ns(to_ns(seconds))

    def sleep_ns(self, length_ns: int) -> None:
        """Let time pass on its thread."""
        raise NotImplementedError
