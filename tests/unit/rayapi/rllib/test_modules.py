"""Default modules by RLlib's catalog, users' own, and what they are priced at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from raysim.rayapi.rllib.algorithms import PPOConfig
from raysim.rayapi.rllib.modules import default_module, inference_module, spaces_of
from raysim.rayapi.rllib.tables import module_of
from tests.unit.rayapi.rllib.parts import gpu_cluster, ran
from tests.unit.rayapi.rllib.test_algorithm import config_of, iterations

LINE = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)


def numel(module: Any) -> int:
    """Of its parameters."""
    return sum(p.numel() for p in module.parameters())


def test_actor_and_critic_share_layers_or_do_not() -> None:
    spaces = spaces_of(LINE, gym.spaces.Discrete(2))
    encoder = 5 * 256 + 257 * 256
    apart = default_module(spaces, {"vf_share_layers": False})
    shared = default_module(spaces, {"vf_share_layers": True})
    assert numel(apart) == 2 * encoder + 257 * 2 + 257, "134,915 as ray 2.60 counts"
    assert numel(apart) == 134_915
    assert numel(shared) == encoder + 257 * 2 + 257
    assert numel(inference_module(apart)) == encoder + 257 * 2


@pytest.mark.parametrize(
    ("edge", "features"),
    # ``same`` padding divides by the stride, rounding up: 84 / 4 / 2 / 1 and the like
    [(96, 6 * 6 * 256), (84, 11 * 11 * 256), (64, 4 * 4 * 128), (42, 11 * 11 * 256),
     (10, 3 * 3 * 32)],
)  # fmt: skip
def test_images_have_default_filters(edge: int, features: int) -> None:
    box = gym.spaces.Box(0, 255, (edge, edge, 3), np.uint8)
    module: Any = default_module(spaces_of(box, gym.spaces.Discrete(6)), {})
    assert module.actor.width == features
    with torch.device("meta"):
        logits, values = module(torch.empty(2, edge, edge, 3))
    assert (tuple(logits.shape), tuple(values.shape)) == ((2, 6), (2,))


@pytest.mark.parametrize(
    ("space", "logits", "action_bytes"),
    [
        (gym.spaces.Discrete(5), 5, 8), (gym.spaces.Box(-1, 1, (3,), np.float32), 6, 12),
        (gym.spaces.MultiDiscrete([2, 3]), 5, 16),
        (gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.Discrete(3)]), 5, 16),
    ],
)  # fmt: skip
def test_actions_have_distributions(space: Any, logits: int, action_bytes: int) -> None:
    spaces = spaces_of(LINE, space)
    assert (spaces.logits, spaces.action_bytes) == (logits, action_bytes)


def test_spaces_that_rllib_has_no_encoder_for() -> None:
    flat = gym.spaces.Box(0, 1, (8, 8), np.float32)
    for space, said in ((gym.spaces.Discrete(4), "No default encoder"), (flat, "2D Box spaces")):
        with pytest.raises(ValueError, match=said):
            spaces_of(space, gym.spaces.Discrete(2))
    odd = gym.spaces.Box(0, 1, (50, 50, 3), np.float32)
    with pytest.raises(ValueError, match="No default CNN configuration"):
        default_module(spaces_of(odd, gym.spaces.Discrete(2)), {})


def test_recurrent_modules_are_trained_on_sequences() -> None:
    spaces = spaces_of(LINE, gym.spaces.Discrete(2))
    config = PPOConfig().rl_module(model_config={"use_lstm": True, "max_seq_len": 10})
    whole, inference, length = module_of(config, spaces)
    assert length == 10
    assert whole.num_parameters == 2 * inference.num_parameters - 257 * 2 + 257


def update_s(**said: Any) -> float:
    """Of an iteration with a module of its own."""

    def main() -> Any:
        gpu = said.pop("gpu", False)
        config = config_of().rl_module(**said)
        if gpu:
            config.learners(num_learners=1, num_gpus_per_learner=1)
        return iterations(config, 2)

    results = ran(main, gpu_cluster())
    return float(results[1]["timers"]["learner_update_timer"])


def test_wider_modules_take_longer_and_a_gpu_does_not_mind() -> None:
    narrow, wide = ({"model_config": {"fcnet_hiddens": [n, n]}} for n in (64, 2048))
    assert update_s(**wide) > 5 * update_s(**narrow)
    assert update_s(**wide, gpu=True) < update_s(**wide) / 3


def test_two_gpus_share_the_batch_and_exchange_gradients() -> None:
    def took_s(learners: int) -> float:
        def main() -> Any:
            config = config_of().rl_module(model_config={"fcnet_hiddens": [1024, 1024]})
            config.training(train_batch_size_per_learner=4000 // learners, minibatch_size=500)
            return iterations(config.learners(num_learners=learners, num_gpus_per_learner=1), 2)

        results = ran(main, gpu_cluster("g5.12xlarge"))
        return float(results[1]["timers"]["learner_update_timer"])

    one, two = took_s(1), took_s(2)
    # Half of the gradient steps each; 8 MB of gradients go over PCIe in each of them.
    assert 0.5 * one < two < one


def test_a_users_module_is_traced() -> None:
    from raysim.rayapi.rllib.modules import RLModuleSpec
    from raysim.rayapi.rllib.rl_modules import TorchRLModule, ValueFunctionAPI

    class Mine(TorchRLModule, ValueFunctionAPI):
        def setup(self) -> None:
            width = self.model_config["width"]
            self.body = torch.nn.Linear(self.observation_space.shape[0], width)
            self.pi, self.vf = torch.nn.Linear(width, 2), torch.nn.Linear(width, 1)

        def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
            found = self.body(batch["obs"])
            return {"action_dist_inputs": self.pi(found), "embeddings": found}

        def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Any:
            return self.vf(self.body(batch["obs"]) if embeddings is None else embeddings)[..., 0]

    spec = RLModuleSpec(module_class=Mine, model_config={"width": 64})
    spaces = spaces_of(LINE, gym.spaces.Discrete(2))
    whole, _, _ = module_of(PPOConfig().rl_module(rl_module_spec=spec), spaces)
    assert whole.num_parameters == 5 * 64 + 65 * 3
    wide = replace(spec, model_config={"width": 20_000})
    assert update_s(rl_module_spec=wide) > 2 * update_s(rl_module_spec=spec)
