"""A GPU as a program sees it: in-order streams and memory by category.

Real counterpart: CUDA streams, copy engines and the device memory that ``torch.cuda`` reports.
Operations on one stream run one after another in the order they were queued; different streams
overlap. How long an operation takes is decided by ``perf`` and, for collectives, by the network.

Not modelled: kernels of two streams slowing each other, priorities, preemption, fragmentation
(torch's allocator is emulated by the training memory model, over this ledger's changes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.errors import InvariantViolation
from raysim.hardware.specs import GpuSpec
from raysim.kernel.record import Track

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Stream:
    """An in-order queue of a GPU: free again at ``free_at_ns``."""

    __slots__ = ("busy_ns", "free_at_ns", "name", "track")

    def __init__(self, name: str, track: Track) -> None:
        self.name = name
        self.track = track
        self.free_at_ns = 0
        self.busy_ns = 0
        """Nanoseconds in which something ran."""

    def push(self, ready_ns: int, duration_ns: int) -> int:
        """Queue an operation that may start at ``ready_ns``; returns when it starts.

        It ends at ``free_at_ns``.
        """
        assert duration_ns >= 0, f"{self.name}: operation of {duration_ns} ns"
        start_ns = max(self.free_at_ns, ready_ns)
        self.free_at_ns = start_ns + duration_ns
        self.busy_ns += duration_ns
        return start_ns

    def wait(self, t_ns: int) -> None:
        """Hold the stream until ``t_ns``, as ``cudaStreamWaitEvent`` does."""
        self.free_at_ns = max(self.free_at_ns, t_ns)


class MemoryRow(NamedTuple):
    """Bytes of one category from ``t_ns`` on."""

    t_ns: int
    category: str
    bytes_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The fullest moment: what was held by category, and which allocation made it so."""

    t_ns: int
    total_bytes: int
    by_category: Mapping[str, int]
    label: str


class _Columns(NamedTuple):
    """The ledger in order of time."""

    t_ns: NDArray[np.int64]
    category: NDArray[np.int64]
    delta_bytes: NDArray[np.int64]
    row: NDArray[np.int64]


class MemoryLedger:
    """Allocations and frees of one device by category, in any order of time.

    At one instant they count in the order they were entered, as a stream's allocator sees them.
    """

    def __init__(self, track: Track = ()) -> None:
        self.track = track
        self._rows: list[tuple[int, str, int, str]] = []
        self._sorted: _Columns | None = None
        self._names: list[str] = []

    def apply(self, t_ns: int, category: str, delta_bytes: int, label: str = "") -> None:
        """Enter an allocation (positive) or a free (negative); ``label`` names what did it."""
        self._rows.append((t_ns, category, delta_bytes, label))
        self._sorted = None

    def clear(self, t_ns: int) -> None:
        """Free whatever is held at ``t_ns``, and forget entries of later times."""
        held = self.held(t_ns)
        self._rows = [row for row in self._rows if row[0] <= t_ns]
        for category, size_bytes in held.items():
            self.apply(t_ns, category, -size_bytes, "clear")
        self._sorted = None

    def __len__(self) -> int:
        """Entries so far."""
        return len(self._rows)

    @property
    def categories(self) -> list[str]:
        """Names in order of first mention."""
        self._columns()
        return list(self._names)

    def _columns(self) -> _Columns:
        import numpy as np

        if self._sorted is None:
            ids: dict[str, int] = {}
            t = np.array([row[0] for row in self._rows], dtype=np.int64)
            category = np.array(
                [ids.setdefault(row[1], len(ids)) for row in self._rows], dtype=np.int64
            )
            delta = np.array([row[2] for row in self._rows], dtype=np.int64)
            order = np.argsort(t, kind="stable")
            self._names = list(ids)
            self._sorted = _Columns(t[order], category[order], delta[order], order)
        return self._sorted

    def timeline(self) -> list[MemoryRow]:
        """Every change in order of time, with what its category holds after it."""
        columns = self._columns()
        held = [0] * len(self._names)
        rows = []
        for t, c, delta in zip(
            columns.t_ns.tolist(), columns.category.tolist(), columns.delta_bytes.tolist(),
            strict=True,
        ):  # fmt: skip
            held[c] += delta
            rows.append(MemoryRow(t, self._names[c], held[c]))
        return rows

    def total_bytes(self, t_ns: int) -> int:
        """Bytes held right after everything entered for ``t_ns`` and before."""
        columns = self._columns()
        return int(columns.delta_bytes[columns.t_ns <= t_ns].sum())

    def held(self, t_ns: int) -> dict[str, int]:
        """Bytes by category right after everything entered for ``t_ns`` and before."""
        columns = self._columns()
        return self._by_category(int((columns.t_ns <= t_ns).sum()))

    def peak(self) -> Peak:
        """The first moment at which the most bytes were held; all zero when nothing was entered."""
        columns = self._columns()
        if not len(columns.t_ns):
            return Peak(t_ns=0, total_bytes=0, by_category={}, label="")
        totals = columns.delta_bytes.cumsum()
        return self._moment(int(totals.argmax()), int(totals.max()))

    def check(self) -> None:
        """See that nothing is freed that is not there.

        Raises
        ------
        InvariantViolation
            A category holds less than nothing at some moment.
        """
        columns = self._columns()
        for c, name in enumerate(self._names):
            mine = (columns.category == c).nonzero()[0]
            held = columns.delta_bytes[mine].cumsum()
            below = (held < 0).nonzero()[0]
            if len(below):
                at = int(mine[below[0]])
                t_ns, _, delta, label = self._rows[int(columns.row[at])]
                raise InvariantViolation(
                    f"memory of {'/'.join(self.track) or 'device'}: {label or 'someone'} frees"
                    f" {-delta} bytes of {name} at t = {t_ns} ns, {-int(held[below[0]])} more than"
                    f" there are"
                )

    def _by_category(self, count: int) -> dict[str, int]:
        import numpy as np

        columns = self._columns()
        held = np.zeros(len(self._names), dtype=np.int64)
        np.add.at(held, columns.category[:count], columns.delta_bytes[:count])
        return {name: size for name, size in zip(self._names, held.tolist(), strict=True) if size}

    def _moment(self, index: int, total_bytes: int) -> Peak:
        columns = self._columns()
        return Peak(
            t_ns=int(columns.t_ns[index]),
            total_bytes=total_bytes,
            by_category=self._by_category(index + 1),
            label=self._rows[int(columns.row[index])][3],
        )


class Gpu:
    """One accelerator: its datasheet, where it is, its streams, its memory."""

    def __init__(self, spec: GpuSpec, address: tuple[int, int]) -> None:
        self.spec = spec
        self.address = address
        self.track: Track = (f"node-{address[0]}", f"gpu-{address[1]}")
        self.streams: dict[str, Stream] = {}
        self.ledger = MemoryLedger(self.track)
        self.failure: Any = None
        """Why it is gone; None while it works."""

    def stream(self, name: str) -> Stream:
        """The stream of that name (``compute``, ``comm:dp``, ``h2d``, ...), made on first use."""
        stream = self.streams.get(name)
        if stream is None:
            stream = self.streams[name] = Stream(name, (*self.track, name))
        return stream

    def fail(self, cause: Any) -> None:
        """Break; whoever uses it asks ``failure``."""
        self.failure = cause

    def restore(self, now_ns: int) -> None:
        """Work again, empty and idle."""
        self.failure = None
        self.streams = {}
        self.ledger.clear(now_ns)
