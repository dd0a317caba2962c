"""The module that is trained: RLlib's default one by its catalog's rules, or the user's own.

Real counterparts (ray 2.60): ``core/models/catalog.py``, ``core/models/torch/primitives.py``,
``algorithms/ppo/{ppo_catalog,torch/ppo_torch_learner}.py``. A module is built on torch's meta
device: it has shapes and no values, which is all that a time and a size need.

Not modelled: initializers, spaces of several parts, ``use_attention``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from raysim.rayapi.unsupported import NotEmulatedError

if TYPE_CHECKING:
    import torch

FILTERS: dict[int, list[list[Any]]] = {
    96: [[16, [8, 8], 4], [32, [4, 4], 2], [256, [11, 11], 2]],
    84: [[16, [8, 8], 4], [32, [4, 4], 2], [256, [11, 11], 1]],
    64: [[16, [4, 4], 2], [32, [4, 4], 2], [64, [4, 4], 2], [128, [4, 4], 2]],
    42: [[16, [4, 4], 2], [32, [4, 4], 2], [256, [11, 11], 1]],
    10: [[16, [5, 5], 2], [32, [5, 5], 2]],
}
"""``get_filter_config``: by the edge of a square image."""
ACTIVATIONS = {"relu": "ReLU", "tanh": "Tanh", "silu": "SiLU", "swish": "SiLU", "elu": "ELU",
               "gelu": "GELU", "sigmoid": "Sigmoid", "leakyrelu": "LeakyReLU"}  # fmt: skip
NO_ACTIVATION = (None, "linear")


@dataclass
class DefaultModelConfig:
    """``ray.rllib.core.rl_module.default_model_config.DefaultModelConfig``."""

    fcnet_hiddens: list[int] = field(default_factory=lambda: [256, 256])
    fcnet_activation: str = "tanh"
    fcnet_kernel_initializer: Any = None
    fcnet_kernel_initializer_kwargs: dict[str, Any] | None = None
    fcnet_bias_initializer: Any = None
    fcnet_bias_initializer_kwargs: dict[str, Any] | None = None
    fcnet_use_layernorm: bool = False
    conv_filters: list[Any] | None = None
    conv_activation: str = "relu"
    conv_kernel_initializer: Any = None
    conv_kernel_initializer_kwargs: dict[str, Any] | None = None
    conv_bias_initializer: Any = None
    conv_bias_initializer_kwargs: dict[str, Any] | None = None
    head_fcnet_hiddens: list[int] = field(default_factory=list)
    head_fcnet_activation: str = "relu"
    head_fcnet_kernel_initializer: Any = None
    head_fcnet_kernel_initializer_kwargs: dict[str, Any] | None = None
    head_fcnet_bias_initializer: Any = None
    head_fcnet_bias_initializer_kwargs: dict[str, Any] | None = None
    head_fcnet_use_layernorm: bool = False
    free_log_std: bool = False
    log_std_clip_param: float = 20.0
    vf_share_layers: bool = True
    use_lstm: bool = False
    max_seq_len: int = 20
    lstm_cell_size: int = 256
    lstm_use_prev_action: bool = False
    lstm_use_prev_reward: bool = False
    lstm_kernel_initializer: Any = None
    lstm_kernel_initializer_kwargs: dict[str, Any] | None = None
    lstm_bias_initializer: Any = None
    lstm_bias_initializer_kwargs: dict[str, Any] | None = None
    fusionnet_hiddens: list[int] = field(default_factory=lambda: [256, 256])
    fusionnet_activation: str = "tanh"


def as_settings(said: Any) -> dict[str, Any]:
    """A ``model_config``, dataclass or dictionary."""
    is_config = is_dataclass(said) and not isinstance(said, type)
    return asdict(said) if is_config else dict(said or {})


@dataclass
class RLModuleSpec:
    """``ray.rllib.core.rl_module.rl_module.RLModuleSpec``."""

    module_class: Any = None
    """None: the algorithm's default one."""
    observation_space: Any = None
    action_space: Any = None
    inference_only: bool = False
    learner_only: bool = False
    model_config: Any = None
    catalog_class: Any = None
    load_state_path: str | None = None


@dataclass(frozen=True, kw_only=True)
class Spaces:
    """What an environment shows and takes, in numbers."""

    observation: tuple[int, ...]
    """Its shape."""
    observation_bytes: int
    logits: int
    """What a distribution over its actions is made of."""
    action_bytes: int
    discrete: bool
    spaces: tuple[Any, Any] = (None, None)
    """Of observations and actions, themselves."""


