"""Actors of trials: asked for by their resources, started when a placement group is there.

Real counterparts (ray 2.60): ``RayActorManager`` and ``PlacementGroupResourceManager`` in
``ray/air/execution``, ``_ObjectCache`` in ``tune/utils``, ``Trainable`` as an actor. Events come
back to the controller's inbox; the groups of one request are alike, whoever asked first gets one.

``train`` calls of a spec take a short way: an actor's first ones are played by Ray Core, later ones
take what the first took beyond the step itself, as one timer of the worker's process.
"""

from __future__ import annotations

from collections import deque
from inspect import isgenerator
from typing import Any, NamedTuple

from raysim.raycore.ids import PlacementGroupID
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import (
    Event,
    Queue,
    Script,
    compute,
    make_group,
    now,
    remove_group,
    sleep,
    spawn,
    wait_for,
    wait_group,
)
from raysim.raycore.tasks import ActorOptions, TaskError
from raysim.raylibs.actors import ActorClass, ActorHandle, fetch, method_of
from raysim.raylibs.tune.experiment import MakeTrainable
from raysim.raylibs.tune.program import DUPLICATE, SHOULD_CHECKPOINT, SpecTrainable, Step
from raysim.raylibs.tune.resources import PlacementGroupFactory
from raysim.raylibs.tune.trial import Trial, TrialCheckpoint


class Happened(NamedTuple):
    """Something for the driver's loop."""

    kind: str
    """placed, started, train, save, restore, reset, stopped, wake."""
    actor: TrackedActor | None
    epoch: int
    value: Any
    at_ns: int


class TrialActor:
    """``Trainable`` as an actor."""

    def __init__(
        self, process: CoreProcess, make: MakeTrainable, trial: Trial, import_core_s: float
    ) -> None:
        self.process = process
        self.trainable = make(process, trial)
        self.idle_at_ns = 0
        self._over = Event()
        self._begin = (trial.config, import_core_s)

    def ready(self) -> Script:
        """``__ray_ready__``: after the imports and ``setup``; the instance, or an error."""
        config, import_core_s = self._begin
        yield compute(import_core_s)
        failed = yield from _run(self.trainable.setup(config))
        return failed if isinstance(failed, TaskError) else self

    def train(self) -> Script:
        """One result."""
        return (yield from _run(self.trainable.train()))

    def train_buffered(self, length: int, time_ns: int) -> Script:
        """Results of as many iterations, or of as long."""
        results: list[dict[str, Any]] = []
        until_ns = self.process.now_ns + time_ns
        while not results or (self.process.now_ns < until_ns and len(results) < length):
            result = yield from _run(self.trainable.train())
            if isinstance(result, TaskError):
                return result
            results.append(result)
            if result.get("done") or result.get(SHOULD_CHECKPOINT) or DUPLICATE in result:
                break
        return results

    def save(self) -> Script:
        """A checkpoint, or None."""
        yield from self._idle()
        return (yield from _run(self.trainable.save()))

    def restore(self, checkpoint: TrialCheckpoint) -> Script:
        """Go on from one."""
        return (yield from _run(self.trainable.restore(checkpoint)))

    def reset(self, trial: Trial) -> Script:
        """Be another trial."""
        yield from self._idle()
        return (yield from _run(self.trainable.reset(trial)))

    def stop(self) -> Script:
        """The last call."""
        yield from self._idle()
        yield from _run(self.trainable.stop())
        self._over.set()

    def watch(self) -> Script:
        """Returns when it stops; fails when it dies."""
        yield wait_for(self._over)

    def _idle(self) -> Script:
        wait_ns = self.idle_at_ns - self.process.now_ns
        if wait_ns > 0:
            yield sleep(wait_ns)


_KINDS = {"stop": "stopped", "train_buffered": "train"}
_OPTIONS = ActorOptions(concurrency_groups=(("watch", 1),))


def _run(made: Any) -> Script:
    return (yield from made) if isgenerator(made) else made


