"""What Ray's threads work per call, as the kernel accounts for it.

``/proc/PID/task/TID/schedstat`` says how long a thread has been on a core. A time that passes tells
neither work from waiting nor one thread from another beside it; where threads share few cores, what
counts is the sum of their work, and this is it. Linux alone has it: elsewhere there are no probes.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from raysim.measure.ray_core.probe import Probe, server, while_time

PROC = Path("/proc")
GRPC = ("client.poll", "server.poll", "nexting_thread", "event_engine", "default-exec")
"""Threads of gRPC and its completion queues, by the beginnings of their names."""
HOPS = 2
"""Of a call: there and back."""
STORE_REQUESTS = 5
"""Of an object that is put and let go of: create, seal, get to pin it, release, delete."""
Roles = dict[str, float]
"""Seconds on a core by role: ``submit``, ``io``, ``executor``, ``raylet``, ``store``, ``grpc``."""
Activity = Callable[[int], float]
"""Make so many calls; the caller's thread's seconds in ``.remote()`` or ``ray.put``."""


def probes(*, quick: bool) -> Iterator[Probe]:
    """Work per call, in bursts and one by one, by thread; what waking a thread adds."""
    if not (PROC / "self/schedstat").exists():
        return
    count = 20 if quick else 1000
    lease = "raylet_lease_ns raylet_pop_worker_ns raylet_return_ns"
    for role, what, informs in (
        ("submit", "task_burst", "submit_task_ns"),
        ("submit", "actor_burst", "submit_actor_task_ns"),
        ("io", "actor_burst", "io_submit_ns io_reply_ns"),
        ("executor", "actor_burst", "execute_ns"),
        ("grpc", "actor_burst", "grpc_work_ns"),
        ("raylet", "task_sync", lease),
        ("submit", "put", "put_ns"),
        ("raylet", "put", "pin_ns"),
        ("store", "put", "plasma_request_ns"),
    ):
        yield Probe(
            op=f"work_{role}_{what}", measure=partial(_role, role, what), count=count,
            informs=informs,
        )  # fmt: skip
    yield Probe(op="work_wake", measure=_wake, count=count, informs="wake_ns")
    yield Probe(op="work_worker_start", measure=_start, informs="worker_start_core_s")
    yield Probe(op="work_task", measure=_task, count=count, informs="execute_task_ns")


def _role(role: str, what: str, probe: Probe, allowed_s: float) -> list[float]:
    """Seconds of that role per call, per hop, or per request of the store."""
    parts = {"grpc": HOPS, "store": STORE_REQUESTS}.get(role, 1)
    with _activity(what) as run:
        return while_time(lambda: run(probe.count)[role] / parts, allowed_s, most=10)


def _wake(probe: Probe, allowed_s: float) -> list[float]:
    """What a call one by one adds to one in a burst: the actor's thread and those of two hops."""
    with _activity("actor_burst") as burst, _activity("actor_sync") as sync:

        def once() -> float:
            hot, cold = burst(probe.count), sync(probe.count)
            return sum(cold[r] - hot[r] for r in ("executor", "grpc")) / (1 + HOPS)

        return while_time(once, allowed_s, most=10)


def _task(probe: Probe, allowed_s: float) -> list[float]:
    """What a task adds to the executing thread's work of an actor's call; it slept before both."""
    with _activity("task_burst") as tasks, _activity("actor_sync") as calls:

        def once() -> float:
            return tasks(probe.count)["executor"] - calls(probe.count)["executor"]

        return while_time(once, allowed_s, most=10)


def _start(probe: Probe, allowed_s: float) -> list[float]:  # noqa: ARG001
    """What a process has worked when it answers for the first time."""
    import ray

    @ray.remote(num_cpus=0)
    class Fresh:
        def worked_s(self) -> float:
            return time.process_time()

    def once() -> float:
        fresh = cast("Any", Fresh).remote()
        seconds: float = ray.get(fresh.worked_s.remote())
        ray.kill(fresh)
        return seconds

    return while_time(once, allowed_s, most=10)


@contextmanager
def _activity(what: str) -> Iterator[Callable[[int], Roles]]:
    """What does so many calls and gives the seconds of each role per call; it is warm."""
    import ray

    kind, _, way = what.partition("_")
    actor = server()
    call: Any = actor.no_op

    @ray.remote
    def no_op() -> bytes:
        return b"ok"

    if kind == "task":
        call = no_op
    doing: Activity = _puts if kind == "put" else partial(_calls, call, way == "burst")

    @ray.remote(num_cpus=0)
    def parent() -> int:
        return os.getppid()

    raylet = ray.get(parent.remote())

    def run(count: int) -> Roles:
        before = _accounts(raylet)
        submit_s = doing(count)
        after = _accounts(raylet)
        roles: Roles = defaultdict(float, submit=submit_s / count)
        for thread, (role, run_ns) in after.items():
            if thread in before:
                roles[role] += (run_ns - before[thread][1]) * 1e-9 / count
        return roles

    try:
        doing(20)
        yield run
    finally:
        ray.kill(actor)


def _calls(call: Any, burst: bool, count: int) -> float:
    import ray

    start = time.thread_time()
    if burst:
        refs = [call.remote() for _ in range(count)]
        submit_s = time.thread_time() - start
        ray.get(refs)
        return submit_s
    for _ in range(count):
        ray.get(call.remote())
    return time.thread_time() - start


def _puts(count: int) -> float:
    import numpy as np
    import ray

    value = np.zeros(1024, dtype=np.uint8)
    start = time.thread_time()
    for _ in range(count):
        ray.put(value)
    return time.thread_time() - start


def _accounts(raylet: int) -> dict[tuple[int, int], tuple[str, int]]:
    """Role and nanoseconds of every thread of this process, the raylet and its workers."""
    found: dict[tuple[int, int], tuple[str, int]] = {}
    for process in PROC.iterdir():
        if not process.name.isdigit():
            continue
        try:
            where = _where(process, raylet)
            for task in (process / "task").iterdir() if where else ():
                pid, tid = int(process.name), int(task.name)
                role = _role_of(where, (task / "comm").read_text().strip(), main=pid == tid)
                if role:
                    run_ns = int((task / "schedstat").read_text().split()[0])
                    found[pid, tid] = (role, run_ns)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
    return found


def _where(process: Path, raylet: int) -> str:
    pid = int(process.name)
    if pid in (os.getpid(), raylet):
        return "driver" if pid == os.getpid() else "raylet"
    parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    name = (process / "cmdline").read_text()
    return "worker" if parent == raylet and ("ray::" in name or "worker.py" in name) else ""


def _role_of(where: str, thread: str, *, main: bool) -> str:
    if main:
        return {"worker": "executor", "raylet": "raylet"}.get(where, "")
    if thread.startswith(GRPC):
        return "grpc"
    return {("driver", "worker.io"): "io", ("raylet", "store.io"): "store"}.get((where, thread), "")
