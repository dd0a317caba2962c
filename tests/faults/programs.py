"""A plan's steps as a driver's program, which looks at every value it gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from raysim.raycore import scripts
from raysim.raycore.ids import actor_handle, hex_id
from raysim.raycore.process import CoreProcess
from raysim.raycore.resources import ResourceSet, within_group
from raysim.raycore.scripts import Script
from raysim.raycore.tasks import (
    ActorOptions,
    InPlacementGroup,
    NodeAffinity,
    Payload,
    Ref,
    TaskError,
    TaskOptions,
)
from raysim.units import NS_PER_MS
from tests.faults.plans import Plan, Step
from tests.faults.tasks import Bodies, mix, put, value_of

_SPARE_TIMEOUT_MS = 20_000
_MOST_REFS = 60


class Held:
    """A reference and what its value must be."""

    def __init__(self, ref: Ref, value: int | None, *, slow: bool = False, calls: bool = False):
        self.ref = ref
        self.value = value
        self.slow = slow
        """It may have to wait for a placement group, which may wait for ever."""
        self.calls = calls
        """What makes it calls an actor: an actor's method must not wait for it."""
        self.order: tuple[ActorHandle, int] | None = None


class ActorHandle:
    """An actor of the program."""

    def __init__(self, actor_id: int, step: Step, method: dict[str, Any], *, slow: bool):
        self.actor_id = actor_id
        self.step = step
        self.method = method
        self.slow = slow
        self.calls = 0
        o = step.options
        self.ordered = o["concurrency"] == 1 and not o["async"] and not o["task_retries"]
        self.seen: list[tuple[int, tuple[int, int]]] = []
        """(which call, (process, count there)) of calls that succeeded."""


