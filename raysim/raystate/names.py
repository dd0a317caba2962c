"""How Ray prints names: of functions, classes, nodes, and why a worker ended.

Real counterpart: ``PythonFunctionDescriptor::CallString`` (``src/ray/common``) for functions,
``rpc::WorkerExitType`` for exits.
"""

from __future__ import annotations

from raysim.raycore.ids import JobID, NodeID, hex_id, node_ip
from raysim.raycore.protocol import NodeTableData
from raysim.raycore.tasks import TaskOptions, TaskSpec

NODE_NAME_LABEL = "raysim/node-name"
"""Carries what ``ray start --node-name`` says; not shown as a label."""


def function_name(spec: TaskSpec) -> str:
    """``f``, ``A.method``, ``A.__init__``: without module and enclosing scopes."""
    parts = spec.options.function.name.replace("<locals>.", "").split(".")
    if spec.kind == "NORMAL_TASK":
        return parts[-1]
    if spec.kind == "ACTOR_CREATION_TASK" and parts[-1] != "__init__":
        return f"{parts[-1]}.__init__"
    return ".".join(parts[-2:])


def task_name(spec: TaskSpec) -> str:
    """``.options(name=...)``, else the function's; ``name:`` before a named actor's."""
    actor = spec.options.actor
    if spec.kind == "ACTOR_CREATION_TASK" and actor is not None and actor.name:
        return f"{actor.name}:{function_name(spec)}"
    return spec.options.name or function_name(spec)


def class_name(options: TaskOptions) -> str:
    """Of an actor, from the options of its creation task."""
    parts = options.function.name.split(".")
    return parts[-2] if parts[-1] == "__init__" and len(parts) > 1 else parts[-1]


def node_name(node_id: NodeID) -> str:
    """A node's host name, by which we speak of it."""
    return f"node-{node_id}"


def given_name(row: NodeTableData) -> str:
    """What ``ray start --node-name`` says, else the address."""
    return row.labels.get(NODE_NAME_LABEL, node_ip(row.node_id))


def node_labels(row: NodeTableData) -> dict[str, str]:
    """As Ray shows them: with the node's id, which every node has."""
    given = {key: value for key, value in row.labels.items() if key != NODE_NAME_LABEL}
    return {**given, "ray.io/node-id": hex_id("node", row.node_id)}


def driver_task_id(job_id: JobID) -> str:
    """The task id that stands for a job's driver."""
    return "f" * 40 + hex_id("job", job_id)


_EXITS = (
    ("NODE_OUT_OF_MEMORY", ("out of memory", "out_of_memory", "oom", "memory monitor")),
    ("INTENDED_USER_EXIT", ("exit_actor", "ray.kill", "exit code 0", "max_calls", "driver ",
                            "killed by ray", "out of scope", "user exit")),
    ("INTENDED_SYSTEM_EXIT", ("idle", "job", "intended", "drain", "removed", "not needed",
                              "unused", "owner", "nobody waits")),
    ("USER_ERROR", ("__init__", "creation task", "user error", "exception")),
)  # fmt: skip


def exit_type(detail: str) -> str:
    """``WorkerExitType`` told from the words of the exit's detail."""
    words = detail.lower()
    return next((kind for kind, marks in _EXITS if any(m in words for m in marks)), "SYSTEM_ERROR")
