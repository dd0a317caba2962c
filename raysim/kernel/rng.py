"""Named random streams from one seed.

Each name has a stream of its own, made from the seed and the name alone, so a new component that
draws does not shift what the others draw. Streams are numpy's PCG64, whose sequence is stable over
platforms and numpy versions (NEP 19).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.random import Generator


class Streams:
    """Makes and remembers the streams of one simulation."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._streams: dict[str, Generator] = {}

    def __call__(self, name: str) -> Generator:
        """The stream called ``name``: the same object every time."""
        stream = self._streams.get(name)
        if stream is None:
            from numpy.random import PCG64, Generator, SeedSequence

            words = memoryview(hashlib.blake2b(name.encode(), digest_size=16).digest())
            key = [int.from_bytes(words[i : i + 4], "little") for i in range(0, 16, 4)]
            bits = PCG64(SeedSequence(self.seed, spawn_key=key))
            stream = self._streams[name] = Generator(bits)
        return stream

    @property
    def digest(self) -> str:
        """Hash of how far every stream has been drawn; streams never drawn from do not count."""
        hash_ = hashlib.blake2b(digest_size=16)
        for name in sorted(self._streams):
            hash_.update(f"{name}\n{self._streams[name].bit_generator.state}\n".encode())
        return hash_.hexdigest()


def generator(seed: int) -> Generator:
    """``numpy.random.default_rng``, for a library whose real counterpart takes a seed."""
    from numpy.random import default_rng

    return default_rng(seed)


def random_of(said: Any) -> Any:
    """What a program's own ``random_state=`` draws from: a generator, or one of a seed.

    Without any it is numpy's module of draws, which every process of a program seeds for itself.
    """
    import numpy as np

    if said is None:
        return np.random
    return np.random.default_rng(said) if isinstance(said, int) else said
