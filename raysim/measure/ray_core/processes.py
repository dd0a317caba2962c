"""Worker processes, actors and placement groups: made and removed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from typing import Any, cast

from raysim.measure.ray_core.probe import Probe, settle, timed, while_time
from raysim.measure.session import LEAST, Unavailable

CREATE = "gcs_register_actor_ns gcs_create_actor_ns"
START = "worker_start_core_s worker_start_sigma"
GROUP = "gcs_placement_group_ns gcs_prepare_commit_ns"
ACTORS = 16
FIRST_VALUE = """
import sys, time
import ray
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
before = time.thread_time()
ray.put(1)
first = time.thread_time()
ray.put(1)
print(first - before - (time.thread_time() - first))
"""
"""A driver of its own: what its first value takes beyond its second."""


def probes(*, quick: bool) -> Iterator[Probe]:
    """Placement groups, of few and many bundles, alone and many at once."""
    for count in (1,) if quick else (1, 10, 100):
        for op in ("placement_group_create", "placement_group_remove"):
            yield Probe(op=op, measure=_groups, count=count, informs=GROUP)
    if not quick:
        yield Probe(op="placement_groups", measure=_many_groups, count=100, informs=GROUP)
    yield Probe(op="first_value", measure=_first_value, informs="first_value_core_s")


def actors(*, quick: bool) -> Iterator[Probe]:
    """On a node where nothing has run: only a worker that never had a task may become an actor."""
    for op, informs in (
        ("actor_create_cold", f"{CREATE} {START}"),
        ("actor_create_warm", CREATE),
        ("worker_start", START),
    ):
        yield Probe(op=op, measure=_actors, count=3 if quick else ACTORS, informs=informs)
    yield Probe(op="worker_memory", measure=_memory, unit="bytes", informs="worker_memory_bytes")


def _groups(probe: Probe, allowed_s: float) -> list[float]:
    """Seconds until a group of ``count`` bundles is there, or until its removal is said."""
    from ray.util.placement_group import placement_group, remove_placement_group

    def once() -> float:
        start = time.perf_counter()
        group = placement_group([{"CPU": 0.001}] * probe.count)
        if not group.wait(timeout_seconds=30):
            raise Unavailable("the placement group was not made within 30 s")
        there = time.perf_counter()
        remove_placement_group(group)
        end = time.perf_counter()
        return there - start if probe.op.endswith("create") else end - there

    once()
    return while_time(once, allowed_s)


def _many_groups(probe: Probe, allowed_s: float) -> list[float]:
    """Seconds per group of ``count`` groups of one bundle, all made and then all removed."""
    from ray.util.placement_group import placement_group, remove_placement_group

    def work() -> None:
        groups = [placement_group([{"CPU": 0.001}]) for _ in range(probe.count)]
        for group in groups:
            group.wait(timeout_seconds=30)
        for group in groups:
            remove_placement_group(group)

    return while_time(lambda: timed(work) / probe.count, allowed_s, least=2, most=10)


def _actors(probe: Probe, allowed_s: float) -> list[float]:  # noqa: ARG001
    """Actors made one after the other until each answers; each says when its process started.

    ``cold``: the process was started for it; ``warm``: it was waiting; ``worker_start``: from the
    start of the process to the actor's constructor, of the cold ones.
    """
    created = _created(probe.count)
    pick = {
        "actor_create_cold": [whole for cold, whole, _ in created if cold],
        "actor_create_warm": [whole for cold, whole, _ in created if not cold],
        "worker_start": [start for cold, _, start in created if cold],
    }[probe.op]
    if not pick:
        raise Unavailable("no such process was met")
    return pick


@cache  # three rows of one experiment
def _created(count: int) -> list[tuple[bool, float, float]]:
    """(process started for it, seconds until it answers, seconds from process to constructor)."""
    import ray

    @ray.remote(num_cpus=0)
    class Newborn:
        def __init__(self) -> None:
            import time
            from pathlib import Path

            self.here_s = time.clock_gettime(time.CLOCK_BOOTTIME)
            self.stat = Path("/proc/self/stat").read_text(encoding="utf-8")

        def times(self) -> tuple[float, str]:
            return self.here_s, self.stat

    ticks = os.sysconf("SC_CLK_TCK")
    found = []
    for _ in range(count):
        settle()
        asked_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        actor = cast("Any", Newborn).remote()
        here_s, stat = ray.get(actor.times.remote())
        whole_s = time.clock_gettime(time.CLOCK_BOOTTIME) - asked_s
        started_s = int(stat.rpartition(")")[2].split()[19]) / ticks  # field 22: starttime
        found.append((started_s > asked_s - 1 / ticks, whole_s, here_s - started_s))
        ray.kill(actor)
    return found


def _first_value(probe: Probe, allowed_s: float) -> list[float]:  # noqa: ARG001
    """CPU seconds of new processes for the first value that each serialises."""
    import ray

    address = ray.get_runtime_context().gcs_address
    program = [sys.executable, "-c", FIRST_VALUE, address]

    def once() -> float:
        ran = subprocess.run(program, capture_output=True, text=True, check=False)  # noqa: S603
        if ran.returncode:
            raise Unavailable("a second driver did not connect")
        return float(ran.stdout)

    return [once() for _ in range(LEAST)]


def _memory(probe: Probe, allowed_s: float) -> list[float]:  # noqa: ARG001
    """Resident bytes of workers that have run one trivial task."""
    import ray

    @ray.remote(num_cpus=0)
    class Idle:
        def resident_bytes(self) -> int:
            import os
            from pathlib import Path

            pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")

    actors = [cast("Any", Idle).remote() for _ in range(3)]
    try:
        return [float(ray.get(actor.resident_bytes.remote())) for actor in actors]
    finally:
        for actor in actors:
            ray.kill(actor)
