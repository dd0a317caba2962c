"""Errors on their way: a program's exception into a ``TaskError`` and back, Ray's own into classes.

Real counterpart: ``_deserialize_object`` of ``python/ray/_private/serialization.py`` and
``store_task_errors`` of ``_raylet.pyx``.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from raysim.rayapi import exceptions as ray_exceptions
from raysim.rayapi.serialization import dump_code
from raysim.rayapi.task_errors import RayError, RayTaskError
from raysim.raycore.ids import hex_id
from raysim.raycore.tasks import TaskError


def class_names(classes: Any) -> tuple[str, ...]:
    """Names by which retries recognise exceptions."""
    return tuple(f"{c.__module__}.{c.__qualname__}" for c in classes)


def task_error(
    error: BaseException, name: str, *, pid: int, ip: str, actor: tuple[str, str] | None = None
) -> TaskError:
    """What callers get when a task raises; ``actor`` is its repr and its id."""
    actor_repr, actor_id = actor or (None, None)
    if isinstance(error, RayTaskError):  # a task it depended on: its cause goes on
        cause: BaseException = error.cause
    else:
        cause = error
    wrapped = RayTaskError(
        name, _traceback(error), cause, f"ray::{name}", pid, ip, actor_repr, actor_id
    )
    try:
        data = dump_code(wrapped)  # one that does not unpickle is found by who gets it
    except Exception as problem:  # noqa: BLE001  (a ``__reduce__`` may raise anything)
        kind = type(cause)
        wrapped.cause = RayError(
            f"Exception {kind.__module__}.{kind.__name__} isn't serializable: {problem}.\n"
            f"Original exception details:\n{wrapped.traceback_str}"
        )
        data = dump_code(wrapped)
    return TaskError(
        "TASK_EXECUTION_EXCEPTION", f"{type(cause).__name__}: {cause}", data,
        class_names(type(error).__mro__),
    )  # fmt: skip


_OURS = "/raysim/rayapi/"


def _traceback(error: BaseException) -> str:
    """The program's own frames."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _OURS not in f.filename]
    head = "Traceback (most recent call last):\n"
    if error.__cause__ is not None:
        because = "The above exception was the direct cause of the following exception:"
        head = f"{_traceback(error.__cause__)}\n{because}\n\n{head}"
    own = "".join(traceback.format_exception_only(error))
    return head + "".join(traceback.format_list(frames)) + own


class _DeathContext(NamedTuple):
    """What is known of an actor's death, as ``ActorDiedError`` says it."""

    actor_id: str
    message: str
    preempted: bool

    def text(self) -> str:
        head = ray_exceptions.ActorDiedError.BASE_ERROR_MSG
        return f"{head}\n\tactor_id: {self.actor_id}\n{self.message}"


def _actor_died(error: TaskError, _ref: str) -> BaseException:
    if error.data is not None:
        cause = _unpickled(error)
        if isinstance(cause, RayTaskError):
            return ray_exceptions.ActorDiedError(cause)
    actor_id = hex_id("actor", error.actor_id)
    return ray_exceptions.ActorDiedError(
        _DeathContext(actor_id, error.message, "preempt" in error.message)
    )


def _unpickled(error: TaskError) -> Any:
    try:
        return pickle.loads(error.data)  # noqa: S301  (our own bytes)
    except Exception:  # noqa: BLE001  (user classes may fail in any way)
        return ray_exceptions.UnserializableException(
            f"ray.exceptions.RayTaskError:\n{error.message}\n"
        )


def _own(error: TaskError, _ref: str) -> BaseException:
    if error.data is None:
        return RayTaskError(error.message or "task", error.message, RuntimeError(error.message))
    found: BaseException = _unpickled(error)
    return found


def _cancelled(error: TaskError, _ref: str) -> BaseException:
    if error.data is not None:
        found: BaseException = _unpickled(error)
        return found
    return ray_exceptions.TaskCancelledError(None, error.message)


def _unreconstructable(error: TaskError, ref: str) -> BaseException:
    return ray_exceptions.ObjectReconstructionFailedError(ref, error.error_type)


_OF: dict[str, Callable[[TaskError, str], BaseException]] = {
    "TASK_EXECUTION_EXCEPTION": _own,
    "WORKER_DIED": lambda _e, _r: ray_exceptions.WorkerCrashedError(),
    "NODE_DIED": lambda e, _r: ray_exceptions.NodeDiedError(e.message),
    "ACTOR_DIED": _actor_died,
    "ACTOR_CREATION_FAILED": _actor_died,
    "ACTOR_UNAVAILABLE": lambda e, _r: ray_exceptions.ActorUnavailableError(
        e.message, hex_id("actor", e.actor_id)
    ),
    "OBJECT_LOST": lambda _e, r: ray_exceptions.ObjectLostError(r),
    "OBJECT_FETCH_TIMED_OUT": lambda _e, r: ray_exceptions.ObjectFetchTimedOutError(r),
    "OWNER_DIED": lambda _e, r: ray_exceptions.OwnerDiedError(r),
    "OBJECT_UNRECONSTRUCTABLE": lambda e, r: ray_exceptions.ObjectReconstructionFailedError(
        r, e.error_type, e.message or None
    ),
    "OBJECT_FREED": lambda _e, r: ray_exceptions.ObjectFreedError(r),
    "TASK_CANCELLED": _cancelled,
    "RUNTIME_ENV_SETUP_FAILED": lambda e, _r: ray_exceptions.RuntimeEnvSetupError(e.message),
    "OUT_OF_MEMORY": lambda e, _r: ray_exceptions.OutOfMemoryError(e.message),
    "OUT_OF_DISK": lambda e, _r: ray_exceptions.OutOfDiskError(e.message),
    "LOCAL_RAYLET_DIED": lambda _e, _r: ray_exceptions.LocalRayletDiedError(),
    "TASK_PLACEMENT_GROUP_REMOVED": lambda _e, _r: ray_exceptions.TaskPlacementGroupRemoved(),
    "ACTOR_PLACEMENT_GROUP_REMOVED": lambda _e, _r: ray_exceptions.ActorPlacementGroupRemoved(),
    "TASK_UNSCHEDULABLE_ERROR": lambda e, _r: ray_exceptions.TaskUnschedulableError(e.message),
    "ACTOR_UNSCHEDULABLE_ERROR": lambda e, _r: ray_exceptions.ActorUnschedulableError(e.message),
    "DEPENDENCY_RESOLUTION_FAILED": lambda e, _r: ray_exceptions.RaySystemError(e.message),
    "END_OF_STREAMING_GENERATOR": lambda _e, _r: ray_exceptions.ObjectRefStreamEndOfStreamError(),
    "GET_TIMEOUT": lambda _e, _r: ray_exceptions.GetTimeoutError(
        "Get timed out: some object(s) not ready."
    ),
    "PENDING_CALLS_LIMIT_EXCEEDED": lambda e, _r: ray_exceptions.PendingCallsLimitExceeded(
        e.message
    ),
}


def exception_of(error: TaskError, ref_hex: str) -> BaseException:
    """The exception that Ray would put in the value's place."""
    if error.error_type.startswith("OBJECT_UNRECONSTRUCTABLE_"):
        return _unreconstructable(error, ref_hex)
    return _OF[error.error_type](error, ref_hex)


def raise_error(error: BaseException) -> NoReturn:
    """Raise it as ``ray.get`` does: also as an instance of its cause's class."""
    if isinstance(error, RayTaskError):
        raise error.as_instanceof_cause()
    raise error
