"""Trials as specs: what each iteration takes and reports.

Real counterpart: the user's trainable, a function that calls ``tune.report`` or a ``Trainable``
class, and ``ray/tune/trainable/trainable.py`` around it (ray 2.60). A program is a function that
yields ``Step``s; metric curves are the spec author's, drawn from a named stream of the trial.

Not modelled: what else the trainable's process does between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from raysim.raycore.scripts import Script, compute, sleep
from raysim.raycore.tasks import TaskError
from raysim.raylibs.tune.trial import Trial, TrialCheckpoint

DONE = "done"
DUPLICATE = "__duplicate__"
SHOULD_CHECKPOINT = "should_checkpoint"
"""Keys of results with a meaning (``ray/tune/result.py``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One iteration."""

    duration_s: float = 0.0
    """On GPUs, or waiting."""
    core_s: float = 0.0
    """On the node's cores, ``width`` of them."""
    width: float = 1.0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    checkpoint_bytes: int | None = None
    """Reported with a checkpoint of this size."""
    done: bool = False
    """It says itself that it is the last; a function that returns needs one exchange more."""
    fails: bool = False
    """The program raises instead of reporting."""


Steps = Callable[[Mapping[str, Any], Any, int], Iterator[Step]]
"""(configuration, random stream, iteration to go on from) -> what happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialProgram:
    """What a trial runs.

    Parameters
    ----------
    steps
        Its iterations.
    setup_core_s, setup_s
        Work on a core, then waiting, before the first (``setup``, first import of torch).
    checkpoint_bytes
        Of a class trainable, which saves whenever it is told to; None: a function, whose last
        reported checkpoint counts.
    write_bytes_per_s, read_bytes_per_s
        Of one trial's checkpoints to and from storage.
    end_s
        From a function's last report to its return.
    """

    steps: Steps
    setup_core_s: float = 0.0
    setup_s: float = 0.0
    checkpoint_bytes: int | None = None
    write_bytes_per_s: float = 500e6
    read_bytes_per_s: float = 500e6
    end_s: float = 0.0


class SpecTrainable:
    """Plays a ``TrialProgram`` in a trial's actor."""

    def __init__(
        self, process: Any, program: TrialProgram, trial: Trial, stream: Callable[[str], Any]
    ) -> None:
        self._process = process
        self._program = program
        self._trial_id = trial.trial_id
        self._stream = stream
        self._rng = stream(trial.trial_id)
        self._config: Mapping[str, Any] = {}
        self._steps: Iterator[Step] | None = None
        self._begin(0)
        self._reported: TrialCheckpoint | None = None

    def _begin(self, iteration: int, metrics: Mapping[str, Any] | None = None) -> None:
        self.iteration = iteration
        self.time_total_s = float((metrics or {}).get("time_total_s", 0.0))
        self._metrics: dict[str, Any] = dict(metrics or {})
        self._steps = None

    def setup(self, config: Mapping[str, Any]) -> Script:
        """Before the first iteration."""
        self._config = config
        if self._program.setup_core_s:
            yield compute(self._program.setup_core_s)
        yield sleep(round(self._program.setup_s * 1e9))

    def next_step(self) -> Step | None:
        """What comes now; None: the program has ended."""
        if self._steps is None:
            self._steps = self._program.steps(self._config, self._rng, self.iteration)
        return next(self._steps, None)

    def wait_s(self, step: Step | None) -> float:
        """Of an iteration, but for its work on cores; with the upload of its checkpoint."""
        if step is None:
            return self._program.end_s
        return step.duration_s + (step.checkpoint_bytes or 0) / self._program.write_bytes_per_s

    def result(self, step: Step, took_s: float) -> dict[str, Any]:
        """What ``train()`` makes of a step."""
        self.iteration += 1
        self.time_total_s += took_s
        self._metrics = metrics = {
            "training_iteration": self.iteration,
            "time_total_s": self.time_total_s,
            "time_this_iter_s": took_s,
            DONE: step.done,
            **step.metrics,
        }
        if step.checkpoint_bytes is not None:
            metrics[SHOULD_CHECKPOINT] = True
            self._reported = self._checkpoint(step.checkpoint_bytes)
        return metrics

    def train(self) -> Script:
        """One iteration: its result."""
        step = self.next_step()
        if step is None:
            yield sleep(round(self._program.end_s * 1e9))
            return {DUPLICATE: True}
        began_ns = self._process.now_ns
        if step.core_s:
            yield compute(step.core_s, step.width)
        yield sleep(round(self.wait_s(step) * 1e9))
        if step.fails:
            return TaskError("TASK_EXECUTION_EXCEPTION", "the trial's program fails")
        return self.result(step, (self._process.now_ns - began_ns) / 1e9)

    def save(self) -> Script:
        """The latest checkpoint, or None; a class makes one now."""
        size = self._program.checkpoint_bytes
        if size is None:
            return self._reported
        yield sleep(round(size / self._program.write_bytes_per_s * 1e9))
        return self._checkpoint(size)

    def restore(self, checkpoint: TrialCheckpoint) -> Script:
        """Go on from it, whosever it was."""
        yield sleep(round(checkpoint.size_bytes / self._program.read_bytes_per_s * 1e9))
        self._begin(checkpoint.iteration, checkpoint.metrics)
        self._reported = checkpoint

    def reset(self, trial: Trial) -> bool:
        """Be another trial; it can."""
        self._trial_id, self._config = trial.trial_id, trial.config
        self._rng = self._stream(trial.trial_id)
        self._begin(0)
        self._reported = None
        return True

    def stop(self) -> None:
        """Nothing is left of it."""

    def _checkpoint(self, size_bytes: int) -> TrialCheckpoint:
        return TrialCheckpoint(
            trial_id=self._trial_id, iteration=self.iteration, size_bytes=size_bytes,
            metrics=dict(self._metrics),
        )  # fmt: skip
