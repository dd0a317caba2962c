"""The module as layer tables, traced: what a learner trains, and what an env runner asks."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from raysim.rayapi.rllib.agents import MODULE
from raysim.rayapi.rllib.costed import REPLAY, name_of
from raysim.rayapi.rllib.modules import (
    DefaultModelConfig,
    Spaces,
    as_settings,
    default_module,
    inference_module,
    ppo_loss,
)
from raysim.rayapi.unsupported import NotEmulatedError

if TYPE_CHECKING:
    from raysim.models.table import Model
    from raysim.rayapi.rllib.algorithm_config import AlgorithmConfig

CLIP = 0.3
"""Of the ratio, where the algorithm does not say; it costs the same whatever it is."""
TWO = 2
"""Samples to trace with: what grows with them is told from what does not."""


def module_of(
    config: AlgorithmConfig, spaces: Spaces, policy: str = MODULE
) -> tuple[Model, Model, int]:
    """(for the learner, for an env runner, env steps of one of the learner's samples)."""
    import torch

    from raysim.tracing import trace

    replays = name_of(config) in REPLAY
    spec = config.spec_of(policy)
    whole, inference, loss, length = (_of_items if replays else _of_fragments)(config, spec, spaces)
    time = () if length == 1 else (length,)
    batch = max(TWO, ceil(config.samples_of_a_step / length))
    examples: Any = torch.empty((batch, *time, *spaces.observation), device="meta")
    if replays:
        actions = torch.empty((batch, spaces.logits), device="meta")
        size = spaces.spaces[1].shape
        examples = (examples, examples.clone(), actions[:, : size[0]] if size else actions)
    one = torch.empty((TWO, *(() if length == 1 else (1,)), *spaces.observation), device="meta")
    return (
        trace(whole, examples, name="rl_module", loss=loss),
        trace(inference, one, name="rl_module", loss=None),
        length,
    )


def _of_fragments(config: AlgorithmConfig, spec: Any, spaces: Spaces) -> tuple[Any, Any, Any, int]:
    """Of PPO and its like: (the learner's, an env runner's, the loss, env steps of a sample)."""
    loss = ppo_loss(spaces, getattr(config, "clip_param", CLIP))
    if spec.module_class is not None:
        return *_users(spec, spaces), loss, 1
    settings = {**config.model_config, **as_settings(spec.model_config)}
    whole = default_module(spaces, settings)
    recurrent = settings.get("use_lstm")
    length = int(settings.get("max_seq_len", DefaultModelConfig.max_seq_len)) if recurrent else 1
    return whole, inference_module(whole), loss, length


def _of_items(config: Any, spec: Any, spaces: Spaces) -> tuple[Any, Any, Any, int]:
    """The same of DQN and SAC."""
    from raysim.rayapi.rllib import q_modules

    name = name_of(config)
    if spec.module_class is not None:
        raise NotEmulatedError(f"a module of your own under {name}", "its default module")
    settings = {**config.model_config, **as_settings(spec.model_config)}
    if name == "SAC":
        return *q_modules.sac_modules(spaces, settings), q_modules.sac_loss, 1
    return *q_modules.dqn_modules(spaces, settings), q_modules.dqn_loss(config.td_error_loss_fn), 1


def _users(spec: Any, spaces: Spaces) -> tuple[Any, Any]:
    """The user's own ``TorchRLModule``, built on shapes alone."""
    import torch
    from torch import nn

    with torch.device("meta"):
        made = spec.module_class(
            observation_space=spec.observation_space or spaces.spaces[0],
            action_space=spec.action_space or spaces.spaces[1],
            model_config=spec.model_config or {},
        )

    class Whole(nn.Module):
        """As the learner calls it: logits, and values if it has them."""

        def __init__(self) -> None:
            super().__init__()
            self.user = made

        def forward(self, observations: Any) -> Any:
            batch = {"obs": observations}
            found = self.user._forward_train(batch)  # noqa: SLF001  (as RLlib does)
            logits = found["action_dist_inputs"]
            values = getattr(self.user, "compute_values", None)
            if values is None:
                return logits, logits.mean(-1)
            return logits, values(batch, embeddings=found.get("embeddings"))

    class Inference(nn.Module):
        """As an env runner calls it."""

        def __init__(self) -> None:
            super().__init__()
            self.user = made

        def forward(self, observations: Any) -> Any:
            found = self.user._forward_exploration({"obs": observations})  # noqa: SLF001
            return found["action_dist_inputs"]

    return Whole(), Inference()
