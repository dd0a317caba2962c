"""``ray.NodeID`` and the rest: ids as programs see them.

Real counterpart: ``python/ray/includes/unique_ids.pxi``. A program may print, compare, hash and
pickle them and turn them into hex and back. The number inside is the simulation's own counter.
Not modelled: that another run draws others.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from raysim.raycore.ids import hex_id, id_bytes, job_of, number_of


class BaseID:
    """A number that prints as Ray's bytes do; ``-1`` is nil."""

    __slots__ = ("number",)
    kind: ClassVar[str] = "object"

    def __init__(self, id: bytes | int) -> None:  # noqa: A002  (Ray's own name for it)
        if isinstance(id, bytes):
            if len(id) != self.size():
                raise ValueError(f"ID string needs to have length {self.size()}, got {len(id)}")
            nil = id == b"\xff" * len(id)
            self.number = -1 if nil else number_of(self.kind, id)
        else:
            self.number = id

    @classmethod
    def size(cls) -> int:
        """Bytes of it."""
        return len(id_bytes(cls.kind, 0))

    @classmethod
    def nil(cls) -> Self:
        """None of them."""
        return cls(-1)

    @classmethod
    def from_hex(cls, hex_id: str) -> Self:
        """Back from ``hex()``."""
        return cls(bytes.fromhex(hex_id))

    def is_nil(self) -> bool:
        """Whether it is ``nil()``."""
        return self.number == -1

    def hex(self) -> str:
        """As Ray prints it."""
        if self.number == -1:
            return "ff" * self.size()
        return hex_id(self.kind, self.number)

    def binary(self) -> bytes:
        """Its bytes."""
        return bytes.fromhex(self.hex())

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.number == other.number

    def __hash__(self) -> int:
        return hash((self.kind, self.number))

    def __lt__(self, other: Any) -> bool:
        return bool(self.number < other.number)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.hex()})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.number,)


class UniqueID(BaseID):
    """28 bytes of any kind."""

    __slots__ = ()


class NodeID(UniqueID):
    """A node."""

    __slots__ = ()
    kind = "node"


class WorkerID(UniqueID):
    """A worker process."""

    __slots__ = ()
    kind = "worker"


class JobID(BaseID):
    """A job."""

    __slots__ = ()
    kind = "job"

    @classmethod
    def from_int(cls, value: int) -> Self:
        """The job of that number."""
        return cls(value)

    def int(self) -> int:
        """Its number."""
        return self.number


class TaskID(BaseID):
    """A task."""

    __slots__ = ()
    kind = "task"

    def job_id(self) -> JobID:
        """The job it belongs to."""
        return JobID(job_of(self.number))


class ActorID(BaseID):
    """An actor."""

    __slots__ = ()
    kind = "actor"

    @property
    def job_id(self) -> JobID:
        """The job it belongs to."""
        return JobID(job_of(self.number))


class PlacementGroupID(BaseID):
    """A placement group."""

    __slots__ = ()
    kind = "placement_group"


class ActorClassID(UniqueID):
    """A class made remote."""

    __slots__ = ()


class FunctionID(UniqueID):
    """A function made remote."""

    __slots__ = ()


class ClusterID(UniqueID):
    """A cluster."""

    __slots__ = ()


for _class in (BaseID, UniqueID, NodeID, WorkerID, JobID, TaskID, ActorID, PlacementGroupID,
               ActorClassID, FunctionID, ClusterID):  # fmt: skip
    _class.__module__ = "ray._raylet"
