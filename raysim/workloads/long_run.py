"""A job from its launch to its last step, over weeks: steps in bulk, failures, saves, restarts.

Each stretch between two things that matter (a save, an evaluation, a node that turns slow, a
failure) is one event on virtual time. A failure takes everything since the last save that had been
written; the job then waits until it is noticed and until there are nodes enough, starts again,
loads, and may fail while it does. Machines that wait do not fail.

Every nanosecond belongs to one part (``PARTS``); they add up to the wall time exactly.

Simplification: a step under way when the pace changes ends at the old pace.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any

from simpy.events import Event, Process, Timeout

from raysim.kernel.progress import Moment
from raysim.kernel.simulation import Simulation
from raysim.units import to_ns
from raysim.workloads.failures import Failures

PARTS = (
    "kept", "slow", "startup", "evaluation", "checkpoints", "lost", "detection", "waiting",
    "restart", "link_down",
)  # fmt: skip
DAY_NS = 86_400 * 10**9
HOPELESS = 1000
"""Failures in a row without a save between them, after which the job is given up."""
_Waiting = Generator[Event, Any, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long a step takes, from when on."""

    step_ns: tuple[int, ...]
    changes_ns: tuple[int, ...] = ()
    """When each but the first begins."""

    def at(self, now_ns: int) -> tuple[int, int | None]:
        """A step's length now, and when that changes."""
        index = bisect_right(self.changes_ns, now_ns)
        later = self.changes_ns[index] if index < len(self.changes_ns) else None
        return self.step_ns[index], later

    def no_shorter_from(self, moment_ns: int, least_ns: int) -> Pace:
        """The same, with steps of at least so long from a moment on."""
        before, _ = self.at(moment_ns)
        index = bisect_right(self.changes_ns, moment_ns)
        later = [max(length, least_ns) for length in (before, *self.step_ns[index + 1 :])]
        return Pace(
            step_ns=(*self.step_ns[: index + 1], *later),
            changes_ns=(*self.changes_ns[:index], moment_ns, *self.changes_ns[index:]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A link that the job needs is down."""

    begin_ns: int
    end_ns: int
    patience_ns: int
    """After this the job fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a run consists of if nothing fails, and what can."""

    steps: int
    healthy_step_ns: int
    """Of machines that are all alike."""
    pace: Pace
    startup_ns: int = 0
    load_ns: int = 0
    """Reading a checkpoint."""
    resume: bool = False
    """It reads one before its first step, too."""
    evaluation_ns: int = 0
    steps_per_epoch: int | None = None
    save_every: int | None = None
    """Steps."""
    save_epochs: bool = False
    stall_ns: int = 0
    """Training stands still for a save."""
    written_ns: int = 0
    """Until what was saved is safe, from when the stall began; not less than that."""
    outages: tuple[Outage, ...] = ()
    failures: Failures = field(default_factory=Failures)
    mtbf_s: float = math.inf

    @property
    def stops(self) -> list[int]:
        """Steps come in stretches up to a multiple of one of these."""
        halts = self.save_epochs or self.evaluation_ns > 0
        return [n for n in (self.save_every, self.steps_per_epoch if halts else None) if n]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """One failure of a job."""

    at_ns: int
    why: str
    lost_ns: int
    """Work that no checkpoint held."""
    down_ns: int
    """Until steps go on, or the next failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What became of one run."""

    parts_ns: dict[str, int]
    stops: tuple[Stop, ...]
    saves: int
    """Written, those of lost work included."""
    finished: bool

    @property
    def failures(self) -> int:
        """How many."""
        return len(self.stops)

    @property
    def wall_ns(self) -> int:
        """From launch to end."""
        return sum(self.parts_ns.values())

    @property
    def goodput(self) -> float:
        """Share of the wall time that is kept steps, at the speed of healthy machines."""
        return self.parts_ns["kept"] / self.wall_ns if self.wall_ns else 1.0


class JobFailedError(Exception):
    """The job has stopped; ``until_ns``: it cannot start again before."""

    def __init__(self, *, until_ns: int = 0, takes_node: bool = False) -> None:
        super().__init__()
        self.until_ns = until_ns
        self.takes_node = takes_node


@dataclass(slots=True)
class _Snapshot:
    """State that is on its way to storage."""

    safe_ns: int
    step: int
    spent: Counter[str]


class LongRun:
    """Plays a course once.

    Parameters
    ----------
    course
        What to play.
    simulation
        Fresh clock to play on; its seed decides when things fail.
    number
        Of this run among those of the same seed: each has random streams of its own.
    """

    def __init__(self, course: Course, simulation: Simulation, number: int = 0) -> None:
        self.course = course
        self.clock = simulation.clock
        self.gaps = simulation.rng(f"failures/run-{number}/times")
        self.kinds = simulation.rng(f"failures/run-{number}/kinds")
        self.parts: Counter[str] = Counter(dict.fromkeys(PARTS, 0))
        self.unsafe: Counter[str] = Counter()
        """Spent since the last snapshot."""
        self.flight: _Snapshot | None = None
        self.spent_ns = 0
        """On what is being done."""
        self.done = self.safe = 0
        """Steps; those that no failure can take."""
        self.fails_ns: int | None = None
        self.repairs_ns: list[int] = []
        """When nodes come back."""
        self.stops: list[Stop] = []
        self.saves = self.in_vain = 0
        self.training = self.finished = False
        self.simulation = simulation

    def play(self) -> Life:
        """From launch to end."""
        Process(self.clock, self._live())
        self.simulation.run()
        return Life(
            parts_ns=dict(self.parts),
            stops=tuple(self.stops),
            saves=self.saves,
            finished=self.finished,
        )

    def where(self) -> Moment:
        """Days and failures so far, and the share of the steps that is done."""
        course, now_ns = self.course, self.clock.now
        share = self.done / course.steps
        ideal_ns = course.steps * course.healthy_step_ns
        said = f"day {now_ns / DAY_NS:,.1f} of {max(ideal_ns, now_ns) / DAY_NS:,.1f} or more"
        return Moment(f"{said}: {len(self.stops):,} failures", share, now_ns)

    def _live(self) -> _Waiting:
        course, part = self.course, "startup"
        launch = course.startup_ns + (course.load_ns if course.resume else 0)
        while not self.finished and self.in_vain < HOPELESS:
            self._arm()
            try:
                yield from self._spend(launch)
                self._book(self.parts, part)
                self._up()
                self.training = True
                yield from self._train()
                self.finished = True
            except JobFailedError as failure:
                self._up()
                self._lose(part, failure)
                yield from self._recover(failure)
            launch = course.startup_ns + course.load_ns + to_ns(course.failures.warm_up_s)
            part = "restart"

    # ---- time ------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """When the job fails next; a constant rate has no memory."""
        now = self.clock.now
        self.fails_ns = None
        if math.isfinite(self.course.mtbf_s):
            self.fails_ns = now + to_ns(self.gaps.exponential(self.course.mtbf_s))
        later = [to_ns(t) for t in self.course.failures.times_s if to_ns(t) > now]
        if later:
            self.fails_ns = min(later)

    def _spend(self, length_ns: int) -> _Waiting:
        """Let the job do something for so long; it stands still while a link is down.

        Raises
        ------
        JobFailedError
            It did not get to the end of that.
        """
        end = self.clock.now + length_ns
        while self.clock.now < end:
            now = self.clock.now
            outage = next((o for o in self.course.outages if o.end_ns > now), None)
            if outage is not None and outage.begin_ns <= now:
                yield from self._hang(outage)
                end += self.clock.now - now
                continue
            stop = end if outage is None else min(end, outage.begin_ns)
            yield from self._pass(stop)
            self.spent_ns += self.clock.now - now
            if self.clock.now < stop:
                self._break()

    def _pass(self, until_ns: int) -> _Waiting:
        """Wait for a moment, or for the failure before it."""
        if self.fails_ns is not None:
            until_ns = min(until_ns, self.fails_ns)
        if until_ns > self.clock.now:
            yield Timeout(self.clock, until_ns - self.clock.now)

    def _break(self) -> None:
        takes = self.course.failures.takes_node
        raise JobFailedError(takes_node=takes >= 1 or bool(self.kinds.random() < takes))

    def _hang(self, outage: Outage) -> _Waiting:
        """NCCL retries until the link is back, or its patience ends."""
        begin = self.clock.now
        stop = min(outage.end_ns, begin + outage.patience_ns)
        yield from self._pass(stop)
        self.parts["link_down"] += self.clock.now - begin
        if self.clock.now < stop:
            self._break()
        if stop < outage.end_ns:
            raise JobFailedError(until_ns=outage.end_ns)

    # ---- work ------------------------------------------------------------------------------------

    def _train(self) -> _Waiting:
        while self.done < self.course.steps:
            yield from self._cycles()
            if self.done < self.course.steps:
                yield from self._stretch()
        yield from self._land()
        self.parts.update(self.unsafe)
        self.unsafe.clear()

    def _cycles(self) -> _Waiting:
        """As many times steps and their save as nothing comes between, at once."""
        course, now, every = self.course, self.clock.now, self.course.save_every
        if not every or course.stops != [every] or self.done % every or self.unsafe.total():
            return
        step_ns, change = course.pace.at(now)
        cycle_ns = every * step_ns + course.stall_ns
        written = course.written_ns <= cycle_ns
        if self.flight is not None:
            written = written and self.flight.safe_ns <= now + every * step_ns
        limits = [self.fails_ns, change, *(o.begin_ns for o in course.outages if o.end_ns > now)]
        undisturbed = [(t - now) // cycle_ns for t in limits if t is not None]
        count = min([(course.steps - self.done) // every, *undisturbed])
        if count < 1 or not written:
            return
        yield from self._pass(now + count * cycle_ns)
        self._settle()
        self.done += count * every
        self.saves += count
        kept = every * min(step_ns, course.healthy_step_ns)
        slow = every * step_ns - kept
        each = Counter({"kept": kept, "slow": slow, "checkpoints": course.stall_ns})
        for part, length_ns in each.items():
            self.parts[part] += (count - 1) * length_ns
        if count > 1:
            self.safe, self.in_vain = self.done - every, 0
        safe_ns = self.clock.now - course.stall_ns + course.written_ns
        self.flight = _Snapshot(safe_ns, self.done, each)
        self._settle()

    def _stretch(self) -> _Waiting:
        """Steps up to where something else comes, and that."""
        course = self.course
        yield from self._steps()
        epoch = course.steps_per_epoch
        at_epoch = epoch is not None and self.done % epoch == 0
        if at_epoch and course.evaluation_ns:
            yield from self._spend(course.evaluation_ns)
            self._book(self.unsafe, "evaluation")
        every = course.save_every
        if (at_epoch and course.save_epochs) or (every and self.done % every == 0):
            yield from self._save()

    def _steps(self) -> _Waiting:
        """As many as nothing comes between."""
        course = self.course
        step_ns, change = course.pace.at(self.clock.now)
        ends = [(self.done // n + 1) * n for n in course.stops]
        count = min([course.steps, *ends]) - self.done
        if change is not None:
            count = min(count, -(-(change - self.clock.now) // step_ns))
        yield from self._spend(count * step_ns)
        self.done += count
        kept = count * min(step_ns, course.healthy_step_ns)
        self.unsafe["kept"] += kept
        self.unsafe["slow"] += self.spent_ns - kept
        self.spent_ns = 0

    def _save(self) -> _Waiting:
        """Training stands still, and goes on before everything is written."""
        yield from self._land()
        begin = self.clock.now
        yield from self._spend(self.course.stall_ns)
        self._book(self.unsafe, "checkpoints")
        self.saves += 1
        safe_ns = max(self.clock.now, begin + self.course.written_ns)
        self.flight = _Snapshot(safe_ns, self.done, self.unsafe)
        self.unsafe = Counter()
        self._settle()

    def _land(self) -> _Waiting:
        """Wait until the snapshot before is written."""
        if self.flight is not None and self.flight.safe_ns > self.clock.now:
            yield from self._spend(self.flight.safe_ns - self.clock.now)
            self._book(self.unsafe, "checkpoints")
        self._settle()

    def _settle(self) -> None:
        """What has been written by now is safe."""
        if self.flight is not None and self.flight.safe_ns <= self.clock.now:
            self.parts.update(self.flight.spent)
            self.safe, self.flight, self.in_vain = self.flight.step, None, 0

    def _book(self, where: Counter[str], part: str) -> None:
        where[part] += self.spent_ns
        self.spent_ns = 0

    # ---- failures --------------------------------------------------------------------------------

    def _up(self) -> None:
        """Note how long the last failure kept the job down, unless that is known."""
        if self.stops and not self.training:
            last = self.stops[-1]
            self.stops[-1] = replace(last, down_ns=self.clock.now - last.at_ns)

    def _lose(self, launching: str, failure: JobFailedError) -> None:
        """Account for a failure: nothing that was not safe is kept."""
        self._settle()
        self.in_vain += 1
        before = self.parts["lost"]
        self._book(self.parts, "lost" if self.training else launching)
        self.parts["lost"] += self.unsafe.total()
        self.parts["lost"] += self.flight.spent.total() if self.flight else 0
        why = "link down" if failure.until_ns else "node" if failure.takes_node else "process"
        lost = self.parts["lost"] - before
        self.stops.append(Stop(at_ns=self.clock.now, why=why, lost_ns=lost, down_ns=0))
        self.unsafe.clear()
        self.flight, self.training, self.done = None, False, self.safe

    def _recover(self, failure: JobFailedError) -> _Waiting:
        """Until it is noticed, and there are nodes enough; nothing fails meanwhile."""
        self.fails_ns = None
        how, begin = self.course.failures, self.clock.now
        if failure.takes_node:
            self.repairs_ns.append(begin + to_ns(how.replacement_s))
        if not failure.until_ns and how.detect_s:
            yield Timeout(self.clock, to_ns(how.detect_s))
        self.parts["detection"] += self.clock.now - begin
        now = self.clock.now
        self.repairs_ns = sorted(t for t in self.repairs_ns if t > now)
        missing = len(self.repairs_ns) - how.spare_nodes
        until = max(self.repairs_ns[missing - 1] if missing > 0 else now, failure.until_ns)
        if until > now:
            yield Timeout(self.clock, until - now)
        self.parts["waiting"] += self.clock.now - now
