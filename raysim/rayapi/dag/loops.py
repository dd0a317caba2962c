"""What runs in the actors of a compiled graph: a loop over its methods.

Real counterpart: ``do_exec_tasks`` and ``ExecutableTask`` of ``dag/compiled_dag_node.py``. The loop
is a call of the actor in its concurrency group ``_ray_system``, so its other methods still run, and
a second graph waits until the first is torn down. Methods run in the order of their ``bind``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysim.rayapi.calls import begin_call, end_call, this_core, this_fiber
from raysim.rayapi.dag.channels import Channel, Failed, Reader, known
from raysim.rayapi.exceptions import RayChannelError
from raysim.rayapi.failures import task_error

if TYPE_CHECKING:
    from raysim.rayapi.dag.channels import End
    from raysim.rayapi.fibers import Fiber


class Task:
    """One method of one actor.

    Parameters
    ----------
    ends
        By argument; None: a constant.
    """

    def __init__(
        self,
        method_name: str,
        bind_index: int,
        ends: list[End | None],
        outputs: list[tuple[int | None, Channel]],
    ) -> None:
        self.method_name = method_name
        self.bind_index = bind_index
        self.ends = ends
        self.outputs = outputs
        """Which of several return values goes where; None: the value."""
        self.reader = Reader([end for end in ends if end is not None])


class Plan:
    """All tasks of one actor in one graph."""

    def __init__(self, tasks: list[Task]) -> None:
        self.tasks = tasks

    def channels(self) -> list[Channel]:
        """Those it reads or writes."""
        found: dict[Channel, None] = {}
        for task in self.tasks:
            found |= {end.channel: None for end in task.ends if end is not None}
            found |= {channel: None for _, channel in task.outputs}
        return list(found)


def allocate(_instance: Any, number: int) -> None:
    """Make the buffers of a channel that this actor writes."""
    known[number].allocate()


def exec_tasks(instance: Any, number: int, constants: list[tuple[Any, ...]]) -> None:
    """Run the methods again and again, until a channel is closed."""
    fiber = this_fiber()
    plan: Plan = known[number]
    begin_call(fiber)
    fiber.depth = 1
    try:
        while True:
            for task, (args, kwargs) in zip(plan.tasks, constants, strict=True):
                try:
                    _exec(fiber, instance, task, args, kwargs)
                except RayChannelError:
                    return
    finally:
        fiber.depth = 0
        end_call(fiber)


def cancel_tasks(_instance: Any, number: int) -> None:
    """Close the channels, which ends the loop."""
    plan: Plan | None = known.get(number)
    for channel in plan.channels() if plan is not None else ():
        channel.close()


def _exec(
    fiber: Fiber, instance: Any, task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    values = task.reader.read(fiber, None)
    fiber.lead_ns += this_core(fiber).costs.channel_task_ns
    failed = next((v for v in values if isinstance(v, Failed)), None)
    result = failed if failed is not None else _call(fiber, instance, task, values, args, kwargs)
    if len(task.outputs) > 1 and not isinstance(result, Failed):
        n = len(task.outputs)
        if not isinstance(result, tuple):
            raise ValueError(f"Expected a tuple of {n} outputs, but got {type(result)}")
        if len(result) != n:
            raise ValueError(f"Expected {n} outputs, but got {len(result)} outputs")
    for index, channel in task.outputs:
        part = result
        if index is not None and not isinstance(result, Failed):
            part = result[index]
        channel.write(fiber, part, None)


def _call(
    fiber: Fiber,
    instance: Any,
    task: Task,
    values: list[Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run the program's method."""
    given = iter(values)
    full = [next(given) if end is not None else args[k] for k, end in enumerate(task.ends)]
    method = getattr(instance, task.method_name)
    fiber.depth = 0
    end_call(fiber)
    try:
        return method(*full, **kwargs)
    except Exception as error:  # noqa: BLE001  (whatever a program raises)
        state = fiber.process
        name = f"{type(instance).__name__}.__ray_call__"
        return Failed(task_error(error, name, pid=state.pid, ip=state.ip))
    finally:
        begin_call(fiber)
        fiber.depth = 1
