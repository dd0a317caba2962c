"""Bodies of tasks: constants, sleeps, computations, and scripts written as generator functions.

Real counterpart: the user's Python functions. A script is a generator function of the process it
runs in; it yields what it asks for and is resumed with the answer:

    def main(process):
        refs = yield submit(options)
        values = yield get(refs)
        yield sleep(1_000_000)
        return [Payload(8)]

``drive(process, main)`` runs one in a driver, ``script(fn)`` makes one the body of a task or of an
actor's method (``fn(running)``: it finds arguments in ``running.args``). Calls cost the program's
thread what ``RayCosts`` says; it runs ahead of the clock until it has to wait.

Not modelled: time that the program's own statements take; ``compute`` says that.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from raysim.raycore.core_worker.execution import Running
from raysim.raycore.ids import ActorID, ObjectID, PlacementGroupID
from raysim.raycore.process import BundleStrategy, CoreProcess
from raysim.raycore.resources import ResourceSet
from raysim.raycore.running import RunningTask
from raysim.raycore.tasks import Arg, Body, Payload, Ref, RemoteFunction, TaskError, TaskOptions

Script = Generator["Ask", Any, Any]


def no_op(running: RunningTask) -> None:
    """``def f(): pass``."""
    running.finish()


class Sleep:
    """``time.sleep``."""

    def __init__(self, delay_ns: int) -> None:
        self.delay_ns = delay_ns

    def __call__(self, running: RunningTask) -> None:
        """Run."""
        running.on_cancel = _Cancelled(running)
        running.sleep(self.delay_ns, _Finish(running))


class Compute:
    """Use the node's cores."""

    def __init__(self, core_s: float, width: float = 1.0) -> None:
        self.core_s = core_s
        self.width = width

    def __call__(self, running: RunningTask) -> None:
        """Run."""
        running.on_cancel = _Cancelled(running)
        running.compute(self.core_s, _Finish(running), width=self.width)


class Return:
    """Return values of these sizes, after some time on a core."""

    def __init__(self, sizes_bytes: Sequence[int], core_s: float = 0.0) -> None:
        self.payloads = [Payload(n) for n in sizes_bytes]
        self.core_s = core_s

    def __call__(self, running: RunningTask) -> None:
        """Run."""
        if self.core_s:
            running.on_cancel = _Cancelled(running)
            running.compute(self.core_s, _Finish(running, self.payloads))
        else:
            running.finish(self.payloads)


def function(body: Body, name: str = "") -> RemoteFunction:
    """A remote function of this body."""
    instant: tuple[Payload, ...] | None = None
    if body is no_op:
        instant = ()
    elif isinstance(body, Return) and not body.core_s:
        instant = tuple(body.payloads)
    return RemoteFunction(
        name=name or getattr(body, "__name__", type(body).__name__), body=body, instant=instant
    )


class _Finish:
    """Ends a task, unless it was cancelled first."""

    __slots__ = ("payloads", "running")

    def __init__(self, running: RunningTask, payloads: Sequence[Payload] = ()) -> None:
        self.running = running
        self.payloads = payloads

    def __call__(self) -> None:
        if self.running.on_cancel is not None:
            self.running.on_cancel = None
            self.running.finish(self.payloads)


class _Cancelled:
    """Ends a task that is cancelled."""

    __slots__ = ("running",)

    def __init__(self, running: RunningTask) -> None:
        self.running = running

    def __call__(self) -> None:
        self.running.on_cancel = None
        self.running.fail(TaskError("TASK_CANCELLED"))


# ---- scripts -------------------------------------------------------------------------------------


class Ask:
    """What a script yields: something to do, whose answer it is resumed with."""

    __slots__ = ("begin",)

    def __init__(self, begin: Callable[[_Driver], object]) -> None:
        self.begin = begin


class _Driver:
    """Runs one script."""

    __slots__ = ("lead_ns", "process", "running", "script", "stopped", "then")

    def __init__(
        self,
        process: CoreProcess,
        script: Script,
        then: Callable[[_Driver, Any], object],
        running: RunningTask | None = None,
    ) -> None:
        self.process = process
        self.script = script
        self.then = then
        self.running = running
        self.lead_ns = 0
        self.stopped = False

    def stop(self) -> None:
        """The task is cancelled: the script ends where it waits."""
        self.stopped = True
        self.script.close()
        assert self.running is not None, "only a task can be cancelled"
        self.running.fail(TaskError("TASK_CANCELLED"))

    def resume(self, answer: Any = None) -> None:
        """Go on until the script waits for something that is not here."""
        send = self.script.send
        if self.stopped:
            return
        while True:
            try:
                ask = send(answer)
            except StopIteration as end:
                self.then(self, end.value)
                return
            answer = ask.begin(self)
            if answer is WAITS:
                return

    def slept(self, _: object = None) -> None:
        """Time has passed."""
        self.resume()

    def take_lead(self) -> int:
        """What the program has run ahead, handed to a call that waits."""
        lead_ns, self.lead_ns = self.lead_ns, 0
        return lead_ns

    @property
    def parent(self) -> Any:
        """The task the script is."""
        return self.running.spec if self.running is not None else None


