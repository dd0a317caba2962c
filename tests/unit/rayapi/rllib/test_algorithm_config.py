"""``AlgorithmConfig``: RLlib's names, defaults and checks (read off ray 2.60)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raysim.rayapi.rllib.algorithm_config import AlgorithmConfig
from raysim.rayapi.rllib.algorithms import PPO, APPOConfig, IMPALAConfig, PPOConfig
from raysim.rayapi.rllib.modules import DefaultModelConfig
from raysim.rayapi.unsupported import NotEmulatedError
from tests.unit.rayapi.rllib.parts import Slow


def test_defaults_are_rllibs() -> None:
    ppo, impala, appo = PPOConfig(), IMPALAConfig(), APPOConfig()
    assert (ppo.lr, ppo.num_env_runners, ppo.train_batch_size, ppo.num_epochs) == (
        5e-5,
        2,
        4000,
        30,
    )
    assert (ppo.minibatch_size, ppo.rollout_fragment_length, ppo.clip_param) == (128, "auto", 0.3)
    assert (impala.train_batch_size, impala.rollout_fragment_length, impala.num_learners) == (
        500, 50, 1,
    )  # fmt: skip
    assert (impala.min_time_s_per_iteration, impala.broadcast_interval) == (10, 1)
    assert (appo.circular_buffer_iterations_per_batch, appo.clip_param) == (2, 0.4)
    assert ppo.model_config == {"vf_share_layers": False}
    assert ppo.rl_module(model_config=DefaultModelConfig()).model_config["vf_share_layers"] is True


def test_methods_return_the_configuration_and_merge_what_rllib_merges() -> None:
    config = PPOConfig().environment("CartPole-v1", env_config={"a": 1})
    assert config.environment(env_config={"b": 2}) is config
    assert config.env == "CartPole-v1"
    assert config.env_config == {"a": 1, "b": 2}
    assert config["env"] == "CartPole-v1"
    assert "lr" in config
    assert PPOConfig().env_config == {}, "no defaults are shared"


def test_a_dictionary_and_back() -> None:
    config = PPOConfig().training(lambda_=0.9, lr=0.01).framework("torch").debugging(seed=3)
    said = config.to_dict()
    assert (said["lambda"], said["lr"], said["framework"], said["seed"]) == (0.9, 0.01, "torch", 3)
    again = PPOConfig().update_from_dict(said)
    assert (again.lambda_, again.lr, again.framework_str, again.seed) == (0.9, 0.01, "torch", 3)


def test_a_frozen_one_is_copied_to_be_changed() -> None:
    config = PPOConfig()
    config.freeze()
    with pytest.raises(AttributeError, match="already frozen"):
        config.lr = 1.0
    assert config.copy(copy_frozen=False).training(lr=1.0).lr == 1.0
    assert config.lr == 5e-5


@pytest.mark.parametrize(
    ("runners", "envs", "batch", "lengths"),
    # the examples of its documentation; the last by its code, which adds a step to both
    [
        (2, 2, 2000, [500, 500]), (4, 3, 2500, [209, 209, 208, 208]), (2, 20, 512, [13, 13]),
    ],
)  # fmt: skip
def test_fragments_make_the_batch(runners: int, envs: int, batch: int, lengths: list[int]) -> None:
    config = PPOConfig().env_runners(num_env_runners=runners, num_envs_per_env_runner=envs)
    config.training(train_batch_size_per_learner=batch)
    assert [config.get_rollout_fragment_length(i + 1) for i in range(runners)] == lengths


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.training(minibatch_size=5000), "must be <= `train_batch_size_per_learner`"),
        (lambda c: c.env_runners(rollout_fragment_length=1500), "'auto' OR to a value of 2000"),
        (lambda c: c.training(use_gae=False), "Episode truncation is not supported"),
        (lambda c: c.training(lr_schedule=[[0, 1.0]]), "`lr_schedule` is deprecated"),
        (lambda c: c.evaluation(evaluation_parallel_to_training=True), "evaluation_num_env_runner"),
        (lambda c: c.evaluation(evaluation_duration=0), "must be an int and >0"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_as_rllib_does(
    change: Callable[[Any], Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        change(PPOConfig()).validate()
    change(PPOConfig()).experimental(_validate_config=False).validate()


def test_impalas_own_checks() -> None:
    with pytest.raises(ValueError, match="multiple of `rollout_fragment_length`"):
        IMPALAConfig().training(minibatch_size=70).validate()
    with pytest.raises(ValueError, match="vtrace=False"):
        IMPALAConfig().training(vtrace=False).validate()
    with pytest.raises(ValueError, match="`learner_queue_size` not supported"):
        APPOConfig().training(learner_queue_size=3).validate()


def test_names_nobody_knows_and_old_ones() -> None:
    with pytest.raises(TypeError, match=r"PPOConfig.training\(\) got an unexpected keyword"):
        PPOConfig().training(vtrace=True)
    with pytest.raises(ValueError, match="Use `num_env_runners` instead"):
        PPOConfig().env_runners(num_rollout_workers=2)
    with pytest.raises(ValueError, match="Use `num_epochs` instead"):
        PPOConfig().update_from_dict({"num_sgd_iter": 2})


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.framework("tf2"), lambda c: c.api_stack(enable_rl_module_and_learner=False),
        lambda c: c.multi_agent(policies_to_train=lambda *_: True), lambda c: c.offline_data(input_="s3://x"),
        lambda c: c.env_runners(env_runner_cls=object),
    ],
)  # fmt: skip
def test_what_is_not_emulated_is_refused_by_name(change: Callable[[Any], Any]) -> None:
    with pytest.raises(NotEmulatedError, match="Emulated instead"):
        change(PPOConfig())


@pytest.mark.parametrize(
    ("config", "bundles"),
    # default_resource_request of ray 2.60
    [
        (PPOConfig(), [{"CPU": 1}, {"CPU": 1}, {"CPU": 1}]),
        (IMPALAConfig(), [{"CPU": 1}, {"CPU": 1}, {"CPU": 1}, {"CPU": 1}]),
        (
            PPOConfig().env_runners(num_env_runners=1, num_cpus_per_env_runner=2)
            .learners(num_learners=2, num_gpus_per_learner=1),
            [{"CPU": 1}, {"CPU": 2}, {"GPU": 1}, {"GPU": 1}],
        ),
        (PPOConfig().env_runners(num_env_runners=0).learners(num_gpus_per_learner=1),
         [{"CPU": 1, "GPU": 1}]),
        (
            IMPALAConfig().env_runners(num_env_runners=1)
            .learners(num_learners=1, num_gpus_per_learner=1, num_aggregator_actors_per_learner=2),
            [{"CPU": 1}, {"CPU": 1}, {"CPU": 2, "GPU": 1}],
        ),
        (
            PPOConfig().env_runners(num_env_runners=1)
            .evaluation(evaluation_interval=1, evaluation_num_env_runners=2),
            [{"CPU": 1}] * 4,
        ),
    ],
)  # fmt: skip
def test_a_trial_asks_for_what_rllib_asks(
    config: AlgorithmConfig, bundles: list[dict[str, float]]
) -> None:
    found = config.algo_class.default_resource_request(config)  # type: ignore[union-attr]
    assert list(found.bundles) == bundles
    assert found.strategy == "PACK"


def test_a_users_subclass_keeps_its_algorithm() -> None:
    class Mine(PPO):
        pass

    config = PPOConfig(algo_class=Mine).environment(Slow)
    assert config.algo_class is Mine
