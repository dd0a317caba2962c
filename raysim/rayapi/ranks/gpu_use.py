"""What the processes of a program do with its GPUs, and hold on them, phase by phase.

Real counterpart: ``nvidia-smi`` and a clock around the calls of an RLHF trainer. Several processes
may hold memory of one GPU at a time (actors of fractions, an engine beside a trainer); what does
not fit beside the others is out of memory.

Kernels of processes that share a GPU take turns in the order of their calls. Not modelled: slices
of time between them; engines beside trainers (neither slows the other).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from raysim.rayapi.calls import this_fiber
from raysim.units import GIB

if TYPE_CHECKING:
    from raysim.rayapi.process_state import ProcessState
    from raysim.rayapi.session import Session

Phase = Literal["rollout", "forward", "update", "weight sync", "sleep and wake"]
PHASES: tuple[Phase, ...] = ("rollout", "forward", "update", "weight sync", "sleep and wake")
Place = tuple[int, int]
"""A node and one of its GPUs."""
LIBRARY = "gpus"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """A stretch of one process in one phase."""

    phase: Phase
    places: tuple[Place, ...]
    begin_ns: int
    end_ns: int


@dataclass(slots=True)
class Tally:
    """What processes of one name, which only answer, have done with their GPUs."""

    processes: int = 0
    gpus: int = 0
    """Of each."""
    forwards: int = 0
    busy_ns: int = 0
    """Of kernels, on all GPUs together."""
    issued_ns: int = 0
    """Of Python, issuing them."""
    span_ns: int = 0
    """Of each from its first forward to the end of its last, added up."""
    cpu_ns: int = 0
    """Of their own operators on tensors of the CPU."""
    copied_bytes: float = 0.0
    copy_ns: int = 0
    held_bytes: float = 0.0
    """The most that one of them has held."""


class GpuUse:
    """Of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._held: dict[Place, dict[Any, tuple[float, ProcessState]]] = {}
        """By whom, and in which process: what ends lets go."""
        self.spent: list[Spent] = []
        self.fullest: dict[Phase, tuple[float, Place]] = {}
        """The most bytes that a GPU has held in each phase, and which it was."""
        self.places: set[Place] = set()
        """Of all processes."""
        self.tallies: dict[str, Tally] = {}
        """By name."""
        self._free_ns: dict[Place, int] = {}
        """When each has done what was queued on it."""

    @property
    def now_ns(self) -> int:
        """Of the simulation."""
        return self._session.sim.now_ns

    def capacity_bytes(self, place: Place) -> float:
        """Of a GPU."""
        gpu = self._session.env.nodes[place[0]].spec.gpu
        assert gpu is not None, f"node {place[0]} has no GPU"
        return float(gpu.memory_bytes)

    def hold(self, owner: Any, places: Sequence[Place], size_bytes: float) -> None:
        """From here on, on each of these, by the process that calls."""
        process = this_fiber().process
        for place in places:
            self.places.add(place)
            self._held.setdefault(place, {})[owner] = size_bytes, process

    def held_bytes(self, place: Place) -> float:
        """By all processes that live."""
        held = self._held.get(place, {}).values()
        return sum(size_bytes for size_bytes, process in held if not process.gone)

    def free_bytes(self, owner: Any, place: Place) -> float:
        """What all others leave."""
        mine = self._held.get(place, {}).get(owner)
        return self.capacity_bytes(place) - self.held_bytes(place) + (mine[0] if mine else 0.0)

    def misses(self, owner: Any, places: Sequence[Place], size_bytes: float) -> str:
        """Why so much would not fit beside what the others hold; empty if it does."""
        for place in places:
            free = self.free_bytes(owner, place)
            if size_bytes > free:
                have = self.capacity_bytes(place)
                return (
                    f"GPU {place[1]} of node {place[0]} has {have / GIB:.2f} GiB, of which other "
                    f"processes hold {(have - free) / GIB:.2f} GiB and {size_bytes / GIB:.2f} GiB "
                    "are needed"
                )
        return ""

    def tally(self, name: str) -> Tally:
        """Of the processes of a name."""
        return self.tallies.setdefault(name, Tally())

    def queue(self, places: Sequence[Place], ready_ns: int, busy_ns: int) -> int:
        """Work for these GPUs, after what they have; when it will be done."""
        begin_ns = max(ready_ns, *(self._free_ns.get(place, 0) for place in places))
        for place in places:
            self._free_ns[place] = begin_ns + busy_ns
        return begin_ns + busy_ns

    def spend(self, phase: Phase, places: Sequence[Place], begin_ns: int, end_ns: int) -> None:
        """A process has been in a phase."""
        for place in places:
            held = self.held_bytes(place)
            if held > self.fullest.get(phase, (0.0, place))[0]:
                self.fullest[phase] = held, place
        if end_ns > begin_ns:
            self.spent.append(
                Spent(phase=phase, places=tuple(places), begin_ns=begin_ns, end_ns=end_ns)
            )


def gpu_use(session: Session) -> GpuUse:
    """Of a session; the report that it makes comes at the end."""
    found = session.libraries.get(LIBRARY)
    if found is None:
        from raysim.rayapi.ranks.answered import answered
        from raysim.rayapi.ranks.summary import iterations

        found = session.libraries[LIBRARY] = GpuUse(session)
        session.at_end.append(lambda: iterations(session, found))
        session.at_end.append(lambda: answered(session, found))
    use: GpuUse = found
    return use
