"""Blocks of an engine's key-value cache: given to sequences, shared by prefixes, evicted.

Real counterpart: vLLM's ``KVCacheManager`` and ``BlockPool``. A sequence holds a block for every
``block_size`` tokens. A prefix that several prompts share is named by its requests; its full blocks
stay after the last of them ends, until somebody needs room: longest unused first. So do those of a
sequence that was preempted, its last ones first: it goes on where they end.

Not modelled: hashes of blocks: prefixes are told apart by name, and are shared whole or not at all.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(slots=True)
class Prefix:
    """Blocks of one shared prefix, or of a sequence that was preempted."""

    blocks: int
    users: int = 0
    used: int = 0
    """When it was last let go, in order."""
    whole: bool = True
    """Nothing is left of it once some are needed."""


class BlockPool:
    """The cache's blocks.

    Parameters
    ----------
    blocks
        In all.
    block_size
        Tokens per block.
    window_blocks
        That a sequence needs at most beside those of its tokens, for layers that slide.
    state_blocks
        That a sequence needs beside those of its tokens, for layers that keep a state.
    """

    __slots__ = (
        "_turn", "block_size", "blocks", "free", "prefixes", "state_blocks",
        "window_blocks",
    )  # fmt: skip

    def __init__(
        self, blocks: int, block_size: int, window_blocks: int = 0, state_blocks: int = 0
    ) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.window_blocks = window_blocks
        self.state_blocks = state_blocks
        self.free = blocks
        """Of nobody; idle prefixes' blocks come on top when they are evicted."""
        self.prefixes: dict[Hashable, Prefix] = {}
        self._turn = 0

    @property
    def available(self) -> int:
        """Blocks a sequence could get now."""
        return self.free + sum(p.blocks for p in self.prefixes.values() if not p.users)

    @property
    def used(self) -> int:
        """Blocks of sequences and of prefixes in use."""
        return self.blocks - self.available

    def needed(self, tokens: int) -> int:
        """Blocks that a sequence of so many tokens holds."""
        filled = -(-tokens // self.block_size)
        return filled + min(filled, self.window_blocks) + (self.state_blocks if filled else 0)

    def take(self, blocks: int) -> bool:
        """Give blocks to a sequence, evicting idle prefixes if need be; False: too few."""
        if blocks > self.free:
            if blocks > self.available:
                return False
            self._evict(blocks - self.free)
        self.free -= blocks
        return True

    def give(self, blocks: int) -> None:
        """A sequence's blocks come back."""
        self.free += blocks
        assert self.free <= self.blocks, f"{self.free} blocks free of {self.blocks}"

    # ---- prefixes --------------------------------------------------------------------------------

    def cached_blocks(self, name: Hashable) -> int:
        """Of a prefix; 0 if it is not here."""
        known = self.prefixes.get(name)
        return known.blocks if known is not None else 0

    def share(self, name: Hashable) -> int:
        """One more sequence uses the prefix; its blocks."""
        known = self.prefixes[name]
        known.users += 1
        return known.blocks

    def keep(self, name: Hashable, blocks: int) -> None:
        """A sequence's first blocks become the prefix, of which it is the first user."""
        assert name not in self.prefixes, f"prefix {name!r} is kept twice"
        self.prefixes[name] = Prefix(blocks=blocks, users=1)

    def leave(self, name: Hashable) -> None:
        """One user less; the blocks stay until somebody needs them."""
        known = self.prefixes[name]
        known.users -= 1
        self._turn += 1
        known.used = self._turn

    def set_aside(self, sequence: Hashable, blocks: int) -> None:
        """Blocks of a sequence that was preempted stay until somebody needs them."""
        self._turn += 1
        self.prefixes[sequence] = Prefix(blocks=blocks, used=self._turn, whole=False)

    def take_back(self, sequence: Hashable) -> int:
        """What is left of those that were set aside is the sequence's again."""
        return self.prefixes.pop(sequence).blocks if sequence in self.prefixes else 0

    def _evict(self, blocks: int) -> None:
        idle = sorted(
            (name for name, p in self.prefixes.items() if not p.users),
            key=lambda name: self.prefixes[name].used,
        )
        for name in idle:
            if blocks <= 0:
                return
            known = self.prefixes[name]
            gone = known.blocks if known.whole else min(known.blocks, blocks)
            known.blocks -= gone
            if not known.blocks:
                del self.prefixes[name]
            self.free += gone
            blocks -= gone
