"""``ray.exceptions``: the same classes with the same messages.

Real counterpart: ``python/ray/exceptions.py`` of ray 2.60. A task's own exception reaches the
caller as a ``RayTaskError`` that is also an instance of that exception's class.

Not modelled: exceptions of other languages, of Ray Client and of authentication (the classes are
there so that ``except`` clauses work); hiding of frames of Ray's libraries.
"""

from __future__ import annotations

from typing import Any

from raysim.rayapi.task_errors import RayError, RayTaskError


class TaskCancelledError(RayError):
    """The task was cancelled."""

    def __init__(self, task_id: Any = None, error_message: str | None = None) -> None:
        self.task_id = task_id
        self.error_message = error_message

    def __str__(self) -> str:
        head = f"Task: {self.task_id} was cancelled. " if self.task_id else ""
        return head + (self.error_message or "")


class LocalRayletDiedError(RayError):
    """The raylet of the task's node died."""

    def __str__(self) -> str:
        return "The task's local raylet died. Check raylet.out for more information."


class WorkerCrashedError(RayError):
    """The worker died while it executed the task."""

    def __str__(self) -> str:
        return (
            "The worker died unexpectedly while executing this task. "
            "Check python-core-worker-*.log files for more information."
        )


class RayActorError(RayError):
    """The actor died or cannot be reached."""

    BASE_ERROR_MSG = "The actor experienced an error before finishing this task."

    def __init__(
        self,
        actor_id: str | None = None,
        error_msg: str = BASE_ERROR_MSG,
        actor_init_failed: bool = False,
        preempted: bool = False,
    ) -> None:
        self.actor_id = actor_id
        self.error_msg = error_msg
        self._actor_init_failed = actor_init_failed
        self._preempted = preempted

    def __str__(self) -> str:
        return self.error_msg

    @property
    def preempted(self) -> bool:
        """Whether its node was taken away."""
        return self._preempted

    @property
    def actor_init_failed(self) -> bool:
        """Whether ``__init__`` raised."""
        return self._actor_init_failed


class ActorDiedError(RayActorError):
    """The actor is dead."""

    BASE_ERROR_MSG = "The actor died unexpectedly before finishing this task."

    def __init__(self, cause: Any = None) -> None:
        if isinstance(cause, RayTaskError):
            super().__init__(
                cause._actor_id,  # noqa: SLF001  (Ray's own attribute)
                f"The actor died because of an error raised in its creation task, {cause}",
                actor_init_failed=True,
            )
        elif cause is None:
            super().__init__(None, self.BASE_ERROR_MSG)
        else:
            super().__init__(cause.actor_id, cause.text(), preempted=cause.preempted)

    def __reduce__(self) -> tuple[Any, ...]:
        return _actor_died, (self.actor_id, self.error_msg, self.actor_init_failed, self.preempted)


def _actor_died(
    actor_id: str | None, error_msg: str, actor_init_failed: bool, preempted: bool
) -> ActorDiedError:
    error = ActorDiedError()
    RayActorError.__init__(error, actor_id, error_msg, actor_init_failed, preempted)
    return error


