"""A program's memory changes, tensor by tensor, on an emulated allocator.

Changes name categories and bytes; here each is resolved once into tensors that come and go, and the
tensors are played on ``allocator.Allocator`` in program order: setting up, the steps as compiled,
then the last step again until the allocator asks the driver for nothing new. Optimizer states that
the first step makes are taken in the last compiled one, after its activations.

Simplifications: what a unit saves is taken before its kernels and given back after its backward.
A block freed while another stream may use it (``record_stream``) is reusable at once: the GPU is
taken to keep up with the host, so peaks do not depend on time. A step's warm-up has one micro-batch
(``RankCompiler.compile``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

from raysim.training.allocator.blocks import Block
from raysim.training.allocator.caching import Allocator, OutOfMemory
from raysim.training.program import COMPUTE, MemoryEvent, Program

MOST_REPEATS = 4
"""Of the last step; reserved memory has settled after two or three."""
TOUCHED = -1
"""In place of a tensor's number: taken and given back with nothing between."""
WORKSPACE = -1
"""In place of a change: what cuBLAS takes."""


class Move(NamedTuple):
    """One tensor taken or given back."""

    tensor: int
    size_bytes: int
    """Of a tensor that is taken; 0: it is given back."""
    stream: str
    event: int
    """Index of the change that says so, over ``initial`` and then ``memory``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A program's changes as tensors."""

    events: tuple[MemoryEvent, ...]
    """Of setting up, then of the steps."""
    positions: tuple[int, ...]
    """The operation before which each happens; setting up precedes the first."""
    initial: tuple[Move, ...]
    steps: tuple[Move, ...]
    last: tuple[Move, ...]
    """The last step alone."""
    lazy: tuple[Move, ...]
    """Taken where the last step makes optimizer states for the first time."""
    states_made: int
    """Operation of the last step that makes them."""
    products: tuple[int, ...]
    """Operations with the first products of forward and of backward."""
    carried: tuple[tuple[int, int], ...]
    """Tensors that the last step leaves to the next one, each with the one left to it, which it
    frees: what the next one frees is the former."""


class Resolver:
    """Finds the tensors that each free gives back."""

    def __init__(self) -> None:
        self.next = 0
        self.lazy: list[Move] = []
        self.live: dict[str, dict[str, list[list[tuple[int, int]]]]] = defaultdict(dict)
        """By category and label: what each allocation of that name still holds, as (tensor,
        bytes)."""
        self.held: dict[str, int] = defaultdict(int)
        self.owed: dict[str, int] = defaultdict(int)
        """Bytes given back of tensors that are still partly held."""

    def take(self, event: MemoryEvent, index: int) -> list[Move]:
        """Moves of an allocation."""
        category, delta_bytes, label, tensors, stream, lazy = event
        sizes = tensors or (delta_bytes,)
        group = [(tensor, size) for tensor, size in enumerate(sizes, self.next) if size]
        made = [Move(tensor, size, stream, index) for tensor, size in group]
        self.next += len(sizes)
        self.held[category] += delta_bytes
        self.live[category].setdefault(label, []).append(group)
        if lazy:
            self.lazy += made[-lazy:]
            del made[-lazy:]
        return made

    def give_back(self, event: MemoryEvent, index: int) -> list[Move]:
        """Moves of a free."""
        category, delta_bytes, label, _, stream, _ = event
        freed = self._freed(category, label, -delta_bytes)
        self.held[category] += delta_bytes
        return [Move(tensor, 0, stream, index) for tensor in freed]

    def _freed(self, category: str, label: str, size: int) -> list[int]:
        labels = self.live[category]
        if size == self.held[category]:
            freed = [t for groups in labels.values() for group in groups for t, _ in group]
            labels.clear()
            self.owed[category] = 0
            return freed
        groups = labels.get(label, [])
        for at in range(len(groups) - 1, -1, -1):
            if sum([held for _, held in groups[at]]) == size:
                return [tensor for tensor, _ in groups.pop(at)]
        return self._oldest(category, size)

    def _oldest(self, category: str, size: int) -> list[int]:
        """No allocation of that name and size: one tensor of that size, else the oldest ones.

        A tensor goes when all its bytes have been given back.
        """
        groups_of = self.live[category].values()
        for groups in groups_of:
            for number, group in enumerate(groups):
                for at, (tensor, held) in enumerate(group):
                    if held == size:
                        del group[at]
                        if not group:
                            del groups[number]
                        return [tensor]
        self.owed[category] += size
        freed = []
        for group in [group for groups in groups_of for group in groups]:
            while group and group[0][1] <= self.owed[category]:
                tensor, held = group.pop(0)
                self.owed[category] -= held
                freed.append(tensor)
            if group:
                break
        for groups in groups_of:
            groups[:] = filter(None, groups)
        return freed


