"""What users bring of their own: losses, modules, callbacks, curricula; what stays refused."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from raysim.rayapi.rllib.algorithms import PPO, PPOConfig
from raysim.rayapi.rllib.callbacks import RLlibCallback
from raysim.rayapi.rllib.episodes import class_of_installed
from raysim.rayapi.rllib.modules import RLModuleSpec
from raysim.rayapi.rllib.off_policy import DQNConfig
from raysim.rayapi.unsupported import NotEmulatedError
from tests.unit.rayapi.rllib.parts import Slow, ran


def config_of(env: Any = Slow, runners: int = 0) -> Any:
    """An iteration of 200 env steps, two gradient steps."""
    config = PPOConfig().environment(env).env_runners(num_env_runners=runners)
    return config.training(train_batch_size_per_learner=200, minibatch_size=100, num_epochs=1)


class Masked(gym.Env[Any, Any]):
    """Only the actions that it says are taken."""

    def __init__(self, config: Any = None) -> None:
        del config
        self.action_space = gym.spaces.Discrete(8)
        self.observation_space = gym.spaces.Dict(
            {"action_mask": gym.spaces.Box(0.0, 1.0, (8,)), "seen": gym.spaces.Box(-1, 1, (5,))}
        )
        self.turn = 0

    def _seen(self) -> dict[str, Any]:
        self.turn += 1
        mask = np.zeros(8, np.float32)
        mask[self.turn % 8] = 1.0
        return {"action_mask": mask, "seen": np.zeros(5, np.float32)}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        if action != self.turn % 8:
            raise ValueError(f"{action} is not allowed")
        return self._seen(), 0.0, self.turn % 50 == 0, False, {}


def masking() -> Any:
    """A module of one's own that sees a dictionary."""
    base = class_of_installed("core.rl_module.torch.torch_rl_module:TorchRLModule")

    class Masking(base):  # type: ignore[misc]
        def setup(self) -> None:
            self.net = torch.nn.Linear(5, self.model_config["width"])
            self.pi, self.vf = (torch.nn.Linear(self.model_config["width"], n) for n in (8, 1))

        def _forward(self, batch: Any, **_: Any) -> Any:
            latents = self.net(batch["obs"]["seen"])
            floor = torch.clamp(torch.log(batch["obs"]["action_mask"]), min=-1e9)
            return {"action_dist_inputs": self.pi(latents) + floor, "embeddings": latents}

        def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
            latents = self.net(batch["obs"]["seen"]) if embeddings is None else embeddings
            return self.vf(latents).squeeze(-1)

    return Masking


def test_a_module_of_ones_own_sees_dictionaries_and_allowed_actions() -> None:
    def main() -> tuple[Any, Any]:
        spec = RLModuleSpec(module_class=masking(), model_config={"width": 16})
        algo = config_of(Masked).rl_module(rl_module_spec=spec).build_algo()
        return algo.train()["num_env_steps_sampled_lifetime"], algo.weights_bytes

    steps, weights = ran(main)
    assert steps == 200, "the environment takes no other action than the one allowed"
    assert weights == {"default_policy": 4 * (6 * 16 + 17 * 8 + 17 * 1)}


