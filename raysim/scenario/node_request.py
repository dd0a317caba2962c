"""What a cluster file asks for, before hardware is chosen: one request per group of equal nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

from raysim.errors import Problem
from raysim.scenario.documents import Document, KeyPath, shorten

NODES_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequest:
    """A group of equal nodes as ``available_node_types`` or ``workerGroupSpecs`` describes it."""

    name: str
    path: KeyPath
    """Where the group stands in the file."""
    head: bool
    count: int
    """Nodes at the start."""
    min_count: int = 0
    max_count: int | None = None
    """Up to where the autoscaler may go; None: fixed size."""
    resources: dict[str, float] = field(default_factory=dict)
    """Ray's logical resources per node."""
    labels: dict[str, str] = field(default_factory=dict)
    """Ray's node labels."""
    instance_type: str | None = None
    """Of the cloud provider, when the file says it."""
    accelerator: str | None = None
    """GPU model by a node label, when the file says that."""
    provider: str | None = None
    gpus: int | None = None
    """GPUs per node or pod; None: what the hardware has."""
    vcpus: int | None = None
    threads_per_core: int | None = None
    memory_bytes: int | None = None
    spot: bool = False
    """The file asks for machines that the cloud may take back."""


@dataclass(slots=True)
class ClusterReading:
    """Requests of one file with what is wrong and what is worth saying."""

    document: Document
    groups: list[NodeRequest] = field(default_factory=list)
    errors: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    max_workers: int | None = None
    """Limit over all groups without the head; None: each group has its own."""

    def error(self, path: KeyPath, message: str, *, key: bool = False) -> None:
        """Record a problem."""
        self.errors.append(self.document.problem(path, message, key=key))

    def note(self, path: KeyPath, message: str) -> None:
        """Record something taken or ignored."""
        self.notes.append(self.document.problem(path, message, key=True))

    def mapping(self, path: KeyPath, *, required: bool = False) -> dict[str, object]:
        """The mapping at ``path``; empty when there is none, with an error if it is not one."""
        data: object = self.document.data
        for step in path:
            if isinstance(data, dict):
                data = data.get(step)
            elif isinstance(data, list) and isinstance(step, int) and step < len(data):
                data = data[step]
            else:
                data = None
        if isinstance(data, dict):
            return data
        if data is not None:
            self.error(path, f"expected a mapping, got {shorten(data)}")
        elif required:
            self.error(path, "is required")
        return {}

    def count(self, path: KeyPath, value: object, default: int) -> int:
        """A number of nodes."""
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= NODES_MAX:
            self.error(
                path, f"expected a number of nodes from 0 to {NODES_MAX:,}, got {shorten(value)}"
            )
            return default
        return value
