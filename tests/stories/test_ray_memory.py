"""Nodes that run out of memory: programs that declare what they hold, and the OOM killer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raysim.rayapi.compute import charge, cost
from raysim.raycore.cluster import Cluster, NodeOptions
from raysim.units import GB, GIB, MIB
from tests import rayapi_parts
from tests.hardware_parts import bare_node
from tests.raycore_parts import ray_cluster

NODE_BYTES = bare_node().memory_bytes
S = 1_000_000_000


def share(of_node: float) -> int:
    """So much of a node's memory."""
    return int(of_node * NODE_BYTES)


def play(program: Callable[[Any], Any], cluster: Cluster) -> Any:
    """What a driver function returns; it gets the module ``ray``."""

    def main() -> Any:
        import ray

        ray.init()
        return program(ray)

    return rayapi_parts.run(main, cluster, limit_s=3_600)


def rows(cluster: Cluster, kind: str, state: str) -> list[Any]:
    return [r for r in cluster.env.log.rows if r.kind == kind and r.state == state]


def killed(cluster: Cluster) -> list[tuple[float, int]]:
    """(second, worker) of those the memory monitor has ended."""
    return [
        (r.t_ns / S, r.worker_id)
        for r in rows(cluster, "worker", "DEAD")
        if str(r.detail).startswith("OUT_OF_MEMORY")
    ]


def worker_of(cluster: Cluster, name: str, attempt: int = 0) -> int:
    """Who ran the n-th try of a task of that function."""
    specs = {}
    for r in rows(cluster, "task", "PENDING_ARGS_AVAIL"):
        specs[r.number] = r.detail.options.function.name
    of_it = [r for r in rows(cluster, "task", "RUNNING") if specs.get(r.number, "") == name]
    return int(of_it[attempt].worker_id)


def test_memory_is_held_while_the_task_runs_and_no_longer() -> None:
    cluster = ray_cluster(cpus=2)

    def program(ray: Any) -> list[int]:
        @ray.remote
        @cost(10, memory_bytes=10 * GIB)
        def holds() -> None:
            pass

        import time

        seen, ref = [], holds.remote()
        for _ in range(2):
            time.sleep(6)
            seen.append(sum(cluster.memory_bytes(w) for w in cluster.processes))
        ray.get(ref)
        return seen

    during, after = play(program, cluster)
    assert during - after == 10 * GIB


def two_tasks(ray: Any, first: float, second: float, **options: Any) -> tuple[Any, Any]:
    """Two tasks of a minute, a second apart, that hold these shares of the node."""
    import time

    @ray.remote
    @cost(60, memory_bytes=share(first))
    def older() -> str:
        return "older"

    @ray.remote
    @cost(60, memory_bytes=share(second))
    def newer() -> str:
        return "newer"

    a = older.options(**options).remote()
    time.sleep(3)
    return a, newer.options(**options).remote()


def names(cluster: Cluster) -> tuple[str, str]:
    """What the two are called in the log."""
    seen = dict.fromkeys(
        r.detail.options.function.name for r in rows(cluster, "task", "PENDING_ARGS_AVAIL")
    )
    older, newer = (next(n for n in seen if n.endswith(w)) for w in ("older", "newer"))
    return older, newer


def test_the_newest_lease_dies_first_and_runs_again_when_there_is_room() -> None:
    cluster = ray_cluster(cpus=4)

    def program(ray: Any) -> Any:
        return ray.get(list(two_tasks(ray, 0.6, 0.6)))

    assert play(program, cluster) == ["older", "newer"]
    deaths = killed(cluster)
    assert worker_of(cluster, names(cluster)[0]) not in [w for _, w in deaths]
    assert deaths[0][1] == worker_of(cluster, names(cluster)[1])
    assert len(rows(cluster, "task", "RUNNING")) == 1 + len(deaths) + 1


def test_tries_after_out_of_memory_wait_1_2_4_seconds() -> None:
    cluster = ray_cluster(cpus=4)

    def program(ray: Any) -> Any:
        return ray.get(list(two_tasks(ray, 0.6, 0.6)))

    play(program, cluster)
    spec_of = {r.number: r.detail for r in rows(cluster, "task", "PENDING_ARGS_AVAIL")}
    newer = names(cluster)[1]
    again = [
        r.t_ns / S
        for r in rows(cluster, "task", "PENDING_ARGS_AVAIL")
        if spec_of[r.number].options.function.name == newer
    ][1:]
    for (died_s, _), retry_s, delay_s in zip(killed(cluster), again, (1, 2, 4, 8), strict=False):
        assert delay_s < retry_s - died_s <= delay_s + 1, "at the next heartbeat"
    assert len(again) >= 4, "a minute has room for four tries"


def test_tasks_that_may_be_tried_again_die_before_others_even_if_older() -> None:
    cluster = ray_cluster(cpus=4)

    def program(ray: Any) -> Any:
        import time

        @ray.remote
        @cost(20, memory_bytes=share(0.6))
        def retriable() -> str:
            return "retriable"

        @ray.remote(max_retries=0)
        @cost(20, memory_bytes=share(0.6))
        def once() -> str:
            return "once"

        a = retriable.remote()
        time.sleep(3)
        return ray.get([a, once.remote()])

    assert play(program, cluster) == ["retriable", "once"]
    assert killed(cluster)


