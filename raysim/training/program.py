"""The program of one rank: what its host thread issues, in order, and the memory that takes.

A program is compiled once and played by ``executor``. It knows durations and bytes but not the
clock: when an operation really runs depends on its stream, on what it waits for and on the other
ranks.

Memory changes are kept in *program order*, because PyTorch's caching allocator hands out and takes
back blocks when the host asks, not when the GPU gets there; so peak memory does not depend on
timing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple

from raysim.units import to_ns


class Kind(IntEnum):
    """What the executor does with an operation."""

    LOCAL = 0
    """Occupies a stream of this rank for a known time."""
    COLLECTIVE = 1
    """Starts when every rank of the group has reached it."""
    SEND = 2
    RECV = 3
    """Point to point, by rendezvous: both sides are busy until the bytes are through."""
    HOST = 4
    """The host thread works; GPUs run on."""
    SYNC = 5
    """The host thread waits for other operations."""


COMPUTE = "compute"
"""The stream that kernels of forward and backward run on."""
H2D, D2H, CPU, LOADER = "h2d", "d2h", "cpu", "loader"
NOT_STREAMS = frozenset({"host", CPU, LOADER, "nvme"})
"""Where operations run that no GPU is waited for."""
PROCESS = "process"
"""The "communicator" of what one process copies between its GPUs, which needs no NCCL."""
SCRATCH = "set-up"
"""Category of memory that setting up takes for a moment."""


class Call(NamedTuple):
    """What a communicating operation asks of the network."""

    op: str
    """all_reduce, all_gather, reduce_scatter, broadcast, or send_recv."""
    group: str
    """Communicator name: dp, tp, pp, tied, copies, mp. Peers of a send or recv: see ``peer``."""
    size_bytes: int
    """Full buffer: output of an all-gather, input of a reduce-scatter."""
    peer: int = -1
    """Global rank of the other side of a send or recv."""
    tag: str = ""
    """Sends and receives meet by peer and tag, in order."""


class Op:
    """One operation of a rank; it may stand in the program several times, for it knows no place."""

    __slots__ = (
        "back", "before_ns", "call", "category", "duration_ns", "flops", "host_ns", "kind", "name",
        "stream",
    )  # fmt: skip

    def __init__(
        self,
        kind: Kind,
        stream: str,
        name: str,
        category: str,
        duration_ns: int,
        host_ns: int,
        back: tuple[int, ...],
    ) -> None:
        self.kind = kind
        self.stream = stream
        self.name = name
        self.category = category
        self.duration_ns = duration_ns
        self.host_ns = host_ns
        self.back = back
        """What it waits for: so many operations before it."""
        self.before_ns = 0
        """Host work between the previous operation and this one (Python hooks)."""
        self.call: Call | None = None
        self.flops = 0.0

    def __repr__(self) -> str:
        """Short form for tests and debugging."""
        return f"Op({self.kind.name} {self.stream} {self.name!r} {self.duration_ns} ns)"


class MemoryEvent(NamedTuple):
    """A change of device memory; like an operation, it knows no place."""

    category: str
    delta_bytes: int
    label: str
    tensors: tuple[int, ...] = ()
    """Of an allocation: bytes of each tensor; empty: it is one."""
    stream: str = COMPUTE
    """Whose pool it is taken from; of a free: the stream that used it last (``record_stream``)."""
    lazy: int = 0
    """So many of the tensors, the last, are really made by the first optimizer step, though all
    are counted from the start."""


@dataclass(slots=True)
class Program:
    """Everything one rank does in some optimizer steps."""

    rank: int
    ops: list[Op] = field(default_factory=list)
    micro_batches: list[int] = field(default_factory=list)
    """Of each operation; -1: of none."""
    memory: list[MemoryEvent] = field(default_factory=list)
    memory_at: list[int] = field(default_factory=list)
    """The operation just before whose issue each change happens."""
    initial: list[MemoryEvent] = field(default_factory=list)
    """What setting up allocates, and frees again: only an allocator remembers that."""
    set_up: int = 0
    """How many of the changes in ``memory`` setting up made; ``initial`` has them too."""
    step_changes: list[int] = field(default_factory=list)
    """Changes in ``memory`` up to the end of each optimizer step."""
    states_made: int = -1
    """Operation of the last step before which lazy optimizer states are first allocated."""
    step_ends: list[int] = field(default_factory=list)
    """Index one past the last operation of each optimizer step."""
    step_held: list[dict[str, int]] = field(default_factory=list)
    """Device bytes held at the end of each optimizer step, by category; zeros left out."""
    backward_ends: list[int] = field(default_factory=list)
    """Index one past the last operation of each backward pass."""
    multiplies: bool = True
    """It asks for products of cuBLAS."""

    def calls(self) -> list[Call]:
        """Collectives and point-to-point operations in order."""
        return [op.call for op in self.ops if op.call is not None]

    def waits(self, index: int) -> tuple[int, ...]:
        """Indices of the operations that one waits for."""
        return tuple(index - back for back in self.ops[index].back)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive operations and memory changes that can be issued again elsewhere."""

    ops: list[Op]
    memory: list[MemoryEvent]
    memory_at: list[int]
    """From its first operation on, as every place here."""
    change: dict[str, int]
    """Bytes by category."""
    last: dict[str, int]
    """The latest operation on each stream it uses."""
    hook_ns: int
    """Host work left over for what follows."""