WAITS = object()
"""The answer will come later."""


def drive(
    process: CoreProcess,
    script: Callable[[Any], Script],
    then: Callable[[Any], object] | None = None,
) -> None:
    """Run a script in a driver; ``then(what it returns)``."""
    _Driver(process, script(process), _End(then)).resume()


class _End:
    __slots__ = ("then",)

    def __init__(self, then: Callable[[Any], object] | None) -> None:
        self.then = then

    def __call__(self, _driver: _Driver, value: Any) -> None:
        if self.then is not None:
            self.then(value)


def script(fn: Callable[[Any], Script]) -> Body:
    """A body that runs ``fn(running)``; what it returns is the task's returns, or its error."""

    def body(running: RunningTask) -> None:
        driver = _Driver(running.worker, fn(running), _finish_task, running)
        running.on_cancel = driver.stop
        driver.resume()

    body.__name__ = fn.__name__
    return body


def _finish_task(driver: _Driver, value: Any) -> None:
    running = driver.running
    assert isinstance(running, Running), "a task's script without its task"
    if running.ended:
        return
    if isinstance(value, TaskError):
        running.fail(value, lead_ns=driver.take_lead())
    else:
        running.finish(value or (), lead_ns=driver.take_lead())


def submit(options: TaskOptions, args: Sequence[Arg] = ()) -> Ask:
    """``f.remote(*args)``: its references."""

    def begin(d: _Driver) -> Any:
        d.lead_ns += d.process.costs.submit_task_ns
        return d.process.submit_task(options, args, lead_ns=d.lead_ns, parent=d.parent)

    return Ask(begin)


def create_actor(options: TaskOptions, args: Sequence[Arg] = ()) -> Ask:
    """``Actor.remote(*args)``: its id; waits for the registration only if it is named."""

    def begin(d: _Driver) -> Any:
        d.lead_ns += d.process.costs.submit_task_ns
        assert options.actor is not None, "create_actor without ActorOptions"
        if options.actor.name:
            d.process.create_actor(options, args, d.resume, lead_ns=d.take_lead(), parent=d.parent)
            return WAITS
        return d.process.create_actor(options, args, _nothing, lead_ns=d.lead_ns, parent=d.parent)

    return Ask(begin)


def call_actor(actor: ActorID, options: TaskOptions, args: Sequence[Arg] = ()) -> Ask:
    """``actor.method.remote(*args)``: its references, or PENDING_CALLS_LIMIT_EXCEEDED."""

    def begin(d: _Driver) -> Any:
        d.lead_ns += d.process.costs.submit_actor_task_ns
        return d.process.submit_actor_task(actor, options, args, lead_ns=d.lead_ns, parent=d.parent)

    return Ask(begin)


def drop_actor(actor: ActorID) -> Ask:
    """``del actor``."""

    def begin(d: _Driver) -> Any:
        d.process.remove_actor_handle(actor, lead_ns=d.lead_ns)

    return Ask(begin)


def kill(actor: ActorID, *, no_restart: bool = True) -> Ask:
    """``ray.kill``."""

    def begin(d: _Driver) -> Any:
        d.process.kill_actor(actor, no_restart=no_restart, lead_ns=d.lead_ns)

    return Ask(begin)


def put(payload: Payload) -> Ask:
    """``ray.put``: waits until it is sealed; its reference."""

    def begin(d: _Driver) -> Any:
        d.lead_ns += d.process.costs.put_ns
        done = _PutDone(d)
        done.ref = d.process.put(payload, done, lead_ns=d.take_lead())
        return WAITS

    return Ask(begin)


class _PutDone:
    __slots__ = ("driver", "ref")

    ref: Ref

    def __init__(self, driver: _Driver) -> None:
        self.driver = driver

    def __call__(self, error: TaskError | None) -> None:
        self.driver.resume(self.ref if error is None else error)