def spaces_of(observation: Any, action: Any, *, encoded: bool = True) -> Spaces:
    """Of gymnasium's spaces; ``encoded``: by RLlib's own module.

    Raises
    ------
    ValueError
        RLlib's catalog has no default encoder for it either.
    """
    kind = type(observation).__name__
    shape = tuple(getattr(observation, "shape", None) or ())
    if encoded and (kind != "Box" or len(shape) not in (1, 3)):
        raise ValueError(
            f"No default encoder config for obs space={observation}, lstm=False found."
            + (" 2D Box spaces are not supported. They should be either flattened to a 1D Box "
               "space or enhanced to be a 3D box space." if len(shape) == 2 else "")
        )  # fmt: skip
    logits, action_bytes, discrete = _logits(action)
    return Spaces(
        observation=shape, observation_bytes=_bytes(observation),
        logits=logits, action_bytes=action_bytes, discrete=discrete, spaces=(observation, action),
    )  # fmt: skip


def _bytes(space: Any) -> int:
    parts = getattr(space, "spaces", None)
    if parts is not None:
        return sum(_bytes(p) for p in (parts.values() if isinstance(parts, Mapping) else parts))
    itemsize = getattr(space.dtype, "itemsize", 1)
    return prod(space.shape or ()) * int(itemsize)


def _logits(action: Any) -> tuple[int, int, bool]:
    kind = type(action).__name__
    if kind == "Discrete":
        return int(action.n), action.dtype.itemsize, True
    if kind == "Box":
        size = prod(action.shape)
        return 2 * size, size * action.dtype.itemsize, False
    if kind == "MultiDiscrete":
        return int(action.nvec.sum()), len(action.nvec) * action.dtype.itemsize, True
    if kind in ("Tuple", "Dict"):
        parts = list(action.spaces.values() if kind == "Dict" else action.spaces)
        each = [_logits(part) for part in parts]
        return sum(e[0] for e in each), sum(e[1] for e in each), all(e[2] for e in each)
    raise NotImplementedError(f"Unsupported action space: `{action}`")


def default_module(spaces: Spaces, said: Mapping[str, Any]) -> torch.nn.Module:
    """``DefaultPPOTorchRLModule``: of observations to (action distribution's inputs, values)."""
    import torch
    from torch import nn

    settings = asdict(DefaultModelConfig()) | dict(said)
    if settings.get("use_attention"):
        raise NotEmulatedError("use_attention of a module", "use_lstm")

    class Encoder(nn.Module):
        """Observations to latents; recurrent ones over time."""

        def __init__(self) -> None:
            super().__init__()
            self.layers, self.width = encoder(nn, spaces.observation, settings)
            self.lstm = None
            if settings["use_lstm"]:
                cells = settings["lstm_cell_size"]
                self.lstm, self.width = nn.LSTM(self.width, cells, batch_first=True), cells

        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor
            if self.lstm is None:
                found = self.layers(observations)
                return found
            batch, time = observations.shape[:2]
            flat = self.layers(observations.flatten(0, 1))
            found, _ = self.lstm(flat.view(batch, time, -1))
            return found

    class Module(nn.Module):
        """Actor and critic, with one encoder or two."""

        def __init__(self) -> None:
            super().__init__()
            self.actor = Encoder()
            self.critic = None if settings["vf_share_layers"] else Encoder()
            width = self.actor.width
            self.pi = head(nn, width, spaces.logits, settings)
            self.vf = head(nn, width, 1, settings)

        def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            latents = self.actor(observations)
            other = latents if self.critic is None else self.critic(observations)
            return self.pi(latents), self.vf(other).squeeze(-1)

    with torch.device("meta"):
        return Module()


def inference_module(module: torch.nn.Module) -> torch.nn.Module:
    """``inference_only``: what an env runner has of it; a critic with an encoder of its own not."""
    from torch import nn

    whole: Any = module
    if not hasattr(whole, "pi"):
        return module
    return nn.Sequential(whole.actor, whole.pi)


def activation_of(nn: Any, name: str | None) -> list[Any]:
    """As a list of one layer, or none."""
    if name in NO_ACTIVATION:
        return []
    kind = getattr(nn, ACTIVATIONS.get(str(name).lower(), str(name)), None)
    if kind is None:
        raise ValueError(f"Unknown activation ({name}) for framework=torch!")
    return [kind()]


