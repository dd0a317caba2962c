"""Snapshots of the experiment's state: how often the driver writes them, and what they take.

Real counterpart: ``_ExperimentCheckpointManager`` in ``ray/tune/execution/experiment_state.py``
(ray 2.60). Not modelled: the upload, which goes on beside the driver.
"""

from __future__ import annotations

from raysim.raylibs.tune.defaults import STATE_MIN_PERIOD_S, STATE_PERIOD_FACTOR, TuneDefaults
from raysim.raylibs.tune.trial import Trial


class Snapshots:
    """When the next is due.

    Parameters
    ----------
    defaults
        Period and cost.
    every_n_checkpoints
        ``num_to_keep``: so many checkpoints of one trial force one.
    """

    def __init__(self, defaults: TuneDefaults, every_n_checkpoints: int | None) -> None:
        self._defaults = defaults
        self._every = every_n_checkpoints
        self._since: dict[Trial, int] = {}
        self._forced = False
        self._changed: dict[Trial, None] = {}
        self._last_ns: int | None = None
        fixed = defaults.state_period_s
        self._period_s = STATE_MIN_PERIOD_S if fixed is None else fixed

    def changed(self, trial: Trial) -> None:
        """The next one writes it anew."""
        self._changed[trial] = None

    def saved(self, trial: Trial) -> None:
        """It has one checkpoint more."""
        self.changed(trial)
        if self._every:
            self._since[trial] = self._since.get(trial, 0) + 1
            self._forced |= self._since[trial] >= self._every

    def due(self, now_ns: int) -> bool:
        """Whether it is time for one."""
        if self._last_ns is None or self._forced:
            return True
        return now_ns - self._last_ns >= self._period_s * 1e9

    def cost_s(self) -> float:
        """Of one now."""
        return len(self._changed) * self._defaults.costs.state_trial_s

    def written(self, now_ns: int, took_s: float) -> None:
        """One has been, by ``now_ns``."""
        self._last_ns = now_ns
        self._forced = False
        self._since.clear()
        self._changed.clear()
        if self._defaults.state_period_s is None:
            self._period_s = max(STATE_MIN_PERIOD_S, took_s * STATE_PERIOD_FACTOR)
