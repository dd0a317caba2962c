"""The ranks of one worker group, bound together: they step as one, and stop as one.

Real counterpart: the NCCL or gloo communicator of a worker group. A step ends for all ranks when
the last has come to it and its time is over; when a rank's process dies, the others wait in their
collectives for ever, until the controller tears the group down.

Nothing of it goes through Ray Core, as nothing of NCCL does: ranks meet on the machine. It is told
of a dead member at once (sockets close, and where a machine is silent nobody goes on either).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raysim.raycore.ids import NodeID
from raysim.raycore.process import CoreProcess
from raysim.raycore.room import Surroundings
from raysim.raycore.scripts import Event, Script, sleep, wait_for
from raysim.raylibs.train.polls import Polls
from raysim.raylibs.train.records import RunRecord
from raysim.raylibs.train.storage import Store

if TYPE_CHECKING:
    from raysim.raylibs.train.checkpoints import CheckpointManager


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionInfo:
    """``ray.train.v2.api.preemption.PreemptionInfo``."""

    deadline_ns: int | None
    """Earliest; None: none is known."""
    preempted_node_to_ranks: dict[NodeID, tuple[int, ...]]


class Gang:
    """One per worker group.

    Parameters
    ----------
    env, record
        Where it is, and who is told.
    world_size
        Ranks.
    store
        Where their checkpoints go.
    """

    def __init__(self, env: Surroundings, record: RunRecord, world_size: int, store: Store) -> None:
        self.env = env
        self.record = record
        self.world_size = world_size
        self.store = store
        self.processes: dict[int, CoreProcess] = {}
        self.manager: CheckpointManager | None = None
        """The controller's book, where there is one."""
        """By rank."""
        self.polls = Polls(0, 1)
        """Of the controller, once it runs."""
        self.noticed: PreemptionInfo | None = None
        self.over = False
        """A rank is gone, or the group is torn down."""
        self.finished = Event()
        """Where one script plays the loop of all ranks: it has come to its end."""
        self.drained_ns = 0
        """Then: when the controller has collected all reports."""
        self.interrupt: Callable[[], object] | None = None
        """Called when the ranks are told of a preemption, of whoever waits in a long stretch."""
        self.progress: Callable[[int], int] | None = None
        """Of who plays a long stretch: note what has been done by an instant; the last step's end.
        """
        self._arrived: list[tuple[CoreProcess, Event]] = []
        self._met: dict[tuple[int, ...], list[tuple[CoreProcess, Event]]] = {}
        self._last_end_ns = 0
        self._length_ns = 0

    def join(self, rank: int, process: CoreProcess) -> None:
        """``init_process_group``, of one rank."""
        self.processes[rank] = process
        process.at_exit(lambda _: self.close("detection"))

    def close(self, then: str) -> None:
        """No step ends any more: a rank's process is gone, or all are about to be."""
        if self.over:
            return
        self.over = True
        now_ns = self.env.sim.now_ns
        if self.finished.is_set:
            return
        self.store.cancel()
        if self.progress is not None:
            last_end_ns = self.progress(now_ns)
        elif self.record.spans[-1].phase == "steps":
            last_end_ns = self._last_end_ns
        else:
            last_end_ns = now_ns
        self.record.broke(last_end_ns, now_ns, then)

    def notice(self, info: PreemptionInfo) -> None:
        """``mark_preempt``: the ranks know."""
        first = self.noticed is None
        self.noticed = info
        if first and self.interrupt is not None:
            self.interrupt()

    @property
    def nodes(self) -> dict[NodeID, list[int]]:
        """Ranks on each node, in order of rank."""
        found: dict[NodeID, list[int]] = {}
        for rank in sorted(self.processes):
            found.setdefault(self.processes[rank].me.node_id, []).append(rank)
        return found

    def step(self, process: CoreProcess, rank: int, length_ns: int) -> Script:
        """One rank's step, beside those of the others; rank 0 says how long it takes."""
        yield sleep(0)  # a script may have run ahead of the clock
        ended = Event()
        if rank == 0:
            self._length_ns = length_ns
        self._arrived.append((process, ended))
        if len(self._arrived) == self.world_size and not self.over:
            arrived, self._arrived = self._arrived, []
            now_ns = self.env.sim.now_ns
            if self.record.spans[-1].phase != "steps":
                self.record.phase(now_ns, "steps")
            self._last_end_ns = now_ns
            self.env.sim.call_later(self._length_ns, self._stepped, arrived)
        yield wait_for(ended)

    def meet(self, process: CoreProcess, ranks: tuple[int, ...] = ()) -> Script:
        """A barrier, or another small collective between steps: all wait for the last.

        Of some ``ranks`` alone, or of all.
        """
        yield sleep(0)  # a script may have run ahead of the clock
        ended = Event()
        self._met.setdefault(ranks, []).append((process, ended))
        if len(self._met[ranks]) == (len(ranks) or self.world_size) and not self.over:
            for each, event in self._met.pop(ranks):
                each.after(0, event.set)
        yield wait_for(ended)

    def _stepped(self, arrived: list[tuple[CoreProcess, Event]]) -> None:
        if self.over:
            return
        self._last_end_ns = self.env.sim.now_ns
        self.record.stepped(self._last_end_ns, 1)
        for process, ended in arrived:
            process.after(0, ended.set)
