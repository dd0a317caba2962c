"""The module that programs import as ``ray``.

Real counterpart: ``python/ray/__init__.py`` and ``python/ray/_private/worker.py`` of ray 2.60.
What Ray has and this has not is refused by name (``unsupported``).
"""

from __future__ import annotations

import inspect
import logging
import os
from functools import partial
from importlib import import_module
from typing import Any

from raysim.rayapi import actors as actor
from raysim.rayapi import exceptions, job_config, runtime_context, runtime_env, util
from raysim.rayapi import options as ray_options
from raysim.rayapi.actor_handle import ActorHandle, find_actor, not_found
from raysim.rayapi.actors import ActorClass, method, validate_namespace
from raysim.rayapi.calls import program_call, this_core, this_fiber
from raysim.rayapi.dag.refs import CompiledDAGRef
from raysim.rayapi.fibers import HUB, Fiber, Waiter
from raysim.rayapi.identifiers import (
    ActorClassID,
    ActorID,
    ClusterID,
    FunctionID,
    JobID,
    NodeID,
    PlacementGroupID,
    TaskID,
    UniqueID,
    WorkerID,
)
from raysim.rayapi.objects import (
    DynamicObjectRefGenerator,
    ObjectRef,
    ObjectRefGenerator,
    get_values,
)
from raysim.rayapi.remote_function import RemoteFunction
from raysim.rayapi.runtime_context import get_runtime_context, gpu_ids
from raysim.rayapi.serialization import pickled_bytes, serialize
from raysim.rayapi.state import available_resources, cluster_resources, nodes, timeline
from raysim.rayapi.submission import put_payload
from raysim.rayapi.unsupported import getattr_of

__version__ = "2.60.0"
__commit__ = "raysim"

SCRIPT_MODE, WORKER_MODE, LOCAL_MODE = 0, 1, 2
RESTORE_WORKER_MODE, SPILL_WORKER_MODE = 3, 4
ObjectID = ObjectRef

LIBRARIES = ("data", "tune")

_log = logging.getLogger(__name__)
"""Its own: where the real Ray is imported too, handlers of the logger `ray` are that one's."""


class RayContext(dict[str, Any]):
    """What ``ray.init`` returns."""

    @property
    def address_info(self) -> dict[str, Any]:
        """The same."""
        return dict(self)

    @property
    def dashboard_url(self) -> str:
        """None is served."""
        return ""

    def disconnect(self) -> None:
        """``ray.shutdown``."""
        shutdown()

    def __enter__(self) -> RayContext:
        return self

    def __exit__(self, *_exc: object) -> None:
        shutdown()


_INIT_OPTIONS = {
    "include_dashboard", "dashboard_host", "dashboard_port", "job_config", "configure_logging",
    "logging_level", "logging_format", "logging_config", "log_to_driver",
    "enable_resource_isolation", "cgroup_path", "system_reserved_cpu", "system_reserved_memory",
    "proxy_server_url", "num_cpus", "num_gpus", "resources", "labels", "object_store_memory",
    "namespace", "runtime_env",
    "_enable_object_reconstruction", "_redis_max_memory", "_plasma_directory",
    "_object_spilling_directory", "_node_ip_address", "_driver_object_store_memory", "_memory",
    "_redis_username", "_redis_password", "_temp_dir", "_metrics_export_port", "_system_config",
    "_tracing_startup_hook", "_node_name", "storage",
}  # fmt: skip


