"""What a script may ask of its process: Ray's calls, time and the node's cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raysim.raycore.ids import ActorID, ObjectID, PlacementGroupID
from raysim.raycore.process import BundleStrategy
from raysim.raycore.resources import ResourceSet
from raysim.raycore.scripts.script import WAITS, Ask, Driver
from raysim.raycore.tasks import Arg, Payload, Ref, TaskError, TaskOptions


def submit(options: TaskOptions, args: Sequence[Arg] = ()) -> Ask:
    """``f.remote(*args)``: its references."""

    def begin(d: Driver) -> Any:
        d.lead_ns += d.process.costs.submit_task_ns
        return d.process.submit_task(options, args, lead_ns=d.lead_ns, parent=d.parent)

    return Ask(begin)


def create_actor(options: TaskOptions, args: Sequence[Arg] = ()) -> Ask:
    """``Actor.remote(*args)``: its id; waits for the registration only if it is named."""

    def begin(d: Driver) -> Any:
        d.lead_ns += d.process.costs.submit_task_ns
        assert options.actor is not None, "create_actor without ActorOptions"
        if options.actor.name:
            d.process.create_actor(options, args, d.resume, lead_ns=d.take_lead(), parent=d.parent)
            return WAITS
        return d.process.create_actor(options, args, _nothing, lead_ns=d.lead_ns, parent=d.parent)

    return Ask(begin)


def call_actor(actor: ActorID, options: TaskOptions, args: Sequence[Arg] = ()) -> Ask:
    """``actor.method.remote(*args)``: its references, or PENDING_CALLS_LIMIT_EXCEEDED."""

    def begin(d: Driver) -> Any:
        d.lead_ns += d.process.costs.submit_actor_task_ns
        return d.process.submit_actor_task(actor, options, args, lead_ns=d.lead_ns, parent=d.parent)

    return Ask(begin)


def drop_actor(actor: ActorID) -> Ask:
    """``del actor``."""

    def begin(d: Driver) -> Any:
        d.process.remove_actor_handle(actor, lead_ns=d.lead_ns)

    return Ask(begin)


def kill(actor: ActorID, *, no_restart: bool = True) -> Ask:
    """``ray.kill``."""

    def begin(d: Driver) -> Any:
        d.process.kill_actor(actor, no_restart=no_restart, lead_ns=d.lead_ns)

    return Ask(begin)


def put(payload: Payload) -> Ask:
    """``ray.put``: waits until it is sealed; its reference."""

    def begin(d: Driver) -> Any:
        d.lead_ns += d.process.costs.put_ns
        done = _PutDone(d)
        done.ref = d.process.put(payload, done, lead_ns=d.take_lead())
        return WAITS

    return Ask(begin)


class _PutDone:
    __slots__ = ("driver", "ref")

    ref: Ref

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def __call__(self, error: TaskError | None) -> None:
        self.driver.resume(self.ref if error is None else error)


def get(refs: Sequence[Ref], timeout_ns: int | None = None) -> Ask:
    """``ray.get`` of a list: its values, or GET_TIMEOUT."""

    def begin(d: Driver) -> Any:
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

    def begin(d: Driver) -> Any:
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

    def begin(d: Driver) -> Any:
        d.process.add_local_reference(ref)

    return Ask(begin)


def drop(*refs: Ref) -> Ask:
    """``del``: one handle less of each."""

    def begin(d: Driver) -> Any:
        for ref in refs:
            d.process.remove_local_reference(ref.object_id, lead_ns=d.lead_ns)

    return Ask(begin)


def drop_id(object_id: ObjectID) -> Ask:
    """One handle less."""

    def begin(d: Driver) -> Any:
        d.process.remove_local_reference(object_id, lead_ns=d.lead_ns)

    return Ask(begin)


def cancel(ref: Ref, *, force: bool = False, recursive: bool = True) -> Ask:
    """``ray.cancel``."""

    def begin(d: Driver) -> Any:
        d.process.cancel(ref, force=force, recursive=recursive, lead_ns=d.lead_ns)

    return Ask(begin)


def next_item(generator: Ref) -> Ask:
    """``next(generator)``: a reference, an error, or None at the end."""

    def begin(d: Driver) -> Any:
        d.process.next_item(generator, d.resume, lead_ns=d.take_lead())
        return WAITS

    return Ask(begin)


def yield_item(item: Payload) -> Ask:
    """``yield`` in a streaming generator."""

    def begin(d: Driver) -> Any:
        assert d.running is not None, "only a task can yield items"
        d.running.yield_item(item, d.resume, lead_ns=d.take_lead())
        return WAITS

    return Ask(begin)


def sleep(delay_ns: int) -> Ask:
    """``time.sleep``."""

    def begin(d: Driver) -> Any:
        d.process.after(d.take_lead() + delay_ns, d.slept)
        return WAITS

    return Ask(begin)


def compute(core_s: float, width: float = 1.0) -> Ask:
    """Work on the node's cores."""

    def begin(d: Driver) -> Any:
        d.process.after(d.take_lead(), d.compute, (core_s, width))
        return WAITS

    return Ask(begin)


def spend(cost_ns: int) -> Ask:
    """Python of the script's own: it runs so much further ahead of the clock; its own instant."""

    def begin(d: Driver) -> Any:
        d.lead_ns += cost_ns
        return d.process.now_ns + d.lead_ns

    return Ask(begin)


def make_group(bundles: Sequence[ResourceSet], strategy: BundleStrategy = "PACK") -> Ask:
    """``placement_group(bundles)``: its id, once persisted."""

    def begin(d: Driver) -> Any:
        d.process.groups.create(bundles, strategy, d.resume, lead_ns=d.take_lead())
        return WAITS

    return Ask(begin)


def wait_group(group: PlacementGroupID, timeout_ns: int | None = None) -> Ask:
    """``pg.wait(timeout)``: whether it is there."""

    def begin(d: Driver) -> Any:
        d.process.groups.wait(group, d.resume, timeout_ns=timeout_ns, lead_ns=d.take_lead())
        return WAITS

    return Ask(begin)


def remove_group(group: PlacementGroupID) -> Ask:
    """``remove_placement_group(pg)``."""

    def begin(d: Driver) -> Any:
        d.process.groups.remove(group, d.resume, lead_ns=d.take_lead())
        return WAITS

    return Ask(begin)


def ask_gcs(message: Any) -> Ask:
    """Any question to the GCS."""

    def begin(d: Driver) -> Any:
        d.process.call_gcs(message, d.resume, lead_ns=d.take_lead())
        return WAITS

    return Ask(begin)


def here() -> Ask:
    """The process the script runs in."""

    def begin(d: Driver) -> Any:
        return d.process

    return Ask(begin)


def now() -> Ask:
    """``time.monotonic_ns()``: the script's own instant, ahead of the clock or not."""

    def begin(d: Driver) -> Any:
        return d.process.now_ns + d.lead_ns

    return Ask(begin)


def _nothing(_answer: object) -> None:
    """Nobody waits."""
