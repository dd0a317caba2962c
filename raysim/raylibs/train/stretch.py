"""Many steps and the reports between them, worked out at once.

Real counterpart: a training loop that calls ``report()`` every so many steps, and the controller
that collects at most one report of each worker per poll. A worker's queue holds one report: who
reports more often than the controller polls waits for it, and steps then go at the pace of polls.

The pattern repeats itself once it is known whether it waits, so a stretch is a handful of segments
of equal cycles, however many steps it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from raysim.raylibs.train.polls import Polls


@dataclass(frozen=True, slots=True)
class Segment:
    """Equal cycles one after another: steps without a pause, then a wait."""

    begin_ns: int
    first_step: int
    cycles: int
    steps: int
    """Of a cycle."""
    cycle_ns: int
    reports: bool
    """Each cycle ends with a report."""

    @property
    def end_ns(self) -> int:
        """Of its last cycle."""
        return self.begin_ns + self.cycles * self.cycle_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How steps go while nothing else happens."""

    each_ns: int
    """From the end of one step to the end of the next, with the wait for its data."""
    report_every: int | None = None
    report_ns: int = 0
    """Of a report that finds the queue empty."""


class Stretch:
    """Steps from one number to another.

    Parameters
    ----------
    pace, polls
        How they go, and when the controller collects reports.
    begin_ns, first, last
        When it begins, the steps done by then, and those done at its end.
    free_ns
        When the queue is empty.
    last_reports
        Whether a report is due at the last step, if it is one of those.
    """

    def __init__(
        self, pace: Pace, polls: Polls, *, begin_ns: int, first: int, last: int, free_ns: int = 0,
        last_reports: bool = True,
    ) -> None:  # fmt: skip
        self.pace = pace
        self.begin_ns = begin_ns
        self.first, self.last = first, last
        self.free_ns = free_ns
        """When the queue is empty after it."""
        self.segments = list(self._plan(polls, last_reports=last_reports))
        self.end_ns = self.segments[-1].end_ns if self.segments else begin_ns

    def _plan(self, polls: Polls, *, last_reports: bool) -> Iterator[Segment]:
        pace, every = self.pace, self.pace.report_every
        at_ns, done = self.begin_ns, self.first
        while done < self.last:
            upto = self.last if not every else min(self.last, (done // every + 1) * every)
            reports = bool(every) and upto % (every or 1) == 0
            reports = reports and (upto < self.last or last_reports)
            steps = upto - done
            ready_ns = at_ns + steps * pace.each_ns + (pace.report_ns if reports else 0)
            waits = reports and ready_ns < self.free_ns
            end_ns = self.free_ns if waits else ready_ns
            yield Segment(at_ns, done, 1, steps, end_ns - at_ns, reports)
            at_ns, done = end_ns, upto
            if not reports:
                continue
            self.free_ns = polls.after(end_ns)
            assert every is not None, "reports without their number of steps"
            alone_ns = every * pace.each_ns + pace.report_ns
            first_poll_near = self.free_ns - end_ns <= polls.period_ns
            if alone_ns >= polls.period_ns and first_poll_near:
                cycle_ns = alone_ns
            elif waits:
                cycle_ns = polls.period_ns
            else:
                continue
            more = self.last // every - done // every
            more -= self.last % every == 0 and not last_reports
            if more > 0:
                yield Segment(at_ns, done, more, every, cycle_ns, reports=True)
                at_ns, done = at_ns + more * cycle_ns, done + more * every
                self.free_ns = polls.after(at_ns)

    def done_at(self, now_ns: int) -> tuple[int, int]:
        """Steps done by then, and when the last of them ended."""
        done, end_ns = self.first, self.begin_ns
        for s in self.segments:
            if now_ns <= s.begin_ns:
                break
            whole = min(s.cycles, (now_ns - s.begin_ns) // s.cycle_ns)
            begin_ns = s.begin_ns + whole * s.cycle_ns
            more = 0
            if whole < s.cycles:
                more = min(s.steps, (now_ns - begin_ns) // self.pace.each_ns)
            done = s.first_step + whole * s.steps + more
            if more:
                end_ns = begin_ns + more * self.pace.each_ns
            elif whole:
                end_ns = begin_ns - s.cycle_ns + s.steps * self.pace.each_ns
        return done, end_ns

    def end_of(self, step: int) -> int:
        """When so many steps are done."""
        for s in self.segments:
            inside = step - s.first_step
            if 0 < inside <= s.cycles * s.steps:
                whole, more = divmod(inside - 1, s.steps)
                return s.begin_ns + whole * s.cycle_ns + (more + 1) * self.pace.each_ns
        return self.begin_ns

    def reports_by(self, step: int) -> int:
        """Reports made when so many steps are done and reported."""
        return sum(
            min(s.cycles, max(0, step - s.first_step) // s.steps)
            for s in self.segments
            if s.reports
        )
