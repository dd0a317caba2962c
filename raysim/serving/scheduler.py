"""Which sequences go into the next iteration, and with how many tokens each.

Real counterpart: ``vllm/v1/core/sched/scheduler.py``, ``Scheduler.schedule``. Sequences that run
come first, in the order they were admitted: each gets the tokens it has not computed yet (one when
it decodes, a chunk of its prompt before that) within the budget. Who finds no block for its tokens
takes them from the sequence admitted last, which starts over but for what the cache still has of it
by then. What is left of the budget goes to
those that wait, first come first served, as long as there are blocks and places; none is admitted
in an iteration in which one was preempted.

Not modelled: priorities, structured output, encoder budgets, asynchronous scheduling.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from raysim.serving.kv_cache import BlockPool
from raysim.serving.settings import EngineSettings


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the engine."""

    request: Any
    prompt: int
    output: int
    """Tokens to be made."""
    arrived_ns: int
    then: Callable[[Any], object]
    prefix: Hashable = None
    prefix_tokens: int = 0
    received: int = 0
    """Tokens of the prompt whose keys and values come from another engine."""
    started: Callable[[], object] | None = None
    adapter: Hashable = None
    computed: int = 0
    """Tokens whose keys and values are in the cache."""
    made: int = 0
    blocks: int = 0
    """Of its own, beside a shared prefix's."""
    shared: int = 0
    """Blocks of the prefix it uses."""
    holds: int = 0
    """At least so many tokens find room in its blocks and the prefix's: ``_room`` has counted."""
    before: int = 0
    """The same when it was preempted last."""
    first_ns: int = -1
    preemptions: int = 0
    hit_tokens: int = 0
    """Of the prompt, found in the cache at its first admission."""

    @property
    def length(self) -> int:
        """Tokens it has so far."""
        return self.prompt + self.made

    @property
    def decodes(self) -> bool:
        """Only its last token is not computed yet."""
        return self.computed == self.length - 1 and self.made > 0


Part: TypeAlias = tuple[Sequence, int]
"""A sequence's share of an iteration: how many of its tokens. Plain, for there are millions."""