class TrackedActor:
    """An actor asked for: perhaps not yet placed."""

    __slots__ = (
        "call_ns", "called_ns", "epoch", "group", "handle", "instance", "request", "started",
        "stopping", "trial", "watched",
    )  # fmt: skip

    def __init__(self, request: PlacementGroupFactory, trial: Trial) -> None:
        self.request = request
        self.trial: Trial | None = trial
        self.handle: ActorHandle | None = None
        self.group: PlacementGroupID | None = None
        self.instance: TrialActor | None = None
        self.started = False
        self.stopping = False
        self.watched = False
        self.epoch = 0
        """Answers to calls of an earlier one are nobody's any more."""
        self.called_ns = 0
        self.call_ns: int | None = None
        """What a ``train`` call takes beyond the step."""


class ActorManager:
    """All actors of an experiment.

    Parameters
    ----------
    process
        The driver's.
    inbox
        Where ``Happened`` goes.
    make
        What makes a trial's trainable in its actor.
    import_core_s
        CPU time before ``setup``.
    """

    def __init__(
        self, process: CoreProcess, inbox: Queue, make: MakeTrainable, import_core_s: float
    ) -> None:
        self._process = process
        self._inbox = inbox
        self._make = make
        self._import_core_s = import_core_s
        self._pending: dict[PlacementGroupFactory, deque[TrackedActor]] = {}
        self._asked: dict[PlacementGroupID, PlacementGroupFactory] = {}
        """Groups not placed yet."""
        self._placed: dict[PlacementGroupFactory, deque[PlacementGroupID]] = {}
        self.num_pending = 0
        self.num_live = 0
        self.num_started = 0

    def add(self, request: PlacementGroupFactory, trial: Trial) -> Script:
        """Ask for one; ``add_actor``."""
        actor = TrackedActor(request, trial)
        self._pending.setdefault(request, deque()).append(actor)
        self.num_pending += 1
        group = yield make_group(request.sets(), request.strategy)
        self._asked[group] = request
        yield spawn(self._wait_for(group))
        return actor

    def placed(self, group: PlacementGroupID) -> Script:
        """A group is there: start who waits for one like it."""
        request = self._asked.pop(group, None)
        if request is None:
            yield remove_group(group)
            return
        self._placed.setdefault(request, deque()).append(group)
        while self._placed[request] and self._pending[request]:
            yield from self._start(
                self._pending[request].popleft(), self._placed[request].popleft()
            )

    def remove(self, actor: TrackedActor) -> Script:
        """Stop one; of one not started, give back a request."""
        actor.epoch += 1
        if actor.handle is not None:
            if not actor.stopping:
                actor.stopping = True
                yield spawn(self._call(actor, actor.epoch, "stop"))
            return
        self._pending[actor.request].remove(actor)
        self.num_pending -= 1
        group = next((g for g, r in self._asked.items() if r == actor.request), None)
        if group is not None:
            del self._asked[group]
        else:
            group = self._placed[actor.request].popleft()
        yield remove_group(group)

    def cleaned(self, actor: TrackedActor) -> Script:
        """It has stopped or died: its resources go back."""
        if actor.handle is None or actor.group is None:
            return
        group, actor.group = actor.group, None
        self.num_live -= 1
        yield actor.handle.kill()
        yield remove_group(group)

    def clear(self) -> Script:
        """Groups that nobody took go back."""
        groups = [*self._asked, *(g for placed in self._placed.values() for g in placed)]
        self._asked, self._placed = {}, {}
        for group in groups:
            yield remove_group(group)

    def call(self, actor: TrackedActor, method: str, *args: Any) -> Script:
        """``schedule_actor_task``: the answer comes as an event of the method's name."""
        actor.called_ns = yield now()
        if actor.call_ns is not None and not actor.watched:
            actor.watched = True
            yield spawn(self._watch(actor))
        yield spawn(self._call(actor, actor.epoch, method, *args))

    def train_shortly(self, actor: TrackedActor, at_ns: int) -> bool:
        """Have it train on the short way, if it may."""
        if actor.call_ns is None or not actor.watched:
            return False
        instance = actor.instance
        assert instance is not None, "trained before it was started"
        trainable = instance.trainable
        if not isinstance(trainable, SpecTrainable):
            return False
        step = trainable.next_step()
        wait_s = trainable.wait_s(step)
        delay_ns = at_ns - self._process.now_ns + actor.call_ns + round(wait_s * 1e9)
        instance.idle_at_ns = self._process.now_ns + delay_ns
        timer = _Answer(self, actor, step, wait_s)
        if step is not None and step.core_s:
            instance.process.after(delay_ns, timer.compute)
        else:
            instance.process.after(delay_ns, timer.answer)
        return True

    def _wait_for(self, group: PlacementGroupID) -> Script:
        if (yield wait_group(group)):
            self._tell("placed", None, 0, group)

    def _start(self, actor: TrackedActor, group: PlacementGroupID) -> Script:
        kind = ActorClass(cls=TrialActor, resources=actor.request.head_bundle, actor=_OPTIONS)
        self.num_pending -= 1
        self.num_live += 1
        self.num_started += 1
        actor.group = group
        actor.handle = yield from kind.in_group(group, 0).remote(
            self._make, actor.trial, self._import_core_s
        )
        yield spawn(self._ready(actor, actor.epoch))

    def _ready(self, actor: TrackedActor, epoch: int) -> Script:
        assert actor.handle is not None, "its own constructor has been called"
        value = yield from actor.handle.ask("ready")
        if isinstance(value, TrialActor):
            actor.instance = value
        self._tell("started", actor, epoch, value)

    def _call(self, actor: TrackedActor, epoch: int, method: str, *args: Any) -> Script:
        assert actor.handle is not None, f"{method} of an actor that has not been started"
        value = yield from actor.handle.ask(method, *args)
        if method == "train" and actor.call_ns is None and isinstance(value, dict):
            took_ns = (yield now()) - actor.called_ns
            spent_s = value.get("time_this_iter_s")
            if spent_s is not None and actor.instance is not None:
                actor.call_ns = took_ns - round(spent_s * 1e9)
        self._tell(_KINDS.get(method, method), actor, epoch, value)

    def _watch(self, actor: TrackedActor) -> Script:
        """Calls that Ray Core does not play do not fail with the actor: this one does."""
        assert actor.handle is not None
        options = method_of(TrialActor.__name__, "watch", concurrency_group="watch")
        refs = yield actor.handle.call("watch", options=options)
        value = refs if isinstance(refs, TaskError) else (yield from fetch(refs[0]))
        if isinstance(value, TaskError):
            self._tell("train", actor, actor.epoch, value)

    def _tell(self, kind: str, actor: TrackedActor | None, epoch: int, value: Any) -> None:
        self._inbox.put_nowait(Happened(kind, actor, epoch, value, self._process.now_ns))


