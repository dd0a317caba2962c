"""What operators on tensors of the CPU and the Python around them take a thread of the host.

A script's data loader and what it draws, casts or collates between steps run on its own thread.
Two speeds matter: calls (the dispatcher, Python) are as fast as the host dispatches anything
(``host_speed``), loops over numbers as fast as its cores compute (``CpuSpec.single_thread``). Both
are in seconds of the reference host of ``perf.host``.

Constants are the mean of two hosts, brought to the reference: Xeons beside an H100 and an H200
(host_data.csv, 2026-11-27, torch 2.11) at 0.90 of it, as launch.csv's ``add_`` says, and a Xeon of
1.3 (host_dispatch.csv's llama, torch 2.13); they differ by a third. A script's loader was seen up
to twice as slow as such loops: Python's garbage collector, which has more to look through there.

Real counterparts: ``aten/src/ATen/native/cpu`` (``DistributionTemplates.h``: generators draw on one
thread), ``c10/core/CPUAllocator.cpp`` over glibc's ``malloc``. Not modelled: matrix products,
caches, full runs of Python's garbage collector.
"""

from __future__ import annotations

from dataclasses import dataclass

from raysim.perf.host import FRESH_THREAD_BYTES_PER_S

VIEW_S = 1.1e-6
"""``tensor[i]`` from Python, one of the many that a batch is stacked of."""
OPERATOR_S = 1.4e-6
"""An operator with a new tensor."""
LISTED_S = 0.2e-6
"""A tensor of a list, as ``stack`` takes it: 0.10 us on the Xeon of 1.3, 0.3 beside GPUs."""
NUMBER_S = 0.13e-6
"""A number of a Python list that ``torch.tensor`` reads: 0.10 us on the Xeon of 1.3."""
PYTHON_CALL_S = 0.13e-6
"""A Python function's call, with the lines of its body: what a sample of a ``TensorDataset`` takes
beside its operators, 0.7 us for six of them on the Xeon of 1.3."""
C_CALL_S = 0.04e-6
"""A C function's, as ``list.append``: 30 ns in the lines of a loop there."""
RECEIVE_S, RECEIVE_TENSOR_S = 0.3e-3, 0.17e-3
"""CPU time of the training process for a batch from a worker of its ``DataLoader``, and for each
tensor of it: 0.24 and 0.13 ms there, whatever its size. The worker is taken to send as long."""
THREAD_BYTES_PER_S, THREADS_BYTES_PER_S = 20e9, 100e9
"""Read or written, by one thread and by many: ``stack`` of 128 tensors of 48 KiB writes 9.2 GB/s
beside an H200, and reads as much; 16 threads stack 25 GB/s of larger ones, and cast 160."""
THREADS_FRESH_BYTES_PER_S = 12e9
"""New pages by many threads, as ``clone`` of 40 MB; one gets ``FRESH_THREAD_BYTES_PER_S``."""
GRAIN = 32_768
"""Elements (``at::internal::GRAIN_SIZE``) from which on torch divides an operator over threads."""
LARGEST_REUSED = 32 * 2**20
"""glibc's largest ``M_MMAP_THRESHOLD``: memory of more than this is the kernel's anew each time."""

_DRAWN_S = {
    "randn": 3.8e-9, "normal": 3.8e-9, "normal_": 3.8e-9, "randn_like": 3.8e-9,
    "rand": 2.9e-9, "uniform_": 2.9e-9, "rand_like": 2.9e-9,
    "randint": 3.6e-9, "random_": 3.6e-9, "randint_like": 3.6e-9, "randperm": 8.8e-9,
    "bernoulli": 13e-9, "bernoulli_": 13e-9, "native_dropout": 13e-9, "multinomial": 24e-9,
}  # fmt: skip
"""A number, by ATen's name, on one thread whatever there is: 2.7 to 6.5 ns of ``randn``, 2.4 to 3.4
of ``rand``, 2.9 to 4.4 of ``randint``, 6.8 of ``randperm``, 10 of ``bernoulli_``."""
NORMAL_DOUBLE_S = 19e-9
"""``randn`` in float64, which no vector unit draws: 21 ns beside GPUs."""
_PER_ELEMENT_S = {
    "sort": 100e-9, "argsort": 100e-9, "topk": 3.2e-9, "nonzero": 3e-9, "where": 5e-9, "pow": 3e-9,
}  # fmt: skip
"""Likewise, of operators that threads divide; 10^6 elements by one on the Xeon of 1.3."""
_GATHERED = frozenset(["index", "index_select", "gather", "embedding", "masked_select"])
GATHERED_S = 6e-9
"""A piece of memory that indices pick: 4.8 ns; rows lie in one piece."""
_LISTS = frozenset(["stack", "cat"])
_NORMAL = frozenset(["randn", "normal", "normal_", "randn_like"])


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of one thread of the reference host."""

    calls_s: float = 0.0
    """Python and the dispatcher."""
    loops_s: float = 0.0
    """Over numbers and bytes."""

    def __add__(self, other: Work) -> Work:
        return Work(self.calls_s + other.calls_s, self.loops_s + other.loops_s)

    def __mul__(self, times: float) -> Work:
        return Work(self.calls_s * times, self.loops_s * times)

    @property
    def total_s(self) -> float:
        """On the reference host."""
        return self.calls_s + self.loops_s


NO_WORK = Work()


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuOperator:
    """An ATen operator on tensors of the CPU."""

    name: str
    is_view: bool = False
    elements: int = 0
    """Of its largest tensor."""
    pieces: int = 0
    """Of memory, that indices pick."""
    tensors: int = 0
    """That it is given, lists' members included."""
    moved_bytes: int = 0
    made_bytes: int = 0
    """Of new tensors, if anything is made."""
    threads: int | None = None
    """Of its process; None: as many as there are cores."""

    @property
    def _together(self) -> bool:
        """Whether threads divide it."""
        each = self.elements // self.tensors if self.name in _LISTS and self.tensors else 0
        return self.threads != 1 and self.name not in _DRAWN_S and (each or self.elements) >= GRAIN

    def _rate(self, one: float, many: float) -> float:
        if not self._together:
            return one
        return many if self.threads is None else min(many, one * self.threads)

    @property
    def work(self) -> Work:
        """What it takes, in memory that the process has."""
        if self.is_view:
            return Work(VIEW_S)
        calls_s = OPERATOR_S + (self.tensors * LISTED_S if self.name in _LISTS else 0.0)
        drawn_s = _DRAWN_S.get(self.name, 0.0)
        if self.name in _NORMAL and self.made_bytes == 8 * self.elements:
            drawn_s = NORMAL_DOUBLE_S
        moved_s = self.moved_bytes / self._rate(THREAD_BYTES_PER_S, THREADS_BYTES_PER_S)
        each_s = _PER_ELEMENT_S.get(self.name, 0.0) * self.elements
        picked_s = GATHERED_S * self.pieces if self.name in _GATHERED else 0.0
        share = THREAD_BYTES_PER_S / self._rate(THREAD_BYTES_PER_S, THREADS_BYTES_PER_S)
        return Work(calls_s, drawn_s * self.elements + moved_s + (each_s + picked_s) * share)

    @property
    def fresh(self) -> Work:
        """What is more where its new tensors are pages that nobody has touched."""
        rate = self._rate(FRESH_THREAD_BYTES_PER_S, THREADS_FRESH_BYTES_PER_S)
        return Work(0.0, self.made_bytes / rate)


def received(tensors: int) -> Work:
    """A batch of so many tensors goes from one process to another."""
    return Work(RECEIVE_S + tensors * RECEIVE_TENSOR_S)
