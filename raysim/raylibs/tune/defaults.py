"""Tune's settings, by its environment variables, and what the driver's loop costs.

Real counterpart: ``ray/tune/execution/tune_controller.py`` and ``experiment_state.py``, ray 2.60;
other versions are ``replace``d. Costs: ``validation/README.md``, section ``ray_tune``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneCosts:
    """Seconds of the driver's one thread."""

    event_s: float = 1.0e-3
    """One step of the loop: ``ray.wait`` over all futures, the event's callbacks, the searcher and
    the scheduler asked. Measured on 2 cores, ray 2.60: 2.1 ms for a result without loggers, of
    which the result and Ray Core's own calls are half."""
    result_s: float = 0.19e-3
    """One result. Fitted: tune.single_96x100_none and tune.cluster_1000x10_none, 11 and 12 % off
    to either side."""
    logger_result_s: float = 1.6e-3
    """The same with JSON, CSV and TensorBoard lines. Fitted: tune.cluster_256x10_default."""
    trial_s: float = 57e-3
    """A trial made, its actor asked for and started, its end. Fitted: tune.cluster_1000x1_none."""
    state_trial_s: float = 0.5e-3
    """A trial in a snapshot of the experiment's state: JSON of what changed (assumed)."""

    def at_speed(self, speed: float) -> TuneCosts:
        """The same code on cores of that speed, on which it takes so many times less long."""
        return TuneCosts(**{f.name: getattr(self, f.name) / speed for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneDefaults:
    """Settings of the controller."""

    result_buffer_length: int = 1
    """``TUNE_RESULT_BUFFER_LENGTH``: results of one ``train`` call; 1000 before ray 1.8."""
    result_buffer_max_time_s: float = 100.0
    """``TUNE_RESULT_BUFFER_MAX_TIME_S``; the time is a tenth of a second per running trial."""
    max_pending_trials: int | None = None
    """``TUNE_MAX_PENDING_TRIALS_PG``; None: the search algorithm's."""
    state_period_s: float | None = None
    """``TUNE_GLOBAL_CHECKPOINT_S``; None: at least 10 s, and 19 times what a snapshot takes."""
    trainable_core_s: float | None = None
    """CPU time of a trial's actor before ``setup``; None: the machine's ``tune_trial_core_s``."""
    costs: TuneCosts = field(default_factory=TuneCosts)


RAY_1 = TuneDefaults(result_buffer_length=1000)
"""Of Ray 1.2 to 1.7, as far as it matters: up to 1000 results in a call."""

STATE_MIN_PERIOD_S = 10.0
STATE_PERIOD_FACTOR = 19
"""``_ExperimentCheckpointManager``: at most a twentieth of the time goes into snapshots."""

COMFORTABLE_RESULTS_PER_S = 500
"""Ray's guidance without loggers, and with them on a cluster (``tune-scalability`` in its docs)."""
COMFORTABLE_LOGGED_RESULTS_PER_S = 100
