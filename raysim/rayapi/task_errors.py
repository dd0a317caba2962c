"""The root of Ray's exceptions, and what a task's own exception becomes.

Real counterpart: ``RayError`` and ``RayTaskError`` of ``python/ray/exceptions.py`` of ray 2.60.
"""

from __future__ import annotations

from typing import Any

_CYAN, _RESET = "\x1b[36m", "\x1b[39m"


class RayError(Exception):
    """Of all Ray's."""


class RayTaskError(RayError):
    """The task raised; ``cause`` is what."""

    def __init__(
        self,
        function_name: str,
        traceback_str: str,
        cause: BaseException,
        proctitle: str | None = None,
        pid: int | None = None,
        ip: str | None = None,
        actor_repr: str | None = None,
        actor_id: str | None = None,
    ) -> None:
        self.function_name = function_name
        self.traceback_str = traceback_str
        self.cause = cause
        self.proctitle = proctitle or f"ray::{function_name}"
        self.pid = pid
        self.ip = ip
        self.actor_repr = actor_repr
        self._actor_id = actor_id
        self.args = (function_name, traceback_str, cause, proctitle, pid, ip)

    def __reduce__(self) -> tuple[Any, ...]:
        return RayTaskError, (
            self.function_name, self.traceback_str, self.cause, self.proctitle, self.pid, self.ip,
            self.actor_repr, self._actor_id,
        )  # fmt: skip

    def as_instanceof_cause(self) -> RayTaskError:
        """An exception of both classes, if the cause's can be derived from; else this one."""
        cause_class = self.cause.__class__
        if issubclass(RayTaskError, cause_class):
            return self
        try:
            return _dual(self, cause_class)
        except Exception:  # noqa: BLE001  (a class may refuse in any way; Ray then raises this one)
            return self

    make_dual_exception_instance = as_instanceof_cause

    def __str__(self) -> str:
        where = f" (pid={self.pid}, ip={self.ip}"
        if self.actor_repr:
            where += f", actor_id={self._actor_id}, repr={self.actor_repr}"
        title = f"{_CYAN}{self.proctitle}(){_RESET}{where})"
        lines = self.traceback_str.strip().split("\n")
        return "\n".join(title if line.startswith("Traceback ") else line for line in lines)


def _dual(error: RayTaskError, cause_class: type[BaseException]) -> RayTaskError:
    message = str(error)

    class Dual(RayTaskError, cause_class):  # type: ignore[valid-type, misc]  # noqa: N818
        def __new__(cls, cause: BaseException) -> Any:
            if isinstance(cause, BaseExceptionGroup):
                return super().__new__(cls, cause.message, cause.exceptions)
            return super().__new__(cls, cause)

        def __init__(self, cause: BaseException) -> None:
            self.cause = cause
            self._own_args = (cause,)

        @property
        def args(self) -> tuple[Any, ...]:
            return self._own_args

        @args.setter
        def args(self, value: Any) -> None:
            self._own_args = value

        def __reduce__(self) -> tuple[Any, ...]:
            return RayTaskError.as_instanceof_cause, (error,)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.cause, name)

        def __str__(self) -> str:
            return message

    Dual.__name__ = Dual.__qualname__ = f"RayTaskError({cause_class.__name__})"
    Dual.__module__ = "ray.exceptions"
    return Dual(error.cause)