class Program:
    """One run of a plan's steps.

    ``judge(error)`` says what is wrong with an error that came up, or nothing.
    """

    def __init__(self, plan: Plan, judge: Callable[[TaskError], str]) -> None:
        self.plan = plan
        self.judge = judge
        self.bodies = Bodies()
        self.refs: list[Held] = []
        self.actors: list[ActorHandle] = []
        self.groups: list[tuple[int, int]] = []
        self.generators: list[Ref] = []
        self.in_groups: list[Ref] = []
        """Tasks in groups; what was asked of a group that goes may wait for ever (as in Ray)."""
        self.problems: list[str] = []
        self.at = "start"
        self.results = 0
        """Values seen and right."""

    def main(self, driver: CoreProcess) -> Script:
        """The driver's script: all steps, then let go of everything."""
        self.driver: Any = driver
        for planned in self.plan.steps:
            self.at = str(planned)
            step = planned._replace(options=dict(planned.options))
            yield from getattr(self, f"_{step.op}")(step, step.options)
        self.at = "end"
        for group, _ in self.groups:
            yield scripts.remove_group(group)
        for ref in self.in_groups:
            yield scripts.cancel(ref)
        for handle in self.actors:
            yield scripts.drop_actor(handle.actor_id)
        yield scripts.drop(*self.in_groups)
        yield scripts.drop(*self.generators)
        yield scripts.drop(*(h.ref for h in self.refs))
        self._check_order()
        self.at = "done"
        return "done"

    # What steps are made of

    def _some(self, picks: Sequence[int], *, of: Callable[[Held], bool] = bool) -> list[Held]:
        found = [h for h in self.refs if of(h)]
        return list(dict.fromkeys(found[n % len(found)] for n in picks)) if found else []

    def _one(self, things: list[Any], pick: int) -> Any:
        return things[pick % len(things)] if things else None

    def _args(
        self, step: Step, *, of: Callable[[Held], bool] = bool
    ) -> tuple[list[Any], list[Held], list[Held]]:
        """Arguments, and what they are, direct and boxed."""
        o = step.options
        direct = self._some(o["args"], of=of)
        boxed = self._some(o.get("boxed", ()), of=of)
        o["boxed_now"] = bool(boxed)
        args: list[Any] = [h.ref for h in direct]
        if boxed:
            said = tuple(h.value for h in boxed)
            args.append(Payload(100, said, tuple(h.ref for h in boxed)))
        return args, direct, boxed

    def _expect(self, step: Step, refs: Any, direct: Any, boxed: Any, **kept: bool) -> list[Held]:
        o = step.options
        value = value_of(
            step.number, o["kind"], o["depth"], [h.value for h in direct], [h.value for h in boxed]
        )
        held = [
            Held(ref, value if i == 0 or value is None else mix(value, i), **kept)
            for i, ref in enumerate(refs)
        ]
        self.refs += held
        return held

    def _value(self, held: Held, value: Any, *, one_failed: bool) -> None:
        """Look at what a get has brought."""
        if isinstance(value, TaskError):
            wrong = self.judge(value)
            if wrong:
                self.problems.append(f"{wrong}, of {held.ref.object_id:x} in {self.at}")
            return
        if value.data is None and one_failed:
            return
        if value.data is None:
            self.problems.append(f"no value of {held.ref.object_id:x} in {self.at}")
            return
        self.results += 1
        if held.value is not None and value.data[0] != held.value:
            self.problems.append(
                f"{held.ref.object_id:x} is {value.data[0]}, not {held.value} in {self.at}"
            )
        if held.order is not None and value.data[2] is not None:
            handle, call = held.order
            handle.seen.append((call, value.data[2]))
        if len(self.refs) < _MOST_REFS:
            for ref, said in zip(value.contained, value.data[1], strict=True):
                self.driver.add_local_reference(ref)
                self.refs.append(Held(ref, said, slow=held.slow, calls=True))

    def _check_order(self) -> None:
        """Calls of one actor, in order of submission, were counted in that order."""
        for handle in self.actors:
            last: dict[int, int] = {}
            for call, (process, count) in sorted(set(handle.seen)):
                if handle.ordered and count <= last.get(process, 0):
                    self.problems.append(f"call {call} of actor {handle.actor_id} was overtaken")
                last[process] = count

    # Steps

    def _task(self, step: Step, o: dict[str, Any]) -> Script:
        args, direct, boxed = self._args(step)
        kind, slow = o["kind"], any(h.slow for h in (*direct, *boxed))
        calls = any(h.calls for h in (*direct, *boxed))
        if kind == "call":
            usable = [a for a in self.actors if not a.slow]
            handle = self._one(usable, o["actor"])
            if handle is None:
                o = o | {"kind": "leaf"}
                step = step._replace(options=o)
            else:
                ref = Ref(actor_handle(handle.actor_id), self.driver.me)
                args.append(Payload(100, None, (ref,)))
                calls = True
        strategy: Any = o["strategy"]
        if strategy in ("soft", "hard"):
            strategy = NodeAffinity(node_id=o["node"], soft=strategy == "soft")
        options = TaskOptions(
            function=self.bodies.of(step, o["kind"], o["depth"]), num_returns=o["returns"],
            resources=ResourceSet.of({"CPU": o["cpus"]}), max_retries=o["retries"],
            retry_exceptions=o["retry_exceptions"] and o["retries"] >= 0, strategy=strategy,
        )  # fmt: skip
        refs = yield scripts.submit(options, args)
        self._expect(step, refs, direct, boxed, slow=slow, calls=calls)

    def _put(self, step: Step, o: dict[str, Any]) -> Script:
        boxed = self._some(o["boxed"])
        value = mix(step.number, 99)
        said = tuple(h.value for h in boxed)
        contained = tuple(h.ref for h in boxed)
        ref = yield put(Payload(o["size"], (value, said, None), contained))
        if isinstance(ref, TaskError):
            wrong = self.judge(ref)
            if wrong:
                self.problems.append(f"{wrong} in {self.at}")
        else:
            slow, calls = any(h.slow for h in boxed), any(h.calls for h in boxed)
            self.refs.append(Held(ref, value, slow=slow, calls=calls))

    def _get(self, _: Step, o: dict[str, Any]) -> Script:
        held = self._some(o["refs"])
        timeout_ms = o["timeout"]
        if timeout_ms is None and any(h.slow for h in held):
            timeout_ms = _SPARE_TIMEOUT_MS
        timeout_ns = None if timeout_ms is None else timeout_ms * NS_PER_MS
        values = yield scripts.get([h.ref for h in held], timeout_ns)
        if isinstance(values, TaskError):
            if values.error_type != "GET_TIMEOUT" or timeout_ms is None:
                self.problems.append(f"get: {values} in {self.at}")
            return
        failed = any(isinstance(v, TaskError) for v in values)
        for h, value in zip(held, values, strict=True):
            self._value(h, value, one_failed=failed)

    def _wait(self, _: Step, o: dict[str, Any]) -> Script:
        held = self._some(o["refs"])
        if not held:
            return
        n = min(o["n"], len(held))
        ready = yield scripts.wait(
            [h.ref for h in held], n, o["timeout"] * NS_PER_MS, fetch_local=o["fetch"]
        )
        if len(ready) != len(held) or sum(ready) > n:
            self.problems.append(f"wait for {n} of {len(held)}: {ready} in {self.at}")

    def _drop(self, _: Step, o: dict[str, Any]) -> Script:
        held = self._one(self.refs, o["ref"])
        if held is not None:
            self.refs.remove(held)
            yield scripts.drop(held.ref)

    def _sleep(self, _: Step, o: dict[str, Any]) -> Script:
        yield scripts.sleep(o["ms"] * NS_PER_MS)

    def _cancel(self, _: Step, o: dict[str, Any]) -> Script:
        held = self._one(self.refs, o["ref"])
        if held is not None:
            yield scripts.cancel(held.ref, force=o["force"], recursive=o["recursive"])

    # Actors

    def _actor(self, step: Step, o: dict[str, Any]) -> Script:
        args, direct, _ = self._args(step, of=_safe)
        options = TaskOptions(
            function=self.bodies.constructor(step), resources=ResourceSet.of({"CPU": o["cpus"]}),
            placement_resources=ResourceSet.of({"CPU": 1}),
            actor=ActorOptions(
                max_restarts=o["max_restarts"], max_task_retries=o["task_retries"],
                max_concurrency=o["concurrency"] if o["concurrency"] > 1 else 0,
                is_async=o["async"], name=f"actor{step.number}" if o["named"] else "",
            ),
        )  # fmt: skip
        got = yield scripts.create_actor(options, args)
        if isinstance(got, TaskError):
            self.problems.append(f"{got} in {self.at}")
        else:
            slow = any(h.slow for h in direct)
            self.actors.append(
                ActorHandle(got, step, {"max_retries": o["task_retries"]}, slow=slow)
            )

    def _call(self, step: Step, o: dict[str, Any]) -> Script:
        handle = self._one(self.actors, o["on"])
        if handle is None:
            return
        args, direct, boxed = self._args(step, of=_safe)
        if o["kind"] == "exit" and handle.method["max_retries"]:
            o["kind"] = "leaf"
        options = TaskOptions(function=self.bodies.of(step, o["kind"], o["depth"]), **handle.method)
        refs = yield scripts.call_actor(handle.actor_id, options, args)
        handle.slow = handle.slow or any(h.slow for h in (*direct, *boxed))
        held = self._expect(step, refs, direct, boxed, slow=handle.slow)
        handle.calls += 1
        held[0].order = (handle, handle.calls)

    def _kill(self, _: Step, o: dict[str, Any]) -> Script:
        handle = self._one(self.actors, o["on"])
        if handle is not None:
            yield scripts.kill(handle.actor_id, no_restart=o["no_restart"])

    def _drop_actor(self, _: Step, o: dict[str, Any]) -> Script:
        handle = self._one(self.actors, o["on"])
        if handle is not None:
            self.actors.remove(handle)
            yield scripts.drop_actor(handle.actor_id)

    # Streams

    def _stream(self, step: Step, o: dict[str, Any]) -> Script:
        args, _, boxed = self._args(step, of=lambda h: not h.slow)
        options = TaskOptions(
            function=self.bodies.generator(step), num_returns="streaming",
            resources=ResourceSet.of({"CPU": 1}), max_retries=o["retries"],
            generator_backpressure_num_objects=o["backpressure"],
        )  # fmt: skip
        generator = (yield scripts.submit(options, args))[0]
        self.generators.append(generator)
        for i in range(o["read"]):
            item = yield scripts.next_item(generator)
            if item is None:
                if i != o["items"]:
                    self.problems.append(f"{i} items of {o['items']} in {self.at}")
                break
            if isinstance(item, TaskError):
                wrong = self.judge(item)
                if wrong:
                    self.problems.append(f"{wrong} in {self.at}")
                break
            calls = any(h.calls for h in boxed)
            self.refs.append(Held(item, mix(step.number, i), calls=calls))
        else:
            if step.number % 2:
                self.generators.remove(generator)
                yield scripts.drop(generator)

    # Groups

    def _group(self, _: Step, o: dict[str, Any]) -> Script:
        if not o["bundles"]:
            return
        bundles = [ResourceSet.of({"CPU": 1})] * o["bundles"]
        group = yield scripts.make_group(bundles, o["strategy"])
        self.groups.append((group, o["bundles"]))
        yield scripts.wait_group(group, o["timeout"] * NS_PER_MS)

    def _group_task(self, step: Step, o: dict[str, Any]) -> Script:
        found = self._one(self.groups, o["on"])
        if found is None:
            return
        group, bundles = found
        index = min(o["index"], bundles - 1)
        args, direct, boxed = self._args(step)
        name = hex_id("placement_group", group)
        options = TaskOptions(
            function=self.bodies.of(step, o["kind"], o["depth"]),
            max_retries=o["retries"],
            resources=within_group(ResourceSet.of({"CPU": 1}), name, index),
            strategy=InPlacementGroup(placement_group_id=group, bundle_index=index),
        )
        refs = yield scripts.submit(options, args)
        yield scripts.keep(refs[0])
        self.in_groups += refs
        calls = any(h.calls for h in (*direct, *boxed))
        self._expect(step, refs, direct, boxed, slow=True, calls=calls)

    def _remove_group(self, _: Step, o: dict[str, Any]) -> Script:
        found = self._one(self.groups, o["on"])
        if found is not None:
            self.groups.remove(found)
            yield scripts.remove_group(found[0])


def _safe(held: Held) -> bool:
    """An actor's method may wait for it."""
    return not held.calls