@program_call
def init(
    address: str | None = None,
    *,
    local_mode: bool = False,
    ignore_reinit_error: bool = False,
    **given: Any,
) -> RayContext:
    """Connect to the emulated cluster."""
    fiber = HUB.current
    if fiber is None:
        from raysim.rayapi import standalone

        standalone.enter()
        return init(
            address, local_mode=local_mode, ignore_reinit_error=ignore_reinit_error, **given
        )
    unknown = ", ".join(name for name in given if name not in _INIT_OPTIONS)
    if unknown:
        raise RuntimeError(f"Unknown keyword argument(s): {unknown}")
    if local_mode:
        from raysim.rayapi.unsupported import NotEmulatedError

        raise NotEmulatedError("ray.init(local_mode=True)", "a cluster of one node")
    job = given.get("job_config") or job_config.JobConfig()
    given = job.applied_to(given)
    if given.get("namespace") is not None:
        validate_namespace(given["namespace"])
    runtime_env.validate(dict(given.get("runtime_env") or {}))
    if fiber.process.core is not None:
        if not ignore_reinit_error:
            raise RuntimeError(
                "Maybe you called ray.init twice by accident? This error can be suppressed by "
                "passing in 'ignore_reinit_error=True' or by calling 'ray.shutdown()' prior to "
                "'ray.init()'."
            )
        _log.info("Calling ray.init() again after it has already been called.")
        return _context(fiber)
    address = address or os.environ.get("RAY_ADDRESS")
    sized = ("num_cpus", "num_gpus"), ("resources",), ("labels",), ("object_store_memory",)
    for names in sized if address not in (None, "local") else ():
        if any(given.get(name) is not None for name in names):
            raise ValueError(
                f"When connecting to an existing cluster, {' and '.join(names)} must not be "
                "provided."
            )
    session, before = fiber.process.session, fiber.process.runtime_env
    session.connect(fiber, {"address": address, **given})
    session.jobs[this_core(fiber).job_id] |= {
        "actor_lifetime": job.default_actor_lifetime, "env_before": before,
    }  # fmt: skip
    return _context(fiber)


def _context(fiber: Fiber) -> RayContext:
    core = this_core(fiber)
    return RayContext(
        node_ip_address=fiber.process.ip,
        node_id=NodeID(core.me.node_id).hex(),
        address=runtime_context._CONTEXT.gcs_address,
        gcs_address=runtime_context._CONTEXT.gcs_address,
        session_dir="/tmp/ray/session_latest",  # noqa: S108  (a name to print)
        webui_url="",
        dashboard_agent_listen_port=0,
        metrics_export_port=0,
        ray_version=__version__,
        python_version="3.11.0",
        ray_commit=__commit__,
    )


@program_call
def shutdown(*, wait_for_processes: bool = False, _exiting_interpreter: bool = False) -> None:
    """Disconnect."""
    del wait_for_processes, _exiting_interpreter
    fiber = HUB.current
    if fiber is not None and fiber.process.core is not None and fiber.process.is_driver:
        job = fiber.process.session.jobs[this_core(fiber).job_id]
        fiber.process.session.disconnect(fiber)
        fiber.process.runtime_env = job.get("env_before", fiber.process.runtime_env)


def is_initialized() -> bool:
    """Whether the program is connected."""
    return HUB.current is not None and HUB.current.process.core is not None


def _make_remote(target: Any, options: dict[str, Any]) -> Any:
    if not target.__module__:
        target.__module__ = "global"
    if inspect.isfunction(target):
        generator = inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target)
        ray_options.validate_task(options, in_options=False, is_generator=generator)
        return RemoteFunction(target, options)
    if inspect.isclass(target):
        ray_options.validate_actor(options, in_options=False)
        return ActorClass.made_from(target, options)
    raise TypeError("The @ray.remote decorator must be applied to either a function or a class.")


def remote(*args: Any, **kwargs: Any) -> Any:
    """Make a function's calls tasks, or a class's instances actors."""
    if len(args) == 1 and not kwargs and callable(args[0]):
        return _make_remote(args[0], {})
    if args or not kwargs:
        raise AssertionError(ray_options.DECORATOR_ERROR)
    return partial(_make_remote, options=kwargs)


@program_call
def get(object_refs: Any, *, timeout: float | None = None, _use_object_store: bool = False) -> Any:
    """Wait for values."""
    del _use_object_store
    fiber = this_fiber()
    if isinstance(object_refs, ObjectRefGenerator):
        return object_refs
    if isinstance(object_refs, ObjectRef):
        return get_values(fiber, [object_refs], timeout)[0]
    if isinstance(object_refs, CompiledDAGRef):
        return object_refs.get(timeout)
    if not isinstance(object_refs, list):
        raise ValueError(
            f"Invalid type of object refs, {type(object_refs)}, is given. 'object_refs' must "
            "either be an ObjectRef or a list of ObjectRefs. "
        )
    for ref in object_refs:
        if not isinstance(ref, ObjectRef):
            if any(isinstance(r, CompiledDAGRef) for r in object_refs):
                return _get_of_dags(object_refs, timeout)
            raise TypeError(
                f"Attempting to call `get` on the value {ref}, which is not an ray.ObjectRef."
            )
    return get_values(fiber, object_refs, timeout) if object_refs else []