def test_a_loss_of_ones_own_is_priced(capsys: pytest.CaptureFixture[str]) -> None:
    """A hundred passes over all parameters more; one that looks at values is RLlib's own."""

    def main(passes: int, *, looks: bool = False) -> float:
        base = class_of_installed("algorithms.ppo.torch.ppo_torch_learner:PPOTorchLearner")

        class Own(base):  # type: ignore[misc]
            def compute_loss_for_module(self, *, module_id: Any, **said: Any) -> Any:
                loss = super().compute_loss_for_module(module_id=module_id, **said)
                parameters = self.get_parameters(self.module[module_id])
                for _ in range(passes):
                    loss = loss + torch.mean(torch.stack([p.mean() for p in parameters]))
                self.metrics.log_value((module_id, "loss"), loss, window=1)
                return loss if not looks or loss.item() > 0 else -loss

        config = config_of().training(learner_class=Own)
        return float(config.build_algo().train()["timers"]["learner_update_timer"])

    longer, plain = ran(lambda: main(100)), ran(lambda: main(0))
    assert longer > 1.5 * plain
    capsys.readouterr()
    assert ran(lambda: main(0, looks=True)) == pytest.approx(plain, rel=0.2)
    assert "the loss of Own cannot be traced" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "where"),
    [
        (PPOConfig, "algorithms.ppo.torch.default_ppo_torch_rl_module:DefaultPPOTorchRLModule"),
        (DQNConfig, "algorithms.dqn.torch.default_dqn_torch_rl_module:DefaultDQNTorchRLModule"),
    ],
)
def test_rllibs_own_module_is_priced_as_the_default_one(config: Any, where: str) -> None:
    """By its own class and, of DQN, by its own loss: as many weights, and as long."""

    def main(*, own: bool) -> tuple[dict[str, int], float]:
        made = config().environment(Slow).env_runners(num_env_runners=0)
        made.training(train_batch_size_per_learner=200)
        if own:
            made.rl_module(rl_module_spec=RLModuleSpec(module_class=class_of_installed(where)))
        if config is DQNConfig:
            made.training(num_steps_sampled_before_learning_starts=0)
        algo = made.build_algo()
        return algo.weights_bytes, algo.train()["timers"]["learner_update_timer"]

    (weights, took_s), (expected, expected_s) = (
        ran(lambda o=o: main(own=o)) for o in (True, False)
    )
    assert weights == expected
    assert took_s == pytest.approx(expected_s, rel=0.15)


def test_recurrent_modules_are_priced_on_cores_too() -> None:
    """The default learner of a driver has no GPU; sequences take longer than single steps."""

    def main(**said: Any) -> float:
        algo = config_of().rl_module(model_config={"vf_share_layers": True, **said}).build_algo()
        return float(algo.train()["timers"]["learner_update_timer"])

    assert ran(lambda: main(use_lstm=True)) > ran(main) > 0


def test_policies_without_a_network_cost_nothing() -> None:
    def main() -> dict[str, int]:
        base = class_of_installed("core.rl_module.rl_module:RLModule")

        class Always(base):  # type: ignore[misc]
            def _forward(self, batch: Any, **_: Any) -> Any:
                return {"actions": np.zeros(len(batch["obs"]))}

        config = config_of().rl_module(rl_module_spec=RLModuleSpec(module_class=Always))
        algo = config.build_algo()
        algo.train()
        found: dict[str, int] = algo.weights_bytes
        return found

    assert ran(main) == {"default_policy": 0}


def test_callbacks_of_episodes_see_the_first_steps() -> None:
    lengths: list[int] = []

    class Told(RLlibCallback):
        def on_episode_end(
            self, *, episode: Any, env_runner: Any, metrics_logger: Any, env: Any, env_index: int,
            rl_module: Any, **_: Any,
        ) -> None:  # fmt: skip
            lengths.append(len(episode))
            assert env is env_runner.env
            metrics_logger.log_value("returned", episode.get_return(), reduce="max")

    def main() -> Any:
        algo = config_of().callbacks(Told).build_algo()
        found = algo.train()["env_runners"]["returned"], algo.env_runner.env.envs[env_index()].steps
        algo.train()
        return found

    def env_index() -> int:
        return 0

    assert ran(main) == (50.0, 0)
    assert lengths == [50] * 4, "of 200 real steps; later ones have no episodes"


def test_a_curriculum_changes_environments_of_all_runners() -> None:
    def harder(*, algorithm: Any, result: dict[str, Any], **_: Any) -> None:
        if result["training_iteration" if "training_iteration" in result else "timers"]:
            algorithm.env_runner_group.foreach_env_runner(
                lambda runner: runner.env.unwrapped.set_attr("length", 7)
            )

    def main() -> list[list[int]]:
        algo = config_of(runners=2).callbacks(on_train_result=harder).build_algo()
        algo.train()
        found: list[list[int]] = algo.env_runner_group.foreach_env(lambda env: env.length)
        return found

    assert ran(main) == [[7], [7]]


def test_an_algorithm_of_ones_own_is_refused() -> None:
    class Mine(PPO):
        def training_step(self) -> None:
            """Another one."""

    with pytest.raises(NotEmulatedError, match=r"Mine.training_step, an algorithm of one's own"):
        ran(lambda: Mine(config=config_of()))
