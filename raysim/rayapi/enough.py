"""When a training program has shown enough: so many optimizer steps, or steps that are alike.

A loop of a million steps says after some thousands what a step takes, and goes on for as long as
it was asked to: a script under a launcher is stopped there, and its report says so. So is a program
of Ray that ``raysim run`` plays, in its only training run; not one of Ray Tune, of several runs, or
on machines that fail, nor in a plan: what it does with those is its answer. Loops that end when a
loss is small enough never end on shapes, and are stopped likewise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysim.units import NS_PER_S, format_seconds

if TYPE_CHECKING:
    from raysim.rayapi.train.worker import Worker

MOST_CALLS = 1_500_000
"""Of torch's functions by all ranks: half a minute to a minute of a core."""
STEP_CALLS = 20
"""What else a step of a rank takes here, in such calls: 0.4 ms, where a call takes 20 us."""
ALIKE = 0.03
"""Two paces that differ by less are one: episodes of agents differ in length."""
_TUNE = "tune"
"""What ``Tuner`` leaves in a session."""
END = "--until end plays all of it"


class Enough:
    """Looks at every step of a run's first rank.

    Parameters
    ----------
    steps
        After how many of its optimizer steps a run has shown enough; 0: at its end; None: on GPUs,
        when ``MOST_CALLS`` are over and steps are alike.
    """

    def __init__(self, steps: int | None) -> None:
        self.why = ""
        """What is said of a program that is stopped."""
        self._asked = steps
        self._done: dict[int, int] = {}
        self._marks: list[tuple[int, int]] = []
        """Steps and virtual time, a quarter and a half on the way to the next look."""
        self._most = MOST_CALLS

    def step_taken(self, worker: Worker, shared: Any) -> None:
        """A rank has taken one; what a run's ranks share tells it from others."""
        if self._asked == 0 or worker.context.rank != 0:
            return
        done = self._done[id(shared)] = self._done.get(id(shared), 0) + 1
        session = worker.run.session
        if self._asked is not None:
            if done >= self._asked and not self.why:
                self.why = f"after {done:,} optimizer step{'s' * (done > 1)}, as asked"
                session.stop_here(self.why)
        elif worker.torch_steps is not None and self._is_all(worker):
            calls = STEP_CALLS * done + worker.torch_steps.mode.heard
            self._look(session, done, calls * worker.context.world_size)

    def _is_all(self, worker: Worker) -> bool:
        """Whether this run is what its program is about."""
        run = worker.run
        return run.launched or (len(self._done) == 1 and _TUNE not in run.session.libraries)

    def _look(self, session: Any, done: int, calls: int) -> None:
        """Whether the second half has the second quarter's pace."""
        share = (1, 2, 4)[len(self._marks)]
        if 4 * calls < share * self._most or self.why:
            return
        self._marks.append((done, session.now_ns))
        if share != 4:
            return
        (first, first_ns), (half, half_ns), (_, now_ns) = self._marks
        before = (half_ns - first_ns) / max(1, half - first)
        after = (now_ns - half_ns) / max(1, done - half)
        if done - half <= half - first or abs(after - before) > ALIKE * before:
            self._marks = self._marks[1:]
            self._most *= 2
            return
        each = format_seconds(after / NS_PER_S)
        self.why = (
            f"by itself, after {done:,} optimizer steps on each of its ranks, at {each} a step by "
            f"now, which no longer changes; what would follow is in no total, {END}"
        )
        session.stop_here(self.why)