class ProgramBuilder:
    """Appends operations to a program; every method returns the new operation's index."""

    def __init__(
        self,
        rank: int,
        *,
        launch_s: float,
        collective_s: float | None = None,
        serial: bool = False,
        launch_blocking: bool = False,
        memory: bool = True,
    ) -> None:
        self.program = Program(rank=rank)
        self.launch_ns = to_ns(launch_s)
        """Host time per eager operator with its kernel."""
        self.collective_ns = to_ns(launch_s if collective_s is None else collective_s)
        """Host time per call of ``torch.distributed``."""
        self.serial = serial
        """Host and every stream are one thread: all takes turns on the compute stream."""
        self.launch_blocking = launch_blocking and not serial
        """The host waits for every kernel, as ``CUDA_LAUNCH_BLOCKING=1`` has it."""
        self.keeps_memory = memory
        self.micro_batch = -1
        self.backward_index = 0
        """Backward passes completed since the last optimizer step."""
        self._hook_ns = 0
        self.live: dict[str, int] = {}
        """Device bytes held now, by category."""
        self._last: dict[str, int] = {}
        self._ops = self.program.ops
        self._memory = self.program.memory

    def _add(
        self,
        kind: Kind,
        stream: str,
        name: str,
        category: str,
        seconds: float,
        host_ns: int,
        waits: Sequence[int],
    ) -> int:
        ops = self._ops
        busy_ns, before_ns, self._hook_ns = to_ns(seconds), self._hook_ns, 0
        apart = kind in (Kind.SEND, Kind.RECV) and stream != COMPUTE
        if self.serial and kind != Kind.SYNC and not apart:
            stream, busy_ns = COMPUTE, busy_ns + host_ns + before_ns
            kind, host_ns, before_ns = Kind.LOCAL if kind == Kind.HOST else kind, 0, 0
        index = len(ops)
        back = tuple([index - w for w in waits]) if waits else ()
        op = Op(kind, stream, name, category, busy_ns, host_ns, back)
        op.before_ns = before_ns
        ops.append(op)
        self.program.micro_batches.append(self.micro_batch)
        self._last[stream] = index
        return index

    def _launch(
        self,
        kind: Kind,
        stream: str,
        name: str,
        category: str,
        seconds: float,
        host_ns: int,
        waits: Sequence[int],
    ) -> int:
        """Kernels, whose end the host waits for where launches block."""
        if not self.launch_blocking:
            return self._add(kind, stream, name, category, seconds, host_ns, waits)
        self._hook_ns += host_ns
        index = self._add(kind, stream, name, category, seconds, 0, waits)
        if seconds or kind != Kind.LOCAL:
            self.sync("kernel's end", (index,))
        return index

    @property
    def takes_turns(self) -> bool:
        """Whether nothing runs beside the compute stream."""
        return self.serial or self.launch_blocking

    def hook(self, seconds: float) -> None:
        """Python that the host runs before it issues the next operation."""
        self._hook_ns += to_ns(seconds)

    def compute(
        self,
        name: str,
        category: str,
        seconds: float,
        *,
        launches: int = 1,
        waits: Sequence[int] = (),
        stream: str = COMPUTE,
        flops: float = 0.0,
        host_s: float | None = None,
    ) -> int:
        """Kernels on ``stream``: ``seconds`` of GPU time.

        Issuing them takes the host ``host_s``, or that of ``launches`` eager operators.
        """
        host_ns = launches * self.launch_ns if host_s is None else to_ns(host_s)
        index = self._launch(Kind.LOCAL, stream, name, category, seconds, host_ns, waits)
        self._ops[index].flops = flops
        return index

    def copy(self, name: str, stream: str, seconds: float, waits: Sequence[int] = ()) -> int:
        """A transfer over PCIe on the ``h2d`` or ``d2h`` copy engine."""
        return self._add(Kind.LOCAL, stream, name, "copy", seconds, self.launch_ns, waits)

    def background(
        self, name: str, stream: str, category: str, seconds: float, waits: Sequence[int] = ()
    ) -> int:
        """Work of other processes or CPU threads that costs the host thread nothing."""
        return self._add(Kind.LOCAL, stream, name, category, seconds, 0, waits)

    def collective(
        self,
        name: str,
        call: Call,
        *,
        waits: Sequence[int] = (),
        stream: str | None = None,
    ) -> int:
        """A collective on its communicator's stream (NCCL uses one per communicator)."""
        host_ns = self.collective_ns
        where = stream or f"comm:{call.group}"
        index = self._launch(Kind.COLLECTIVE, where, name, "collective", 0.0, host_ns, waits)
        self._ops[index].call = call
        return index

    def p2p(
        self,
        kind: Literal[Kind.SEND, Kind.RECV],
        name: str,
        peer: int,
        size_bytes: int,
        *,
        waits: Sequence[int] = (),
        stream: str = COMPUTE,
        tag: str = "",
        host_ns: int | None = None,
    ) -> int:
        """NCCL send or receive: blocking on the compute stream, as DeepSpeed's, or beside it.

        Those beside it are launched in groups, whose end nobody waits for here. With ``host_ns``,
        the host's time, it is a copy between two GPUs of one process.
        """
        add = self._launch if stream == COMPUTE else self._add
        issued_ns, group = (self.collective_ns, "pp") if host_ns is None else (host_ns, PROCESS)
        index = add(kind, stream, name, "p2p", 0.0, issued_ns, waits)
        self._ops[index].call = Call("send_recv", group, size_bytes, peer, tag)
        return index

    def host(self, name: str, seconds: float, category: str = "host") -> int:
        """The host thread is busy and issues nothing."""
        return self._add(Kind.HOST, "host", name, category, 0.0, to_ns(seconds), ())

    def sync(self, name: str, waits: Sequence[int]) -> int:
        """The host waits, as ``.item()`` or ``event.synchronize()`` does."""
        return self._add(Kind.SYNC, "host", name, "sync", 0.0, 0, waits)

    def synchronize(self, name: str) -> int:
        """``torch.cuda.synchronize()``: the host waits for the latest operation of every stream."""
        return self.sync(name, sorted(at for s, at in self._last.items() if s not in NOT_STREAMS))

    def last_on(self, stream: str) -> tuple[int, ...]:
        """The latest operation on ``stream``, if any: what a ``wait_stream`` waits for."""
        index = self._last.get(stream)
        return () if index is None else (index,)

    def surroundings(self, waits: Sequence[int]) -> tuple[int, ...]:
        """How far back is all that a stretch issued now could refer to: ``waits``, and compute."""
        here = len(self._ops)
        return (self._hook_ns, *(here - w for w in (*self.last_on(COMPUTE), *waits)))

    def stretch(self, first_op: int, first_change: int) -> Stretch:
        """What was issued from there on."""
        program, change = self.program, dict[str, int]()
        for event in self._memory[first_change:]:
            change[event.category] = change.get(event.category, 0) + event.delta_bytes
        return Stretch(
            ops=self._ops[first_op:],
            memory=self._memory[first_change:],
            memory_at=[at - first_op for at in program.memory_at[first_change:]],
            change=change,
            last={s: at - first_op for s, at in self._last.items() if at >= first_op},
            hook_ns=self._hook_ns,
        )

    def again(self, stretch: Stretch) -> None:
        """Issue a stretch once more, where its surroundings are as they were."""
        program, here = self.program, len(self._ops)
        self._ops += stretch.ops
        program.micro_batches += [self.micro_batch] * len(stretch.ops)
        self._memory += stretch.memory
        program.memory_at += [here + at for at in stretch.memory_at]
        for category, change in stretch.change.items():
            self.live[category] = self.live.get(category, 0) + change
        for stream, at in stretch.last.items():
            self._last[stream] = here + at
        self._hook_ns = stretch.hook_ns

    def alloc(
        self,
        category: str,
        size_bytes: float,
        label: str = "",
        *,
        tensors: Sequence[float] = (),
        stream: str = COMPUTE,
        lazy: int = 0,
    ) -> None:
        """Device memory taken from here on: one tensor, or ``tensors`` of so many bytes.

        ``stream`` is the one current when torch is asked, whose pool it comes from. ``lazy``: so
        many of the tensors, the last, are optimizer states that the first step makes.
        """
        if size_bytes and self.keeps_memory:
            parts = _parts(size_bytes, tensors, label)
            self._change(category, round(size_bytes), label, parts, stream, lazy)

    def free(
        self, category: str, size_bytes: float, label: str = "", *, used_on: str = COMPUTE
    ) -> None:
        """Device memory given back from here on, when ``used_on`` has come so far."""
        if size_bytes and self.keeps_memory:
            self._change(category, -round(size_bytes), label, (), used_on)

    def free_all(self, category: str, label: str = "") -> None:
        """Give back everything held in a category."""
        self._change(category, -self.live.get(category, 0), label)

    def scratch(self, size_bytes: float, label: str, tensors: Sequence[float] = ()) -> None:
        """Memory that setting up takes for a moment: seen by the allocator only."""
        if self.keeps_memory and size_bytes:
            sizes = _parts(size_bytes, tensors, label)
            event = MemoryEvent(SCRATCH, round(size_bytes), label, sizes)
            self.program.initial.append(event)

    def free_scratch(self, size_bytes: float, label: str) -> None:
        """Give it back."""
        if self.keeps_memory and size_bytes:
            self.program.initial.append(MemoryEvent(SCRATCH, -round(size_bytes), label))

    def make_states(self) -> None:
        """The optimizer steps here; in the run's first step it makes its states."""
        first = self.program.step_ends[-1] if self.program.step_ends else 0
        if self.program.states_made < first:
            self.program.states_made = len(self._ops)

    def end_setup(self) -> None:
        """Steps begin."""
        self.program.set_up = len(self._memory)

    def _change(
        self,
        category: str,
        delta_bytes: int,
        label: str,
        tensors: tuple[int, ...] = (),
        stream: str = COMPUTE,
        lazy: int = 0,
    ) -> None:
        if not delta_bytes or not self.keeps_memory:
            return
        held = self.live.get(category, 0) + delta_bytes
        assert held >= 0, f"rank {self.program.rank} frees {-held} bytes of {category} it lacks"
        self.live[category] = held
        event = MemoryEvent(category, delta_bytes, label, tensors, stream, lazy)
        self._memory.append(event)
        self.program.memory_at.append(len(self._ops))
        if not self._ops and not self.program.set_up:
            self.program.initial.append(event)

    def end_step(self) -> None:
        """Mark the end of an optimizer step."""
        self.program.step_ends.append(len(self._ops))
        self.program.step_changes.append(len(self._memory))
        self.program.step_held.append({k: v for k, v in self.live.items() if v})


def _parts(size_bytes: float, tensors: Sequence[float], label: str) -> tuple[int, ...]:
    """Whole bytes of each tensor; the last takes what rounding left over."""
    if not tensors:
        return ()
    sizes = tuple(map(round, tensors))
    rest = round(size_bytes) - sum(sizes)
    if not rest:
        return sizes
    assert abs(rest) <= len(sizes), f"{label}: tensors of {sum(sizes)} bytes make {size_bytes}"
    return (*sizes[:-1], sizes[-1] + rest)
