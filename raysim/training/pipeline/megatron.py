"""Megatron-LM's schedules with batched exchange, batch by batch.

Source: ``megatron/core/pipeline_parallel/schedules.py``
(``forward_backward_pipelining_without_interleaving``, ``..._with_interleaving`` without
``overlap_p2p_comm``). Sends and receives that stand side by side in a step are one
``batch_isend_irecv``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from raysim.training.pipeline.layout import Layout
from raysim.training.pipeline.orders import interleaved_warm_up, turns
from raysim.training.pipeline.schedule import Do, Instruction


def one_forward_one_backward(
    rank: int, layout: Layout, micro_batches: int
) -> Iterator[list[Instruction]]:
    """1F1B with S - r - 1 forwards of warm-up; a send and the next receive go together."""
    first, last = rank == 0, rank == layout.ranks - 1
    warm = min(layout.ranks - 1 - rank, micro_batches)

    def receive(do: Do, micro_batch: int) -> list[Instruction]:
        absent = first if do == Do.RECV_ACTIVATION else last
        return [] if absent else [Instruction(do, micro_batch)]

    def send(do: Do, micro_batch: int) -> list[Instruction]:
        absent = last if do == Do.SEND_ACTIVATION else first
        return [] if absent else [Instruction(do, micro_batch)]

    def forward(micro_batch: int) -> list[Instruction]:
        load = [Instruction(Do.LOAD_MICRO_BATCH, micro_batch)] if first or last else []
        return [*load, Instruction(Do.FORWARD_PASS, micro_batch)]

    for m in range(warm):
        yield [*receive(Do.RECV_ACTIVATION, m), *forward(m), *send(Do.SEND_ACTIVATION, m)]
    if warm < micro_batches:
        yield receive(Do.RECV_ACTIVATION, warm)
    for m in range(micro_batches - warm):
        ahead = warm + m
        yield [*forward(ahead), *send(Do.SEND_ACTIVATION, ahead), *receive(Do.RECV_GRAD, m)]
        following = receive(Do.RECV_ACTIVATION, ahead + 1) if ahead + 1 < micro_batches else []
        yield [Instruction(Do.BACKWARD_PASS, m), *send(Do.SEND_GRAD, m), *following]
    for m in range(micro_batches - warm, micro_batches):
        yield [
            *receive(Do.RECV_GRAD, m),
            Instruction(Do.BACKWARD_PASS, m),
            *send(Do.SEND_GRAD, m),
        ]


class _Interleaved:
    """One rank's view of the interleaved schedule: which chunk a pass is of, what arrives when."""

    def __init__(self, rank: int, layout: Layout, micro_batches: int, group: int) -> None:
        self.rank = rank
        self.ranks, self.chunks = layout.ranks, layout.chunks
        self.turns = turns(micro_batches, layout.chunks, group)
        self.received: Counter[tuple[Do, int]] = Counter()

    def turn(self, k: int, *, forward: bool) -> tuple[int, int]:
        """Chunk and micro-batch of the rank's ``k``-th pass."""
        chunk, micro_batch = self.turns[k % len(self.turns)]
        return (chunk if forward else self.chunks - 1 - chunk), micro_batch

    def compute(self, k: int, *, forward: bool) -> list[Instruction]:
        """The pass itself."""
        chunk, micro_batch = self.turn(k, forward=forward)
        if not forward:
            return [Instruction(Do.BACKWARD_PASS, micro_batch, chunk)]
        passed = [Instruction(Do.FORWARD_PASS, micro_batch, chunk)]
        first = self.rank == 0 and chunk == 0
        last = self.rank == self.ranks - 1 and chunk == self.chunks - 1
        if first or last:
            passed.insert(0, Instruction(Do.LOAD_MICRO_BATCH, micro_batch, chunk))
        return passed

    def send(self, k: int, *, forward: bool) -> list[Instruction]:
        """What the ``k``-th pass made, unless it is the model's end."""
        chunk, micro_batch = self.turn(k, forward=forward)
        end = (self.ranks - 1, self.chunks - 1) if forward else (0, 0)
        if (self.rank, chunk) == end:
            return []
        return [Instruction(Do.SEND_ACTIVATION if forward else Do.SEND_GRAD, micro_batch, chunk)]

    def take(self, chunk: int, *, forward: bool) -> list[Instruction]:
        """The next tensor for a chunk."""
        do = Do.RECV_ACTIVATION if forward else Do.RECV_GRAD
        self.received[do, chunk] += 1
        return [Instruction(do, self.received[do, chunk] - 1, chunk)]

    def receive(self, k: int, *, forward: bool) -> list[Instruction]:
        """What the neighbour sends while this rank ends its ``k``-th pass.

        ``recv_tensor_from_previous_stage``: the rank that leads is ``ranks - 1`` passes ahead of
        the one whose output comes around to it.
        """
        leads = self.rank == (0 if forward else self.ranks - 1)
        if not leads:
            return self.take(self.turn(k + 1, forward=forward)[0], forward=forward)
        if k < self.ranks - 1:
            return []
        chunk, _ = self.turn(k - (self.ranks - 1), forward=forward)
        if chunk == (self.chunks - 1 if forward else 0):
            return []
        return self.take(chunk + (1 if forward else -1), forward=forward)


def interleaved(
    rank: int, layout: Layout, micro_batches: int, group: int
) -> Iterator[list[Instruction]]:
    """Interleaved 1F1B; after a forward and a backward, one batch exchanges both ways."""
    r = _Interleaved(rank, layout, micro_batches, group)
    total = len(r.turns)
    warm = interleaved_warm_up(rank, layout.ranks, layout.chunks, total, group)
    rest = total - warm
    last = rank == layout.ranks - 1
    if rank:
        yield r.take(0, forward=True)
    for k in range(warm):
        todo = [*r.compute(k, forward=True), *r.send(k, forward=True)]
        if k < total - 1:
            todo += r.receive(k, forward=True)
        if k == warm - 1 and rest and not last:
            todo += r.take(layout.chunks - 1, forward=False)
        yield todo
    if not rest and not last:
        yield r.take(layout.chunks - 1, forward=False)
    for k in range(rest):
        ahead = warm + k
        todo = [*r.compute(ahead, forward=True), *r.compute(k, forward=False)]
        todo += [*r.send(ahead, forward=True), *r.send(k, forward=False)]
        if k < rest - 1:
            todo += r.receive(ahead, forward=True)
        yield [*todo, *(r.receive(k, forward=False) if k < total - 1 else [])]
    for k in range(rest, total):
        todo = [*r.compute(k, forward=False), *r.send(k, forward=False)]
        yield [*todo, *(r.receive(k, forward=False) if k < total - 1 else [])]