def resolve(program: Program) -> Trace:
    """Tensors of a program's changes."""
    resolver = Resolver()
    events = (*program.initial, *program.memory[program.set_up :])
    known = len(program.initial)
    initial = _moves(resolver, events, 0, known)
    ends = [known + end - program.set_up for end in program.step_changes] or [len(events)]
    begins = ends[-2] if len(ends) > 1 else known
    before = _moves(resolver, events, known, begins)
    last = _moves(resolver, events, begins, len(events))
    made = program.states_made
    positions = (*(0,) * known, *program.memory_at[program.set_up :])
    return Trace(
        events=events, positions=positions,
        initial=tuple(initial), steps=tuple(before), last=tuple(last),
        lazy=tuple(resolver.lazy), states_made=made, products=tuple(_products(program)),
        carried=tuple(_carried(events, [*initial, *before], last)),
    )  # fmt: skip


def _carried(
    events: Sequence[MemoryEvent], before: Sequence[Move], last: Sequence[Move]
) -> Iterator[tuple[int, int]]:
    """Pairs of a category and size, in order: one left by the last step, one left to it."""
    given_back = {move.tensor for move in last if not move.size_bytes}

    def left(moves: Sequence[Move], *, to_last: bool) -> Iterator[tuple[object, int]]:
        for tensor, size, _, event in moves:
            if size and tensor != TOUCHED and (tensor in given_back) == to_last:
                yield (events[event].category, size), tensor

    waiting: dict[object, list[int]] = defaultdict(list)
    for kind, tensor in left(before, to_last=True):
        waiting[kind].append(tensor)
    for kind, tensor in left(last, to_last=False):
        if waiting[kind]:
            yield tensor, waiting[kind].pop(0)


def _products(program: Program) -> Iterator[int]:
    for category in ("forward", "backward"):
        first = (i for i, op in enumerate(program.ops) if op.flops and op.category == category)
        yield from islice(first, 1)


def _moves(resolver: Resolver, events: Sequence[MemoryEvent], start: int, stop: int) -> list[Move]:
    moves: list[Move] = []
    index = start
    while index < stop:
        event = events[index]
        category, size, label, tensors, stream, _ = event
        if size < 0:
            moves += resolver.give_back(event, index)
        elif (
            index + 1 < stop
            and len(tensors) < 2
            and events[index + 1][:3] == (category, -size, label)
        ):
            moves.append(Move(TOUCHED, size, stream, index))
            index += 1
        else:
            moves += resolver.take(event, index)
        index += 1
    return moves


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The allocation that found no memory."""

    event: MemoryEvent
    position: int
    """The operation about to run."""
    size_bytes: int
    """Of the tensor."""
    asked_bytes: int
    """Of the segment that the driver was asked for."""
    free_bytes: int
    """What the driver had left."""
    setting_up: bool
    held: dict[str, int]
    """Bytes of live tensors by category."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What the allocator did."""

    allocator: Allocator
    reserved_at: int | None
    """The change, by its place in the trace, with which reserved memory reached its most."""
    failure: Failure | None
    repeats: int
    """Times the last step was played."""


class Entry(NamedTuple):
    """Something the allocator did, as ``torch.cuda.memory._record_memory_history`` keeps it."""

    action: str
    address: int
    size_bytes: int
    """Of a tensor: as requested."""
    stream: Hashable
    event: int
    """The change that made it do so, or ``WORKSPACE``."""
    repeat: int
    """How often the last step had been begun before."""


