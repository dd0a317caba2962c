"""``ray.get_runtime_context()``: who and where a program is.

Real counterpart: ``python/ray/runtime_context.py`` of ray 2.60.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysim.rayapi.actor_handle import ActorHandle
from raysim.rayapi.calls import program_call, this_core, this_fiber
from raysim.rayapi.execution import gpu_indices
from raysim.rayapi.fibers import HUB, Fiber
from raysim.rayapi.identifiers import ActorID, JobID, NodeID, PlacementGroupID, TaskID, WorkerID
from raysim.rayapi.options import ACCELERATORS
from raysim.rayapi.runtime_env import RuntimeEnv
from raysim.rayapi.util.placement_group import get_current_placement_group
from raysim.raycore.protocol import GetAllNodeInfo
from raysim.raycore.resources import UNIT, Allocation, base_name
from raysim.raycore.running import RunningTask
from raysim.raycore.tasks import InPlacementGroup
from raysim.raystate.names import task_name

if TYPE_CHECKING:
    from raysim.rayapi.process_state import ProcessState


def _connected(what: str) -> Fiber:
    fiber = HUB.current
    if fiber is None or fiber.process.core is None:
        raise RuntimeError(f"{what} is not available because Ray has not been initialized.")
    return fiber


def _in_worker() -> RunningTask | None:
    return this_fiber().task


def gpu_ids(resource: str = "GPU") -> list[int]:
    """Which instances the running task holds."""
    fiber = this_fiber()
    running = fiber.task
    if running is None:
        return gpu_indices(this_core(fiber).resource_ids, resource)
    return gpu_indices(held_by(fiber.process, running), resource)


def held_by(state: ProcessState, running: RunningTask) -> Allocation:
    """What a task holds; a method, what its actor does."""
    return running.resource_ids if state.actor is None else state.actor.resource_ids


def assigned_resources(held_resources: Allocation) -> dict[str, float]:
    """Without the names of placement groups."""
    found: dict[str, float] = {}
    for name, held in held_resources.items():
        base = base_name(name)
        units = held if isinstance(held, int) else sum(held)
        if base != "bundle" and units:
            found[base] = max(found.get(base, 0.0), units / UNIT)
    return found


class RuntimeContext:
    """Of the program that asks."""

    def get_job_id(self) -> str:
        """In hex."""
        return JobID(this_core(_connected("Job ID")).job_id).hex()

    def get_node_id(self) -> str:
        """In hex."""
        return NodeID(this_core(_connected("Node ID")).me.node_id).hex()

    def get_worker_id(self) -> str:
        """In hex."""
        return WorkerID(this_core(_connected("Worker ID")).me.worker_id).hex()

    def get_task_id(self) -> str | None:
        """In hex; None in a driver."""
        running = _in_worker()
        return TaskID(running.spec.task_id).hex() if running is not None else None

    def get_task_name(self) -> str | None:
        """The function's name, or the one that options gave."""
        running = _in_worker()
        return task_name(running.spec) if running is not None else None

    def get_task_function_name(self) -> str | None:
        """With its module."""
        running = _in_worker()
        if running is None:
            return None
        body: Any = running.spec.options.function.body
        return f"{body.module}.{body.name}"

    def get_attempt_number(self) -> int:
        """How often the running task has been retried."""
        running = _in_worker()
        return running.spec.attempt if running is not None else 0

    def get_actor_id(self) -> str | None:
        """In hex; None outside an actor."""
        actor = this_fiber().process.actor
        return ActorID(actor.actor_id).hex() if actor is not None else None

    def get_actor_name(self) -> str | None:
        """Empty if it has none; None outside an actor."""
        actor = this_fiber().process.actor
        return actor.creation_options.actor.name if actor is not None else None

    @property
    def namespace(self) -> str:
        """Of the job."""
        return this_fiber().process.namespace

    @property
    def job_id(self) -> JobID:
        """The id itself."""
        return JobID(this_core(this_fiber()).job_id)

    @property
    def node_id(self) -> NodeID:
        """The id itself."""
        return NodeID(this_core(this_fiber()).me.node_id)

    @property
    def task_id(self) -> TaskID | None:
        """The id itself."""
        running = _in_worker()
        return TaskID(running.spec.task_id) if running is not None else None

    @property
    def actor_id(self) -> ActorID | None:
        """The id itself."""
        actor = this_fiber().process.actor
        return ActorID(actor.actor_id) if actor is not None else None

    def get(self) -> dict[str, Any]:
        """The ids in one dict."""
        found: dict[str, Any] = {
            "job_id": self.job_id, "node_id": self.node_id, "namespace": self.namespace,
        }  # fmt: skip
        if self.task_id is not None:
            found["task_id"] = self.task_id
        if self.actor_id is not None:
            found["actor_id"] = self.actor_id
        return found

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether this actor has been restarted."""
        actor = this_fiber().process.actor
        assert actor is not None, "This method should't be called inside Ray tasks."
        return bool(actor.restarted)

    def get_placement_group_id(self) -> str | None:
        """In hex."""
        group = get_current_placement_group()
        return group.id.hex() if group is not None else None

    @property
    def current_placement_group_id(self) -> PlacementGroupID:
        """The id itself."""
        group = get_current_placement_group()
        return group.id if group is not None else PlacementGroupID.nil()

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        """Whether children run in the group of their parent."""
        running = _in_worker()
        strategy = running.spec.options.strategy if running is not None else None
        return isinstance(strategy, InPlacementGroup) and strategy.capture_child_tasks

    def get_assigned_resources(self) -> dict[str, float]:
        """What the running task or actor holds."""
        running = _in_worker()
        held = this_core(this_fiber()).resource_ids  # of a library's worker
        assert running is not None or held, (
            "This method is only available when the process is a                 worker. "
            "Current mode: 0"
        )
        if running is not None:
            held = held_by(this_fiber().process, running)
        return assigned_resources(held)

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """By kind of accelerator."""
        return {name: [str(i) for i in gpu_ids(name)] for name in ACCELERATORS}

    get_resource_ids = get_accelerator_ids

    @property
    def runtime_env(self) -> RuntimeEnv:
        """Of the process."""
        env = this_fiber().process.runtime_env
        return RuntimeEnv(
            **{k: dict(sorted(v.items())) if isinstance(v, dict) else v for k, v in env.items()}
        )

    def get_runtime_env_string(self) -> str:
        """As JSON."""
        return self.runtime_env.serialize()

    @property
    def current_actor(self) -> ActorHandle:
        """A handle of the actor this is called in."""
        state = this_fiber().process
        actor = state.actor
        if actor is None:
            raise RuntimeError("This method is only available in an actor.")
        made = actor.creation_options.actor
        options = (made.max_task_retries, made.max_pending_calls)
        return ActorHandle(state, actor.actor_id, None, actor.info, options)

    @property
    def gcs_address(self) -> str:
        """Of the head node."""
        from raysim.raycore.ids import node_ip

        return f"{node_ip(this_fiber().process.session.env.head)}:6379"

    @program_call
    def get_node_labels(self) -> dict[str, str]:
        """Of the node."""
        fiber = this_fiber()
        core, lead_ns = this_core(fiber), fiber.take_lead()
        rows = fiber.block(lambda then: core.call_gcs(GetAllNodeInfo(), then, lead_ns=lead_ns))
        return next((dict(r.labels) for r in rows if r.node_id == core.me.node_id), {})

    def get_session_name(self) -> str:
        """Of the cluster."""
        _connected("Session name")
        return "session_2026-01-01_00-00-00_000000_1"

    def get_temp_dir(self) -> str:
        """Where Ray would write."""
        return "/tmp/ray"  # noqa: S108  (a name to print)

    def is_canceled(self) -> bool:
        """Whether the running task has been asked to stop."""
        fiber = this_fiber()
        running = fiber.task
        if running is None:
            raise RuntimeError(
                "This method is only available when the process is a worker. Current mode: 0"
            )
        if fiber.process.loop is not None:
            raise RuntimeError("This method is not supported in an async actor.")
        return running.spec.task_id in fiber.process.canceled


RuntimeContext.__module__ = "ray.runtime_context"
_CONTEXT = RuntimeContext()


def get_runtime_context() -> RuntimeContext:
    """The one there is: it looks at whoever asks."""
    this_fiber()
    return _CONTEXT
