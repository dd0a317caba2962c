"""What Ray's threads work per call, as the kernel accounts for it.

``/proc/PID/task/TID/schedstat`` says how long a thread has been on a core. A time that passes tells
neither work from waiting nor one thread from another beside it; where threads share few cores, what
counts is the sum of their work, and this is it. Linux alone has it: elsewhere there are no probes.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

from raysim.measure.machine import stolen_s
from raysim.measure.ray_core.activities import ACTIVITIES, ROLES, SETTLE_S, Roles, work_of
from raysim.measure.ray_core.probe import Probe, while_time
from raysim.measure.session import LEAST

PROC = Path("/proc")
GRPC = ("client.poll", "server.poll", "nexting_thread", "event_engine", "default-exec")
"""Threads of gRPC and its completion queues, by the beginnings of their names."""
BACKGROUND_S = 5.0
STOLEN_FRAC = 0.05
"""Of a core, what the hypervisor may take for an account to count as undisturbed."""
PATIENCE = 6
"""How many times the time of other points may pass until there are enough of those."""
ASIDE = "aside"
"""The role of all threads that are not in ``ROLES``."""
INFORMS = {
    "submit": "submit_task_ns submit_actor_task_ns put_ns get_ns cold_factor cold_ns",
    "io": "io_submit_ns io_reply_ns io_task_ns io_lease_reply_ns io_message_ns io_object_ns "
    "cold_factor cold_ns",
    "executor": "execute_ns execute_task_ns execute_async_ns stored_arg_ns stored_return_ns "
    "cold_factor cold_ns",
    "executor_io": "io_message_ns cold_factor cold_ns",
    "raylet": "raylet_lease_ns raylet_pop_worker_ns raylet_return_ns raylet_message_ns pin_ns "
    "object_manager_message_ns",
    "store": "plasma_request_ns",
    "grpc": "grpc_work_ns cold_factor cold_ns",
}


def probes(*, quick: bool) -> Iterator[Probe]:
    """Work per call by role of the thread, of every activity; what other threads use meanwhile."""
    if not (PROC / "self/schedstat").exists():
        return
    yield Probe(
        op="work_background", measure=_background, informs="node_background_cores", unit="cores"
    )
    yield Probe(op="work_worker_start", measure=_start, count=4, informs="worker_start_core_s")
    yield Probe(op="work_setup_worker", measure=_setup, count=4, informs="setup_worker_core_s")
    for what in ACTIVITIES:
        accounts: list[Roles] = []
        for role in ROLES:
            yield Probe(
                op=f"work_{role}", measure=partial(_role, role, accounts),
                count=20 if quick else 300, what=what, informs=INFORMS[role],
            )  # fmt: skip


def _role(role: str, accounts: list[Roles], probe: Probe, allowed_s: float) -> list[float]:
    """Seconds of that role per call. An account is of all roles: the first asked for makes it."""
    if not accounts:
        accounts += _accounts(probe, PATIENCE * allowed_s)
    return [max(0.0, account[role]) for account in accounts]


def _accounts(probe: Probe, allowed_s: float) -> list[Roles]:
    """The least disturbed: what the hypervisor gives to others counts as a thread's work."""
    account, end_s = _Account(), time.monotonic() + allowed_s
    found: list[tuple[float, Roles]] = []
    while len(found) < LEAST or (
        sum(stolen <= STOLEN_FRAC for stolen, _ in found) < LEAST and time.monotonic() < end_s
    ):
        before_s, start_s = stolen_s(), time.monotonic()
        roles = work_of(probe.what, probe.count, account)
        passed_s = time.monotonic() - start_s
        found.append(((stolen_s() - before_s) / passed_s, roles))
    found.sort(key=lambda one: one[0])
    return [roles for _, roles in found[:LEAST]]


