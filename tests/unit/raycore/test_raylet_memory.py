"""The OOM killer: whom it picks, when it looks."""

from __future__ import annotations

from raysim.raycore.config import RayConfig
from raysim.raycore.ids import WorkerAddress
from raysim.raycore.protocol import (
    OUT_OF_MEMORY_EXIT,
    GetWorkerFailureCause,
    MemoryChanged,
    PullStatus,
    raylet,
)
from raysim.raycore.raylet.memory_monitor import Candidate, by_group, by_time
from raysim.raycore.raylet.worker_pool import Worker
from raysim.units import GIB
from tests.unit.raycore.raylet_parts import MS, Owner, World, options, world


def candidate(
    worker_id: int,
    gib: float,
    *,
    granted_ns: int = -1,
    retriable: bool = True,
    used: bool = True,
    owner: int = 0,
) -> Candidate:
    worker = Worker(WorkerAddress(worker_id, f"w{worker_id}", 0), "WORKER", 1, "")
    worker.used = used
    group = (owner, True) if retriable else (-worker_id, False)
    return Candidate(worker, int(gib * GIB), retriable, granted_ns, group)


def ids(victims: list[object]) -> list[int]:
    return [v.worker.worker_id for v in victims]  # type: ignore[attr-defined]


def test_idle_ones_first_largest_first_then_retriable_then_newest() -> None:
    candidates = [
        candidate(1, 1, granted_ns=10),
        candidate(2, 1, granted_ns=20),
        candidate(3, 1, granted_ns=30, retriable=False),
        candidate(4, 1),
        candidate(5, 2),
        candidate(6, 0.5, used=False),
        candidate(7, 1.5, used=False),
    ]
    assert ids(by_time(candidates, 100 * GIB, GIB)) == [5, 7, 4, 2, 1, 3]
    assert ids(by_time(candidates, 3 * GIB, GIB)) == [5, 7]
    assert by_time(candidates, 0, GIB) == []


def test_by_group_takes_the_newest_of_the_largest_group_and_the_last_one_for_good() -> None:
    many = [candidate(i, 1, granted_ns=i, owner=1) for i in (1, 2, 3)]
    few = [candidate(i, 1, granted_ns=i, owner=2) for i in (4, 5)]
    (victim,) = by_group([*many, *few, candidate(9, 5)])
    assert (victim.worker.worker_id, victim.retry) == (3, True)
    (victim,) = by_group(
        [candidate(1, 1, granted_ns=1, owner=1), candidate(2, 1, granted_ns=9, retriable=False)]
    )
    assert (victim.worker.worker_id, victim.retry) == (1, False)


def uses(w: World, owner: Owner, lease: int, gib: float) -> None:
    worker = owner.granted[lease].worker
    w.processes[worker.worker_id].memory = int(gib * GIB)
    owner.send(raylet(0), MemoryChanged(worker.worker_id))


def test_the_newest_task_dies_on_the_next_look_and_may_be_retried() -> None:
    w = world([{"CPU": 4}], memory_bytes=10 * GIB)
    owner = w.owner()
    older = owner.ask(options())
    w.run_for(MS)
    newer = owner.ask(options())
    w.run_for(100 * MS)
    uses(w, owner, older, 5)
    w.run_for(200 * MS)
    assert not w.killed
    uses(w, owner, newer, 4.6)
    now_ns = w.sim.now_ns
    w.run_for(250 * MS - now_ns % (250 * MS) - 1)
    assert not w.killed
    w.run_for(MS)
    causes: list[object] = []
    owner.call(raylet(0), GetWorkerFailureCause(newer), causes.append)
    w.run_for(MS)
    ((error, counts),) = causes  # type: ignore[misc]
    assert (error.error_type, counts) == ("OUT_OF_MEMORY", False)
    assert w.killed == [(owner.granted[newer].worker.worker_id, OUT_OF_MEMORY_EXIT + error.message)]
    assert "9.60GB / 10.00GB" in error.message


def test_the_object_store_counts() -> None:
    w = world([{"CPU": 4}], memory_bytes=10 * GIB)
    owner = w.owner()
    lease = owner.ask(options())
    w.run_for(MS)
    uses(w, owner, lease, 5)
    w.gcs.send(raylet(0), PullStatus(False, 0, 4 * GIB))
    w.run_for(500 * MS)
    assert not w.killed
    w.gcs.send(raylet(0), PullStatus(False, 0, 5 * GIB))
    w.run_for(500 * MS)
    assert len(w.killed) == 1


def test_the_older_policy_fails_the_last_task_of_an_owner_for_good() -> None:
    config = RayConfig(worker_killing_policy_by_group=True)
    w = world([{"CPU": 4}], memory_bytes=10 * GIB, config=config)
    owner = w.owner()
    lease = owner.ask(options())
    w.run_for(MS)
    uses(w, owner, lease, 9.8)
    w.run_for(300 * MS)
    causes: list[object] = []
    owner.call(raylet(0), GetWorkerFailureCause(lease), causes.append)
    w.run_for(MS)
    ((_, counts),) = causes  # type: ignore[misc]
    assert counts
