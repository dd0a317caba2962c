"""RLlib's scripts in programs: what is sampled, what it costs, what comes back."""

from __future__ import annotations

import math
import os
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.raycore_parts import ray_cluster
from tests.unit.rayapi.rllib.parts import Slow, gpu_cluster, ran


def config_of(**said: Any) -> Any:
    """PPO of 400 env steps on ``Slow``."""
    from ray.rllib.algorithms.ppo import PPOConfig

    config = PPOConfig().environment(Slow, env_config=said.pop("env_config", {}))
    config.env_runners(num_env_runners=said.pop("runners", 1))
    return config.training(train_batch_size_per_learner=400, num_epochs=1, minibatch_size=100)


def iterations(config: Any, count: int = 2) -> list[dict[str, Any]]:
    """Of an algorithm that is built and stopped."""
    algo = config.build_algo()
    results = [algo.train() for _ in range(count)]
    algo.stop()
    return results


def sampling_s(**env_config: Any) -> tuple[float, float]:
    """Of the first iteration, with real steps, and of a later one."""
    results = ran(lambda: iterations(config_of(env_config=env_config), 3))
    times = [r["timers"]["env_runner_sampling_timer"] for r in results]
    return times[0], times[2]


@pytest.mark.parametrize("kind", ["sleep_s", "core_s"])
def test_steps_cost_what_they_say_also_when_they_are_no_longer_made(kind: str) -> None:
    plain, slow = sampling_s(), sampling_s(**{kind: 0.01})
    assert slow[0] - plain[0] == pytest.approx(400 * 0.01, rel=0.01)
    assert slow[1] - plain[1] == pytest.approx(400 * 0.01, rel=0.01)
    assert sum(env.taken for env in Slow.made) == 200, "the rest is not made"


def test_environments_on_one_core_take_turns_and_those_that_sleep_do_not() -> None:
    def two(**env_config: Any) -> float:
        def main() -> Any:
            config = config_of(env_config=env_config, runners=2)
            return iterations(config.env_runners(num_cpus_per_env_runner=0), 3)

        results = ran(main, ray_cluster(cpus=1))
        return float(results[2]["timers"]["env_runner_sampling_timer"])

    plain = two()
    assert two(core_s=0.01) - plain == pytest.approx(400 * 0.01, rel=0.02)
    assert two(sleep_s=0.01) - plain == pytest.approx(200 * 0.01, rel=0.02)


def test_a_result_has_rllibs_keys_and_counts() -> None:
    first, second = ran(lambda: iterations(config_of(runners=2)))
    assert second["env_runners"]["num_env_steps_sampled"] == 400
    assert second["env_runners"]["num_env_steps_sampled_lifetime"] == 800
    assert second["num_env_steps_sampled_lifetime"] == 800
    assert second["training_iteration"] == 2
    assert second["time_total_s"] == pytest.approx(
        first["time_this_iter_s"] + second["time_this_iter_s"]
    )
    assert math.isnan(second["env_runners"]["episode_return_mean"])
    assert math.isnan(second["learners"]["default_policy"]["total_loss"])
    # 400 env steps and one more for each of 8 episodes and of 2 that go on: 410 in shares of 100.
    assert second["learners"]["default_policy"]["num_module_steps_trained"] == 500
    assert second["fault_tolerance"]["num_healthy_workers"] == 2
    assert second["config"]["train_batch_size"] == 4000


def test_without_runners_the_driver_samples() -> None:
    (result,) = ran(lambda: iterations(config_of(runners=0, env_config={"sleep_s": 0.01}), 1))
    assert result["timers"]["env_runner_sampling_timer"] > 400 * 0.01
    assert [env.config for env in Slow.made] == [{"sleep_s": 0.01}]


def test_each_runner_makes_its_environments_with_its_place() -> None:
    def main() -> list[tuple[int, int]]:
        from ray import tune

        seen = []

        def create(context: Any) -> Slow:
            seen.append((context.worker_index, context.vector_index))
            return Slow(context)

        tune.register_env("mine", create)
        config = config_of(runners=2).environment("mine")
        iterations(config.env_runners(num_envs_per_env_runner=2), 1)
        return seen

    assert sorted(ran(main)) == [(1, 0), (1, 1), (2, 0), (2, 1)]


def leaves(**said: Any) -> Any:
    """Two runners, of which the first dies in its tenth step, once."""

    def main() -> Any:
        from ray import tune

        class Leaves(Slow):
            def step(self, action: Any) -> Any:
                context: Any = self.place
                if self.taken == 9 and context.worker_index == 1 and not context.recreated_worker:
                    os._exit(1)
                return super().step(action)

        def create(context: Any) -> Slow:
            env = Leaves(context)
            env.place = context
            return env

        tune.register_env("leaves", create)
        config = config_of(runners=2).environment("leaves")
        return iterations(config.fault_tolerance(**said), 3)

    return ran(main)


def test_a_runner_that_dies_is_started_again() -> None:
    results = leaves()
    assert [r["fault_tolerance"]["num_healthy_workers"] for r in results] == [2, 2, 2]
    assert results[2]["fault_tolerance"]["num_remote_worker_restarts"] == 1
    assert [r["env_runners"]["num_env_steps_sampled"] for r in results] == [400, 400, 400]


def test_the_rest_goes_on_or_training_fails_as_is_said() -> None:
    alone = leaves(restart_failed_env_runners=False, ignore_env_runner_failures=True)
    assert [r["fault_tolerance"]["num_healthy_workers"] for r in alone] == [1, 1, 1]
    from raysim.rayapi.exceptions import ActorDiedError

    with pytest.raises(ActorDiedError):
        leaves(restart_failed_env_runners=False)


