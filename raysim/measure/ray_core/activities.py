"""Calls whose work is accounted for by thread, on real Ray and on the emulator alike.

What an account of all threads shows of a call is the sum of what each of its messages costs each
thread; the same calls on the emulator show how often each constant is in that sum. So constants
are fitted on accounts (``calibrate``), and a thread that the emulator lacks is seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from raysim.measure.ray_core.probe import server
from raysim.units import KIB

Roles = Mapping[str, float]
"""Seconds on a core so far, by role of the thread."""
Do = Callable[[int], object]

ROLES = ("submit", "io", "executor", "executor_io", "raylet", "store", "grpc")
"""The driver's main thread and its io thread; a worker's, both; the raylet's main loop; the store;
gRPC's threads of all processes."""
ACTIVITIES = (
    "actor_burst", "actor_sync", "async_actor_burst", "actor_arg", "task_burst", "task_sync",
    "task_arg", "task_return", "put", "get",
)  # fmt: skip
LARGE_BYTES = 128 * KIB
"""Goes through the store: ``max_direct_call_object_size`` is 100 KiB."""
SETTLE_S = 0.5
"""For what calls leave to be done: references let go of, events sent."""
WARM = 20


def work_of(what: str, count: int, account: Callable[[], Roles]) -> Roles:
    """Work of each role per call; what it does while nothing happens is taken off."""
    with _doing(what, WARM + count) as do:
        do(WARM)
        time.sleep(SETTLE_S)
        idle = account()
        before = time.monotonic()
        time.sleep(SETTLE_S)
        begun = account()
        idle_s = time.monotonic() - before
        before = time.monotonic()
        do(count)
        time.sleep(SETTLE_S)
        done = account()
        after = time.monotonic()
    share = (after - before) / idle_s
    return {
        role: (
            done.get(role, 0.0)
            - begun.get(role, 0.0)
            - share * (begun.get(role, 0.0) - idle.get(role, 0.0))
        )
        / count
        for role in ROLES
    }


@contextmanager
def _doing(what: str, most: int) -> Iterator[Do]:
    """What makes so many calls, ``most`` in all; one by one unless it is a burst."""
    import ray

    @ray.remote
    def no_op(*_: object) -> bytes:
        return b"ok"

    @ray.remote
    def make(size_bytes: int) -> Any:
        import numpy as np

        return np.zeros(size_bytes, dtype=np.uint8)

    if what == "put":
        yield _puts
    elif what == "get":
        yield _gets(most)
    elif what == "task_return":
        yield lambda count: [ray.get(make.remote(LARGE_BYTES)) for _ in range(count)]
    else:
        actor = server(is_async=what.startswith("async")) if "actor" in what else None
        call: Any = no_op if actor is None else actor.no_op
        args = (_array(),) if what.endswith("arg") else ()
        if what.endswith("burst"):
            yield lambda count: ray.get([call.remote() for _ in range(count)])
        else:
            yield lambda count: [ray.get(call.remote(*args)) for _ in range(count)]
        if actor is not None:
            ray.kill(actor)


def _array() -> Any:
    import numpy as np

    return np.zeros(LARGE_BYTES, dtype=np.uint8)


def _puts(count: int) -> None:
    import numpy as np
    import ray

    value = np.zeros(1024, dtype=np.uint8)
    for _ in range(count):
        ray.put(value)


def _gets(most: int) -> Do:
    """Gets of objects that were put before, each for the first time."""
    import numpy as np
    import ray

    value = np.zeros(1024, dtype=np.uint8)
    refs = iter([ray.put(value) for _ in range(most)])
    return lambda count: [ray.get(next(refs)) for _ in range(count)]
