"""Collectives of ``torch.distributed`` on NCCL or gloo: every operation by size and group.

Started plainly, it spawns ranks on this host, for one world size after the other; under
``torchrun`` every process of the job calls it and rank 0 writes. The ranks walk one list of cases
in step: rank 0 says which is next and how long it may take.

Sizes and bandwidths are nccl-tests': ``bytes`` is the larger buffer of a rank, ``algbw`` is
``bytes / time``, ``busbw`` is ``algbw`` times :func:`bus_factor`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from raysim.errors import CalibrationError
from raysim.measure.session import LEAST, MOST, Budget, Point, Session, Unavailable, needs
from raysim.units import KIB, MIB

COLUMNS = ("backend", "op", "world", "ranks", "groups", "bytes", "quantity")
QUANTITIES = {"time": "s", "algbw": "B/s", "busbw": "B/s"}
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")
"""And ``barrier``, which has no size."""
GPU_SIZES = tuple(KIB * 4**i for i in range(11))
"""1 KiB to 1 GiB."""
CPU_SIZES = (KIB, 16 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
QUICK_SIZES = (KIB, 64 * KIB)
SAMPLE_S = 2e-3
TIMEOUT = timedelta(minutes=5)
END = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operation on groups of ``ranks``, all groups at once.

    ``contiguous`` groups are of neighbours, as tensor-parallel ranks in a node; ``strided`` ones of
    every n-th rank, as the data-parallel ranks across nodes.
    """

    op: str
    ranks: int
    groups: str
    size_bytes: int


def measure(session: Session) -> None:
    """Fill ``collectives.csv``.

    Raises
    ------
    CalibrationError
        torch is not installed, has no such backend, or there are fewer GPUs than ranks for NCCL.
    """
    needs("torch", "collectives")
    import torch

    gpus = torch.cuda.device_count()
    backend = session.backend or ("nccl" if gpus else "gloo")
    if backend not in {"nccl", "gloo"}:
        raise CalibrationError(f"--backend {backend}: must be nccl or gloo")
    if backend == "nccl" and not (gpus and torch.distributed.is_nccl_available()):
        raise CalibrationError(
            f"--backend nccl: torch {torch.__version__} sees {gpus} GPUs; --backend gloo measures "
            "ranks on CPUs"
        )
    if "WORLD_SIZE" in os.environ:  # torchrun
        _rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), backend, session)
        return
    worlds = session.ranks or tuple(n for n in (2, 4, 8, 16) if n <= gpus) or (2, 4)
    if backend == "nccl" and max(worlds) > gpus:
        raise CalibrationError(f"--ranks: NCCL needs a GPU for each of {max(worlds)} ranks")
    session.table("collectives", COLUMNS)  # a folder of another machine is refused before the spawn
    for index, world in enumerate(worlds):
        _spawn(world, backend, session, share=1 / (len(worlds) - index))


def bus_factor(op: str, ranks: int) -> float:
    """``busbw / algbw`` of nccl-tests (its PERFORMANCE.md): comparable across group sizes."""
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if op in {"all_gather", "reduce_scatter", "all_to_all"}:
        return (ranks - 1) / ranks
    return 1.0


def cases(world: int, sizes: Sequence[int]) -> Iterator[Case]:
    """All sizes of the whole world, small first, then of its divisors in both shapes."""
    shapes = [(world, "one")]
    for ranks in range(world // 2, 1, -1):
        if world % ranks == 0:
            shapes += [(ranks, "contiguous"), (ranks, "strided")]
    for ranks, groups in shapes:
        yield Case(op="barrier", ranks=ranks, groups=groups, size_bytes=0)
        for size_bytes in sizes:
            for op in OPS:
                yield Case(op=op, ranks=ranks, groups=groups, size_bytes=size_bytes)


def members(world: int, ranks: int, groups: str) -> list[list[int]]:
    """The ranks of every group."""
    count = world // ranks
    if groups == "strided":
        return [list(range(i, world, count)) for i in range(count)]
    return [list(range(i * ranks, (i + 1) * ranks)) for i in range(count)]


def _spawn(world: int, backend: str, session: Session, share: float) -> None:
    """Ranks on this host; rank 0 is a child as the others, and hands its counts back."""
    from torch import multiprocessing

    processes: Any = multiprocessing  # untyped
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    counts = processes.get_context("spawn").SimpleQueue()
    budget = Budget(session.budget.left_s() * share)
    asked = replace(session, budget=budget, measured=0, kept=0, left=0, left_out=[])
    processes.spawn(_spawned, args=(world, backend, asked, port, counts), nprocs=world, daemon=True)
    done: Session = counts.get()
    session.measured += done.measured
    session.kept += done.kept
    session.left += done.left
    session.left_out += done.left_out


def _spawned(rank: int, world: int, backend: str, session: Session, port: int, counts: Any) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank),
    }  # fmt: skip
    with contextlib.suppress(KeyboardInterrupt):  # the parent says so, once
        _rank(rank, world, backend, session)
        if rank == 0:
            counts.put(session)


def _rank(rank: int, world: int, backend: str, session: Session) -> None:
    """One process of the world: join, measure in step, leave."""
    import torch
    from torch import distributed

    # from torch 2.13 all_gather_single and reduce_scatter_single; the old names are in all versions
    warnings.simplefilter("ignore", FutureWarning)
    device = "cpu"
    if backend == "nccl":
        device = f"cuda:{os.environ.get('LOCAL_RANK', rank)}"
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)  # ranks share the cores
    distributed.init_process_group(backend, timeout=TIMEOUT)
    try:
        sizes = CPU_SIZES if backend == "gloo" else GPU_SIZES
        todo = list(cases(world, QUICK_SIZES if session.quick else sizes))
        walk = _Walk(rank, world, device, todo)
        if rank:
            walk.follow()
            return
        with session.table("collectives", COLUMNS) as table:
            session.run(table, walk.points(backend))
            walk.tell(END, 0.0)
    finally:
        distributed.destroy_process_group()