class ActorUnavailableError(RayActorError):
    """The actor cannot be reached for the moment."""

    def __init__(self, error_message: str, actor_id: str | None) -> None:
        self._message = error_message
        super().__init__(
            actor_id,
            f"The actor {actor_id} is unavailable: {error_message}. The task may or may not have "
            "been executed on the actor.",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return ActorUnavailableError, (self._message, self.actor_id)


class RaySystemError(RayError):
    """Ray itself failed."""

    def __init__(self, client_exc: Any, traceback_str: str | None = None) -> None:
        self.client_exc = client_exc
        self.traceback_str = traceback_str

    def __str__(self) -> str:
        text = f"System error: {self.client_exc}"
        return text + (f"\ntraceback: {self.traceback_str}" if self.traceback_str else "")


class AuthenticationError(RayError):
    """Of clusters with tokens."""


class UserCodeException(RayError):
    """Around an exception of user code that a library calls."""


class ObjectStoreFullError(RayError):
    """There is no room in the object store."""

    def __str__(self) -> str:
        return super().__str__() + (
            "\nThe local object store is full of objects that are still in scope and cannot be "
            "evicted. Tip: Use the `ray memory` command to list active objects in the cluster."
        )


class OutOfDiskError(RayError):
    """There is no room in the object store, nor on the disk."""

    def __str__(self) -> str:
        return super().__str__() + (
            "\nThe object cannot be created because the local object store is full and the local "
            "disk's utilization is over capacity (95% by default).Tip: Use `df` on this node to "
            "check disk usage and `ray memory` to check object store memory usage."
        )


class OutOfMemoryError(RayError):
    """The memory monitor killed the worker."""

    def __init__(self, message: str) -> None:
        self.message = message

    def __str__(self) -> str:
        return self.message


class NodeDiedError(RayError):
    """The node is dead or cannot be reached."""

    def __init__(self, message: str) -> None:
        self.message = message

    def __str__(self) -> str:
        return self.message


class RpcError(RayError):
    """An RPC failed."""

    def __init__(self, message: str, rpc_code: int | None = None) -> None:
        self.message = message
        self.rpc_code = rpc_code

    def __str__(self) -> str:
        return self.message


class ObjectLostError(RayError):
    """All copies of the object are gone."""

    REASON = (
        "All copies of {ref} have been lost due to node failure. Check cluster logs "
        "(`/tmp/ray/session_latest/logs`) for more information about the failure."
    )

    def __init__(self, object_ref_hex: str, owner_address: Any = None, call_site: str = "") -> None:
        self.object_ref_hex = object_ref_hex
        self.owner_address = owner_address
        self.call_site = call_site

    def _base_str(self) -> str:
        where = (
            f"The ObjectRef was created at: {self.call_site}"
            if self.call_site
            else "To see information about where this ObjectRef was created in Python, set the "
            "environment variable RAY_record_ref_creation_sites=1 during `ray start` and "
            "`ray.init()`."
        )
        return f"Failed to retrieve object {self.object_ref_hex}. {where}"

    def __str__(self) -> str:
        return f"{self._base_str()}\n\n{self.REASON.format(ref=self.object_ref_hex)}"


class ObjectFetchTimedOutError(ObjectLostError):
    """No location was found for the object."""

    REASON = (
        "Fetch for object {ref} timed out because no locations were found for the object. This "
        "may indicate a system-level bug."
    )


class ReferenceCountingAssertionError(ObjectLostError, AssertionError):
    """The object was deleted while referenced."""

    REASON = (
        "The object has already been deleted by the reference counting protocol. This should not "
        "happen."
    )


class ObjectFreedError(ObjectLostError):
    """The program freed the object itself."""

    REASON = (
        "The object was manually freed using the internal `free` call. Please ensure that `free` "
        "is only called once the object is no longer needed."
    )


class OwnerDiedError(ObjectLostError):
    """The object's owner has died."""

    REASON = (
        "The object's owner has exited. This is the Python worker that first created the ObjectRef "
        "via `.remote()` or `ray.put()`. Check cluster logs (`/tmp/ray/session_latest/logs`) for "
        "more information about the Python worker failure."
    )


class ObjectReconstructionFailedError(ObjectLostError):
    """The object is lost and cannot be computed again."""

    def __init__(
        self,
        object_ref_hex: str,
        reason: str | None = None,
        reason_message: str | None = None,
        owner_address: Any = None,
        call_site: str = "",
    ) -> None:
        super().__init__(object_ref_hex, owner_address, call_site)
        self.reason = reason
        self.reason_message = reason_message or _UNRECONSTRUCTABLE.get(
            reason or "",
            "Unknown error reason. This should not happen, please file an issue at "
            "https://github.com/ray-project/ray/issues.",
        )

    def __str__(self) -> str:
        return f"{self._base_str()}\n\n[{self.reason or 'UNKNOWN'}] {self.reason_message}"


_UNRECONSTRUCTABLE = {
    "OBJECT_UNRECONSTRUCTABLE_MAX_ATTEMPTS_EXCEEDED": "The object cannot be reconstructed because "
    "the maximum number of task retries has been exceeded. Consider increasing the number of "
    "retries using `@ray.remote(max_retries=N)`.",
    "OBJECT_UNRECONSTRUCTABLE_LINEAGE_EVICTED": "The object cannot be reconstructed because its "
    "lineage has been evicted to reduce memory pressure. To prevent this error, set the "
    "environment variable RAY_max_lineage_bytes=<bytes> (default 1GB) during `ray start`.",
    "OBJECT_UNRECONSTRUCTABLE_PUT": "The object cannot be reconstructed because it was created by "
    "ray.put(), which has no task lineage. To prevent this error, return the value from a task "
    "instead.",
    "OBJECT_UNRECONSTRUCTABLE_RETRIES_DISABLED": "The object cannot be reconstructed because the "
    "task was created with max_retries=0. Consider enabling retries using "
    "`@ray.remote(max_retries=N)`.",
    "OBJECT_UNRECONSTRUCTABLE_BORROWED": "The object cannot be reconstructed because it crossed an "
    "ownership boundary. Only the owner of an object can trigger reconstruction, but this worker "
    "borrowed the object from another worker.",
}


class GetTimeoutError(RayError, TimeoutError):
    """``ray.get(timeout=)`` ran out."""


class PlasmaObjectNotAvailable(RayError):
    """The object was not there within the time given."""


class AsyncioActorExit(RayError):
    """``exit_actor()`` in an asyncio actor."""


class RuntimeEnvSetupError(RayError):
    """The runtime environment could not be made."""

    def __init__(self, error_message: str | None = None) -> None:
        self.error_message = error_message

    def __str__(self) -> str:
        lines = ["Failed to set up runtime environment."]
        return "\n".join(lines + ([self.error_message] if self.error_message else []))


class TaskPlacementGroupRemoved(RayError):
    """The task's placement group is gone."""

    def __str__(self) -> str:
        return "The placement group corresponding to this task has been removed."


class ActorPlacementGroupRemoved(RayError):
    """The actor's placement group is gone."""

    def __str__(self) -> str:
        return "The placement group corresponding to this Actor has been removed."


class PendingCallsLimitExceeded(RayError):
    """``max_pending_calls`` are pending already."""


class TaskUnschedulableError(RayError):
    """No node can ever run the task."""

    def __init__(self, error_message: str) -> None:
        self.error_message = error_message

    def __str__(self) -> str:
        return f"The task is not schedulable: {self.error_message}"


class ActorUnschedulableError(RayError):
    """No node can ever run the actor."""

    def __init__(self, error_message: str) -> None:
        self.error_message = error_message

    def __str__(self) -> str:
        return f"The actor is not schedulable: {self.error_message}"


class ObjectRefStreamEndOfStreamError(RayError):
    """A streaming generator has no more."""


class StreamingGeneratorReplayInconsistentError(RaySystemError):
    """A generator made another number of objects the second time."""


class OufOfBandObjectRefSerializationException(RayError):
    """An ObjectRef was pickled by hand."""


class RayChannelError(RaySystemError):
    """Of compiled graphs."""


class RayChannelTimeoutError(RayChannelError, TimeoutError):
    """Of compiled graphs."""


class RayCgraphCapacityExceeded(RaySystemError):
    """Of compiled graphs."""


class RayDirectTransportError(RaySystemError):
    """Of direct transport."""


class CrossLanguageError(RayError):
    """From another language."""


class UnserializableException(RayError):
    """An exception could not be unpickled."""

    def __init__(self, original_stack_trace: str) -> None:
        self._original_stack_trace = original_stack_trace

    def __str__(self) -> str:
        return (
            "Failed to deserialize exception. Refer to https://docs.ray.io/en/latest/ray-core/"
            "objects/serialization.html#custom-serializers-for-exceptions for more information.\n"
            f"Original exception:\n{self._original_stack_trace}"
        )


class ActorAlreadyExistsError(ValueError, RayError):
    """The actor's name is taken."""

    def __init__(self, error_message: str) -> None:
        super().__init__(error_message)
        self.error_message = error_message

    def __str__(self) -> str:
        return self.error_message


class ActorHandleNotFoundError(ValueError, RayError):
    """The handle is of another session."""

    def __init__(self, error_message: str) -> None:
        super().__init__(error_message)
        self.error_message = error_message

    def __str__(self) -> str:
        return self.error_message


RAY_EXCEPTION_TYPES = [
    value
    for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, RayError)
]
for _class in RAY_EXCEPTION_TYPES:
    _class.__module__ = "ray.exceptions"