@dataclass(slots=True)
class Scheduler:
    """Waiting and running sequences of one engine."""

    settings: EngineSettings
    pool: BlockPool
    batches: int = 1
    """Under way together, of a pipeline."""
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    preemptions: int = 0
    shut: bool = False
    """Nobody was admitted in the last iteration, for somebody was preempted."""

    def __post_init__(self) -> None:
        assert self.settings.max_num_batched_tokens, "settings without the GPU's defaults"
        assert self.settings.max_num_seqs, "settings without the GPU's defaults"

    @property
    def _keeps(self) -> bool:
        """Whether the cache finds again what it has computed; a recurrence's state it does not."""
        return self.settings.enable_prefix_caching and not self.pool.state_blocks

    def schedule(self) -> list[Part]:
        """The next iteration's parts; blocks are taken for them."""
        budget = (self.settings.max_num_batched_tokens or 0) * self.batches
        parts: list[Part] = []
        preempted = False
        running = self.running
        place = 0
        while place < len(running) and budget > 0:
            sequence = running[place]
            tokens = sequence.prompt + sequence.made - sequence.computed
            if tokens > budget:
                tokens = budget
            upto = sequence.computed + tokens
            while upto > sequence.holds and not self._room(sequence, tokens):
                preempted = True
                last = running.pop()
                self._preempt(last)
                if last is sequence:
                    break
            else:
                parts.append((sequence, tokens))
                if sequence.prefix is not None and not sequence.shared:
                    self._keep(sequence, upto)
                budget -= tokens
                place += 1
                continue
            break
        self.shut = preempted
        if not preempted:
            self._admit(parts, budget)
        return parts

    def _admit(self, parts: list[Part], budget: int) -> None:
        """First come first served, but for those whose adapter finds no place in this batch."""
        adapters = {s.adapter for s, _ in parts if s.adapter is not None}
        skipped: list[Sequence] = []
        most = self.settings.max_num_seqs or 0
        while self.waiting and budget > 0 and len(self.running) < most:
            sequence = self.waiting[0]
            own = set() if sequence.adapter is None else {sequence.adapter}
            if len(adapters | own) > max(len(adapters), self.settings.max_loras):
                skipped.append(self.waiting.popleft())
                continue
            tokens = self._admitted(sequence, budget)
            if not tokens:
                break
            adapters |= own
            parts.append((sequence, tokens))
            budget -= tokens
        self.waiting.extendleft(reversed(skipped))

    def _admitted(self, sequence: Sequence, budget: int) -> int:
        """Tokens of the first that waits, which runs now; 0: it does not."""
        hit = self._cached(sequence)
        there = max(self._found(sequence, hit), sequence.received)
        tokens = sequence.length - there
        if tokens > budget and not self.settings.enable_chunked_prefill:
            return 0
        tokens = min(tokens, budget)
        if not self._enter(sequence, hit, there, there + tokens):
            return 0
        self._keep(sequence, there + tokens)
        self.waiting.popleft()
        self.running.append(sequence)
        return tokens

    def _cached(self, sequence: Sequence) -> int:
        """Tokens found in the cache: whole blocks, never the last token, whose logits it needs."""
        if sequence.prefix is None or not self.settings.enable_prefix_caching:
            return 0
        whole = (sequence.length - 1) // self.pool.block_size
        return min(self.pool.cached_blocks(sequence.prefix), whole) * self.pool.block_size

    def _found(self, sequence: Sequence, hit: int) -> int:
        """Tokens in the cache with those that a preempted sequence left after its prefix."""
        size = self.pool.block_size
        if hit // size < sequence.before:
            return hit  # its prefix has gone: what follows it is not found
        left = sequence.before + self.pool.cached_blocks(sequence)
        return max(hit, min(left, (sequence.length - 1) // size) * size)

    def _enter(self, sequence: Sequence, hit: int, there: int, upto: int) -> bool:
        """Take blocks for its first ``upto`` tokens, of which the cache has some."""
        size = self.pool.block_size
        shared = self.pool.share(sequence.prefix) if hit else 0
        # A prefix that reaches beyond what may be used is shared all the same.
        kept = self.pool.take_back(sequence)
        used = max(0, sequence.before + kept - hit // size) if there > hit else 0
        own = self.pool.needed(upto) - min(shared, hit // size)
        self.pool.give(kept - used)
        if not self.pool.take(max(0, own - used)):
            if used:
                self.pool.set_aside(sequence, used)
            if hit:
                self.pool.leave(sequence.prefix)
            return False
        sequence.shared, sequence.blocks = hit // size, max(own, used)
        sequence.computed = there
        if not sequence.preemptions:
            sequence.hit_tokens = hit
        return True

    def _room(self, sequence: Sequence, tokens: int) -> bool:
        """Whether so many more tokens find blocks, which they get."""
        upto = sequence.computed + tokens
        more = self.pool.needed(upto) - sequence.shared - sequence.blocks
        if more > 0:
            if not self.pool.take(more):
                return False
            sequence.blocks += more
        sequence.holds = -(-upto // self.pool.block_size) * self.pool.block_size
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Its blocks go back; tokens whose blocks somebody takes meanwhile are computed again."""
        sequence.before = sequence.shared
        whole = sequence.computed // self.pool.block_size - sequence.shared
        kept = min(sequence.blocks, max(0, whole)) if self._keeps else 0
        sequence.blocks -= kept
        self.release(sequence)
        if kept:
            self.pool.set_aside(sequence, kept)
        sequence.computed = sequence.received = 0  # what was sent is gone as well
        sequence.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(sequence)

    def _keep(self, sequence: Sequence, upto: int) -> None:
        """So many of its tokens are scheduled: a prefix among them is there for others.

        Also for those of this iteration (``KVCacheManager.allocate_slots`` caches the blocks): each
        layer writes all keys and values before its attention reads them.
        """
        name = sequence.prefix
        if name is None or sequence.shared or not self.settings.enable_prefix_caching:
            return
        blocks = sequence.prefix_tokens // self.pool.block_size
        if 0 < blocks <= upto // self.pool.block_size and name not in self.pool.prefixes:
            self.pool.keep(name, blocks)
            sequence.blocks -= blocks
            sequence.shared = blocks

    def release(self, sequence: Sequence) -> None:
        """Its own blocks are free again; the prefix has one user less."""
        self.pool.give(sequence.blocks)
        if sequence.shared:
            self.pool.leave(sequence.prefix)
        sequence.blocks = sequence.shared = sequence.holds = 0

    def blocks_ahead(self, steps: int) -> int:
        """Blocks that the running sequences take while each decodes so many tokens more."""
        pool = self.pool
        return sum(
            max(0, pool.needed(s.computed + steps) - s.shared - s.blocks)
            for s in self.running
            if s.computed + steps > s.holds
        )

    def take_ahead(self, steps: int) -> None:
        """Take those blocks, as ``schedule`` would have one by one as they fill."""
        for s in self.running:
            if s.computed + steps > s.holds:
                taken = self._room(s, steps)
                assert taken, "blocks of a stretch were not there"
