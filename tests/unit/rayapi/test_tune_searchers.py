"""Searchers of other packages: spaces of theirs, and configurations at random."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from raysim.rayapi.loader import run_program
from raysim.rayapi.tune import searchers
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raylibs.tune import sample
from tests.raycore_parts import ray_cluster


def _searched(search: Any, space: dict[str, Any]) -> list[dict[str, Any]]:
    """Configurations of four trials."""

    def main() -> Any:
        from ray import tune

        config = tune.TuneConfig(search_alg=search, num_samples=4, metric="y", mode="min")
        tuner = tune.Tuner(lambda config: {"y": 1.0}, param_space=space, tune_config=config)
        return [result.config for result in tuner.fit()]

    found: list[dict[str, Any]] = run_program(main, ray_cluster(cpus=4))[0]
    return found


def test_searchers_of_other_packages_keep_their_space_and_say_that_they_draw() -> None:
    with pytest.warns(UserWarning, match="HyperOptSearch proposes at random"):
        search = searchers.HyperOptSearch(points_to_evaluate=[{"x": 3.0}])
    found = _searched(search, {"x": sample.uniform(0.0, 1.0), "n": 7})
    assert found[0] == {"x": 3.0, "n": 7}
    rest = [each["x"] for each in found[1:]]
    assert len(set(rest)) == 3
    assert all(0.0 <= x <= 1.0 for x in rest)


@pytest.mark.filterwarnings("ignore:raysim")
def test_a_space_that_is_defined_by_a_function_of_optuna_s_trial() -> None:
    def define(trial: Any) -> dict[str, Any]:
        kind = trial.suggest_categorical("kind", ["a", "b"])
        if kind == "a":
            trial.suggest_int("n", 2, 6, step=2)
        else:
            trial.suggest_float("lr", 1e-3, 1e-1, log=True)
        assert trial.params["kind"] == kind
        return {"fixed": 1}

    for found in _searched(searchers.OptunaSearch(define, metric="y", mode="min"), {}):
        assert found["fixed"] == 1
        if found["kind"] == "a":
            assert found["n"] in {2, 4, 6}
            assert "lr" not in found
        else:
            assert 1e-3 <= found["lr"] <= 1e-1
            assert "n" not in found


@pytest.mark.filterwarnings("ignore:raysim")
def test_a_searcher_s_own_space() -> None:
    found = _searched(searchers.BayesOptSearch({"x": (2, 3)}, metric="y", mode="min"), {"k": 1})
    assert all(2.0 <= each["x"] <= 3.0 and each["k"] == 1 for each in found)
    with pytest.raises(NotEmulatedError, match="HyperOptSearch over a object"):
        searchers.HyperOptSearch({"x": object()})


def test_pb2_takes_over_from_the_best_and_draws_within_its_bounds() -> None:
    """Bounds of the mutated setting alone; a trial's checkpoint is a better one's."""

    def loop(config: dict[str, Any]) -> None:
        from ray import tune

        saved, step = tune.get_checkpoint(), 0
        if saved:
            step = int(Path(saved.path, "step").read_text())
        while step < 6:
            step += 1
            with TemporaryDirectory() as folder:
                Path(folder, "step").write_text(str(step))
                mine = tune.Checkpoint.from_directory(folder)
                tune.report({"score": config["lr"] + step}, checkpoint=mine)

    def main() -> Any:
        from ray import tune
        from ray.tune.schedulers.pb2 import PB2

        with pytest.warns(UserWarning, match="PB2 draws at random"):
            pb2 = PB2(
                time_attr="training_iteration", metric="score", mode="max",
                perturbation_interval=2, synch=True,
                hyperparam_bounds={"lr": [0.1, 0.2], "n": {"k": [1, 9]}},
            )  # fmt: skip
        asked = tune.TuneConfig(scheduler=pb2, num_samples=4)
        space = {"lr": tune.uniform(5.0, 6.0), "n": {"k": 4}}
        found = tune.Tuner(loop, param_space=space, tune_config=asked).fit()
        return pb2.num_perturbations, [result.config for result in found]

    count, configs = run_program(main, ray_cluster(cpus=4))[0]
    assert count
    drawn = [each for each in configs if each["lr"] < 5.0]
    assert drawn
    assert all(0.1 <= each["lr"] <= 0.2 and 1 <= each["n"]["k"] <= 9 for each in drawn)
    assert all(isinstance(each["n"]["k"], int) for each in drawn)


def test_pb2_refuses_bounds_in_rays_words() -> None:
    from raysim.rayapi.tune.pb2 import PB2

    with pytest.raises(ValueError, match="low <= high"):
        PB2(hyperparam_bounds={"lr": [2.0, 1.0]})
