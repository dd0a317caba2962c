"""Bodies of a plan's tasks, actors and generators.

Every value is a number that follows from the plan: a reference is kept with the number its value
must have. What a value contains says of its references what they must be, so that expectations
travel with the references.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raysim.raycore import scripts
from raysim.raycore.resources import ResourceSet
from raysim.raycore.scripts import WAITS, Ask, Script
from raysim.raycore.tasks import Payload, Ref, TaskError, TaskOptions
from raysim.units import NS_PER_MS
from tests.faults.plans import Step

_MASK = (1 << 61) - 1


def mix(*numbers: int) -> int:
    """One number of many."""
    h = 17
    for n in numbers:
        h = (h * 1_000_003 ^ n + 12_345) & _MASK
    return h


def raised(cause: Any) -> TaskError:
    """What a body raises: by itself, or because of an error it met."""
    return TaskError("TASK_EXECUTION_EXCEPTION", data=cause, class_names=("Exception",))


def value_of(
    number: int, kind: str, depth: int, args: Sequence[int | None], boxed: Sequence[int | None]
) -> int | None:
    """What a body returns; None: nobody can know."""
    if None in args or None in boxed or kind == "read":
        return None
    base = mix(number, depth, *args, -1, *boxed)  # type: ignore[arg-type]
    if kind == "nest":
        child = "nest" if depth > 1 else "leaf"
        inner = value_of(number, child, depth - 1, (), boxed)
        return None if inner is None else mix(base, inner)
    return base


class Frame:
    """The local references of one call; gone when it ends."""

    def __init__(self, running: Any) -> None:
        self.running = running
        self.core = running.worker
        self.locals: list[Ref] = []
        self.actors: list[int] = []

    def keep(self, ref: Ref) -> Ref:
        """One handle more, of a reference found in a value."""
        self.core.add_local_reference(ref)
        self.locals.append(ref)
        return ref

    def gone(self, lead_ns: int) -> None:
        """The call has ended."""
        for ref in self.locals:
            self.core.remove_local_reference(ref.object_id, lead_ns=lead_ns)
        for actor in self.actors:
            self.core.remove_actor_handle(actor, lead_ns=lead_ns)
        self.locals, self.actors = [], []


def body_of(fn: Callable[[Any, Frame], Script]) -> Callable[[Any], None]:
    """A body that runs ``fn(running, frame)``."""

    def body(running: Any) -> None:
        frame = Frame(running)

        def ended(driver: Any, value: Any) -> None:
            lead_ns = driver.lead_ns
            scripts.finish_task(driver, value)
            frame.gone(lead_ns)

        driver = scripts.Driver(running.worker, fn(running, frame), ended, running)

        def stopped() -> None:
            lead_ns = driver.lead_ns
            driver.stop()
            frame.gone(lead_ns)

        running.on_cancel = stopped
        driver.resume()

    return body


def ever() -> Ask:
    """Wait for nothing: the process ends."""
    return Ask(lambda _: WAITS)


def put(payload: Payload) -> Ask:
    """As ``scripts.put``; on an error there is no reference."""

    def begin(d: Any) -> Any:
        d.lead_ns += d.process.costs.put_ns
        refs: list[Ref] = []

        def done(error: TaskError | None) -> None:
            if error is not None:
                d.process.remove_local_reference(refs[0].object_id)
            d.resume(refs[0] if error is None else error)

        refs.append(d.process.put(payload, done, lead_ns=d.take_lead()))
        return WAITS

    return Ask(begin)


def function(body: Callable[[Any], None], name: str) -> Any:
    return scripts.function(body, name)


class Bodies:
    """Functions of one plan, made once each."""

    def __init__(self) -> None:
        self._made: dict[Any, Any] = {}

    def of(self, step: Step, kind: str, depth: int) -> Any:
        """What a step's task runs."""
        key = (step.number, kind, depth)
        if key not in self._made:

            def fn(running: Any, frame: Frame) -> Script:
                return self._work(step, kind, depth, running, frame)

            self._made[key] = function(body_of(fn), f"step{step.number}.{kind}.{depth}")
        return self._made[key]

    def _work(self, step: Step, kind: str, depth: int, running: Any, frame: Frame) -> Script:
        o, state = step.options, running.state
        top = depth == o["depth"]
        if isinstance(state, dict):
            state["calls"] += 1
        given = list(running.args)
        handle = given.pop() if kind == "call" else None
        box = given.pop() if given and (o["boxed_now"] or not top) else None
        inner: list[Any] = []
        if box is not None:
            inner = yield scripts.get(list(box.contained))
        for value in inner:
            if isinstance(value, TaskError):
                return raised(value)
        if o["ms"]:
            yield scripts.sleep(o["ms"] * NS_PER_MS)
        if o["compute"]:
            yield scripts.compute(0.05)
        if kind in ("exit", "leave") and running.attempt == 0:
            running.exit_process(reason=kind, intended=kind == "leave")
            yield ever()
        args, boxed = [a.data[0] for a in given], [v.data[0] for v in inner]
        refs: list[tuple[Ref, int | None]] = []
        if o["pass_on"] and top:
            for a in given:
                refs += zip(a.contained, a.data[1], strict=True)
        if o["pass_on"] and box is not None:
            refs += zip(box.contained, box.data, strict=True)
        failed = yield from self._rest(step, kind, depth, running, frame, box, handle, refs)
        if failed is not None:
            return failed
        return self._returns(o, value_of(step.number, kind, depth, args, boxed), refs, running)

    def _rest(
        self,
        step: Step,
        kind: str,
        depth: int,
        running: Any,
        frame: Frame,
        box: Any,
        handle: Any,
        refs: list[tuple[Ref, int | None]],
    ) -> Script:
        """What kinds do beyond computing their value."""
        o = step.options
        if kind == "raise":
            return raised("raised")
        if kind == "nest":
            return (yield from self._nest(step, depth, frame, box))
        if kind == "spawn":
            child = yield from self._children(step, depth, frame, box, 1)
            said = () if box is None else box.data
            of_child = "nest" if depth > 1 else "leaf"
            refs.append((child[0], value_of(step.number, of_child, depth - 1, (), said)))
        elif kind == "puts":
            value = mix(step.number, 77)
            ref = yield put(Payload(o["size"], (value, ())))
            if isinstance(ref, TaskError):
                return raised(ref)
            frame.locals.append(ref)
            refs.append((ref, value))
        elif kind == "call":
            return (yield from self._call(running, frame, handle))
        elif kind == "keep" and box is not None:
            for ref in box.contained:
                running.worker.add_local_reference(ref)
                running.state["kept"].append(ref)
        elif kind == "read":
            return (yield from self._read(running))
        return None

    def _nest(self, step: Step, depth: int, frame: Frame, box: Any) -> Script:
        children = yield from self._children(step, depth, frame, box, step.options["children"])
        values = yield scripts.get(children)
        for v in values:
            if isinstance(v, TaskError):
                return raised(v)
        same = all(v.data[0] == values[0].data[0] for v in values)
        return None if same else raised("children differ")

    def _children(self, step: Step, depth: int, frame: Frame, box: Any, n: int) -> Script:
        kind = "nest" if depth > 1 else "leaf"
        fn = self.of(step, kind, depth - 1)
        key = ("options", fn)
        if key not in self._made:
            self._made[key] = TaskOptions(function=fn, resources=ResourceSet.of({"CPU": 1}))
        refs: list[Ref] = []
        for _ in range(n):
            refs += yield scripts.submit(self._made[key], [] if box is None else [box])
        frame.locals += refs
        return refs

    def _call(self, running: Any, frame: Frame, handle: Any) -> Script:
        ref = handle.contained[0]
        actor = -ref.object_id
        running.worker.add_actor_handle(actor, ref.owner)
        frame.actors.append(actor)
        if "called" not in self._made:
            fn = function(body_of(_called), "called")
            self._made["called"] = TaskOptions(function=fn, max_retries=0)
        got = yield scripts.call_actor(actor, self._made["called"])
        if isinstance(got, TaskError):
            return raised(got)
        frame.locals += got
        value = (yield scripts.get(got))[0]
        return raised(value) if isinstance(value, TaskError) else None

    def _read(self, running: Any) -> Script:
        """Read everything that was kept, then forget the oldest."""
        kept = running.state["kept"]
        values = yield scripts.get(list(kept))
        if kept:
            yield scripts.drop(kept.pop(0))
        for v in values:
            if isinstance(v, TaskError):
                return raised(v)
        return None

    def _returns(
        self, o: dict[str, Any], value: Any, refs: list[tuple[Ref, int | None]], running: Any
    ) -> list[Payload]:
        refs = list(dict(refs).items())
        contained = tuple(ref for ref, _ in refs)
        said = tuple(v for _, v in refs)
        order = None
        if isinstance(running.state, dict):
            order = (running.worker.me.worker_id, running.state["calls"])
        first = Payload(o["size"], (value, said, order), contained)
        rest = [
            Payload(o["size"], (None if value is None else mix(value, i), ()))
            for i in range(1, o.get("returns", 1))
        ]
        return [first, *rest]

    def constructor(self, step: Step) -> Any:
        """What an actor of this step is made by."""

        def fn(running: Any, _frame: Frame) -> Script:
            if step.options["ms"]:
                yield scripts.sleep(step.options["ms"] * NS_PER_MS)
            if step.options["raises"]:
                return raised("raised")
            running.keep({"calls": 0, "kept": []})
            return []

        return function(body_of(fn), f"Actor{step.number}")

    def generator(self, step: Step) -> Any:
        """What a stream of this step runs."""
        o = step.options

        def fn(running: Any, _frame: Frame) -> Script:
            given = list(running.args)
            box = given.pop() if o["boxed_now"] else None
            for i in range(o["items"]):
                if o["ms"]:
                    yield scripts.sleep(o["ms"] * NS_PER_MS)
                data = (mix(step.number, i), () if box is None else tuple(box.data))
                contained = () if box is None else box.contained
                yield scripts.yield_item(Payload(o["size"], data, contained))
            if o["raises"]:
                return raised("raised")
            return []

        return function(body_of(fn), f"stream{step.number}")


def _called(running: Any, _frame: Frame) -> Script:
    running.state["calls"] += 1
    yield scripts.sleep(NS_PER_MS)
    return [Payload(100, (1, ()))]