class Player:
    """Plays moves; remembers which tensors live, and what was done if it is given a list for it."""

    def __init__(
        self, trace: Trace, allocator: Allocator, entries: list[Entry] | None = None
    ) -> None:
        self.trace = trace
        self.allocator = allocator
        self.entries = entries
        self.event, self.repeat = WORKSPACE, 0
        if entries is not None:
            allocator.heard = self._note
        self.blocks: dict[int, Block] = {}
        self.workspaces: list[Block] = []
        """What cuBLAS holds."""
        self.reserved_event = -1

    def play(self, moves: Iterable[Move]) -> None:
        """Take and give back in order; a tensor that lives already is not taken again.

        Raises
        ------
        OutOfMemory
            Of the move at ``at``.
        """
        allocator, blocks = self.allocator, self.blocks
        malloc: Callable[[int, Hashable], Block] = allocator.malloc
        free: Callable[[Block], None] = allocator.free
        touch: Callable[[int, Hashable], bool] = allocator.touch
        if self.entries is not None:
            malloc, free, touch = self.malloc, self._free, _never
        most = allocator.peak_reserved_bytes
        noted = self.entries is not None
        try:
            for move in moves:
                tensor, size, stream, event = move
                if noted:
                    self.event = event
                if not size:
                    block = blocks.pop(tensor, None)
                    if block is not None:
                        free(block)
                    continue
                if tensor == TOUCHED:
                    if touch(size, stream):
                        continue
                    free(malloc(size, stream))
                elif tensor not in blocks:
                    blocks[tensor] = malloc(size, stream)
                if allocator.peak_reserved_bytes > most:
                    most, self.reserved_event = allocator.peak_reserved_bytes, event
        except OutOfMemory:
            self.at = move
            raise

    def carry(self) -> None:
        """A step is over: what it leaves is what the next one frees."""
        for tensor, known in self.trace.carried:
            if tensor in self.blocks and known not in self.blocks:
                self.blocks[known] = self.blocks.pop(tensor)

    def malloc(self, size_bytes: int, stream: Hashable = 0) -> Block:
        """Take a block and note it.

        Raises
        ------
        OutOfMemory
            Noted as torch does: with what is free as its address.
        """
        try:
            block = self.allocator.malloc(size_bytes, stream)
        except OutOfMemory as error:
            self._note("oom", error.free_bytes, error.asked_bytes, stream)
            raise
        self._note("alloc", block.address, size_bytes, stream)
        return block

    def _free(self, block: Block) -> None:
        for action in ("free_requested", "free_completed"):
            self._note(action, block.address, block.requested, block.pool.stream)
        self.allocator.free(block)

    def _note(self, action: str, address: int, size_bytes: int, stream: Hashable) -> None:
        if self.entries is not None:
            entry = Entry(action, address, size_bytes, stream, self.event, self.repeat)
            self.entries.append(entry)

    def owners(self) -> dict[int, int]:
        """The change that takes each tensor."""
        trace = self.trace
        moves = chain(trace.initial, trace.steps, trace.lazy, trace.last)
        return {move.tensor: move.event for move in moves if move.size_bytes}

    def held(self) -> dict[str, int]:
        """Bytes of live tensors by category."""
        found: dict[str, int] = defaultdict(int)
        owners = self.owners()
        for tensor, block in self.blocks.items():
            found[self.trace.events[owners[tensor]].category] += block.requested
        return dict(found)


def _never(_size_bytes: int, _stream: Hashable = 0) -> bool:
    """What is noted is really taken."""
    return False


def replay(
    trace: Trace,
    allocator: Allocator,
    *,
    workspaces: Sequence[int] = (),
    player: Player | None = None,
) -> Replay:
    """Play a program on an allocator until it has settled.

    ``workspaces`` are what cuBLAS asks torch for with the first products. ``player``: one that
    notes what is done.
    """
    player = player or Player(trace, allocator)
    failure, repeats, setting_up = None, 0, True
    asked = [*zip(trace.products, filter(None, workspaces), strict=False)]
    try:
        player.play(trace.initial)
        setting_up = False
        _play_first(player, trace.steps, asked)
        for repeats in range(1, MOST_REPEATS + 1):
            calls, player.repeat = allocator.driver_calls, repeats - 1
            if repeats == 1:
                _play_first(player, _with_states(trace), asked)
            else:
                player.play(trace.last)
            player.carry()
            if calls == allocator.driver_calls and (repeats > 1 or not trace.lazy):
                break
    except OutOfMemory as error:
        failure = _failure(player, error, setting_up=setting_up)
    at = player.reserved_event if player.reserved_event >= 0 else None
    return Replay(allocator=allocator, reserved_at=at, failure=failure, repeats=repeats)


def _play_first(player: Player, moves: Sequence[Move], asked: list[tuple[int, int]]) -> None:
    """Play, with the workspaces still to be ``asked`` for, each behind an operation."""
    positions = player.trace.positions
    while asked:
        place, size = asked[0]
        cut = next((i for i, m in enumerate(moves) if positions[m.event] > place), None)
        if cut is None:
            break
        player.play(moves[:cut])
        player.event = WORKSPACE
        player.workspaces.append(player.malloc(size, COMPUTE))
        moves = moves[cut:]
        del asked[0]
    player.play(moves)


def _with_states(trace: Trace) -> tuple[Move, ...]:
    """The last step, with the optimizer states it is the first to make."""
    at = next(
        (i for i, m in enumerate(trace.last) if trace.positions[m.event] > trace.states_made),
        len(trace.last),
    )
    return (*trace.last[:at], *trace.lazy, *trace.last[at:])


def _failure(player: Player, error: OutOfMemory, *, setting_up: bool) -> Failure:
    move, trace = player.at, player.trace
    return Failure(
        event=trace.events[move.event], position=trace.positions[move.event],
        size_bytes=move.size_bytes, asked_bytes=error.asked_bytes, free_bytes=error.free_bytes,
        setting_up=setting_up, held=player.held(),
    )  # fmt: skip
