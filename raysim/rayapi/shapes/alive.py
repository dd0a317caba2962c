"""What a script itself has on the GPU: data, a copy of the weights, outputs that it keeps.

Real counterpart: torch's caching allocator, in whose bytes such tensors are as any other. A storage
counts as on the GPU once it was made or moved there, or made of one that is; it ends with its last
tensor. What the model, its optimizer and autograd hold is counted by the training tower.

Not modelled: what is made after a model's first step, what a module makes in its forward and keeps,
engines that shard, small tensors (``LEAST_BYTES``).
"""

from __future__ import annotations

import weakref
from collections.abc import Collection
from functools import partial
from typing import Any

import torch

from raysim.tracing.operators import tensors
from raysim.tracing.storages import key_of

LEAST_BYTES = 2**15
BLOCK_BYTES = 512
"""What torch's allocator rounds to."""
_C: Any = torch._C  # noqa: SLF001  (modes of a thread have no other door)


class Alive:
    """Storages on the GPU of one worker."""

    def __init__(self) -> None:
        self._live: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        """By identity; with their bytes."""

    def note(self, tree: Any) -> None:
        """Tensors that are on the GPU."""
        with _C.DisableTorchFunction():
            for t in tensors(tree):
                storage = t.untyped_storage() if t.is_meta else None
                if storage is None or storage.nbytes() < LEAST_BYTES:
                    continue
                key = key_of(t)
                if key not in self._live:
                    gone = partial(self._forget, key)
                    self._live[key] = weakref.ref(storage, gone), storage.nbytes()

    def _forget(self, key: int, _: object) -> None:
        self._live.pop(key, None)

    def follow(self, args: Any, out: Any) -> None:
        """A function has made ``out``: where what it was given is."""
        if isinstance(out, torch.Tensor | tuple | list) and self._holds(args):
            self.note(out)

    def _holds(self, args: Any) -> bool:
        with _C.DisableTorchFunction():
            return any(t.is_meta and key_of(t) in self._live for t in tensors(args))

    def bytes_but(self, others: Collection[int]) -> int:
        """Of all that are alive but those that somebody else counts."""
        sizes = (size for key, (_, size) in self._live.items() if key not in others)
        return sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES for size in sizes)