def _background(_probe: Probe, allowed_s: float) -> list[float]:
    """Cores that all other threads of Ray's use while tasks run one by one."""
    import ray

    @ray.remote
    def no_op() -> bytes:
        return b"ok"

    account = _Account()

    def once() -> float:
        before, start_s = account(), time.monotonic()
        while time.monotonic() < start_s + BACKGROUND_S:
            ray.get(no_op.remote())
        return (account()[ASIDE] - before[ASIDE]) / (time.monotonic() - start_s)

    return while_time(once, allowed_s, most=5)


def _start(probe: Probe, allowed_s: float) -> list[float]:  # noqa: ARG001
    """What all of Ray's threads work for one more process, until it answers for the first time."""
    account = _Account()
    return [_started(account, probe.count, {}) for _ in range(LEAST)]


def _setup(probe: Probe, allowed_s: float) -> list[float]:  # noqa: ARG001
    """What they work more for one with an environment of its own, that nobody had before."""
    account, more = _Account(), []
    for number in range(LEAST):
        env = {"env_vars": {"RAYSIM_MEASURES": str(number)}}
        plain_s = _started(account, probe.count, {})
        more.append(_started(account, probe.count, {"runtime_env": env}) - plain_s)
    return more


def _started(account: _Account, count: int, options: dict[str, Any]) -> float:
    """Seconds of work per process, of so many that are started at once."""
    import ray

    @ray.remote(num_cpus=0)
    class Fresh:
        def no_op(self) -> None:
            pass

    time.sleep(SETTLE_S)
    before = sum(account().values())
    actors = [cast("Any", Fresh).options(**options).remote() for _ in range(count)]
    ray.get([actor.no_op.remote() for actor in actors])
    time.sleep(SETTLE_S)
    worked_s = sum(account().values()) - before
    for actor in actors:
        ray.kill(actor)
    return worked_s / count


def _raylet() -> int:
    """Its process."""
    import ray

    @ray.remote(num_cpus=0)
    def parent() -> int:
        return os.getppid()

    number: int = ray.get(parent.remote())
    return number


class _Account:
    """Seconds on a core so far of every thread of Ray's processes on this machine, by role.

    A thread that has ended keeps what it was last seen to have: sums never fall.
    """

    def __init__(self) -> None:
        self._raylet = _raylet()
        self._threads: dict[tuple[str, str], tuple[str, float]] = {}

    def __call__(self) -> Roles:
        for process in PROC.iterdir():
            if process.name.isdigit():
                with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                    self._look(process)
        found: dict[str, float] = defaultdict(float)
        for role, seconds in self._threads.values():
            found[role] += seconds
        return found

    def _look(self, process: Path) -> None:
        where = _where(process, self._raylet)
        for task in (process / "task").iterdir() if where else ():
            main = task.name == process.name
            role = _role_of(where, (task / "comm").read_text().strip(), main=main)
            seconds = int((task / "schedstat").read_text().split()[0]) * 1e-9
            self._threads[process.name, task.name] = role, seconds


def _where(process: Path, raylet: int) -> str:
    """What process it is; nothing, if it is none of Ray's."""
    pid = int(process.name)
    if pid in (os.getpid(), raylet):
        return "driver" if pid == os.getpid() else "raylet"
    command = (process / "cmdline").read_text()
    parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    if parent == raylet and ("ray::" in command or "worker.py" in command):
        return "worker"
    return "other" if "/ray/" in command or "gcs_server" in command else ""


def _role_of(where: str, thread: str, *, main: bool) -> str:
    if where in ("driver", "worker") and main:
        return "submit" if where == "driver" else "executor"
    if where == "raylet" and main:
        return "raylet"
    if where != "other" and thread.startswith(GRPC):
        return "grpc"
    if thread == "worker.io":
        return "io" if where == "driver" else "executor_io"
    if where == "worker" and not thread.startswith("task_event"):
        return "executor"  # the event loop of an async actor
    return "store" if (where, thread) == ("raylet", "store.io") else ASIDE
