"""The OOM killer: which workers to end when the node's memory runs out.

Real counterpart: ``src/ray/common/memory_monitor.cc`` and
``src/ray/raylet/worker_killing_policy*.cc``. Used memory is that of all worker processes and of the
object store; the operating system's own is not modelled.

Ray reads /proc every 250 ms. Here processes and the store say when their memory changes
(``MemoryChanged``, ``PullStatus``), and the node is looked at on the next 250 ms tick after
that, and on every further one while it is above the threshold; a look between finds nothing new.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from raysim.kernel.component import Component
from raysim.raycore.ids import NodeID
from raysim.raycore.raylet.worker_pool import NS_PER_MS, Worker, WorkerPool
from raysim.raycore.room import Surroundings


class Candidate(NamedTuple):
    """A worker that could be ended."""

    worker: Worker
    memory_bytes: int
    retriable: bool
    granted_ns: int
    """-1: idle."""
    group: tuple[int, bool]
    """Owner, and whether retriable: a group of the older policy. A task that may not be retried is
    a group of its own, by its negative lease id."""


class Victim(NamedTuple):
    """A worker to end, and whether its task may be tried again."""

    worker: Worker
    retry: bool


def by_time(candidates: list[Candidate], excess_bytes: int, idle_over_bytes: int) -> list[Victim]:
    """Default since 2.56: idle ones, largest first; retriable before others; newest lease first.

    As many as it takes to free ``excess_bytes``. Idle workers that were never used count only above
    ``idle_over_bytes``.
    """
    idle = [
        c for c in candidates
        if c.granted_ns < 0 and (c.worker.used or c.memory_bytes > idle_over_bytes)
    ]  # fmt: skip
    busy = [c for c in candidates if c.granted_ns >= 0]
    idle.sort(key=lambda c: (-c.memory_bytes, c.worker.worker_id))
    busy.sort(key=lambda c: (not c.retriable, -c.granted_ns, -c.worker.worker_id))
    victims: list[Victim] = []
    for candidate in (*idle, *busy):
        if excess_bytes <= 0:
            break
        victims.append(Victim(candidate.worker, retry=True))
        excess_bytes -= candidate.memory_bytes
    return victims


def by_group(candidates: list[Candidate]) -> list[Victim]:
    """Until 2.55: one worker, of the largest group of one owner; the last of a group ends for good.

    Retriable groups first, then the group with most tasks, ties to the one that began last; of the
    group the newest.
    """
    groups: dict[tuple[int, bool], list[Candidate]] = {}
    for candidate in candidates:
        if candidate.granted_ns >= 0:
            groups.setdefault(candidate.group, []).append(candidate)
    if not groups:
        return []
    chosen = min(
        groups.values(),
        key=lambda g: (not g[0].retriable, -len(g), -min(c.granted_ns for c in g)),
    )
    newest = max(chosen, key=lambda c: (c.granted_ns, c.worker.worker_id))
    return [Victim(newest.worker, retry=len(chosen) > 1 and newest.retriable)]


class MemoryMonitor:
    """Watches one node.

    Parameters
    ----------
    kill
        ``kill(victim, message)``.
    """

    __slots__ = ("_armed", "_capacity_bytes", "_env", "_epoch_ns", "_kill", "_pool", "_room",
                 "store_bytes")  # fmt: skip

    def __init__(
        self,
        room: Component,
        env: Surroundings,
        node_id: NodeID,
        pool: WorkerPool,
        kill: Callable[[Victim, str], object],
    ) -> None:
        self._room = room
        self._env = env
        self._pool = pool
        self._kill = kill
        self._epoch_ns = env.sim.now_ns
        self._armed = False
        there = node_id < len(env.nodes)
        self._capacity_bytes = int(env.nodes[node_id].spec.memory_bytes) if there else 0
        self.store_bytes = 0

    @property
    def allowed_bytes(self) -> int:
        """What may be in use."""
        config, total = self._env.config, self._capacity_bytes
        allowed = int(total * config.memory_usage_threshold)
        if config.min_memory_free_bytes >= 0:
            allowed = min(allowed, total - config.min_memory_free_bytes)
        return allowed

    def changed(self) -> None:
        """Some memory on the node has changed: look on the next tick."""
        period_ns = self._env.config.memory_monitor_refresh_ms * NS_PER_MS
        if self._armed or not self._capacity_bytes or period_ns <= 0:
            return
        self._armed = True
        passed_ns = self._env.sim.now_ns - self._epoch_ns
        self._room.after(period_ns - passed_ns % period_ns, self._look)

    def _look(self, _: object) -> None:
        self._armed = False
        config, memory_bytes = self._env.config, self._env.launcher.memory_bytes
        sizes = {w.worker_id: memory_bytes(w.worker_id) for w in self._pool.workers.values()}
        used = self.store_bytes + sum(sizes.values())
        allowed = self.allowed_bytes
        if used <= allowed:
            return
        candidates = [
            self._candidate(w, sizes[w.worker_id])
            for w in self._pool.workers.values()
            if w.worker_type == "WORKER" and (w.lease is not None or w in self._pool.idle)
        ]
        if config.worker_killing_policy_by_group:
            victims = by_group(candidates)
        else:
            buffer = min(self._capacity_bytes // 20, config.max_kill_memory_buffer_bytes)
            victims = by_time(candidates, used + buffer - allowed,
                              config.idle_worker_killing_memory_threshold_bytes)  # fmt: skip
        message = (
            f"Memory on the node was {used / 2**30:.2f}GB /"
            f" {self._capacity_bytes / 2**30:.2f}GB, which exceeds the memory usage threshold of"
            f" {config.memory_usage_threshold:g}"
        )
        for victim in victims:
            self._kill(victim, message)
        self.changed()

    def _candidate(self, worker: Worker, memory_bytes: int) -> Candidate:
        lease = worker.lease
        if lease is None:
            return Candidate(worker, memory_bytes, True, -1, (0, True))
        retriable = lease.spec.retriable
        group = (lease.spec.owner.worker_id, True) if retriable else (-lease.lease_id, False)
        return Candidate(worker, memory_bytes, retriable, lease.granted_ns, group)
