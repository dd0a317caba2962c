"""Population based training: the worst take over the best ones' state and perturbed settings.

Real counterpart: ``ray/tune/schedulers/pbt.py`` (ray 2.60). Where Ray's driver blocks on a donor's
save, the decision is a script that waits for it. Draws are made as Ray makes them of ``random``:
pass an object with its ``random`` and ``choice``.

Not modelled: the policy logs (``log_config``) and their replay, PB2.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from raysim.raycore.scripts import Script
from raysim.raylibs.tune.sample import Function, is_domain
from raysim.raylibs.tune.schedulers.decisions import (
    CONTINUE,
    NOOP,
    PAUSE,
    ByObjective,
    Controller,
    Decision,
    Result,
    TuneError,
)
from raysim.raylibs.tune.search.variants import format_vars
from raysim.raylibs.tune.trial import Trial


class PopulationBasedTraining(ByObjective):
    """Ray's constructor and decisions.

    Parameters
    ----------
    time_attr, metric, mode
        As of ``AsyncHyperBandScheduler``.
    perturbation_interval
        How far apart a trial is looked at, in units of ``time_attr``.
    burn_in_period
        Nothing is perturbed before.
    hyperparam_mutations
        Of each setting: a list, a domain, a function, or such a dictionary.
    quantile_fraction
        The lowest of so many take over from the highest of so many.
    resample_probability
        Of a new draw instead of a perturbation.
    perturbation_factors
        One is drawn for numbers; settings of a list move to a neighbour.
    custom_explore_fn
        Called with the new configuration.
    log_config
        Accepted; nothing is logged.
    require_attrs
        Raise if a result lacks time or metric.
    synch
        Wait for all at each interval.
    """

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        burn_in_period: float = 0.0,
        hyperparam_mutations: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: tuple[float, float] = (1.2, 0.8),
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
    ) -> None:
        del log_config
        self._mutations = dict(hyperparam_mutations or {})
        _check(self._mutations, custom_explore_fn, quantile_fraction, perturbation_interval)
        if mode:
            assert mode in ("min", "max"), "`mode` must be 'min' or 'max'."
        super().__init__(metric, mode)
        self._time_attr = time_attr
        self._interval = perturbation_interval
        self._burn_in = burn_in_period
        self._quantile_frac = quantile_fraction
        self._resample_probability = resample_probability
        self._factors = perturbation_factors
        self._custom_explore_fn = custom_explore_fn
        self._require_attrs = require_attrs
        self._synch = synch
        self._next_sync = max(perturbation_interval, burn_in_period)
        self._states: dict[Trial, _State] = {}
        self.draws: Any = None
        """Ray's ``random``; the controller's if not set."""
        self.num_perturbations = 0

    def on_trial_add(self, controller: Controller, trial: Trial) -> None:
        """Settings the configuration lacks are drawn."""
        if getattr(controller.search_alg, "suggests", False):
            raise ValueError(
                f"Search algorithms cannot be used with {type(self).__name__} "
                f"schedulers. Please remove {controller.search_alg}."
            )
        self._objective.check()
        if self.draws is None:
            self.draws = _Draws(controller.rng())
        self._states[trial] = _State(trial)
        for key, space in self._mutations.items():
            if key not in trial.config:
                _fill(trial.config, key, space, self.draws, controller.rng())
                trial.evaluated_params[key] = trial.config[key]

    def on_trial_error(self, controller: Controller, trial: Trial) -> None:
        """See TrialScheduler."""

    def on_trial_result(self, controller: Controller, trial: Trial, result: Result) -> Any:
        """See TrialScheduler."""
        for attr in (self._time_attr, self.metric):
            if attr not in result:
                if self._require_attrs:
                    raise RuntimeError(
                        f"Cannot find {'time_attr' if attr == self._time_attr else 'metric'} "
                        f"{attr} in trial result {result}. Make sure that this attribute is "
                        "returned in the results of your Trainable."
                        "If this error is expected, you can change this to a warning message by "
                        "setting PBT(require_attrs=False)"
                    )
                return CONTINUE
        at = result[self._time_attr]
        state = self._states[trial]
        if at < self._burn_in or at - state.last_perturbation_time < self._interval:
            return CONTINUE
        state.last_score = self._objective.sign * result[str(self.metric)]
        state.last_train_time = at
        state.last_result = result
        perturb = self._perturb_all if self._synch else self._perturb_one
        return perturb(controller, trial, at)

    def on_trial_complete(self, controller: Controller, trial: Trial, result: Result) -> None:
        """See TrialScheduler."""

    def on_trial_remove(self, controller: Controller, trial: Trial) -> None:
        """See TrialScheduler."""

    def choose_trial_to_run(self, controller: Controller) -> Trial | None:
        """The one that has trained least, of those that may train."""
        waiting = [
            t
            for t in controller.get_trials()
            if t.status in ("PENDING", "PAUSED")
            and (not self._synch or self._states[t].last_train_time < self._next_sync)
        ]
        return min(waiting, key=lambda t: self._states[t].last_train_time, default=None)

    def _perturb_one(self, controller: Controller, trial: Trial, at: float) -> Script:
        self._states[trial].last_perturbation_time = at
        lower, upper = self._quantiles()
        waits = any(t.status in ("PENDING", "PAUSED") for t in controller.get_trials())
        decision: Decision = PAUSE if waits else CONTINUE
        yield from self._save_or_exploit(controller, trial, upper, lower)
        return NOOP if trial.status == "PAUSED" else decision

    def _perturb_all(self, controller: Controller, trial: Trial, at: float) -> Script:
        late = (
            t is not trial and self._states[t].last_train_time < self._next_sync
            for t in controller.get_live_trials()
        )  # fmt: skip
        if not any(late):
            lower, upper = self._quantiles()
            trials = controller.get_trials()
            between = [t for t in trials if t not in lower and t not in upper]
            for each in upper + between + lower:
                self._states[each].last_perturbation_time = at
                yield from self._save_or_exploit(controller, each, upper, lower)
            furthest = max(self._states[t].last_train_time for t in controller.get_trials())
            self._next_sync = max(self._next_sync + self._interval, furthest)
        return NOOP if trial.status == "PAUSED" else PAUSE

    def _save_or_exploit(
        self, controller: Controller, trial: Trial, upper: list[Trial], lower: list[Trial]
    ) -> Script:
        state = self._states[trial]
        state.checkpoint = None
        if trial in upper:
            if trial.status == "PAUSED":
                state.checkpoint = trial.checkpoint
            else:
                state.checkpoint = controller.schedule_trial_save(trial, state.last_result)
        if trial in lower:
            donor = self.draws.choice(upper)
            assert donor is not trial, f"{trial} would take over from itself"
            donor_state = self._states[donor]
            checkpoint = donor_state.checkpoint
            if hasattr(checkpoint, "resolve"):
                checkpoint = donor_state.checkpoint = yield from checkpoint.resolve()
            if checkpoint is not None:
                self._exploit(controller, trial, donor)

    def _exploit(self, controller: Controller, trial: Trial, donor: Trial) -> None:
        state, donor_state = self._states[trial], self._states[donor]
        new_config, _ = explore(
            donor.config, self._mutations, self._resample_probability, self._factors,
            self._custom_explore_fn, self.draws, controller.rng(),
        )  # fmt: skip
        if trial.status != "PAUSED":
            controller.pause_trial(trial, should_checkpoint=False)
        changed = {("config", k): new_config[k] for k in self._mutations}
        trial.experiment_tag = f"{state.tag}@perturbed[{format_vars(changed)}]"
        trial.config = new_config
        trial.checkpoint = replace(donor_state.checkpoint)
        self.num_perturbations += 1
        state.last_perturbation_time = donor_state.last_perturbation_time
        state.last_train_time = donor_state.last_train_time

    def _quantiles(self) -> tuple[list[Trial], list[Trial]]:
        """(lowest, highest) of those that go on; of fewer than two, none."""
        scored = [
            (state.last_score, trial)
            for trial, state in self._states.items()
            if state.last_score is not None
            and not math.isnan(state.last_score)
            and not trial.is_finished()
        ]
        if len(scored) <= 1:
            return [], []
        trials = [t for _, t in sorted(scored, key=lambda pair: pair[0])]
        count = min(math.ceil(len(trials) * self._quantile_frac), len(trials) // 2)
        return trials[:count], trials[len(trials) - count :]


class _State:
    """What PBT knows of a trial."""

    __slots__ = (
        "checkpoint", "last_perturbation_time", "last_result", "last_score", "last_train_time",
        "tag",
    )  # fmt: skip

    def __init__(self, trial: Trial) -> None:
        self.tag = trial.experiment_tag
        self.last_score: float | None = None
        self.checkpoint: Any = None
        self.last_perturbation_time: float = 0
        self.last_train_time: float = 0
        self.last_result: Result | None = None


class _Draws:
    """A stream of numpy's in the words of ``random``."""

    def __init__(self, rng: Any) -> None:
        self._rng = rng

    def random(self) -> float:
        """In [0, 1)."""
        return float(self._rng.random())

    def choice(self, items: Sequence[Any]) -> Any:
        """One of them."""
        return items[int(self.random() * len(items))]


