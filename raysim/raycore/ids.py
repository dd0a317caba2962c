"""Names of everything a cluster holds: small integers from counters, and how Ray prints them.

Real counterpart: ``src/ray/common/id.h``. Where Ray's ids have random bytes, ours count up, so that
one seed gives one run and a table of a million tasks stays small; as programs see them the counts
are scattered, for many tell things apart by an id's first digits. As in Ray an actor's id carries
its job's, a task's its actor's (or, without one, its job's), an object's its task's and an index:
returns come first (1, 2, ...), puts of the task have ``FIRST_PUT`` and up.

From the left, in bits: object = task, index 32; task = count, actor; actor = count 32, job 16.

A simplification that shows: Ray breaks ties between equally good nodes by their random ids, we by
the order of the cluster file.
"""

from __future__ import annotations

from functools import cache
from hashlib import shake_256
from typing import NamedTuple

TaskID = int
ObjectID = int
ActorID = int
NodeID = int
"""The node's index in the cluster."""
WorkerID = int
JobID = int
PlacementGroupID = int
LeaseID = int

OBJECT_INDEX_BITS = 32
"""``ObjectID`` = ``TaskID`` above this many bits of index."""
FIRST_PUT = 100_000_001

_JOB_BITS = 16
_ACTOR_BITS = 32 + _JOB_BITS
_JOBS = 1 << _JOB_BITS

_BYTES = {"job": 4, "node": 28, "worker": 28, "actor": 16, "task": 24, "object": 28,
          "placement_group": 18, "lease": 28}  # fmt: skip
"""``src/ray/design_docs/id_specification.md`` (ray 2.60)."""
_WITHIN = {"actor": ("job", _JOB_BITS), "placement_group": ("job", _JOB_BITS),
           "task": ("actor", _ACTOR_BITS)}  # fmt: skip
"""What an id ends with, and how many bits of our number that is."""


class WorkerAddress(NamedTuple):
    """How to reach a worker process: its id, the address of its room, the node it is on."""

    worker_id: WorkerID
    address: str
    node_id: NodeID


def object_id(task_id: TaskID, index: int) -> ObjectID:
    """The ``index``-th object of a task, from 1."""
    return task_id << OBJECT_INDEX_BITS | index


def task_of(an_object: ObjectID) -> TaskID:
    """The task that made the object, or during which it was put."""
    return an_object >> OBJECT_INDEX_BITS


def index_of(an_object: ObjectID) -> int:
    """Which object of its task it is, from 1."""
    return an_object & (1 << OBJECT_INDEX_BITS) - 1


def actor_handle(actor: ActorID) -> ObjectID:
    """What handles of an actor count for, and what ``Payload.contained`` says of one."""
    return -actor


def job_of(a_task_or_actor: TaskID | ActorID) -> JobID:
    """The job it belongs to."""
    return a_task_or_actor & _JOBS - 1


def id_bytes(kind: str, number: int) -> bytes:
    """As Ray has an id of this kind, with our number in it; nothing there is all ones."""
    size = _BYTES[kind]
    if kind == "job":
        return number.to_bytes(size, "little")
    if kind == "object":
        if number < 0:  # handles of an actor
            return b"\xff" * 8 + id_bytes("actor", -number) + b"\1\0\0\0"
        return id_bytes("task", task_of(number)) + index_of(number).to_bytes(4, "little")
    if kind not in _WITHIN:
        return _scattered(kind, number, size)
    outer, bits = _WITHIN[kind]
    count, rest = number >> bits, id_bytes(outer, number & (1 << bits) - 1)
    size -= len(rest)
    return (_scattered(kind, count, size) if count else b"\xff" * size) + rest


def number_of(kind: str, data: bytes) -> int:
    """Our number in an id of this kind."""
    if kind == "job":
        return int.from_bytes(data, "little")
    if kind == "object":
        return object_id(number_of("task", data[:-4]), int.from_bytes(data[-4:], "little"))
    if kind not in _WITHIN:
        return _gathered(kind, data)
    outer, bits = _WITHIN[kind]
    own = data[: -_BYTES[outer]]
    count = 0 if own == b"\xff" * len(own) else _gathered(kind, own)
    return count << bits | number_of(outer, data[len(own) :])


@cache
def _scatter(kind: str, size: int) -> tuple[int, int, int]:
    """Of an affine map of ``size`` bytes onto themselves: factor, summand, the factor's inverse."""
    drawn = shake_256(kind.encode()).digest(2 * size)
    factor = int.from_bytes(drawn[:size], "big") | 1
    return factor, int.from_bytes(drawn[size:], "big"), pow(factor, -1, 1 << 8 * size)


def _scattered(kind: str, count: int, size: int) -> bytes:
    factor, summand, _ = _scatter(kind, size)
    return (count * factor + summand & (1 << 8 * size) - 1).to_bytes(size, "big")


def _gathered(kind: str, data: bytes) -> int:
    """The count that was scattered; of an id that nobody made, a number that nobody has."""
    _, summand, inverse = _scatter(kind, len(data))
    return (int.from_bytes(data, "big") - summand) * inverse & (1 << 8 * len(data)) - 1


def hex_id(kind: str, number: int) -> str:
    """As Ray prints an id of this kind."""
    return id_bytes(kind, number).hex()


def node_ip(node_id: NodeID) -> str:
    """A node's address, as Ray's node resource carries it: made up, in order."""
    return f"10.{node_id >> 16 & 255}.{node_id >> 8 & 255}.{node_id & 255}"


def process_id(worker_id: WorkerID) -> int:
    """What ``os.getpid`` says in a worker process: made up, in order."""
    return 10_000 + worker_id


class Ids:
    """Counters of one cluster."""

    __slots__ = ("_actor", "_job", "_lease", "_placement_group", "_task", "_worker")

    def __init__(self) -> None:
        self._task = self._actor = self._job = self._worker = 0
        self._placement_group = self._lease = 0

    def task(self, of: JobID | ActorID = 1) -> TaskID:
        """A new task of a job, or of an actor."""
        self._task += 1
        return self._task << _ACTOR_BITS | of

    def actor(self, job: JobID = 1) -> ActorID:
        """A new actor."""
        self._actor += 1
        return self._actor << _JOB_BITS | job

    def job(self) -> JobID:
        """A new job."""
        self._job += 1
        assert self._job < _JOBS, f"more than {_JOBS} jobs"
        return self._job

    def worker(self) -> WorkerID:
        """A new worker process, driver or IO worker."""
        self._worker += 1
        return self._worker

    def placement_group(self, job: JobID = 1) -> PlacementGroupID:
        """A new placement group."""
        self._placement_group += 1
        return self._placement_group << _JOB_BITS | job

    def lease(self) -> LeaseID:
        """A new lease request."""
        self._lease += 1
        return self._lease
