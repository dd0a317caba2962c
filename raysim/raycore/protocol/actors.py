"""Actors: worker <-> GCS (``gcs_service.proto``)."""

from __future__ import annotations

from typing import Literal, NamedTuple

from raysim.raycore.ids import ActorID, JobID, WorkerAddress
from raysim.raycore.protocol.addresses import SMALL_BYTES
from raysim.raycore.tasks import TaskError, TaskOptions, TaskSpec

ActorState = Literal["DEPENDENCIES_UNREADY", "PENDING_CREATION", "ALIVE", "RESTARTING", "DEAD"]


class ActorTableData(NamedTuple):
    """A row of the actor table, as published."""

    actor_id: ActorID
    state: ActorState
    address: WorkerAddress | None
    num_restarts: int
    options: TaskOptions
    owner: WorkerAddress
    job_id: JobID
    death_cause: TaskError | None = None
    remaining_restarts: int = 0
    preempted: bool = False
    size_bytes: int = 500


class RegisterActor(NamedTuple):
    """Owner -> GCS: persist it; answered with its row, or a ``TaskError`` if the name is taken."""

    spec: TaskSpec
    ray_namespace: str
    size_bytes: int = 2_000


class CreateActor(NamedTuple):
    """Owner -> GCS: its arguments are resolved, place and start it.

    Answered with ``ActorTableData`` when alive, or with a ``TaskError``.
    """

    spec: TaskSpec
    size_bytes: int = 2_000


class SubscribeActor(NamedTuple):
    """Worker -> GCS: send me ``ActorStateChanged`` of it from now on.

    Answered with its row (or None). ``unsubscribe`` ends it.
    """

    actor_id: ActorID
    subscriber: str
    unsubscribe: bool = False
    size_bytes: int = SMALL_BYTES


class ActorStateChanged(NamedTuple):
    """GCS -> subscribers (pub/sub GCS_ACTOR). One way."""

    actor: ActorTableData
    size_bytes: int = 500


class GetNamedActorInfo(NamedTuple):
    """Worker -> GCS; answered with ``ActorTableData`` or None."""

    name: str
    ray_namespace: str
    size_bytes: int = SMALL_BYTES


class KillActorViaGcs(NamedTuple):
    """Worker -> GCS: ``ray.kill``; answered with True if it was known."""

    actor_id: ActorID
    no_restart: bool
    force_kill: bool = True
    size_bytes: int = SMALL_BYTES


class ReportActorOutOfScope(NamedTuple):
    """Owner -> GCS: no handle is left; the actor ends after the calls it has. Answered None."""

    actor_id: ActorID
    size_bytes: int = SMALL_BYTES


class RestartActorForLineageReconstruction(NamedTuple):
    """Owner -> GCS: a dead actor's object is needed again; answered None."""

    actor_id: ActorID
    size_bytes: int = SMALL_BYTES
