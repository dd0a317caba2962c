"""A compiled graph as its driver has it: execute, results in order, teardown.

Real counterpart: ``CompiledDAG`` of ``dag/compiled_dag_node.py`` of ray 2.60. Results come in the
order of execution; what comes before the one that is asked for is kept, up to
``max_buffered_results``. If an actor's loop ends, so does the graph.

Not modelled: the driver waiting, when a reference goes, for the result nobody wants: it is taken
out of the channels at the next call. A graph that nobody has any more closes its channels and does
not wait for its loops.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import ref as weak

from raysim.rayapi.calls import program_call, this_core, this_fiber
from raysim.rayapi.dag.channels import Channel, Reader
from raysim.rayapi.dag.compiling import Graph, Wiring
from raysim.rayapi.dag.context import DAGContext
from raysim.rayapi.dag.loops import Plan, cancel_tasks
from raysim.rayapi.dag.refs import CompiledDAGFuture, CompiledDAGRef
from raysim.rayapi.exceptions import (
    GetTimeoutError,
    RayCgraphCapacityExceeded,
    RayChannelTimeoutError,
)
from raysim.rayapi.fibers import Fiber
from raysim.rayapi.unsupported import NotEmulatedError

if TYPE_CHECKING:
    from raysim.rayapi.actor_handle import ActorHandle
    from raysim.rayapi.dag.nodes import DAGNode
    from raysim.rayapi.objects import ObjectRef

_ids = count(1)


class CompiledDAG:
    """Made by ``experimental_compile``."""

    def __init__(
        self,
        graph: Graph,
        *,
        submit_timeout: float | None,
        buffer_size_bytes: int | None,
        enable_asyncio: bool,
        max_inflight_executions: int | None,
        max_buffered_results: int | None,
    ) -> None:
        context = DAGContext.get_current()
        self.is_teardown = False
        self._id = f"{next(_ids):032x}"
        self._submit_timeout = context.submit_timeout if submit_timeout is None else submit_timeout
        self._get_timeout = context.get_timeout
        self.buffer_size_bytes = _or(buffer_size_bytes, context.buffer_size_bytes)
        self.max_inflight_executions = _or(max_inflight_executions, context.max_inflight_executions)
        self._max_buffered_results = _or(max_buffered_results, context.max_buffered_results)
        self.enable_asyncio = enable_asyncio
        self._positional_count = graph.positional_count
        self._keywords = tuple(graph.keywords)
        self._returns_list = graph.returns_list
        self._output_count = len(graph.outputs)
        self.proxy: Any = None
        self.inputs: list[tuple[int | str | None, Channel]] = []
        self.reader = Reader(())
        self.loops: list[tuple[ActorHandle, Plan, ObjectRef]] = []
        self.execution_index = -1
        """Of the last execution."""
        self.finished_index = -1
        """Of the last one whose results have been read."""
        self._results: dict[int, dict[int, Any]] = {}
        self._unwanted: dict[int, set[int | None]] = {}
        """Results whose references have gone."""
        self._tearing: list[Any] | None = None
        """While it is torn down: who waits for that."""
        self._read_ahead: list[tuple[int, Any]] = []
        """Of asyncio: executions and their futures, oldest first."""

    def get_id(self) -> str:
        """Its name."""
        return self._id

    def visualize(self, *_args: Any, **_kwargs: Any) -> str:
        """Needs ``graphviz`` in Ray."""
        raise NotEmulatedError("CompiledDAG.visualize", "str(node) before it is compiled")

    def __str__(self) -> str:
        return f"CompiledDAG({self._id})"

    # executions

    @program_call
    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Give it one input; a reference to its result, or to each of them.

        Raises
        ------
        RayCgraphCapacityExceeded
            Too many executions have not been read.
        RayChannelTimeoutError
            The actors do not take the input in time.
        """
        if self.enable_asyncio:
            raise ValueError("Use execute_async if enable_asyncio=True")
        self._check(args, kwargs)
        fiber = this_fiber()
        self._drop_unwanted(fiber)
        self._raise_if_full()
        self._write(fiber, args, kwargs)
        self.execution_index += 1
        return self._each(CompiledDAGRef, self.execution_index)

    async def execute_async(self, *args: Any, **kwargs: Any) -> Any:
        """The same within an event loop; futures."""
        from raysim.rayapi.asyncio_loop import in_thread, new_future

        if not self.enable_asyncio:
            raise ValueError("Use execute if enable_asyncio=False")
        self._check(args, kwargs)
        self._raise_if_full()
        self.execution_index += 1
        index, future = self.execution_index, new_future()
        self._read_ahead.append((index, future))
        await in_thread(lambda: self._write(this_fiber(), args, kwargs))
        if len(self._read_ahead) == 1:
            self._read_in_thread()
        return self._each(CompiledDAGFuture, index, future)

    def _each(self, kind: Any, index: int, *more: Any) -> Any:
        if self._returns_list:
            return [kind(self, index, *more, channel) for channel in range(self._output_count)]
        return kind(self, index, *more, None)

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(args) != self._positional_count:
            raise ValueError(
                "dag.execute() or dag.execute_async() must be called with "
                f"{self._positional_count} positional args, got {len(args)}"
            )
        for name in self._keywords:
            if name not in kwargs:
                raise ValueError(
                    f"dag.execute() or dag.execute_async() must be called with kwarg `{name}`"
                )

    def _raise_if_full(self) -> None:
        inflight = self.execution_index - self.finished_index
        if inflight >= self.max_inflight_executions:
            raise RayCgraphCapacityExceeded(
                f"The compiled graph can't have more than {self.max_inflight_executions} in-flight "
                f"executions, and you currently have {inflight} in-flight executions. Retrieve an "
                "output using ray.get before submitting more requests or increase "
                "`_max_inflight_executions`. "
                "`dag.experimental_compile(_max_inflight_executions=...)`"
            )

    def _write(self, fiber: Fiber, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        fiber.lead_ns += this_core(fiber).costs.channel_execute_ns
        single = len(args) == 1 and not kwargs
        for key, channel in self.inputs:
            value = args[0] if single else _part(args, kwargs, key)
            try:
                channel.write(fiber, value, self._submit_timeout)
            except RayChannelTimeoutError as error:
                raise RayChannelTimeoutError(
                    "If the execution is expected to take a long time, increase "
                    f"RAY_CGRAPH_submit_timeout which is currently {self._submit_timeout:g} "
                    "seconds. Otherwise, this may indicate that execution is hanging."
                ) from error

    # results

    def result(self, index: int, channel: int | None, timeout: float | None) -> list[Any]:
        """Read until this execution's are there; its own, or the one of a channel."""
        fiber = this_fiber()
        timeout = self._get_timeout if timeout is None else timeout
        until_ns = fiber.process.session.now_ns + fiber.lead_ns + round(timeout * 1e9)
        while self.finished_index < index:
            if len(self._results) >= self._max_buffered_results:
                raise RayCgraphCapacityExceeded(
                    f"The compiled graph can't have more than {self._max_buffered_results} buffered"
                    f" results, and you currently have {len(self._results)} buffered results. Call "
                    "`ray.get()` on CompiledDAGRef's (or await on CompiledDAGFuture's) to retrieve "
                    "results, or increase `_max_buffered_results` if buffering is desired, note "
                    "that this will increase driver memory usage."
                )
            left_ns = until_ns - fiber.process.session.now_ns - fiber.lead_ns
            self._read_next(fiber, timeout if timeout < 0 else max(0.0, left_ns / 1e9))
        fiber.pay(this_core(fiber).costs.channel_get_ns)
        return self.taken(index, channel)

    def _read_next(self, fiber: Fiber, timeout: float | None) -> None:
        try:
            values = self.reader.read(fiber, timeout)
        except RayChannelTimeoutError as error:
            raise RayChannelTimeoutError(
                "If the execution is expected to take a long time, increase "
                f"RAY_CGRAPH_get_timeout which is currently {self._get_timeout:g} seconds. "
                "Otherwise, this may indicate that the execution is hanging."
            ) from error
        self.finished(self.finished_index + 1, values)

    def finished(self, index: int, values: list[Any]) -> None:
        """Keep what has been read, as far as somebody can still ask for it."""
        self.finished_index = index
        gone = self._unwanted.pop(index, set())
        if None not in gone:
            kept = {k: value for k, value in enumerate(values) if k not in gone}
            if kept:
                self._results[index] = kept

    def taken(self, index: int, channel: int | None) -> list[Any]:
        """What is kept of an execution, which is then not kept any more."""
        kept = self._results[index]
        if channel is None:
            del self._results[index]
            return [value for _, value in sorted(kept.items())]
        value = kept.pop(channel)
        if not kept:
            del self._results[index]
        return [value]

    def unwanted(self, index: int, channel: int | None) -> None:
        """A reference has gone without having been read."""
        if index > self.finished_index:
            self._unwanted.setdefault(index, set()).add(channel)
            return
        kept = self._results.get(index)
        if kept is not None:
            kept.pop(0 if channel is None else channel, None)
            if not kept:
                del self._results[index]

    def _drop_unwanted(self, fiber: Fiber) -> None:
        """Read what nobody wants, to have room for more."""
        while True:
            gone = self._unwanted.get(self.finished_index + 1, ())
            if None not in gone and len(gone) < self._output_count:
                return
            self._read_next(fiber, self._get_timeout)

    # asyncio

    def _read_in_thread(self) -> None:
        state = this_fiber().process
        Fiber(
            state, None, self._read_for_futures, None, "channel.AwaitableBackgroundReader"
        ).start()

    def _read_for_futures(self) -> None:
        from raysim.rayapi.asyncio_loop import set_result

        fiber = this_fiber()
        while self._read_ahead:
            values: Any
            try:
                values = self.reader.read(fiber, None)
            except Exception as error:  # noqa: BLE001  (whoever awaits raises it)
                values = error
            fiber.lead_ns += this_core(fiber).costs.channel_get_ns
            fiber.settle()
            _, future = self._read_ahead.pop(0)
            set_result(future, values)

    # the end

    def watch(self) -> None:
        """A thread of the driver waits for loops that end, which ends the graph."""
        refs = [ref for _, _, ref in self.loops]
        me = weak(self)
        state = this_fiber().process
        Fiber(state, None, lambda: _monitor(me, refs), None, "CompiledGraphMonitorThread").start()

    @program_call
    def teardown(self, kill_actors: bool = False) -> None:
        """Close the channels and wait until the actors have left their loops."""
        fiber = this_fiber()
        if self._tearing is not None:
            while not self.is_teardown:
                fiber.block(self._tearing.append)
            return
        self._tearing = []
        try:
            self._teardown(kill_actors=kill_actors)
        finally:
            self.is_teardown = True
            for then in self._tearing:
                then()

    def _teardown(self, *, kill_actors: bool) -> None:
        from raysim.rayapi.api import kill

        self.close()
        asked = [actor.__ray_call__.remote(cancel_tasks, id(plan)) for actor, plan, _ in self.loops]
        for ref in asked:
            _wait_for(ref, 30)
        for actor, _, ref in self.loops:
            if not _wait_for(ref, DAGContext.get_current().teardown_timeout):
                if kill_actors:
                    kill(actor)
                _wait_for(ref, None)
        if kill_actors:
            for actor, _, _ in self.loops:
                kill(actor)

    def close(self) -> None:
        """Close the driver's channels."""
        for _, channel in self.inputs:
            channel.close()
        self.reader.close()

    def __del__(self) -> None:
        if not self.is_teardown:
            for _, plan, _ in self.loops:
                for channel in plan.channels():
                    channel.close()


def _wait_for(ref: ObjectRef, timeout: float | None) -> bool:
    """Until a call has ended, however; False: not in time."""
    from raysim.rayapi.api import get

    try:
        get(ref, timeout=timeout)
    except GetTimeoutError:
        return False
    except Exception:  # noqa: BLE001  (it has ended, however)
        return True
    return True


def _monitor(dag: Any, refs: list[ObjectRef]) -> None:
    from raysim.rayapi.api import get

    try:
        get(refs)
    except Exception:  # noqa: BLE001  (whoever reads a result is told)
        me: CompiledDAG | None = dag()
        if me is not None:
            me.teardown()


def _part(args: tuple[Any, ...], kwargs: dict[str, Any], key: int | str | None) -> Any:
    assert key is not None, "a graph of several inputs uses them by position or name"
    return args[key] if isinstance(key, int) else kwargs[key]


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


@program_call
def compile_dag(output: DAGNode, **options: Any) -> CompiledDAG:
    """``experimental_compile``."""
    size = options["buffer_size_bytes"]
    if size is not None and (not isinstance(size, int) or size <= 0):
        raise ValueError(f"`buffer_size_bytes` must be a positive integer, found {size}")
    graph = Graph(output)
    dag = CompiledDAG(graph, **options)
    Wiring(dag, graph).run()
    dag.watch()
    return dag
