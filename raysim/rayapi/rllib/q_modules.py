"""The default modules of DQN and SAC, and their losses: networks of Q values and targets of them.

Real counterparts (ray 2.60): ``algorithms/dqn/{dqn_catalog,default_dqn_rl_module}.py``,
``algorithms/sac/{sac_catalog,default_sac_rl_module}.py``, and modules and learners in their
``torch``. A batch is observations, next ones and actions. This file loads torch.

Not modelled: recurrent ones, action masks, rewards, terminal states and weights of items in losses
(a product each).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from raysim.rayapi.rllib.modules import DefaultModelConfig, Spaces, activation_of, encoder, head
from raysim.rayapi.unsupported import NotEmulatedError

SMALLEST_LOG, LARGEST_LOG = -20.0, 2.0
"""Of a standard deviation (``MIN_LOG_NN_OUTPUT``, ``MAX_LOG_NN_OUTPUT``)."""


def _settings(said: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    settings = asdict(DefaultModelConfig()) | dict(said)
    if settings["use_lstm"]:
        raise NotEmulatedError(f"use_lstm under {algorithm}", "modules without a state")
    return settings


def _kind(spaces: Spaces) -> str:
    return type(spaces.spaces[1]).__name__


def dqn_modules(spaces: Spaces, said: Mapping[str, Any]) -> tuple[nn.Module, nn.Module]:
    """``DefaultDQNTorchRLModule``: (the learner's, an env runner's).

    Raises
    ------
    ValueError
        Actions are not Discrete.
    """
    settings = _settings(said, "DQN")
    if _kind(spaces) != "Discrete":
        raise ValueError(f"DQN needs Discrete actions; the action space is {spaces.spaces[1]}.")
    with torch.device("meta"):
        made = Dqn(spaces, settings)
    return made, made.q


class QNetwork(nn.Module):
    """Observations to (Q values, what they are made of: themselves, or logits of atoms)."""

    def __init__(self, spaces: Spaces, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.atoms = settings["num_atoms"]
        self.encoder, width = encoder(nn, spaces.observation, settings)
        self.af = head(nn, width, spaces.logits * self.atoms, settings)
        self.vf = head(nn, width, 1, settings) if settings["dueling"] else None

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As ``_qf_forward_helper``."""
        latents = self.encoder(observations)
        found = self.af(latents)
        if self.atoms > 1:
            found = found.view(len(found), -1, self.atoms)
        if self.vf is not None:
            value = self.vf(latents)
            mean = torch.nan_to_num(found).nanmean(dim=-1, keepdim=True)
            found = found - mean + (value if self.atoms == 1 else value.unsqueeze(-1))
        if self.atoms == 1:
            return found, found
        return torch.softmax(found, dim=-1).sum(-1), found


