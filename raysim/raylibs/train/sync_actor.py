"""Where the ranks of a worker group meet: ``SynchronizationActor``.

Real counterpart: ``execution/checkpoint/sync_actor.py``: an asyncio actor on the controller's node,
one per worker group. The ranks come in any order; when all have come, all get what rank 0 brought.

Not modelled: time limits (none by default), barriers relaxed to the survivors of a preemption.
"""

from __future__ import annotations

from typing import Any

from raysim.perf.ray_core import RayCosts
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Event, Script, wait_for
from raysim.raycore.tasks import ActorOptions
from raysim.raylibs.actors import ActorClass
from raysim.raylibs.train.defaults import RUN_ENV


class SynchronizationActor:
    """One per worker group."""

    def __init__(self, process: CoreProcess) -> None:
        self.process = process
        self._arrived = 0
        self._data: Any = None
        self._released = Event()

    def broadcast_from_rank_zero(self, rank: int, world_size: int, data: Any) -> Script:
        """Wait for all; what rank 0 brought."""
        self._arrived += 1
        if rank == 0:
            self._data = data
        released = self._released
        if self._arrived < world_size:
            return (yield from _value(released))
        self._arrived, self._released, found = 0, Event(), self._data
        released.set(found)
        return found

    def get_counter(self) -> int:
        """Ranks that wait here."""
        return self._arrived


def _value(released: Event) -> Script:
    return (yield wait_for(released))


SYNC_ACTOR = ActorClass(
    cls=SynchronizationActor, actor=ActorOptions(is_async=True, max_concurrency=100_000),
    runtime_env=RUN_ENV,
)  # fmt: skip


def barrier_ns(costs: RayCosts, world_size: int) -> int:
    """From the last rank's call to its answer: calls queue at the actor, ranks come together.

    Submission at the rank, the hop to the actor and back, and the actor's own time for each call.
    """
    each_ns = costs.execute_ns + costs.execute_async_ns + costs.execute_async_wait_ns
    there_ns = costs.grpc_same_host_ns + costs.grpc_cross_host_extra_ns
    own_ns = costs.submit_actor_task_ns + costs.get_ns + costs.io_submit_ns + costs.io_reply_ns
    return own_ns + 2 * there_ns + each_ns * world_size