def test_max_retries_0_fails_at_once() -> None:
    cluster = ray_cluster(cpus=4)

    def program(ray: Any) -> Any:
        _, newer = two_tasks(ray, 0.6, 0.6, max_retries=0)
        with pytest.raises(ray.exceptions.OutOfMemoryError, match=r"threshold of 0\.95"):
            ray.get(newer)
        return cluster.sim.now_ns / S

    ended_s = play(program, cluster)
    ((died_s, _),) = killed(cluster)
    assert ended_s == pytest.approx(died_s, abs=0.05)


def test_out_of_memory_is_raised_when_its_own_retries_are_used_up() -> None:
    cluster = ray_cluster(cpus=4, config={"task_oom_retries": 2})

    def program(ray: Any) -> Any:
        _, newer = two_tasks(ray, 0.6, 0.6, max_retries=1)
        with pytest.raises(ray.exceptions.OutOfMemoryError):
            ray.get(newer)

    play(program, cluster)
    assert len(killed(cluster)) == 3, "OOM retries do not use up max_retries"


def test_out_of_memory_does_not_use_up_the_retries_for_crashes() -> None:
    cluster = ray_cluster(cpus=4)

    def program(ray: Any) -> Any:
        import os
        import time

        @ray.remote
        class Tries:
            def __init__(self) -> None:
                self.n = 0

            def next(self) -> int:
                self.n += 1
                return self.n

        tries = Tries.remote()

        @ray.remote(max_retries=1)
        def crashes_then_holds() -> str:
            if ray.get(tries.next.remote()) == 1:
                os._exit(1)
            charge(3, memory_bytes=share(0.6))
            return "done"

        @ray.remote
        @cost(6, memory_bytes=share(0.6))
        def older() -> None:
            pass

        ref = older.remote()
        time.sleep(3)
        return ray.get([crashes_then_holds.remote(), ref])[0]

    assert play(program, cluster) == "done"
    assert killed(cluster)


def test_the_older_policy_takes_from_the_largest_group_and_ends_the_last_one_for_good() -> None:
    cluster = ray_cluster(cpus=4, config={"worker_killing_policy_by_group": True})

    def program(ray: Any) -> Any:
        import time

        @ray.remote
        @cost(30, memory_bytes=share(0.5))
        def half() -> str:
            return "done"

        @ray.remote
        @cost(30, memory_bytes=share(0.97))
        def all_of_it() -> str:
            return "done"

        first = half.remote()
        time.sleep(3)
        second = half.remote()
        assert ray.get([first, second]) == ["done", "done"]
        with pytest.raises(ray.exceptions.OutOfMemoryError):
            ray.get(all_of_it.remote())
        return ray.get(first)

    assert play(program, cluster) == "done"


def test_an_actor_restarts_as_often_as_it_may_and_then_callers_get_out_of_memory() -> None:
    cluster = ray_cluster(cpus=4)

    def program(ray: Any) -> Any:
        @ray.remote(max_restarts=1, max_task_retries=-1)
        class Grows:
            def grow(self) -> None:
                charge(10, memory_bytes=share(0.97))

        with pytest.raises(ray.exceptions.OutOfMemoryError, match="memory usage threshold"):
            ray.get(Grows.remote().grow.remote())

    play(program, cluster)
    assert len(killed(cluster)) == 2


def test_an_actor_holds_what_its_constructor_declares_as_long_as_it_lives() -> None:
    cluster = ray_cluster(cpus=4)

    def program(ray: Any) -> Any:
        import time

        @ray.remote
        class Holds:
            def __init__(self) -> None:
                charge(memory_bytes=share(0.6))

            def ping(self) -> str:
                return "there"

        @ray.remote(max_retries=0)
        @cost(2, memory_bytes=share(0.5))
        def task() -> str:
            return "done"

        actor = Holds.remote()
        assert ray.get(actor.ping.remote()) == "there"
        time.sleep(5)
        with pytest.raises(ray.exceptions.OutOfMemoryError):
            ray.get(task.remote())
        ray.kill(actor)
        time.sleep(1)
        return ray.get(task.remote())

    assert play(program, cluster) == "done"


def test_the_object_store_counts_as_used() -> None:
    deaths = []
    for puts in (0, 8):
        cluster = ray_cluster(cpus=4, options={0: NodeOptions(object_store_bytes=4 * GIB)})

        def program(ray: Any, puts: int = puts) -> str:
            import numpy as np

            block = np.zeros(256 * MIB, np.uint8)
            refs = [ray.put(block) for _ in range(puts)]

            @ray.remote(max_retries=0)
            @cost(5, memory_bytes=share(0.95) - 2 * GB)
            def task() -> None:
                pass

            try:
                ray.get(task.remote())
            except ray.exceptions.OutOfMemoryError:
                return f"killed with {len(refs)} blocks in the store"
            return "done"

        deaths.append(play(program, cluster))
    assert deaths == ["done", "killed with 8 blocks in the store"]


def test_while_a_driver_alone_holds_too_much_whatever_is_started_dies() -> None:
    cluster = ray_cluster(cpus=4)

    def program(ray: Any) -> None:
        import time

        @ray.remote(max_retries=0)
        def task() -> None:
            time.sleep(5)

        charge(memory_bytes=share(0.96))
        time.sleep(60)
        with pytest.raises(ray.exceptions.OutOfMemoryError):
            ray.get(task.remote())

    play(program, cluster)
