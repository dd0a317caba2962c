"""Groups of ``ray.util.collective``: who is in them, how ranks meet, what a collective takes.

Real counterparts: ``python/ray/util/collective/collective_group/torch_gloo_collective_group.py``
and ``nccl_collective_group.py``; gloo's and NCCL's communicators, whose messages are none of Ray's.

Ranks wait for the last one, then all take what the collective takes: under gloo their cores or, if
it is slower, the NICs between their nodes; under NCCL the price of the GPUs that they hold.
A send waits for its receive and the other way round.

Not modelled: transfers that others slow down, timeouts (a rank that never comes is waited for).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from raysim.hardware import catalog
from raysim.hardware.specs import CpuRankSpec
from raysim.perf.collectives import GroupShape, Operation, bus_factor, collective
from raysim.perf.cpu_rank import gloo_s
from raysim.rayapi.calls import this_core, this_fiber
from raysim.rayapi.compute import use_cores
from raysim.rayapi.runtime_context import gpu_ids

if TYPE_CHECKING:
    from raysim.rayapi.fibers import Fiber, Waiter
    from raysim.rayapi.process_state import ProcessState
    from raysim.rayapi.session import Session

CPU_NODE = "cpu-ranks-2"
"""Of the catalog: where gloo was timed."""
CONNECT_S = 0.01
"""Of torch's store and gloo's pairs, once all ranks are there: what ``init_collective_group`` takes
in the rank that comes last (real Ray 2.60, two ranks of one host)."""

OWN: WeakKeyDictionary[ProcessState, dict[str, Group]] = WeakKeyDictionary()
"""What each process is in, by name."""
_SHARED: WeakKeyDictionary[Session, dict[str, Meeting]] = WeakKeyDictionary()
"""What the ranks of a group know together, by its name."""


class Brought(dict[int, Any]):
    """What each rank has brought, and what all have made of it, once."""

    made: Any = None


@dataclass(eq=False)
class Meeting:
    """Where the ranks of a group meet."""

    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Node and first GPU of each rank."""
    brought: dict[Any, Brought] = field(default_factory=dict)
    """By what they meet for and how often they have: each rank's value."""
    waiting: dict[Any, list[Waiter]] = field(default_factory=dict)

    def meet(self, key: Any, who: int, value: Any, count: int) -> Brought:
        """Bring something and wait for all others; what they have brought."""
        fiber = this_fiber()
        fiber.settle()
        mine = self.brought.setdefault(key, Brought())
        mine[who] = value
        if len(mine) < count:
            fiber.block(lambda then: self.waiting.setdefault(key, []).append(then))
        else:
            self.brought.pop(key)
            for waiter in self.waiting.pop(key, ()):
                fiber.process.session.sim.call_later(0, waiter, None)
        return mine


class Group:
    """One rank's end of a group."""

    def __init__(
        self, name: str, backend: str, world_size: int, rank: int,
        place: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.name, self.backend = name, backend
        self.world_size, self.rank = world_size, rank
        self._counts: dict[Any, int] = {}
        fiber = this_fiber()
        self._meeting = _SHARED.setdefault(fiber.process.session, {}).setdefault(name, Meeting())
        place = place or (this_core(fiber).me.node_id, next(iter(gpu_ids()), -1))
        if backend == "NCCL" and place[1] < 0:
            raise RuntimeError(
                f"The NCCL group '{name}' needs a GPU for each rank: start the actor with "
                "num_gpus=1, or take backend='gloo'."
            )
        self._meeting.places[rank] = place
        self.meet("init", None)
        fiber.sleep(fiber.take_lead() + round(CONNECT_S * 1e9))

    def meet(self, what: Any, value: Any, count: int | None = None) -> Brought:
        """All ranks, or ``count`` of them, for something they do in the same order."""
        turn = self._counts[what] = self._counts.get(what, 0) + 1
        return self._meeting.meet((what, turn), self.rank, value, count or self.world_size)

    def leave(self) -> None:
        """The last one takes the meeting with it."""
        session = this_fiber().process.session
        self._meeting.places.pop(self.rank, None)
        if not self._meeting.places:
            _SHARED.get(session, {}).pop(self.name, None)

    def pay(self, op: Operation, size_bytes: float, peer: int | None = None) -> None:
        """What one takes, of the full buffer; ``peer``: of a message to or from it."""
        fiber = this_fiber()
        ranks = self._ranks if peer is None else sorted((self.rank, peer))
        if self.backend == "NCCL":
            seconds = collective(op, size_bytes, self._shape(fiber, ranks)).seconds
            fiber.sleep(fiber.take_lead() + round(seconds * 1e9))
            return
        latency_s, seconds = gloo_s(op, size_bytes, len(ranks), self._host)
        began_ns = fiber.process.session.sim.now_ns
        use_cores(fiber, latency_s + seconds, 1.0)
        wire_s = self._wire_s(fiber, op, size_bytes, ranks)
        rest_ns = round(wire_s * 1e9) - (fiber.process.session.sim.now_ns - began_ns)
        if rest_ns > 0:
            fiber.sleep(fiber.take_lead() + rest_ns)

    @cached_property
    def _ranks(self) -> list[int]:
        return list(range(self.world_size))

    @cached_property
    def _host(self) -> CpuRankSpec:
        return cast("CpuRankSpec", catalog.node(CPU_NODE).gpu)

    def _wire_s(
        self, fiber: Fiber, op: Operation, size_bytes: float, ranks: Sequence[int]
    ) -> float:
        """Between nodes: a ring's bytes through the slowest NIC, and its steps' latencies."""
        nodes = sorted({self._meeting.places[rank][0] for rank in ranks})
        if len(nodes) < 2:
            return 0.0
        env = fiber.process.session.env
        nic = min((env.nodes[n].spec.nic for n in nodes), key=lambda nic: nic.bytes_per_s)
        ring: Operation = "all_reduce" if op == "reduce_scatter" else op
        through = (
            1.0 if op in ("send_recv", "broadcast", "reduce") else bus_factor(ring, len(ranks))
        )
        steps = (2 if ring == "all_reduce" else 1) * (len(ranks) - 1)
        return through * size_bytes / nic.bytes_per_s + steps * nic.latency_s

    def _shape(self, fiber: Fiber, ranks: Sequence[int]) -> GroupShape:
        """Of the GPUs that these ranks hold."""
        topology = fiber.process.session.env.topology
        places = [self._meeting.places[rank] for rank in ranks]
        return GroupShape.on(topology.specs[places[0][0]], **topology.spread(places)._asdict())


def groups_here() -> dict[str, Group]:
    """Of the process that calls."""
    return OWN.setdefault(this_fiber().process, {})