def explore(
    config: Mapping[str, Any],
    mutations: Mapping[str, Any],
    resample_probability: float,
    factors: Sequence[float],
    custom: Callable[[dict[str, Any]], dict[str, Any]] | None,
    draws: Any,
    rng: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A perturbed configuration, and what was done to each setting (``pbt._explore``)."""
    new: dict[str, Any] = copy.deepcopy(dict(config))
    done: dict[str, Any] = {}
    for key, space in mutations.items():
        old = config[key]
        if isinstance(space, Mapping):
            new[key], done[key] = explore(
                old, space, resample_probability, factors, None, draws, rng
            )
        elif isinstance(space, list | tuple):
            if draws.random() < resample_probability or old not in space:
                new[key], done[key] = draws.choice(space), "resample"
            else:
                shift = draws.choice([-1, 1])
                at = space.index(old)
                to = min(max(at + shift, 0), len(space) - 1)
                new[key] = space[to]
                done[key] = f"shift {'left' if shift == -1 else 'right'}" + (
                    " (noop)" if at == to else ""
                )
        elif is_domain(space) or callable(space):
            if draws.random() < resample_probability:
                new[key], done[key] = _draw(space, draws, rng), "resample"
            else:
                factor = draws.choice(factors)
                new[key], done[key] = old * factor, f"* {factor}"
            if isinstance(old, bool):
                new[key] = bool(new[key])
            elif isinstance(old, int):
                new[key] = round(new[key])
        else:
            raise ValueError(f"Unsupported hyperparameter distribution type: {type(space)}")
    if custom is not None:
        new = custom(new)
        assert new is not None, "Custom explore fn failed to return new config"
    return new, done


def _draw(space: Any, draws: Any, rng: Any) -> Any:
    if is_domain(space):
        return space.sample(random_state=rng)
    return draws.choice(space) if isinstance(space, list | tuple) else space()


def _fill(config: dict[str, Any], key: str, space: Any, draws: Any, rng: Any) -> None:
    if isinstance(space, Mapping):
        config[key] = {}
        for inner, value in space.items():
            _fill(config[key], inner, value, draws, rng)
    else:
        config[key] = _draw(space, draws, rng)


def _check(
    mutations: Mapping[str, Any], custom: object, quantile_frac: float, interval: float
) -> None:
    for value in mutations.values():
        if not (is_domain(value) or callable(value) or isinstance(value, list | tuple | Mapping)):
            raise TypeError(
                "`hyperparam_mutation` values must be either a List, Tuple, Dict, a tune search "
                "space object, or a callable."
            )
        if isinstance(value, Function):
            raise ValueError(
                "arbitrary tune.sample_from objects are not supported for `hyperparam_mutation` "
                "values.You must use other built in primitives liketune.uniform, tune.loguniform, "
                "etc."
            )
    if not mutations and not custom:
        raise TuneError(
            "You must specify at least one of `hyperparam_mutations` or `custom_explore_fn` to "
            "use PBT."
        )
    if quantile_frac > 0.5 or quantile_frac < 0:
        raise ValueError(
            "You must set `quantile_fraction` to a value between 0 and"
            f"0.5. Current value: '{quantile_frac}'"
        )
    if interval <= 0:
        raise ValueError(
            "perturbation_interval must be a positive number greater "
            f"than 0. Current value: '{interval}'"
        )