class _Walk:
    """Rank 0 says which case comes next and how long it may take; all measure it together."""

    def __init__(self, rank: int, world: int, device: str, todo: Sequence[Case]) -> None:
        from torch import distributed

        self.rank, self.world, self.device, self.todo = rank, world, device, todo
        self.control = distributed.new_group(backend="gloo", timeout=TIMEOUT)
        self._groups: dict[tuple[int, str], Any] = {}

    def points(self, backend: str) -> Iterator[Point]:
        """Three rows of each case, from one measurement."""
        for number, case in enumerate(self.todo):
            taken = _Once(partial(self._lead, number))
            for quantity, unit in QUANTITIES.items():
                if case.op == "barrier" and quantity != "time":
                    continue
                parameters = {
                    "backend": backend, "op": case.op, "world": self.world, "ranks": case.ranks,
                    "groups": case.groups, "bytes": case.size_bytes, "quantity": quantity,
                }  # fmt: skip
                measure = partial(_quantity, case, quantity, taken)
                yield Point(parameters=parameters, measure=measure, unit=unit)

    def follow(self) -> None:
        """What the other ranks do until rank 0 ends it."""
        while True:
            number, allowed_s = self.tell(END, 0.0)
            if number == END:
                return
            with contextlib.suppress(Unavailable):
                self._measure(self.todo[number], allowed_s)

    def tell(self, number: int, allowed_s: float) -> tuple[int, float]:
        """What rank 0 says, on every rank."""
        import torch
        from torch import distributed

        words = torch.tensor([float(number), allowed_s], dtype=torch.float64)
        distributed.broadcast(words, src=0, group=self.control)
        return int(words[0]), float(words[1])

    def _lead(self, number: int, allowed_s: float) -> list[float]:
        self.tell(number, allowed_s)
        return self._measure(self.todo[number], allowed_s)

    def _measure(self, case: Case, allowed_s: float) -> list[float]:
        """Seconds of one call on the slowest rank; every rank comes to the same numbers."""
        try:
            work = _operation(case, self._group(case), self.device)
            self._slowest([self._sample(work, 1)])
            once_s = self._slowest([self._sample(work, 1)])[0]
        except RuntimeError as error:  # the backend lacks it: so on all ranks
            raise Unavailable(str(error).partition("\n")[0]) from None
        inner = max(1, min(1000, round(SAMPLE_S / once_s)))
        count = max(LEAST, min(MOST, int(allowed_s / (inner * once_s))))
        return self._slowest([self._sample(work, inner) for _ in range(count)])

    def _sample(self, work: Callable[[], object], times: int) -> float:
        import torch
        from torch import distributed

        distributed.barrier(group=self.control)
        start = time.perf_counter()
        for _ in range(times):
            work()
        if self.device != "cpu":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / times

    def _slowest(self, seconds: list[float]) -> list[float]:
        import torch
        from torch import distributed

        values = torch.tensor(seconds, dtype=torch.float64)
        distributed.all_reduce(values, op=distributed.ReduceOp.MAX, group=self.control)
        return [float(value) for value in values]

    def _group(self, case: Case) -> Any:
        """The group of this rank; making one is itself a collective of the whole world."""
        from torch import distributed

        key = (case.ranks, case.groups)
        if key not in self._groups:
            for ranks in members(self.world, *key):
                group = distributed.new_group(ranks, timeout=TIMEOUT)
                if self.rank in ranks:
                    self._groups[key] = group
        return self._groups[key]


class _Once:
    """Measures at the first call and remembers."""

    def __init__(self, measure: Callable[[float], list[float]]) -> None:
        self._measure = measure
        self._found: list[float] | Unavailable | None = None

    def __call__(self, allowed_s: float) -> list[float]:
        if self._found is None:
            try:
                self._found = self._measure(len(QUANTITIES) * allowed_s)
            except Unavailable as reason:
                self._found = reason
        if isinstance(self._found, Unavailable):
            raise self._found
        return self._found


def _quantity(case: Case, quantity: str, taken: _Once, allowed_s: float) -> list[float]:
    seconds = taken(allowed_s)
    if quantity == "time":
        return seconds
    factor = bus_factor(case.op, case.ranks) if quantity == "busbw" else 1.0
    return [case.size_bytes * factor / s for s in seconds]


def _operation(case: Case, group: Any, device: str) -> Callable[[], object]:
    """One call, done when it returns (on a GPU: when the stream is)."""
    import torch
    from torch import distributed as dist

    share = max(1, case.size_bytes // 4 // case.ranks)
    whole, part = (torch.ones(n, device=device) for n in (share * case.ranks, share))
    other = torch.empty_like(whole)
    peers = dist.get_process_group_ranks(group)
    here = peers.index(dist.get_rank())
    ring = (peers[(here + 1) % case.ranks], peers[here - 1])

    def send_recv() -> None:
        ops = [
            dist.P2POp(dist.isend, whole, ring[0], group),
            dist.P2POp(dist.irecv, other, ring[1], group),
        ]
        for request in dist.batch_isend_irecv(ops):
            request.wait()

    calls: dict[str, Callable[[], object]] = {
        "barrier": lambda: dist.barrier(group=group),
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "broadcast": lambda: dist.broadcast(whole, src=peers[0], group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
        "send_recv": send_recv,
    }
    return calls[case.op]
