"""A process of a Ray session: what it has in its memory, and what changes hands when it runs.

Real counterpart: the memory and environment of a driver's or worker's process. Functions and
classes of the driver's script are unpickled once per process, so their globals are its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import cloudpickle

from raysim.raycore.ids import ActorID, NodeID, node_ip, process_id

if TYPE_CHECKING:
    from raysim.rayapi.fibers import Fiber
    from raysim.rayapi.session import Session
    from raysim.raycore.process import CoreProcess

ENVIRON: Any = os.environ


@contextmanager
def restored_environment() -> Iterator[None]:
    """What programs wrote into C's environment, which real child processes get, is put back.

    ``os.environ`` keeps a dictionary, which each emulated process has its own of, and tells C.
    """
    changed: set[bytes] = set()
    put, remove = os.putenv, os.unsetenv

    def putenv(key: Any, value: Any) -> None:
        changed.add(key)
        put(key, value)

    def unsetenv(key: Any) -> None:
        changed.add(key)
        remove(key)

    os.putenv, os.unsetenv = putenv, unsetenv
    try:
        yield
    finally:
        os.putenv, os.unsetenv = put, remove
        own = ENVIRON._data  # noqa: SLF001  (as in ProcessState.enter)
        for key in changed:
            if key in own:
                put(key, own[key])
            else:
                remove(key)


class ProcessState:
    """What an emulated process has in its memory."""

    __slots__ = (
        "__weakref__", "actor", "canceled", "class_ids", "classes", "core", "cwd", "cwd_outside",
        "env_key", "environ", "functions", "handles", "held_bytes", "home", "is_driver", "loop",
        "made_bytes", "namespace", "policy_loop", "priced", "program", "runtime_env", "session",
        "shows_gpus", "sink", "training",
    )  # fmt: skip

    def __init__(self, session: Session, core: CoreProcess | None, *, is_driver: bool) -> None:
        self.session = session
        self.core = core
        self.is_driver = is_driver
        self.functions: dict[Any, Any] = {}
        """Unpickled, by what was submitted."""
        self.handles: dict[ActorID, int] = {}
        """How many Python objects stand for each actor."""
        self.classes: Any = WeakKeyDictionary()
        self.class_ids: Any = WeakValueDictionary()
        """cloudpickle's own tables of classes that came by value: every process has its own."""
        self.env_key = ""
        self.environ: dict[Any, Any] = dict(session.environ)
        """What ``os.environ`` holds in it, in bytes."""
        self.cwd: Path | None = None
        """Where it works, if it has a ``working_dir``; else where the run was started."""
        self.cwd_outside = Path()
        self.shows_gpus = False
        """``CUDA_VISIBLE_DEVICES`` is set for the task it runs."""
        self.namespace = ""
        self.runtime_env: dict[str, Any] = {}
        self.loop: Any = None
        """The event loop of an asyncio actor."""
        self.policy_loop: Any = None
        """What ``asyncio.get_event_loop`` answers outside of one."""
        self.actor: Any = None
        """What kind of actor lives here, if one does."""
        self.made_bytes = 0
        """Most arrays that one call returned: memory that the process has had."""
        self.held_bytes: dict[int, int] = {}
        """Memory that running tasks have declared."""
        self.canceled: dict[int, None] = {}
        """Tasks that have been asked to stop."""
        self.home: NodeID | None = None
        """Where a driver runs, if not on the head."""
        self.program: Any = None
        """Of a submitted job's driver: its script as ``__main__``, with its arguments."""
        self.sink: Callable[[str], object] | None = None
        """Where what it prints goes, if not to standard output."""
        self.priced = False
        """Its code is a library's that says itself what it costs: no stopwatch runs over it."""
        self.training: Any = None
        """Of a worker of Ray Train: which one it is."""

    @property
    def pid(self) -> int:
        """As ``os.getpid`` says in it."""
        return process_id(self.core.me.worker_id if self.core is not None else 0)

    @property
    def gone(self) -> bool:
        """Whether the process has died: nothing of it runs any more."""
        return getattr(self.core, "state", "up") != "up"

    @property
    def ip(self) -> str:
        """Of its node."""
        return node_ip(self.core.me.node_id if self.core is not None else 0)

    def drop_handle(self, actor_id: ActorID, *, lead_ns: int) -> None:
        """One Python object less for an actor."""
        left = self.handles.get(actor_id, 0) - 1
        if left > 0:
            self.handles[actor_id] = left
        elif left == 0:
            del self.handles[actor_id]
            if self.core is not None:
                self.core.remove_actor_handle(actor_id, lead_ns=lead_ns)

    def enter(self, fiber: Fiber) -> None:
        """A slice of it begins."""
        self.session.slices += 1
        tables = cloudpickle.cloudpickle
        tables._DYNAMIC_CLASS_TRACKER_BY_CLASS = self.classes  # noqa: SLF001  (no other way)
        tables._DYNAMIC_CLASS_TRACKER_BY_ID = self.class_ids  # noqa: SLF001  (no other way)
        ENVIRON._data = self.environ  # noqa: SLF001  (a copy each way would cost more than a task)
        if self.cwd is not None:
            self.cwd_outside = Path.cwd()
            os.chdir(self.cwd)
        if self.program is not None:
            self.program.enter()
        if fiber.loop is not None:
            fiber.loop.enter()
        if self.training is not None:
            self.training.enter()
        compute = self.session.compute
        if compute.running and not fiber.depth:
            compute.begin(fiber)

    def leave(self, fiber: Fiber) -> None:
        """It has ended, or waits."""
        compute = self.session.compute
        if compute.running and not fiber.depth:
            compute.end(fiber)
        if fiber.loop is not None:
            fiber.loop.leave()
        if self.training is not None:
            self.training.leave()
        if self.program is not None:
            self.program.leave()
        if self.cwd is not None:
            self.cwd = Path.cwd()
            os.chdir(self.cwd_outside)
        ENVIRON._data = self.session.outside  # noqa: SLF001  (as above)

    def set_env(self, name: str, value: str | None) -> None:
        """Set a variable of its environment; None: there is none."""
        key = ENVIRON.encodekey(name)
        if value is not None:
            self.environ[key] = ENVIRON.encodevalue(value)
        else:
            self.environ.pop(key, None)
