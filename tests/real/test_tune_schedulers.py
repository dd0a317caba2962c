"""Decisions of Tune's schedulers against Ray's own classes, over random streams of results."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from raysim.raylibs.tune import schedulers as ours
from raysim.raylibs.tune.trial import Trial
from tests.unit.raylibs.tune.parts import Bench, sample_configs

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("ray")

KINDS: dict[str, dict[str, Any]] = {
    "AsyncHyperBandScheduler": {"max_t": 30, "grace_period": 2, "reduction_factor": 3},
    "AsyncHyperBandScheduler brackets": {"max_t": 40, "reduction_factor": 2, "brackets": 3},
    "AsyncHyperBandScheduler last": {"max_t": 9, "reduction_factor": 3, "stop_last_trials": False},
    "HyperBandScheduler": {"max_t": 27, "reduction_factor": 3},
    "HyperBandScheduler last": {"max_t": 9, "reduction_factor": 3, "stop_last_trials": False},
    "MedianStoppingRule": {"time_attr": "training_iteration", "grace_period": 3},
    "MedianStoppingRule soft": {
        "time_attr": "training_iteration", "grace_period": 2, "hard_stop": False,
        "min_time_slice": 4,
    },
    "PopulationBasedTraining": {
        "time_attr": "training_iteration", "perturbation_interval": 4,
        "hyperparam_mutations": {"lr": "loguniform", "units": [8, 16, 32], "n": {"m": "uniform"}},
    },
    "PopulationBasedTraining synch": {
        "time_attr": "training_iteration", "perturbation_interval": 3, "burn_in_period": 2,
        "hyperparam_mutations": {"lr": "uniform", "k": [1, 2]}, "synch": True,
        "quantile_fraction": 0.5, "resample_probability": 0.5,
    },
    "FIFOScheduler": {},
}  # fmt: skip


class RealBench(Bench):
    """The same rig around Ray's classes."""

    def trial(self, trial_id: str, config: dict[str, Any]) -> Any:
        keeper = SimpleNamespace(
            checkpoint_config=SimpleNamespace(num_to_keep=None), _latest_checkpoint_result=None
        )
        trial = Trial(trial_id, config, experiment_tag=trial_id)
        stub = _Stub(trial)
        stub.run_metadata = SimpleNamespace(checkpoint_manager=keeper)
        stub.temporary_state = SimpleNamespace(saving_to=None)
        return stub

    def _schedule_trial_save(self, trial: Any, result: Any = None) -> Any:
        self.log.append(("save", trial.trial_id))
        trial.checkpoint = f"checkpoint of {trial.trial_id}"
        return trial.checkpoint


class _Stub:
    """Ray's Trial, as far as schedulers look at it; hashed by identity."""

    def __init__(self, trial: Trial) -> None:
        for name in ("trial_id", "config", "status", "experiment_tag", "evaluated_params"):
            setattr(self, name, getattr(trial, name))
        self.is_saving = False
        self.order = 0
        self.last_result: dict[str, Any] = {}
        self.checkpoint: Any = None

    def is_finished(self) -> bool:
        return self.status in ("TERMINATED", "ERROR")

    def set_experiment_tag(self, tag: str) -> None:
        self.experiment_tag = tag

    def set_config(self, config: dict[str, Any]) -> None:
        self.config = config


def _made(module: Any, tune: Any, kind: str, mode: str) -> Any:
    def space(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: space(v) for k, v in value.items()}
        return getattr(tune, value)(0.001, 1.0) if isinstance(value, str) else value

    options = dict(KINDS[kind])
    if "hyperparam_mutations" in options:
        options["hyperparam_mutations"] = space(options["hyperparam_mutations"])
        options["log_config"] = False
    name = kind.split(maxsplit=1)[0]
    if name != "FIFOScheduler":
        options |= {"metric": "score", "mode": mode}
    return getattr(module, name)(**options)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("kind", KINDS)
def test_same_decisions(kind: str, mode: str) -> None:
    import ray.tune
    import ray.tune.schedulers

    from raysim.raylibs.tune import sample

    for seed in range(25):
        trials = 4 + seed
        configs = sample_configs(seed, trials)
        np.random.seed(seed)  # noqa: NPY002  (what Ray draws from)
        random.seed(seed)
        real = RealBench(_made(ray.tune.schedulers, ray.tune, kind, mode), configs, seed)
        real.run()
        mine = _made(ours, sample, kind, mode)
        np.random.seed(seed)  # noqa: NPY002  (the same draws)
        if hasattr(mine, "draws"):
            mine.draws = random.Random(seed)
        bench = Bench(mine, configs, seed, rng=np.random)
        bench.run()
        assert bench.log == real.log, (kind, mode, seed)
        assert len(bench.log) > trials


def test_percentiles_are_numpys() -> None:
    from raysim.raylibs.tune.schedulers.asha import Rung

    rng = np.random.default_rng(0)
    for n in range(1, 200):
        for factor in (2, 3, 4, 1.5):
            rung = Rung(1, 1 - 1 / factor)
            values = rng.normal(size=n).round(int(rng.integers(0, 6)))
            values[rng.random(n) < 0.05] = math.nan
            for i, value in enumerate(values):
                rung.record(str(i), float(value))
            with np.errstate(all="ignore"):
                expected = np.nanpercentile(values, (1 - 1 / factor) * 100)
            got = rung.cutoff()
            assert got == expected or (math.isnan(expected) and math.isnan(got or 0.0))
