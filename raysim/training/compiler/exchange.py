"""Sends and receives of one rank of a pipeline, as operations of its program.

``blocking`` ones run on the compute stream. Others have a stream per neighbour, direction and kind:
a simplification, for NCCL gives each pair of ranks one or two. A receive beside the compute stream
begins, as every NCCL call does, when what was issued before it on the compute stream has ended.

Ranks that work ``in_turn`` are GPUs of one process: a rank's host issues nothing before the process
has issued all that the rank before it sends (autograd has a thread for each GPU, which wait for
each other alike), though it is not done.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from raysim.training.pipeline.pipelines import Pipeline
from raysim.training.plan import TrainingPlan
from raysim.training.program import COMPUTE, Call, Kind, ProgramBuilder
from raysim.training.settings.parallel import Coordinate

Waits = tuple[int, ...]
_SHORT = {"activation": "act", "gradient": "grad"}
"""As timelines name their streams."""


class Exchanger:
    """Emits the exchange of one rank, and knows which operations a pass must wait for."""

    def __init__(
        self,
        plan: TrainingPlan,
        at: Coordinate,
        pipeline: Pipeline,
        builder: ProgramBuilder,
        *,
        forward_only: bool,
    ) -> None:
        self.plan = plan
        self.at = at
        self.pipeline = pipeline
        self.b = builder
        self.blocking = pipeline.exchange == "blocking"
        # Simplification: an evaluation never batches.
        self.batches = pipeline.exchange == "batched" and not forward_only
        self.host_ns = builder.launch_ns if pipeline.layout.placed else None
        """Of a copy within a process; None: ranks are processes, and NCCL sends."""
        self.arrivals: dict[tuple[str, int, int], tuple[int, int]] = {}
        """The receive a pass waits for, and its bytes, by kind, stage and micro-batch."""
        self.batch: list[int] = []
        self.batch_waits: Waits | None = None
        """What every member of the batch waits for; None between batches."""

    def peer(self, stage: int) -> int:
        """Global rank of the replica's rank that holds ``stage``."""
        at = replace(self.at, pp=self.pipeline.layout.rank_of(stage))
        return self.plan.mesh.rank(at)

    def wire_bytes(self, what: str, size_bytes: int) -> int:
        """Bytes per rank: partitioned over tensor-parallel peers unless told otherwise."""
        p, tp = self.plan.pipeline, self.plan.mesh.tp
        partitioned = p.pipe_partitioned if what == "activation" else p.grad_partitioned
        return -(-size_bytes // tp) if partitioned else size_bytes

    def send(self, what: str, stage: int, size_bytes: int, ready: Waits) -> None:
        """To ``stage``, what the last pass made; ``ready``: what it still waits for itself."""
        peer = self.peer(stage)
        wire = self.wire_bytes(what, size_bytes)
        if self.blocking:
            self.b.p2p(Kind.SEND, f"send {what}", peer, wire, waits=ready)
            return
        op = self.b.p2p(
            Kind.SEND, f"send {what}", peer, wire, waits=self._begin(ready),
            stream=f"p2p:{_SHORT[what]} to {peer}", tag=f"{what} of {stage}", host_ns=self.host_ns,
        )  # fmt: skip
        self._in_batch(op)
        self._handed(Kind.SEND, peer, f"to {peer}")

    def receive(
        self, what: str, source: int, stage: int, micro_batch: int, size_bytes: int, ready: Waits
    ) -> Waits:
        """For ``stage``; returns what the next pass must wait for, if it is known to be its."""
        peer = self.peer(source)
        wire = self.wire_bytes(what, size_bytes)
        stream = COMPUTE if self.blocking else f"p2p:{_SHORT[what]} from {peer}"
        waits = ready if self.blocking else self._begin(ready)
        tag = "" if self.blocking else f"{what} of {stage}"
        self._handed(Kind.RECV, peer, f"from {peer}")
        op = self.b.p2p(
            Kind.RECV, f"recv {what}", peer, wire, waits=waits, stream=stream, tag=tag,
            host_ns=self.host_ns,
        )  # fmt: skip
        if self.blocking:
            return self._gathered(what, op, size_bytes) if wire < size_bytes else ()
        self.b.alloc("input", size_bytes, "received")
        self.arrivals[what, stage, micro_batch] = op, size_bytes
        self._in_batch(op)
        return ()

    def _handed(self, kind: Literal[Kind.SEND, Kind.RECV], peer: int, way: str) -> None:
        """The one process goes over to another GPU: its host is there until then."""
        if self.host_ns is not None:
            on = f"process {way}"
            op = self.b.p2p(kind, "issued", peer, 0, stream=on, tag="issued", host_ns=0)
            if kind == Kind.RECV:
                self.b.sync("the process is elsewhere", (op,))

    def _gathered(self, what: str, op: int, size_bytes: int) -> Waits:
        """What was sent in shares, put together over tensor-parallel peers."""
        call = Call("all_gather", "tp", size_bytes)
        return (self.b.collective(f"all-gather {what}", call, waits=(op,)),)

    def _begin(self, ready: Waits) -> Waits:
        """What an exchange beside the compute stream waits for."""
        if self.batch_waits is not None:
            return self.batch_waits
        waits = (*ready, *self.b.last_on(COMPUTE))
        if self.batches:
            self.batch_waits = waits = (*waits, *self.batch)
            self.batch = []
        return waits

    def _in_batch(self, op: int) -> None:
        if self.batches:
            self.batch.append(op)

    def end_batch(self) -> None:
        """What follows is of another batch."""
        self.batch_waits = None

    def take_batch(self) -> Waits:
        """The batch before a pass, which the pass waits for whole; the host does as well.

        ``batch_p2p_sync`` is Megatron's default (``p2p_communication.py``).
        """
        self.end_batch()
        waits, self.batch = tuple(self.batch), []
        if waits:
            self.b.sync("batch_isend_irecv", waits)
        return waits

    def take(self, what: str, stage: int, micro_batch: int) -> Waits:
        """What the pass of a micro-batch waits for; its buffer becomes the pass's own."""
        if (what, stage, micro_batch) not in self.arrivals:
            return ()
        op, size_bytes = self.arrivals.pop((what, stage, micro_batch))
        self.b.free("input", size_bytes, "received")
        if self.wire_bytes(what, size_bytes) < size_bytes:
            return self._gathered(what, op, size_bytes)
        return (op,)
