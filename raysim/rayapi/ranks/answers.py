"""What a process that only answers has its GPU do: forwards, copies, its script's own operators.

Real counterpart: the default stream of a process of batch inference, of a replica or of a task, and
the interpreter that fills it. Python runs ahead of the GPU: a call takes what it takes to issue its
kernels, and whoever asks for a value waits for the stream. Threads of a process issue one after the
other (Python's lock), and processes that share a GPU take turns on it. Copies from memory that is
not pinned hold their thread until they are made.

Not modelled: slices of time between processes on one GPU (work is done in order of its calls).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Literal

from raysim.perf.compute import ComputeModel
from raysim.perf.host import CUDA_CONTEXT_S
from raysim.rayapi.calls import this_fiber
from raysim.rayapi.compute import SMALL_NS, use_cores
from raysim.rayapi.ranks.gpu_use import Tally, gpu_use
from raysim.training.compiler.feed import seconds
from raysim.units import to_ns

if TYPE_CHECKING:
    from raysim.rayapi.ranks.answering import Answering
    from raysim.rayapi.shapes.prediction import Forward

CUDA_START_S = CUDA_CONTEXT_S + 0.14
"""A process's context and its first product by cuBLAS: 0.33 and 0.50 s, 0.11 and 0.17 s of two
processes beside an H100 (torch 2.11, driver 580, 2026-11-27)."""


class Answers:
    """Of one process.

    Parameters
    ----------
    worker
        Whose.
    """

    def __init__(self, worker: Answering) -> None:
        self._worker = worker
        self._started = False
        self._done_ns = 0
        """When its stream is empty."""
        self._issued_ns = 0
        """When its interpreter has issued what it was asked for."""
        self._began_ns = self._ended_ns = -1
        """Of its first forward, of its last."""
        self.peak_bytes: tuple[int, int] = 0, 0
        """As torch counts them: allocated and reserved."""

    @cached_property
    def _costs(self) -> ComputeModel:
        spec = self._worker.hardware
        assert spec.gpu is not None, "a process without GPUs has no stream"
        return ComputeModel(spec.gpu, cpu=spec.cpu, given=self._worker.run.session.training)

    @property
    def _tally(self) -> Tally:
        return gpu_use(self._worker.run.session).tally(self._worker.name)

    def begin(self) -> None:
        """One process more of its name."""
        tally = self._tally
        tally.processes += 1
        tally.gpus = len(self._worker.places)

    def starts(self) -> None:
        """Its first call of CUDA makes the context; the driver's time is nobody's CPU."""
        if not self._started:
            self._started = True
            self._worker.sleep_ns(to_ns(CUDA_START_S))

    # ---- what is queued --------------------------------------------------------------------------

    def forward(self, forward: Forward) -> None:
        """Of a model."""
        self.own_operators()
        self._needs(forward)
        host_ns = sum(to_ns(host_s) for host_s, _ in forward.parts)
        busy_ns = min(forward.ns, sum(to_ns(gpu_s) for _, gpu_s in forward.parts))
        self._tally.forwards += 1
        if self._began_ns < 0:
            self._began_ns = self._ended_ns = self._now_ns
        self._issue(min(host_ns, forward.ns), busy_ns, forward.ns)

    def own_operators(self) -> None:
        """Those that the script has called since the last time."""
        own, costs = self._worker.torch_steps.own.taken(), self._costs
        work_s = seconds(own.on_cpu, costs, self._worker.hardware.cpu)
        self._tally.cpu_ns += to_ns(work_s) if self._began_ns >= 0 else 0
        if to_ns(work_s) > SMALL_NS:  # without Python's lock, on cores that others want too
            use_cores(this_fiber(), work_s, 1.0)
        elif work_s:
            this_fiber().pay(to_ns(work_s))
        if own.operators:
            host_ns = to_ns(costs.host.forward_s(round(own.operators), round(own.kernels)))
            gpu_ns = to_ns(own.gpu_seconds(costs))
            self._issue(host_ns, gpu_ns, max(host_ns, gpu_ns))

    def copy_s(self, size_bytes: float, kind: Literal["h2d", "d2h"], *, pinned: bool) -> float:
        """Seconds of a copy over its link, alone."""
        return self._costs.copy_s(size_bytes, kind, pinned=pinned)

    def copies(self, size_bytes: float, kind: Literal["h2d", "d2h"], *, pinned: bool) -> None:
        """To the GPU or from it."""
        self.own_operators()
        self.starts()
        length_ns = to_ns(self.copy_s(size_bytes, kind, pinned=pinned))
        begin_ns = max(self._done_ns, self._now_ns)
        self._done_ns = begin_ns + length_ns
        if self._began_ns >= 0:  # else it loads its model
            tally = self._tally
            tally.copied_bytes += size_bytes
            tally.copy_ns += length_ns
            self._lasts(tally)
        if not pinned:
            self.wait()

    def _issue(self, host_ns: int, busy_ns: int, length_ns: int) -> None:
        """Kernels that their thread issues for so long, and the GPU works on for so long."""
        self.starts()
        worker, now_ns = self._worker, self._now_ns
        begin_ns = max(now_ns, self._issued_ns)
        self._issued_ns = begin_ns + host_ns
        ready_ns = max(begin_ns, self._done_ns)
        use = gpu_use(worker.run.session)
        free_ns = use.queue(worker.places, ready_ns, busy_ns)
        use.spend("forward", worker.places, free_ns - busy_ns, free_ns)
        self._done_ns = max(begin_ns + length_ns, free_ns)
        if self._began_ns >= 0:
            tally = self._tally
            tally.busy_ns += busy_ns * len(worker.places)
            tally.issued_ns += host_ns
            self._lasts(tally)
        this_fiber().pay(self._issued_ns - now_ns)

    def _lasts(self, tally: Tally) -> None:
        """It is at work until the stream is empty."""
        tally.span_ns += max(0, self._done_ns - self._ended_ns)
        self._ended_ns = max(self._ended_ns, self._done_ns)

    @property
    def _now_ns(self) -> int:
        """Of the thread that calls."""
        return self._worker.run.session.sim.now_ns + this_fiber().lead_ns

    def wait(self) -> None:
        """Until all that was queued is done."""
        if self._worker.answers:
            self.own_operators()
        left_ns = self._done_ns - self._now_ns
        if left_ns > 0:
            self._worker.sleep_ns(left_ns)

    # ---- memory ----------------------------------------------------------------------------------

    def rested(self) -> None:
        """Weights have come."""
        weights = int(self._worker.weights_bytes)
        allocated, reserved = self.peak_bytes
        self.peak_bytes = max(allocated, weights), max(reserved, weights)
        self._holds(self._worker.rest_bytes)

    def _needs(self, forward: Forward) -> None:
        """Weights, the script's tensors, a forward's activations; torch keeps the memory.

        Raises
        ------
        torch.OutOfMemoryError
            Others leave less.
        """
        worker = self._worker
        weights = worker.weights
        own_bytes = worker.torch_steps.mode.alive.bytes_but(weights)
        stays = int(worker.weights_bytes) + own_bytes
        allocated, reserved = self.peak_bytes
        self.peak_bytes = (
            max(allocated, stays + forward.allocated_bytes),
            max(reserved, stays + forward.reserved_bytes),
        )
        if self.peak_bytes[1] > reserved:
            outside_bytes = worker.rest_bytes - worker.weights_bytes
            needed = outside_bytes + self.peak_bytes[1]
            worker.holds(needed, phase="forward")
            self._holds(needed)

    def _holds(self, size_bytes: float) -> None:
        tally = self._tally
        tally.held_bytes = max(tally.held_bytes, size_bytes)
