"""Who is asked: the request that a replica's code serves, and the replica itself.

Real counterpart: ``python/ray/serve/context.py`` (ray 2.60). Each request runs in a context of its
own, whether in the replica's event loop or in a thread.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.rayapi.serve.exceptions import RayServeException
from raysim.rayapi.unsupported import NotEmulatedError, getattr_of

if TYPE_CHECKING:
    from raysim.rayapi.serve.replica import ProgramReplica


@dataclass(frozen=True)
class DeploymentID:
    """Of an application."""

    name: str
    app_name: str = "default"

    def __str__(self) -> str:
        return f"Deployment(name='{self.name}', app='{self.app_name}')"

    __repr__ = __str__


@dataclass(frozen=True)
class ReplicaID:
    """Of a deployment."""

    unique_id: str
    deployment_id: DeploymentID

    def to_full_id_str(self) -> str:
        """As actors are named."""
        deployed = self.deployment_id
        return f"SERVE_REPLICA::{deployed.app_name}#{deployed.name}#{self.unique_id}"

    def __str__(self) -> str:
        deployed = self.deployment_id
        return (
            f"Replica(id='{self.unique_id}', deployment='{deployed.name}', "
            f"app='{deployed.app_name}')"
        )

    __repr__ = __str__


@dataclass(frozen=True)
class ReplicaRank:
    """Among the replicas of a deployment."""

    rank: int


@dataclass(frozen=True)
class ReplicaContext:
    """``serve.get_replica_context()``."""

    replica_id: ReplicaID
    servable_object: Any
    number: int
    """Of replicas of its deployment, in the order in which they were asked for."""
    world_size: int

    @property
    def app_name(self) -> str:
        """Of its application."""
        return self.replica_id.deployment_id.app_name

    @property
    def deployment(self) -> str:
        """Of which it is one."""
        return self.replica_id.deployment_id.name

    @property
    def replica_tag(self) -> str:
        """Of this replica."""
        return self.replica_id.unique_id

    @property
    def rank(self) -> ReplicaRank:
        """Of the first replicas; later ones have those of replicas that went."""
        if self.number >= self.world_size:
            raise NotEmulatedError("ReplicaContext.rank of a later replica", "replica_id")
        return ReplicaRank(self.number)


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
    if found is None or found.replica.is_local:
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
