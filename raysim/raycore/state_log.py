"""What happened to tasks, actors, objects, workers, nodes and groups, for the frames and traces.

Real counterpart: task events and the state API (``ray list tasks``). Rooms call one method per
change of state; nothing is kept unless someone listens (``StateLog.enabled``).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

TaskState = Literal[
    "PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "PENDING_OBJ_STORE_MEM_AVAIL",
    "PENDING_ARGS_FETCH", "SUBMITTED_TO_WORKER", "PENDING_ACTOR_TASK_ARGS_FETCH",
    "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY", "RUNNING", "RUNNING_IN_RAY_GET",
    "RUNNING_IN_RAY_WAIT", "GETTING_AND_PINNING_ARGS", "FINISHED", "FAILED",
]  # fmt: skip
"""``rpc::TaskStatus`` of ray 2.60."""

Kind = Literal["task", "actor", "object", "worker", "node", "placement_group", "lease", "job"]


class Change(NamedTuple):
    """One row: the thing, its new state, when, and what else is known (``TaskSpec``, error...)."""

    kind: Kind
    number: int
    state: str
    t_ns: int
    node_id: int
    worker_id: int
    detail: Any


class StateLog:
    """Keeps rows, or nothing."""

    __slots__ = ("enabled", "rows")

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.rows: list[Change] = []

    def note(
        self,
        kind: Kind,
        number: int,
        state: str,
        t_ns: int,
        *,
        node_id: int = -1,
        worker_id: int = 0,
        detail: Any = None,
    ) -> None:
        """Add a row. Hot callers test ``enabled`` first."""
        if self.enabled:
            self.rows.append(Change(kind, number, state, t_ns, node_id, worker_id, detail))