def _get_of_dags(refs: list[Any], timeout: float | None) -> list[Any]:
    if not all(isinstance(ref, CompiledDAGRef) for ref in refs):
        raise ValueError(
            "Invalid type of object refs. 'object_refs' must be a list of CompiledDAGRefs if there "
            "is any CompiledDAGRef within it. "
        )
    return [ref.get(timeout) for ref in refs]


@program_call
def put(value: Any, *, _owner: Any = None, _tensor_transport: str | None = None) -> ObjectRef:
    """Store a value."""
    if _owner is not None:
        raise ValueError(
            "The experimental `_owner` argument to `ray.put` has been removed in Ray 2.56."
        )
    if isinstance(value, ObjectRef):
        raise TypeError(
            "Calling 'put' on an ray.ObjectRef is not allowed. If you really want to do this, you "
            "can wrap the ray.ObjectRef in a list and call 'put' on it."
        )
    if _tensor_transport is not None:
        from raysim.rayapi.unsupported import NotEmulatedError

        raise NotEmulatedError("ray.put(_tensor_transport=)", "the object store")
    fiber = this_fiber()
    core = this_core(fiber)
    costs = core.costs
    fiber.lead_ns += core.first_value_ns()
    try:
        payload = serialize(value)
    except TypeError as error:
        raise TypeError(f"Could not serialize the put value {value!r}:\n{error}") from error
    fiber.lead_ns += costs.put_ns
    fiber.lead_ns += round(pickled_bytes(payload) / costs.serialize_bytes_per_s * 1e9)
    return put_payload(fiber, payload)


