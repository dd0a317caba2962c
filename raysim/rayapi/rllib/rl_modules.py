"""What a user's own ``TorchRLModule`` derives from; it is traced, never trained.

Real counterparts (ray 2.60): ``rllib/core/rl_module/{rl_module,torch/torch_rl_module}.py``,
``apis/value_function_api.py``. These classes need torch, which they load.
"""

from __future__ import annotations

from typing import Any

import torch


class ValueFunctionAPI:
    """It has ``compute_values``."""

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Any:
        """Users override."""
        raise NotImplementedError


class RLModule:
    """``RLModule``."""

    framework = "torch"

    def __init__(
        self, config: Any = None, *, observation_space: Any = None, action_space: Any = None,
        inference_only: bool = False, learner_only: bool = False, model_config: Any = None,
        catalog_class: Any = None, **_others: Any,
    ) -> None:  # fmt: skip
        del config, catalog_class
        self.observation_space, self.action_space = observation_space, action_space
        self.inference_only, self.learner_only = inference_only, learner_only
        self.model_config = model_config or {}
        self.setup()

    def setup(self) -> None:
        """Users override."""

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward(batch, **kwargs)

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward(batch, **kwargs)

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._forward(batch, **kwargs)


class TorchRLModule(RLModule, torch.nn.Module):
    """``TorchRLModule``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        torch.nn.Module.__init__(self)
        RLModule.__init__(self, *args, **kwargs)

    def forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """As an env runner calls it."""
        return self._forward(batch, **kwargs)
