"""DQN and SAC in programs: what they count, what they cost, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from raysim.rayapi.rllib.modules import DefaultModelConfig, spaces_of
from raysim.rayapi.rllib.off_policy import DQNConfig, EpisodeReplayBuffer, SACConfig
from raysim.rayapi.rllib.tables import module_of
from raysim.rayapi.unsupported import NotEmulatedError
from tests.unit.rayapi.rllib.parts import Slow, gpu_cluster, ran
from tests.unit.rayapi.rllib.test_algorithm import iterations

LINE = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
PLANE = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


def dqn(runners: int = 0, env: Any = None, **training: Any) -> Any:
    """It learns after 60 env steps; 40 of them are an iteration."""
    config = DQNConfig().environment(Slow, env_config=env or {})
    config.env_runners(num_env_runners=runners)
    config.reporting(min_sample_timesteps_per_iteration=40)
    return config.training(
        num_steps_sampled_before_learning_starts=60, train_batch_size_per_learner=8, **training
    )


def later(make: Callable[[], Any], count: int = 3, **said: Any) -> dict[str, Any]:
    """The last of so many iterations."""
    found: dict[str, Any] = ran(lambda: iterations(make(), count), **said)[-1]
    return found


def test_a_result_has_rllibs_keys_and_says_nothing_before_it_learns() -> None:
    first, second, third = ran(lambda: iterations(dqn(2, target_network_update_freq=25), 3))
    assert "learners" not in first
    assert "replay_buffer" not in first
    assert first["num_training_step_calls_per_iteration"] == 20
    # 60, 62, ... 80: eleven batches of 8.
    module = second["learners"]["default_policy"]
    assert module["num_module_steps_trained"] == 11 * 8
    assert module["module_train_batch_size_mean"] == 8
    assert module["default_optimizer_learning_rate"] == 5e-4
    assert np.isnan(module["qf_loss"])
    assert third["learners"]["__all_modules__"]["num_env_steps_trained_lifetime"] == 31 * 8
    # At 60; at 86 and 112.
    assert third["learners"]["default_policy"]["num_target_updates"] == 3
    assert third["learners"]["default_policy"]["last_target_update_ts"] == 112
    assert second["replay_buffer"]["num_env_steps_added"] == 80, "of the first iteration as well"
    buffer = third["replay_buffer"]
    assert buffer["num_env_steps_added"] == 40
    assert buffer["num_env_steps_added_lifetime"] == 120
    assert buffer["num_env_steps_sampled"] == 20 * 8
    assert buffer["actual_n_step"] == 1.0
    # Timers are of one call, of which an iteration makes many.
    assert third["timers"]["training_step"] == pytest.approx(
        third["time_this_iter_s"] / 20, rel=0.1
    )
    assert set(third["timers"]) >= {
        "replay_buffer_add_data_timer", "replay_buffer_sampling_timer",
        "replay_buffer_update_prios_timer",
    }  # fmt: skip


def test_sac_reports_its_optimizers() -> None:
    def make() -> Any:
        config = SACConfig().environment("Pendulum-v1").env_runners(num_env_runners=1)
        config.reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=20)
        return config.training(
            num_steps_sampled_before_learning_starts=10, train_batch_size_per_learner=16
        )

    module = later(make, 2)["learners"]["default_policy"]
    assert module["policy_learning_rate"] == 3e-5
    assert {"qf_twin_loss", "alpha_value", "qf_learning_rate"} <= set(module)
    # Its target networks follow in each step: 10, 11, ... 40.
    assert module["num_target_updates"] == 31


def test_env_steps_and_longer_rewards_cost_what_they_say() -> None:
    plain, slow = (later(lambda s=s: dqn(0, {"sleep_s": s})) for s in (0.0, 0.01))  # type: ignore[misc]
    assert slow["time_this_iter_s"] - plain["time_this_iter_s"] == pytest.approx(0.4, rel=0.02)
    three = later(lambda: dqn(1, n_step=3))
    assert three["num_training_step_calls_per_iteration"] == 14, "a fragment is n_step long"


def test_larger_batches_cost_more_and_priorities_do_too() -> None:
    small = later(dqn)["timers"]
    large = later(lambda: dqn().training(train_batch_size_per_learner=256))["timers"]
    for key in ("replay_buffer_sampling_timer", "learner_update_timer"):
        assert large[key] > 2 * small[key]
    uniform = later(lambda: dqn(replay_buffer_config={"type": EpisodeReplayBuffer}))["timers"]
    assert uniform["replay_buffer_update_prios_timer"] == 0
    assert small["replay_buffer_update_prios_timer"] > 0


def test_a_gpu_takes_wide_modules_faster() -> None:
    def took_s(gpus: int) -> float:
        def make() -> Any:
            config = dqn().training(train_batch_size_per_learner=512)
            config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[2048, 2048]))
            return config.learners(num_learners=1, num_gpus_per_learner=gpus)

        return float(later(make, 2, cluster=gpu_cluster())["timers"]["learner_update_timer"])

    assert took_s(1) < took_s(0) / 3


def test_a_checkpoint_counts_on_and_learns_at_once(tmp_path: Path) -> None:
    def main() -> Any:
        algo = dqn().build_algo()
        for _ in range(2):
            algo.train()
        where = algo.save_to_path(tmp_path / "here")
        algo.stop()
        again = dqn().build_algo()
        again.restore_from_path(where)
        return again.train()

    result = ran(main)
    assert (result["training_iteration"], result["num_env_steps_sampled_lifetime"]) == (3, 120)
    assert result["learners"]["default_policy"]["num_module_steps_trained"] == 40 * 8


def test_trials_of_tune() -> None:
    def main() -> Any:
        from ray import tune

        results = tune.Tuner(
            "DQN", param_space=dqn(1).training(lr=tune.grid_search([0.1, 0.2])),
            run_config=tune.RunConfig(stop={"num_env_steps_sampled_lifetime": 80}),
        ).fit()  # fmt: skip
        return [(r.metrics["config"]["lr"], r.metrics["training_iteration"]) for r in results]

    assert ran(main) == [(0.1, 2), (0.2, 2)]


def test_one_program_gives_one_result() -> None:
    assert repr(ran(lambda: iterations(dqn(3)))) == repr(ran(lambda: iterations(dqn(3))))


ENCODER = 5 * 256 + 257 * 256


def test_dqns_module_is_that_of_rllibs_catalog() -> None:
    spaces = spaces_of(LINE, gym.spaces.Discrete(2))
    whole, inference, _ = module_of(DQNConfig(), spaces)
    assert inference.num_parameters == ENCODER + 257 * 2 + 257 == 67_843, "as ray 2.60 counts"
    assert (whole.num_trainable, whole.num_parameters) == (67_843, 2 * 67_843)
    # Both observations through the network, the next one through its target; back through the
    # former, but not into the observations.
    product = 2 * (4 * 256 + 256 * 256 + 256 * 3)
    assert whole.flops == 3 * product
    assert whole.step_flops == 3 * product + 2 * (2 * product - 2 * 4 * 256)
    single = module_of(DQNConfig().training(double_q=False, dueling=False), spaces)
    assert single[1].num_parameters == ENCODER + 257 * 2
    assert single[0].flops == 2 * 2 * (4 * 256 + 256 * 256 + 256 * 2)
    atoms = module_of(DQNConfig().training(num_atoms=51), spaces)[1]
    assert atoms.num_parameters == ENCODER + 257 * 2 * 51 + 257


def test_sacs_module_is_that_of_rllibs_catalog() -> None:
    whole, inference, _ = module_of(SACConfig(), spaces_of(LINE, PLANE))
    critic = 658_688 + 257  # as ray 2.60 counts: qf_encoder, qf
    policy = ENCODER + 257 * 4
    assert inference.num_parameters == policy
    assert whole.num_trainable == policy + 2 * critic + 1, "1,385,990 and the temperature"
    assert whole.num_parameters == policy + 4 * critic + 1
    # Six passes of critics: of actions taken, of the policy's, of the next ones; two of the policy.
    pi = 2 * (4 * 256 + 256 * 256 + 256 * 4)
    observed, acted = 2 * (4 * 256 + 256 * 256), 2 * (2 * 256 + 256 * 256)
    fusion = 2 * (512 * 256 + 2 * 768 * 256 + 256)
    assert whole.flops == 2 * pi + 6 * (observed + acted + fusion)
    # Critics learn from the first two alone; the policy through their actions, not observations.
    back = 2 * (2 * (observed + acted + fusion) - 2 * 6 * 256) + 2 * (acted + fusion)
    assert whole.step_flops == whole.flops + back + 2 * pi - 2 * 4 * 256
    discrete = module_of(SACConfig(), spaces_of(LINE, gym.spaces.Discrete(3)))[0]
    assert discrete.num_trainable == 3 * (ENCODER + 257 * 3) + 1


def test_settings_are_rllibs_and_buffers_of_another_type_are_new() -> None:
    config = DQNConfig().training(replay_buffer_config={"capacity": 100})
    assert config.replay_buffer_config == {
        "type": "PrioritizedEpisodeReplayBuffer", "capacity": 100, "alpha": 0.6, "beta": 0.4,
    }  # fmt: skip
    config.training(replay_buffer_config={"type": "EpisodeReplayBuffer"})
    assert config.replay_buffer_config == {"type": "EpisodeReplayBuffer"}
    assert config.evaluation_config == {"explore": False}
    assert config.training(n_step=(2, 5)).get_rollout_fragment_length() == 5
    sac = SACConfig().training(q_model_config={"fcnet_hiddens": [8]})
    assert sac.q_model_config["fcnet_activation"] == "relu"
    assert (sac.lr, sac.total_train_batch_size, sac.min_time_s_per_iteration) == (None, 256, 1)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (DQNConfig().env_runners(rollout_fragment_length=2).training(n_step=3), "smaller than"),
        (DQNConfig().training(td_error_loss_fn="l1"), "must be 'huber' or 'mse'"),
        (DQNConfig().training(replay_buffer_config={"type": dict}), "`EpisodeReplayBuffer`"),
        (SACConfig().training(lr=0.1), "`lr` is not `None`"),
        (SACConfig().training(grad_clip=0.0), "must be > 0.0"),
        (SACConfig().training(replay_buffer_config={"type": "ReplayBuffer"}), "EpisodeReplay"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_as_rllib_does(config: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        config.validate()


def test_what_is_not_emulated_is_refused_by_name() -> None:
    spaces = spaces_of(LINE, gym.spaces.Discrete(2))
    old = {"type": "MultiAgentEpisodeReplayBuffer"}
    with pytest.raises(NotEmulatedError, match="MultiAgentEpisodeReplayBuffer for one agent"):
        DQNConfig().training(replay_buffer_config=old).validate()
    with pytest.raises(NotEmulatedError, match="use_lstm under SAC"):
        module_of(SACConfig().rl_module(model_config={"use_lstm": True}), spaces)
    with pytest.raises(ValueError, match="DQN needs Discrete actions"):
        module_of(DQNConfig(), spaces_of(LINE, PLANE))