class _Answer:
    """A result on its short way; it ends with the process that makes it."""

    __slots__ = ("_actor", "_began_ns", "_epoch", "_manager", "_step", "_took_s")

    def __init__(
        self, manager: ActorManager, actor: TrackedActor, step: Step | None, took_s: float
    ) -> None:
        self._manager = manager
        self._actor = actor
        self._epoch = actor.epoch
        self._step = step
        self._took_s = took_s
        self._began_ns = 0

    def compute(self, _: object) -> None:
        """The part on cores, last."""
        step, instance = self._step, self._actor.instance
        assert step is not None, "nothing to compute"
        assert instance is not None, "computes before it was started"
        self._began_ns = instance.process.now_ns
        instance.process.compute(step.core_s, self.computed, width=step.width)

    def computed(self) -> None:
        """The cores have done it."""
        assert self._actor.instance is not None
        self._took_s += (self._actor.instance.process.now_ns - self._began_ns) / 1e9
        self.answer(None)

    def answer(self, _: object) -> None:
        """To the driver, if it still lives."""
        manager, actor, step = self._manager, self._actor, self._step
        if getattr(manager._process, "state", "up") != "up" or actor.instance is None:  # noqa: SLF001
            return
        value: Any
        if step is None:
            value = {DUPLICATE: True}
        elif step.fails:
            value = TaskError("TASK_EXECUTION_EXCEPTION", "the trial's program fails")
        else:
            trainable = actor.instance.trainable
            assert isinstance(trainable, SpecTrainable)
            value = trainable.result(step, self._took_s)
        manager._tell("train", actor, self._epoch, value)  # noqa: SLF001