def _dense(nn: Any, sizes: list[int], activation: str, *, norm: bool) -> list[Any]:
    layers: list[Any] = []
    for before, after in pairwise(sizes):
        layers.append(nn.Linear(before, after))
        if norm:
            layers.append(nn.LayerNorm(after))
        layers += activation_of(nn, activation)
    return layers


def encoder(nn: Any, shape: tuple[int, ...], settings: Mapping[str, Any]) -> tuple[Any, int]:
    """(``Catalog``'s encoder of observations of that shape, width of its latents)."""
    if len(shape) == 1:
        sizes = [shape[0], *settings["fcnet_hiddens"]]
        norm = bool(settings["fcnet_use_layernorm"])
        return nn.Sequential(
            *_dense(nn, sizes, settings["fcnet_activation"], norm=norm)
        ), sizes[-1]  # fmt: skip
    filters = settings["conv_filters"] or FILTERS.get(shape[0] if shape[0] == shape[1] else 0)
    if not filters:
        raise ValueError(
            f"No default CNN configuration for obs shape {list(shape)}. You can specify "
            "`conv_filters` manually through your AlgorithmConfig's model_config. Default "
            "configurations are only available for inputs of the following shapes: [42, 42, K], "
            "[84, 84, K], [64, 64, K], [10, 10, K]. You may want to use a custom RLModule or a "
            "ConnectorV2 for that."
        )
    height, width, depth = shape
    layers: list[Any] = [_channels_first(nn)]
    for channels, kernel, stride, *padding in filters:
        k, s = _pair(kernel), _pair(stride)
        if (padding or ["same"])[0] == "same":
            after = -(-height // s[0]), -(-width // s[1])
            pads = [max(0, (a - 1) * b + c - size) for a, b, c, size in
                    zip(after, s, k, (height, width), strict=True)]  # fmt: skip
            left, top = pads[1] // 2, pads[0] // 2
            layers.append(nn.ZeroPad2d((left, pads[1] - left, top, pads[0] - top)))
        else:
            after = (height - k[0]) // s[0] + 1, (width - k[1]) // s[1] + 1
        layers.append(nn.Conv2d(depth, channels, k, s))
        layers += activation_of(nn, settings["conv_activation"])
        (height, width), depth = after, channels
    return nn.Sequential(*layers, nn.Flatten()), height * width * depth


def _pair(said: Any) -> tuple[int, int]:
    return (said, said) if isinstance(said, int) else (said[0], said[1])


def _channels_first(nn: Any) -> Any:
    class ChannelsFirst(nn.Module):  # type: ignore[misc]
        def forward(self, images: Any) -> Any:
            return images.permute(0, 3, 1, 2)

    return ChannelsFirst()


def head(nn: Any, width: int, outputs: int, settings: Mapping[str, Any]) -> Any:
    """``MLPHeadConfig``."""
    sizes = [width, *settings["head_fcnet_hiddens"]]
    norm = bool(settings["head_fcnet_use_layernorm"])
    hidden = _dense(nn, sizes, settings["head_fcnet_activation"], norm=norm)
    return nn.Sequential(*hidden, nn.Linear(sizes[-1], outputs))


def ppo_loss(spaces: Spaces, clip: float) -> Callable[[Any], torch.Tensor]:
    """``PPOTorchLearner.compute_loss_for_module``: its operators, on targets of no value."""

    def loss(outputs: Any) -> torch.Tensor:
        import torch

        logits, values = outputs
        before = torch.zeros_like(logits)
        advantages = torch.zeros_like(values)
        new, old = _log_density(spaces, logits), _log_density(spaces, before)
        ratio = torch.exp(new - old)
        divergence = (old.exp() * (old - new)).mean()
        entropy = -(new.exp() * new)
        surrogate = torch.min(
            advantages * ratio, advantages * torch.clamp(ratio, 1 - clip, 1 + clip)
        )
        errors = torch.pow(values - advantages, 2.0)
        total = torch.mean(-surrogate + torch.clamp(errors, 0, 10.0) - 0.0 * entropy)
        return total + 0.2 * divergence

    return loss


def _log_density(spaces: Spaces, logits: torch.Tensor) -> torch.Tensor:
    """Of actions: categorical, or normal."""
    import torch

    if spaces.discrete:
        return torch.log_softmax(logits, dim=-1)[..., 0]
    mean, log_std = logits.chunk(2, dim=-1)
    return (-0.5 * ((mean / log_std.exp()) ** 2) - log_std).sum(-1)