def get(refs: Sequence[Ref], timeout_ns: int | None = None) -> Ask:
    """``ray.get`` of a list: its values, or GET_TIMEOUT."""

    def begin(d: _Driver) -> Any:
        costs = d.process.costs
        d.lead_ns += costs.get_ns + costs.per_ref_get_ns * (len(refs) - 1)
        d.process.get(refs, d.resume, timeout_ns=timeout_ns, lead_ns=d.take_lead())
        return WAITS

    return Ask(begin)


def wait(
    refs: Sequence[Ref],
    num_returns: int = 1,
    timeout_ns: int | None = None,
    *,
    fetch_local: bool = True,
) -> Ask:
    """``ray.wait``: which are ready."""

    def begin(d: _Driver) -> Any:
        costs = d.process.costs
        d.lead_ns += costs.wait_ns + costs.per_ref_wait_ns * len(refs)
        d.process.wait(
            refs, num_returns, d.resume, timeout_ns=timeout_ns, fetch_local=fetch_local,
            lead_ns=d.take_lead(),
        )  # fmt: skip
        return WAITS

    return Ask(begin)


def keep(ref: Ref) -> Ask:
    """One handle more, as from deserialising it."""

    def begin(d: _Driver) -> Any:
        d.process.add_local_reference(ref)

    return Ask(begin)


def drop(*refs: Ref) -> Ask:
    """``del``: one handle less of each."""

    def begin(d: _Driver) -> Any:
        for ref in refs:
            d.process.remove_local_reference(ref.object_id, lead_ns=d.lead_ns)

    return Ask(begin)


def drop_id(object_id: ObjectID) -> Ask:
    """One handle less."""

    def begin(d: _Driver) -> Any:
        d.process.remove_local_reference(object_id, lead_ns=d.lead_ns)

    return Ask(begin)


def cancel(ref: Ref, *, force: bool = False, recursive: bool = True) -> Ask:
    """``ray.cancel``."""

    def begin(d: _Driver) -> Any:
        d.process.cancel(ref, force=force, recursive=recursive, lead_ns=d.lead_ns)

    return Ask(begin)


def next_item(generator: Ref) -> Ask:
    """``next(generator)``: a reference, an error, or None at the end."""

    def begin(d: _Driver) -> Any:
        d.process.next_item(generator, d.resume, lead_ns=d.take_lead())
        return WAITS

    return Ask(begin)


def yield_item(item: Payload) -> Ask:
    """``yield`` in a streaming generator."""

    def begin(d: _Driver) -> Any:
        assert d.running is not None, "only a task can yield items"
        d.running.yield_item(item, d.resume, lead_ns=d.take_lead())
        return WAITS

    return Ask(begin)


def sleep(delay_ns: int) -> Ask:
    """``time.sleep``."""

    def begin(d: _Driver) -> Any:
        after = getattr(d.process, "after")  # noqa: B009  (a room's timer, not of CoreProcess)
        after(d.take_lead() + delay_ns, d.slept)
        return WAITS

    return Ask(begin)


def compute(core_s: float, width: float = 1.0) -> Ask:
    """Work on the node's cores."""

    def begin(d: _Driver) -> Any:
        assert d.running is not None, "only a task can compute"
        d.lead_ns = 0
        d.running.compute(core_s, d.resume, width=width)
        return WAITS

    return Ask(begin)


def make_group(bundles: Sequence[ResourceSet], strategy: BundleStrategy = "PACK") -> Ask:
    """``placement_group(bundles)``: its id, once persisted."""

    def begin(d: _Driver) -> Any:
        d.process.groups.create(bundles, strategy, d.resume, lead_ns=d.take_lead())
        return WAITS

    return Ask(begin)


def wait_group(group: PlacementGroupID, timeout_ns: int | None = None) -> Ask:
    """``pg.wait(timeout)``: whether it is there."""

    def begin(d: _Driver) -> Any:
        d.process.groups.wait(group, d.resume, timeout_ns=timeout_ns, lead_ns=d.take_lead())
        return WAITS

    return Ask(begin)


def remove_group(group: PlacementGroupID) -> Ask:
    """``remove_placement_group(pg)``."""

    def begin(d: _Driver) -> Any:
        d.process.groups.remove(group, d.resume, lead_ns=d.take_lead())
        return WAITS

    return Ask(begin)


def ask_gcs(message: Any) -> Ask:
    """Any question to the GCS."""

    def begin(d: _Driver) -> Any:
        d.process.call_gcs(message, d.resume, lead_ns=d.take_lead())
        return WAITS

    return Ask(begin)


def _nothing(_answer: object) -> None:
    """Nobody waits."""
