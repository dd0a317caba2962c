"""RLlib's algorithms as trainables of Tune."""

from __future__ import annotations

from typing import Any

import pytest

from tests.raycore_parts import ray_cluster
from tests.unit.rayapi.rllib.parts import ran
from tests.unit.rayapi.rllib.test_algorithm import config_of


def test_trials_of_a_configuration_are_placed_and_end() -> None:
    """Two trials of three bundles on six cores run side by side; on three they take turns."""

    def main() -> Any:
        from ray import tune

        config = config_of(runners=2).training(lr=tune.grid_search([0.1, 0.2]))
        results = tune.Tuner(
            "PPO", param_space=config,
            run_config=tune.RunConfig(
                stop={"num_env_steps_sampled_lifetime": 800, "env_runners/episode_return_mean": 1}
            ),
        ).fit()  # fmt: skip
        import time

        assert all(r.checkpoint is not None for r in results), "classes save when they end"
        found = [(r.metrics["config"]["lr"], r.metrics["training_iteration"]) for r in results]
        return found, time.time()

    (found, beside_s), (same, turns_s) = (ran(main, ray_cluster(cpus=n)) for n in (6, 3))
    assert found == same == [(0.1, 2), (0.2, 2)]
    assert turns_s > beside_s + 2, "each trial's actors import RLlib"


def test_tune_run_and_names() -> None:
    def main() -> Any:
        from ray import tune
        from ray.rllib.algorithms.ppo import PPO
        from ray.tune.registry import get_trainable_cls

        assert get_trainable_cls("PPO") is PPO
        done = tune.run("PPO", config=config_of().to_dict(), stop={"training_iteration": 1})
        trial = done.trials[0]
        return str(trial), trial.last_result["num_env_steps_sampled_lifetime"]

    name, steps = ran(main)
    assert name.startswith("PPO_Slow_")
    assert steps == 400


def test_an_example_script_ends_by_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def main(*options: str) -> Any:
        from ray.rllib.examples.utils import (
            add_rllib_example_script_args,
            run_rllib_example_script_experiment,
        )

        monkeypatch.setattr("sys.argv", ["example.py", *options])
        args = add_rllib_example_script_args(default_timesteps=800).parse_args()
        return run_rllib_example_script_experiment(config_of(), args)

    (tuned,) = ran(main)
    looped = ran(lambda: main("--no-tune", "--num-env-runners=2"))
    assert tuned.metrics["num_env_steps_sampled_lifetime"] == 800
    assert looped["num_env_steps_sampled_lifetime"] == 800
    assert looped["fault_tolerance"]["num_healthy_workers"] == 2


def test_a_condition_on_what_is_not_learned_alone_is_refused() -> None:
    def main() -> None:
        from ray import tune

        tune.Tuner(
            "PPO", param_space=config_of(),
            run_config=tune.RunConfig(stop={"env_runners/episode_return_mean": 200}),
        ).fit()  # fmt: skip

    with pytest.raises(ValueError, match=r"never ends a trial here.*Add training_iteration"):
        ran(main)


def test_other_algorithms_are_refused_by_name() -> None:
    def main() -> None:
        from ray import tune

        tune.Tuner("CQL", param_space={"env": "CartPole-v1"})

    with pytest.raises(NotImplementedError, match="RLlib's CQL is not emulated"):
        ran(main)
