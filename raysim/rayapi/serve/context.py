"""Who is asked: the request that a replica's code serves, and the replica itself.

Real counterpart: ``python/ray/serve/context.py`` (ray 2.60). Each request runs in a context of its
own, whether in the replica's event loop or in a thread.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.rayapi.serve.exceptions import RayServeException
from raysim.rayapi.unsupported import getattr_of

if TYPE_CHECKING:
    from raysim.rayapi.serve.replica import ProgramReplica


@dataclass(frozen=True)
class ReplicaContext:
    """``serve.get_replica_context()``."""

    app_name: str
    deployment: str
    replica_tag: str
    servable_object: Any

    @property
    def replica_id(self) -> str:
        """Of this replica."""
        return self.replica_tag


class Serving(NamedTuple):
    """A replica at work on a request; of its constructor without one."""

    replica: ProgramReplica
    model_id: str = ""
    parts: tuple[list[Any], ...] = ()
    """One list: responses of the calls that a request has made, to be cancelled with it."""

    def made(self, response: Any) -> None:
        """A call of the request's."""
        for parts in self.parts:
            parts[:] = [part for part in parts if not part.over]
            parts.append(response)


SERVING: ContextVar[Serving | None] = ContextVar("serving", default=None)


def here(call: str) -> Serving:
    """The replica whose code calls.

    Raises
    ------
    RayServeException
        It is no replica's.
    """
    found = SERVING.get()
    if found is None:
        raise RayServeException(f"`{call}` may only be called from within a Ray Serve deployment.")
    return found


def get_replica_context() -> ReplicaContext:
    """``serve.get_replica_context``."""
    return here("serve.get_replica_context()").replica.context


def get_multiplexed_model_id() -> str:
    """``serve.get_multiplexed_model_id``; empty where the request names none."""
    found = SERVING.get()
    return "" if found is None else found.model_id


__getattr__ = getattr_of("ray.serve.context")