@program_call
def wait(
    ray_waitables: list[Any],
    *,
    num_returns: int = 1,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> tuple[list[Any], list[Any]]:
    """Which are ready, in the order given."""
    fiber = this_fiber()
    _check_wait(ray_waitables, num_returns, timeout)
    if not ray_waitables:
        return [], []
    core = this_core(fiber)
    fiber.lead_ns += core.costs.wait_ns + core.costs.per_ref_wait_ns * len(ray_waitables)
    timeout_ns = None if timeout is None else round(timeout * 1e9)
    if any(isinstance(w, ObjectRefGenerator) for w in ray_waitables):
        ready = _wait_generators(fiber, ray_waitables, num_returns, timeout_ns)
    else:
        refs = [w._ref for w in ray_waitables]
        lead_ns = fiber.take_lead()
        ready = fiber.block(
            lambda then: core.wait(
                refs, num_returns, then,
                timeout_ns=timeout_ns, fetch_local=fetch_local, lead_ns=lead_ns,
            )
        )  # fmt: skip
    done = [w for w, there in zip(ray_waitables, ready, strict=True) if there]
    return done, [w for w, there in zip(ray_waitables, ready, strict=True) if not there]


def _check_wait(waitables: Any, num_returns: int, timeout: float | None) -> None:
    if isinstance(waitables, (ObjectRef, ObjectRefGenerator)):
        raise TypeError(
            "wait() expected a list of ray.ObjectRef or ray.ObjectRefGenerator, got a single "
            f"ray.ObjectRef or ray.ObjectRefGenerator {waitables}"
        )
    if not isinstance(waitables, list):
        raise TypeError(
            "wait() expected a list of ray.ObjectRef or ray.ObjectRefGenerator, got "
            f"{type(waitables)}"
        )
    if timeout is not None and timeout < 0:
        raise ValueError(f"The 'timeout' argument must be nonnegative. Received {timeout}")
    for waitable in waitables:
        if not isinstance(waitable, (ObjectRef, ObjectRefGenerator)):
            raise TypeError(
                "wait() expected a list of ray.ObjectRef or ray.ObjectRefGenerator, got list "
                f"containing {type(waitable)}"
            )
    if not waitables:
        return
    if len(waitables) != len(set(waitables)):
        raise ValueError("Wait requires a list of unique ray_waitables.")
    if num_returns <= 0:
        raise ValueError(f"Invalid number of objects to return {num_returns:d}.")
    if num_returns > len(waitables):
        raise ValueError(
            "num_returns cannot be greater than the number of ray_waitables provided to ray.wait."
        )


def _wait_generators(
    fiber: Fiber, waitables: list[Any], num_returns: int, timeout_ns: int | None
) -> list[bool]:
    """Generators are ready when their next item is: each waitable is asked for by itself."""
    fiber.settle()
    core, sim = this_core(fiber), fiber.process.session.sim
    ready = [False] * len(waitables)

    def start(then: Waiter) -> None:
        left = num_returns

        def arrived(index: int, there: Any = None) -> None:
            nonlocal left
            if there == [False] or ready[index]:
                return
            ready[index] = True
            left -= 1
            if left == 0:
                then()

        for index, waitable in enumerate(waitables):
            if isinstance(waitable, ObjectRefGenerator):
                waitable.peek(partial(arrived, index))
            else:
                ref = waitable._ref
                core.wait([ref], 1, partial(arrived, index), timeout_ns=timeout_ns)
        if timeout_ns is not None and left > 0:
            sim.call_later(timeout_ns, then)

    fiber.block(start)
    chosen, left = [], num_returns
    for there in ready:
        chosen.append(there and left > 0)
        left -= there
    return chosen


@program_call
def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """A handle of a named actor."""
    if not name:
        raise ValueError("Please supply a non-empty value to get_actor")
    if namespace is not None:
        validate_namespace(namespace)
    found = find_actor(this_fiber(), name, namespace)
    if found is None:
        raise not_found(name)
    return found


@program_call
def kill(actor: ActorHandle, *, no_restart: bool = True) -> None:
    """End an actor at once."""
    if not isinstance(actor, ActorHandle):
        raise ValueError(
            "ray.kill() only supported for actors. For tasks, try ray.cancel(). "
            f"Got: {type(actor)}."
        )
    fiber = this_fiber()
    number = actor._actor_id.number
    this_core(fiber).kill_actor(number, no_restart=no_restart, lead_ns=fiber.lead_ns)


@program_call
def cancel(ray_waitable: Any, *, force: bool = False, recursive: bool = True) -> None:
    """Cancel a task."""
    fiber = this_fiber()
    if isinstance(ray_waitable, ObjectRefGenerator):
        ray_waitable = ray_waitable._generator_ref
    if not isinstance(ray_waitable, ObjectRef):
        raise TypeError(
            "ray.cancel() only supported for object refs. For actors, try ray.kill(). "
            f"Got: {type(ray_waitable)}."
        )
    ref = ray_waitable._ref
    if force and ray_waitable.of_actor and this_core(fiber).is_pending(ref):
        raise ValueError("force=True is not supported for actor tasks.")
    this_core(fiber).cancel(ref, force=force, recursive=recursive, lead_ns=fiber.lead_ns)


def get_gpu_ids() -> list[int]:
    """Which GPUs the running task holds."""
    return gpu_ids()


_missing = getattr_of("ray")


def __getattr__(name: str) -> Any:
    """Libraries come when they are asked for."""
    if name in LIBRARIES:
        return import_module(f"raysim.rayapi.{name}")
    return _missing(name)


__all__ = [
    "SCRIPT_MODE",
    "WORKER_MODE",
    "ActorClassID",
    "ActorID",
    "ClusterID",
    "DynamicObjectRefGenerator",
    "FunctionID",
    "JobID",
    "NodeID",
    "ObjectID",
    "ObjectRef",
    "ObjectRefGenerator",
    "PlacementGroupID",
    "TaskID",
    "UniqueID",
    "WorkerID",
    "__version__",
    "actor",
    "available_resources",
    "cancel",
    "cluster_resources",
    "exceptions",
    "get",
    "get_actor",
    "get_gpu_ids",
    "get_runtime_context",
    "init",
    "is_initialized",
    "kill",
    "method",
    "nodes",
    "put",
    "remote",
    "runtime_context",
    "runtime_env",
    "shutdown",
    "timeline",
    "util",
    "wait",
]  # fmt: skip