class Dqn(nn.Module):
    """Q values of observations and of next ones, and what the target network says of these."""

    def __init__(self, spaces: Spaces, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.double_q = settings["double_q"]
        self.q = QNetwork(spaces, settings)
        self.target = copy.deepcopy(self.q).requires_grad_(requires_grad=False)

    def forward(self, seen: torch.Tensor, then: torch.Tensor, _actions: torch.Tensor) -> Any:
        """As ``_forward_train``."""
        return *self.q(torch.cat([seen, then]) if self.double_q else seen), *self.target(then)


def dqn_loss(td_error_loss_fn: str) -> Callable[[Any], torch.Tensor]:
    """``DQNTorchLearner.compute_loss_for_module``: its operators."""
    kind = functional.huber_loss if td_error_loss_fn == "huber" else functional.mse_loss

    def loss(outputs: Any) -> torch.Tensor:
        values, made_of, next_values, next_made_of = outputs
        batch = len(next_values)
        if made_of.dim() > values.dim():
            wanted = torch.softmax(next_made_of, dim=-1)[:, 0]
            return functional.cross_entropy(made_of[:batch, 0], wanted)
        best = values[-batch:].argmax(dim=-1, keepdim=True)
        target = next_values.gather(-1, best).squeeze(-1)
        return kind(values[:batch, 0], target, reduction="none").mean()

    return loss


def sac_modules(spaces: Spaces, said: Mapping[str, Any]) -> tuple[nn.Module, nn.Module]:
    """``DefaultSACTorchRLModule``: (the learner's, an env runner's).

    Raises
    ------
    ValueError
        Actions are neither Box nor Discrete.
    """
    settings = _settings(said, "SAC")
    if _kind(spaces) not in ("Box", "Discrete"):
        raise ValueError(
            f"SAC only supports Box and Discrete action spaces. Found: {spaces.spaces[1]}"
        )
    with torch.device("meta"):
        made = Sac(spaces, settings)
    return made, made.policy


class Fusion(nn.Module):
    """``TorchMultiStreamEncoder``: each layer sees the streams again."""

    def __init__(self, streams: int, width: int, settings: Mapping[str, Any]) -> None:
        super().__init__()
        sizes = [0, *settings["fusionnet_hiddens"], width]
        self.layers = nn.ModuleList(
            nn.Linear(before + streams, after) for before, after in pairwise(sizes)
        )
        self.activation = nn.Sequential(*activation_of(nn, settings["fusionnet_activation"]))

    def forward(self, streams: torch.Tensor) -> torch.Tensor:
        """Latents."""
        found = streams
        for number, layer in enumerate(self.layers):
            found = self.activation(layer(torch.cat([found, streams], -1) if number else found))
        return found


class Critic(nn.Module):
    """Observations and actions to a value; if actions are discrete, observations to one of each."""

    def __init__(self, spaces: Spaces, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.observations, width = encoder(nn, spaces.observation, settings)
        self.continuous = _kind(spaces) == "Box"
        if self.continuous:
            like = {**settings, "fcnet_hiddens": [*settings["fcnet_hiddens"][:-1], width]}
            self.actions, _ = encoder(nn, (prod(spaces.spaces[1].shape),), like)
            self.fusion = Fusion(2 * width, width, settings)
        self.head = head(nn, width, 1 if self.continuous else spaces.logits, settings)

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """As ``_qf_forward_train_helper``."""
        found = self.observations(observations)
        if self.continuous:
            found = self.fusion(torch.cat([self.actions(actions), found], dim=-1))
        value: torch.Tensor = self.head(found)
        return value


class Policy(nn.Module):
    """Observations to inputs of a distribution over actions."""

    def __init__(self, spaces: Spaces, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.encoder, width = encoder(nn, spaces.observation, settings)
        self.pi = head(nn, width, spaces.logits, settings)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """As ``_forward_exploration``."""
        found: torch.Tensor = self.pi(self.encoder(observations))
        return found


class Sac(nn.Module):
    """What losses of critics, policy and temperature are made of."""

    def __init__(self, spaces: Spaces, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.continuous = _kind(spaces) == "Box"
        self.policy = Policy(spaces, settings)
        self.critics = nn.ModuleList(
            Critic(spaces, settings) for _ in range(2 if settings["twin_q"] else 1)
        )
        self.targets = copy.deepcopy(self.critics).requires_grad_(requires_grad=False)
        self.log_alpha = nn.Parameter(torch.zeros(1))

    def forward(self, seen: torch.Tensor, then: torch.Tensor, actions: torch.Tensor) -> Any:
        """As ``_forward_train_continuous`` and ``_forward_train_discrete``."""
        now, later = self.policy(seen), self.policy(then)
        taken = [critic(seen, actions) for critic in self.critics]
        if self.continuous:
            chosen, log = _squashed(now)
            self.critics.requires_grad_(requires_grad=False)  # only the policy learns from these
            again = torch.stack([critic(seen, chosen) for critic in self.critics]).amin(0)
            self.critics.requires_grad_(requires_grad=True)
            actions, log_later = _squashed(later.detach())
        else:
            again = torch.stack(taken).amin(0).detach()
            log, log_later = (torch.log_softmax(x, dim=-1) for x in (now, later.detach()))
        ahead = torch.stack([target(then, actions) for target in self.targets]).amin(0)
        return taken, log, again, log_later, ahead, self.log_alpha


def _squashed(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``TorchSquashedGaussian``: (actions, logarithms of their densities)."""
    mean, log_std = inputs.chunk(2, dim=-1)
    log_std = torch.clamp(log_std, SMALLEST_LOG, LARGEST_LOG)
    drawn = mean + log_std.exp() * torch.randn_like(mean)
    squashed = torch.tanh(drawn)
    log = -0.5 * ((drawn - mean) / log_std.exp()) ** 2 - log_std - torch.log(1 - squashed**2)
    return squashed, log.sum(-1, keepdim=True)


def sac_loss(outputs: Any) -> torch.Tensor:
    """``SACTorchLearner``: of critics, policy and temperature; it takes their gradients in turn."""
    taken, log, again, log_later, ahead, log_alpha = outputs
    alpha = log_alpha.exp().detach()
    target = (ahead - alpha * log_later).detach()
    critics = [functional.huber_loss(q, target, reduction="none").mean() for q in taken]
    policy = torch.mean(alpha * log - again)
    temperature = -torch.mean(log_alpha * (log.detach() + 1.0))
    return torch.stack(critics).sum() + policy + temperature
