"""``torch.distributed``'s messages between two ranks: ``send``, ``recv``, ``batch_isend_irecv``.

Real counterpart: ``torch/distributed/distributed_c10d.py`` over NCCL. Between two ranks messages go
in order. One starts when the GPUs of both have got to it, behind what was queued there, and takes
what NCCL takes between them; whoever waits for it waits for that. Values are those that the sender
knows.

Simplified: a script waits in ``send`` and ``recv`` where NCCL has its GPU wait; a small message
waits for its receiver like a large one; messages do not slow each other. Those that a model sends
in its forward are its trace's, and those that arrive there nobody's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from raysim.perf.collectives import collective
from raysim.rayapi.calls import this_fiber
from raysim.rayapi.clock import fiber_ns
from raysim.rayapi.shapes import mesh, spread
from raysim.rayapi.shapes.collectives import shape_among
from raysim.rayapi.shapes.cuda import refuse
from raysim.rayapi.shapes.here import cpu_steps_here
from raysim.tracing import peers
from raysim.units import to_ns

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps


@dataclass(eq=False, kw_only=True)
class End:
    """One rank's end of a message, also as ``isend`` returns it."""

    steps: Steps
    tensor: torch.Tensor
    ready_ns: int
    """When its GPU has got to it."""
    sends: bool
    arrived_ns: int | None = None
    """None: the other rank has not come to it yet."""
    waiting: list[Any] = field(default_factory=list)

    def wait(self, *_timeout: Any) -> bool:
        """Until the tensor is there, or has left."""
        self.steps.synchronize()
        fiber = this_fiber()
        fiber.settle()
        if self.arrived_ns is None:
            fiber.block(self.waiting.append)
        assert self.arrived_ns is not None, "a message that nobody has taken"
        self.steps.worker.sleep_ns(max(0, self.arrived_ns - fiber_ns(fiber)))
        return True

    def is_completed(self) -> bool:
        """Whether ``wait()`` would not."""
        return self.arrived_ns is not None and self.arrived_ns <= fiber_ns(this_fiber())

    def meet(self, other: End, seconds: float) -> None:
        """Both have come."""
        begin_ns = max(self.ready_ns, other.ready_ns)
        sent, got = (self, other) if self.sends else (other, self)
        values = getattr(sent.tensor, "raysim_values", None)
        if values is not None:
            got.tensor.raysim_values = values  # type: ignore[attr-defined]
        elif hasattr(got.tensor, "raysim_values"):
            del got.tensor.raysim_values
        sim = this_fiber().process.session.sim
        for end in (self, other):
            end.arrived_ns = begin_ns + to_ns(seconds)
            for waiter in end.waiting:
                sim.call_later(0, waiter, None)


class P2POp:
    """``torch.distributed.P2POp``: what ``batch_isend_irecv`` is given."""

    def __init__(
        self, _steps: Steps, op: Any, tensor: Any, peer: int | None = None, group: Any = None,
        tag: int = 0, group_peer: int | None = None,
    ) -> None:  # fmt: skip
        if op not in (dist.isend, dist.irecv):
            raise ValueError(
                "Invalid ``op``. Expected ``op`` to be of type ``torch.distributed.isend`` or "
                "``torch.distributed.irecv``."
            )
        self.op, self.tensor, self.peer, self.group = op, tensor, peer, group
        self.tag, self.group_peer = tag, group_peer


def install(r: Replaced) -> None:
    """Those of two ranks, and several at once."""
    for name, sends in (("send", True), ("isend", True), ("recv", False), ("irecv", False)):
        r.call(dist, name, _called(name, sends=sends))
        instead = refuse(f"torch.distributed.{name} on CPU workers", "workers with GPUs")
        r.call(dist, name, instead, cpu_steps_here)
    r.call(dist, "P2POp", P2POp)
    r.call(dist, "batch_isend_irecv", _batched)


def _batched(_steps: Steps, p2p_op_list: Sequence[P2POp]) -> list[Any]:
    """All have begun."""
    return [
        each.op(each.tensor, each.peer, group=each.group, group_peer=each.group_peer)
        for each in p2p_op_list
    ]  # fmt: skip


def _called(name: str, *, sends: bool) -> Any:
    waits = not name.startswith("i")

    def call(
        steps: Steps, tensor: torch.Tensor, peer: int | None = None, group: Any = None,
        tag: int = 0, **named: int | None,
    ) -> Any:  # fmt: skip
        del tag  # NCCL has none
        ranks = mesh.ranks_of(group)
        within = [named.get(key) for key in ("group_dst", "group_src", "group_peer")]
        place = next((at for at in within if at is not None), None)
        peer = next((p for p in (peer, named.get("dst"), named.get("src")) if p is not None), None)
        if peer is None and place is not None:
            peer = ranks[place] if ranks else place
        if peer is None:
            raise ValueError(f"torch.distributed.{name} over NCCL needs the other rank")
        if steps.inside:
            if sends and steps.mode.tracing:
                all_ranks = ranks or range(steps.worker.context.world_size)
                peers.hear("send_recv", spread.group_of(steps, all_ranks), [tensor])
            return peer if waits else _GONE
        end = _post(steps, peer, tensor, sends=sends)
        if not waits:
            return end
        end.wait()
        return None if sends else peer

    return call


def _post(steps: Steps, peer: int, tensor: torch.Tensor, *, sends: bool) -> End:
    """Come to a message; the second of both ranks says when it is over."""
    context = steps.worker.expect_group().context
    me = context.rank
    if peer == me:
        raise ValueError(f"Invalid {'destination' if sends else 'source'} rank: {me} is this one")
    places = steps.shared.places.setdefault(id(context.gang), {})
    places[me] = context.process.me.node_id, context.local_rank
    end = End(
        steps=steps, tensor=tensor, sends=sends,
        ready_ns=fiber_ns(this_fiber()) + steps.waits_ns,
    )  # fmt: skip
    key = id(context.gang), *((me, peer) if sends else (peer, me))
    waiting = steps.shared.messages.setdefault(key, [])
    if waiting and waiting[0].sends is not sends:
        other = waiting.pop(0)
        shape = shape_among(context.gang.env.topology, [places[me], places[peer]])
        end.meet(other, collective("send_recv", tensor.nbytes, shape).seconds)
    else:
        waiting.append(end)
    return end


class _Gone:
    """Of a message in a model's forward."""

    def wait(self, *_timeout: Any) -> bool:
        """It has no time of its own."""
        return True

    def is_completed(self) -> bool:
        """Likewise."""
        return True


_GONE = _Gone()
