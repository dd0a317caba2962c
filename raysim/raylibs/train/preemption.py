"""Who sees that a node is about to be taken back: ``PreemptionWatcher``.

Real counterpart: ``execution/preemption.py``: an actor that asks the GCS every 5 s which nodes
drain, and tells every worker of the group when one of its nodes does. Only the look that finds a
change is played (``WatchNodes``).

Not modelled: slices of TPUs as failure domains.
"""

from __future__ import annotations

from raysim.raycore.ids import NodeID
from raysim.raycore.process import CoreProcess
from raysim.raycore.protocol import Nodes, WatchNodes
from raysim.raycore.scripts import Script, ask_gcs, drop, now, sleep
from raysim.raycore.tasks import ActorOptions, TaskError
from raysim.raylibs.actors import ActorClass, ActorHandle
from raysim.raylibs.train.defaults import RUN_ENV
from raysim.raylibs.train.gang import PreemptionInfo
from raysim.raylibs.train.polls import Polls


class PreemptionWatcher:
    """One per worker group."""

    def __init__(
        self, process: CoreProcess, ranks_of: dict[NodeID, tuple[int, ...]],
        workers: list[ActorHandle], poll_interval_ns: int,
    ) -> None:  # fmt: skip
        self.ranks_of = ranks_of
        self.workers = workers
        self.polls = Polls(process.now_ns, poll_interval_ns)

    def watch(self) -> Script:
        """For ever."""
        seen, known = -1, dict[NodeID, int]()
        while True:
            nodes = yield ask_gcs(WatchNodes(seen))
            if not isinstance(nodes, Nodes):  # the GCS is gone, and this process soon
                return
            seen = nodes.version
            drained = {n: d for n, d in nodes.deadlines_ns.items() if n in self.ranks_of}
            if drained and drained != known:
                at_ns = yield now()
                yield sleep(self.polls.at(at_ns) - at_ns)
                yield from self._tell(drained)
            known = drained

    def _tell(self, drained: dict[NodeID, int]) -> Script:
        info = PreemptionInfo(
            deadline_ns=min((d for d in drained.values() if d), default=None),
            preempted_node_to_ranks={n: self.ranks_of[n] for n in sorted(drained)},
        )
        for worker in self.workers:
            refs = yield worker.call("mark_preempt", info)
            if not isinstance(refs, TaskError):
                yield drop(*refs)


def merged(old: PreemptionInfo | None, new: PreemptionInfo | None) -> PreemptionInfo | None:
    """Two notices in one (``merge_preemption_info``)."""
    if old is None or new is None:
        return new or old
    ranks = {**old.preempted_node_to_ranks, **new.preempted_node_to_ranks}
    deadlines = [i.deadline_ns for i in (old, new) if i.deadline_ns is not None]
    return PreemptionInfo(deadline_ns=min(deadlines, default=None), preempted_node_to_ranks=ranks)


WATCHER = ActorClass(
    cls=PreemptionWatcher, actor=ActorOptions(max_restarts=-1), runtime_env=RUN_ENV
)
