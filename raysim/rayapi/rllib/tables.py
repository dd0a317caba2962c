"""The module as layer tables, traced: what a learner trains, and what an env runner asks."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from raysim.rayapi.rllib.modules import (
    DefaultModelConfig,
    Spaces,
    as_settings,
    default_module,
    inference_module,
    ppo_loss,
)

if TYPE_CHECKING:
    from raysim.models.table import Model
    from raysim.rayapi.rllib.algorithm_config import AlgorithmConfig

CLIP = 0.3
"""Of the ratio, where the algorithm does not say; it costs the same whatever it is."""
TWO = 2
"""Samples to trace with: what grows with them is told from what does not."""


def module_of(config: AlgorithmConfig, spaces: Spaces) -> tuple[Model, Model, int]:
    """(for the learner, for an env runner, env steps of one of the learner's samples)."""
    import torch

    from raysim.tracing import trace

    settings = config.model_config
    spec = config.rl_module_spec
    length = 1
    if spec.module_class is None:
        settings = {**settings, **as_settings(spec.model_config)}
        whole: Any = default_module(spaces, settings)
        inference = inference_module(whole)
        if settings.get("use_lstm"):
            length = int(settings.get("max_seq_len", DefaultModelConfig.max_seq_len))
    else:
        whole, inference = _users(spec, spaces)
    time = () if length == 1 else (length,)
    batch = max(TWO, ceil((config.minibatch_size or config.train_batch_size_per_learner) / length))
    examples = torch.empty((batch, *time, *spaces.observation), device="meta")
    one = torch.empty((TWO, *(() if length == 1 else (1,)), *spaces.observation), device="meta")
    loss = ppo_loss(spaces, getattr(config, "clip_param", CLIP))
    return (
        trace(whole, examples, name="rl_module", loss=loss),
        trace(inference, one, name="rl_module", loss=None),
        length,
    )


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
