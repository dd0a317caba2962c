"""What a whole run makes of its time: many lives of it played, and the closed form beside them.

The same run is played again and again with other failures, as often as ``MOST_LIVES`` and some
seconds of work allow; the means of their parts are the answer, their spread that of luck with
failures alone. Where nothing is random, once. The best interval between saves is that of the closed
form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from raysim.kernel.progress import Progress
from raysim.kernel.simulation import Simulation
from raysim.units import to_seconds
from raysim.workloads.failures import (
    best_interval_s,
    daly_interval_s,
    expected_stretch_s,
    expected_work_s,
    young_interval_s,
)
from raysim.workloads.long_run import PARTS, Course, Life, LongRun

MOST_LIVES = 100
MOST_EVENTS = 200_000
"""Of all lives together: a few seconds."""
FEWEST_LIVES = 4
SPREAD = (0.05, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Saving after every so many steps, and what that makes of the run in expectation."""

    steps: int
    seconds: float
    """Of steps between saves."""
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """What a run makes of its wall time."""

    course: Course
    lives: tuple[Life, ...]
    interval: Interval | None
    """As configured; None: it never saves by time or steps."""
    best: Interval | None
    """None: failures have no rate to choose it by, or saving takes no time."""
    young_s: float | None
    daly_s: float | None
    expected_s: float | None
    """Wall time by the closed form; None where it does not apply."""
    one_more_spare: float | None
    """Relative change of the expected wall time by another node that stands by."""

    @property
    def finished(self) -> bool:
        """Whether every life came to its last step."""
        return all(life.finished for life in self.lives)

    @property
    def parts_s(self) -> dict[str, float]:
        """Mean seconds of each part; they add up to the mean wall time."""
        return {part: self._mean_s([life.parts_ns[part] for life in self.lives]) for part in PARTS}

    @property
    def wall_s(self) -> float:
        """Mean wall time."""
        return self._mean_s([life.wall_ns for life in self.lives])

    @property
    def goodput(self) -> float:
        """Kept steps of healthy machines over wall time, of all lives together."""
        wall = sum(life.wall_ns for life in self.lives)
        return sum(life.parts_ns["kept"] for life in self.lives) / wall if wall else 1.0

    @property
    def failures(self) -> float:
        """In the mean."""
        return sum(life.failures for life in self.lives) / len(self.lives)

    @property
    def saves(self) -> float:
        """In the mean."""
        return sum(life.saves for life in self.lives) / len(self.lives)

    def wall_quantile_s(self, share: float) -> float:
        """Wall time that so many of the lives stay below."""
        walls = sorted(life.wall_ns for life in self.lives)
        return to_seconds(walls[min(len(walls) - 1, math.floor(share * len(walls)))])

    @staticmethod
    def _mean_s(lengths_ns: list[int]) -> float:
        return to_seconds(sum(lengths_ns)) / len(lengths_ns)


def steps_between(interval_s: float, course: Course) -> int:
    """Whole steps nearest to an interval, one at least: saves fall between steps."""
    if interval_s >= course.steps * to_seconds(course.pace.step_ns[0]):
        return course.steps
    return max(1, round(interval_s / to_seconds(course.pace.step_ns[0])))


def measure(
    course: Course, seed: int, *, at_best: bool = False, progress: Progress | None = None
) -> Goodput:
    """Play the lives of a course.

    Parameters
    ----------
    seed
        One seed, one result.
    at_best
        Save at the best interval instead of the course's.
    progress
        Where to say how far it is.
    """
    best = best_interval(course)
    if at_best and best is not None:
        course = replace(course, save_every=best.steps)
    every = course.save_every
    random = math.isfinite(course.mtbf_s)
    stall_s = to_seconds(course.stall_ns)
    return Goodput(
        course=course,
        lives=tuple(_live(course, seed, progress or Progress())),
        interval=None if every is None else _interval(course, every),
        best=best,
        young_s=young_interval_s(stall_s, course.mtbf_s) if random else None,
        daly_s=daly_interval_s(stall_s, course.mtbf_s) if random else None,
        expected_s=expected_wall_s(course, every) if _is_plain(course) else None,
        one_more_spare=_one_more_spare(course) if random else None,
    )


def _one_more_spare(course: Course) -> float | None:
    """By the closed form; None where the job never ends, or no node is ever missing."""
    how = course.failures
    more = replace(course, failures=replace(how, spare_nodes=how.spare_nodes + 1))
    now_s, then_s = (expected_wall_s(c, c.save_every) for c in (course, more))
    return then_s / now_s - 1 if math.isfinite(now_s) and then_s < now_s else None


def _live(course: Course, seed: int, progress: Progress) -> Iterator[Life]:
    """Lives, up to the first that has no end."""
    lives = _lives(course)
    for number in range(lives):
        run = LongRun(course, Simulation(seed=seed), number)
        progress.part(number + 1, lives)
        progress.playing(run.where)
        life = run.play()
        yield life
        if not life.finished:
            return


def _lives(course: Course) -> int:
    if not math.isfinite(course.mtbf_s):
        return 1
    at_once = course.stops in ([], [course.save_every])
    each = 10.0 if at_once else sum(2 * course.steps / n for n in course.stops)
    each += 12 * course.steps * to_seconds(course.pace.step_ns[0]) / course.mtbf_s
    return max(FEWEST_LIVES, min(MOST_LIVES, int(MOST_EVENTS / each)))


def _is_plain(course: Course) -> bool:
    """Whether the closed form says all there is: one pace, random failures only."""
    return len(course.pace.step_ns) == 1 and not (course.outages or course.failures.times_s)


def best_interval(course: Course) -> Interval | None:
    """The interval that the closed form finds best, in whole steps."""
    if not math.isfinite(course.mtbf_s) or not course.stall_ns:
        return None
    best_s = best_interval_s(to_seconds(course.stall_ns), course.mtbf_s)
    return _interval(course, steps_between(best_s, course))


def _interval(course: Course, every: int) -> Interval:
    return Interval(
        steps=every,
        seconds=every * to_seconds(course.pace.step_ns[0]),
        wall_s=expected_wall_s(course, every),
    )


def expected_wall_s(course: Course, every: int | None) -> float:
    """Wall time in the mean, by the closed form; evaluations are spread over the steps.

    Whoever fails loses, besides the work since the last save, what that save took to be written
    after training had gone on. Epochs' own saves are counted as time, not as places to restart.
    """
    failures, mtbf_s = course.failures, course.mtbf_s
    startup_s, stall_s = to_seconds(course.startup_ns), to_seconds(course.stall_ns)
    wait_s = failures.detect_s
    if math.isfinite(mtbf_s):
        wait_s += failures.mean_wait_s(mtbf_s) + to_seconds(course.written_ns - course.stall_ns)
    load_s = to_seconds(course.load_ns)
    restart_s = startup_s + load_s + failures.warm_up_s
    first_s = startup_s + (load_s if course.resume else 0.0)
    steps_s = course.steps * to_seconds(course.pace.step_ns[0])
    epochs = course.steps // course.steps_per_epoch if course.steps_per_epoch else 0
    work_s = steps_s + epochs * to_seconds(course.evaluation_ns)
    work_s += epochs * stall_s if course.save_epochs and every else 0.0
    if every is None and course.save_epochs:
        every = course.steps_per_epoch
    interval_s = work_s if every is None else every * work_s / course.steps
    first = expected_stretch_s(first_s, mtbf_s, wait_s=wait_s, restart_s=0.0)
    return first + expected_work_s(
        work_s, interval_s, stall_s if every else 0.0, mtbf_s, wait_s=wait_s, restart_s=restart_s
    )