def test_complete_episodes_make_batches_as_long_as_they_are() -> None:
    def main() -> Any:
        config = config_of(env_config={"length": 70})
        return iterations(config.env_runners(batch_mode="complete_episodes"), 3)

    assert [r["env_runners"]["num_env_steps_sampled"] for r in ran(main)] == [420] * 3


@pytest.mark.parametrize("name", ["PPO", "IMPALA"])
@pytest.mark.parametrize("runners", [0, 1])
def test_a_broken_environment_ends_the_program_with_its_own_error(name: str, runners: int) -> None:
    def main() -> Any:
        import ray.rllib.algorithms as names

        config = getattr(names, f"{name}Config")().environment(Slow, env_config={"fails": True})
        return iterations(config.env_runners(num_env_runners=runners))

    with pytest.raises(ValueError, match="this environment is broken"):
        ran(main)


@pytest.mark.parametrize("name", ["IMPALA", "APPO"])
def test_impala_reports_after_its_time(name: str) -> None:
    def main() -> Any:
        import ray.rllib.algorithms as names

        config = getattr(names, f"{name}Config")().environment(Slow)
        return iterations(config.reporting(min_time_s_per_iteration=2), 2)

    results = ran(main)
    assert all(2 < r["time_this_iter_s"] < 2.2 for r in results)
    trained = results[1]["learners"]["default_policy"]["num_module_steps_trained"]
    times = trained / results[1]["env_runners"]["num_env_steps_sampled"]
    assert times == pytest.approx(2 if name == "APPO" else 1, rel=0.2)


def test_a_learner_that_is_an_actor_holds_what_it_is_given() -> None:
    def main() -> Any:
        import ray

        ray.init()
        config = config_of(runners=2).learners(num_learners=1, num_gpus_per_learner=1)
        algo = config.build_algo()
        held = {k: ray.cluster_resources()[k] - ray.available_resources().get(k, 0.0)
                for k in ("CPU", "GPU")}  # fmt: skip
        algo.stop()
        return held

    assert ran(main, gpu_cluster()) == {"CPU": 2.0, "GPU": 1.0}


def test_evaluation_has_runners_of_its_own() -> None:
    def main() -> Any:
        config = config_of(env_config={"length": 20})
        config.evaluation(
            evaluation_interval=2, evaluation_num_env_runners=2, evaluation_duration=6
        )
        return iterations(config)

    first, second = ran(main)
    assert "evaluation" not in first
    assert second["evaluation"]["env_runners"]["num_episodes"] == 6
    assert second["evaluation"]["env_runners"]["num_env_steps_sampled"] == 6 * 20


def test_evaluation_beside_training_hides_behind_it() -> None:
    def took_s(*, beside: bool) -> float:
        def main() -> Any:
            config = config_of(env_config={"sleep_s": 0.02})
            config.evaluation(
                evaluation_interval=1, evaluation_num_env_runners=1, evaluation_duration=2,
                evaluation_parallel_to_training=beside,
            )  # fmt: skip
            return iterations(config, 3)

        return float(ran(main)[2]["time_this_iter_s"])

    # 400 steps of 20 ms for training, 100 for two episodes.
    assert took_s(beside=False) - took_s(beside=True) == pytest.approx(2.0, rel=0.1)


def test_callbacks_of_the_driver_are_called() -> None:
    def main() -> list[Any]:
        from ray.rllib.callbacks.callbacks import RLlibCallback

        heard: list[Any] = []

        class Mine(RLlibCallback):
            def on_algorithm_init(self, *, algorithm: Any, **_: Any) -> None:
                heard.append(str(algorithm))

        config = config_of().callbacks(
            Mine, on_train_result=lambda result, **_: heard.append(result["env_runners"]["sample"])
        )
        iterations(config, 1)
        return heard

    init, sampled = ran(main)
    assert init.startswith("PPO(env=")
    assert sampled > 0


def test_a_checkpoint_is_as_large_as_the_weights_and_counts_on(tmp_path: Path) -> None:
    def main() -> Any:
        from ray.rllib.algorithms.algorithm import Algorithm

        algo = config_of().build_algo()
        algo.train()
        where = algo.save_to_path(tmp_path / "here")
        algo.stop()
        again = Algorithm.from_checkpoint(where)
        again.train()
        third = config_of().build_algo()
        third.restore(again.save())
        return third.train()

    result = ran(main)
    assert (result["training_iteration"], result["num_env_steps_sampled_lifetime"]) == (3, 1200)
    weights = tmp_path / "here/learner_group/learner/rl_module/default_policy/module_state.pkl"
    # 4 x 256, 256 x 256 and 256 x 2 with biases: what an env runner has of the default module.
    assert weights.stat().st_size == 4 * (5 * 256 + 257 * 256 + 257 * 2)


def test_one_program_gives_one_result() -> None:
    assert repr(ran(lambda: iterations(config_of(runners=3)))) == repr(
        ran(lambda: iterations(config_of(runners=3)))
    )


def test_what_is_not_there_is_said() -> None:
    def main() -> list[str]:
        said = []
        algo = config_of(runners=0).build_algo()
        for wrong in (
            partial(getattr, algo, "get_module"),
            partial(import_module, "ray.rllib.algorithms.cql"),
            partial(import_module, "ray.rllib.offline"),
        ):
            try:
                wrong()
            except NotImplementedError as error:
                said.append(str(error).partition(" is not")[0])
        return said

    assert ran(main) == [
        "Algorithm.get_module", "ray.rllib.algorithms.cql", "ray.rllib.offline",
    ]  # fmt: skip


def test_a_missing_gymnasium_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    from raysim.rayapi.rllib import environments

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(environments, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match="pip install gymnasium"):
        environments.creator_of("CartPole-v1")
