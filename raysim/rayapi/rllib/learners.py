"""A gradient step as the user's own learner or module makes it: its loss on shapes alone.

Real counterparts (ray 2.60): ``TorchLearner.compute_losses``, ``compute_loss_for_module`` of the
algorithms' learners, and ``RLModule._forward_train``, which are called. This file loads torch.

Not modelled: optimizers of one's own (Adam over all parameters is priced), and what learners do
around a gradient step.
"""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as trees

from raysim.rayapi.rllib.episodes import class_of_installed
from raysim.rayapi.rllib.modules import DefaultModelConfig, Spaces
from raysim.rayapi.unsupported import NotEmulatedError

LEARNERS = {
    name: f"algorithms.{name.lower()}.torch.{name.lower()}_torch_learner:{name}TorchLearner"
    for name in ("PPO", "IMPALA", "APPO", "DQN", "SAC")
}
MODULES = {
    name: f"algorithms.{of}.torch.default_{of}_torch_rl_module:Default{of.upper()}TorchRLModule"
    for name, of in (("PPO", "ppo"), ("IMPALA", "ppo"), ("APPO", "appo"), ("DQN", "dqn"),
                     ("SAC", "sac"))
}  # fmt: skip
"""RLlib's own, by algorithm."""
OF_A_STEP = ("rewards", "action_logp", "vf_preds", "advantages", "value_targets", "weights",
             "n_step")  # fmt: skip
"""Numbers of each step of a train batch."""
FLAGS = ("terminateds", "truncateds")


def made(spec: Any, spaces: Spaces, algorithm: str, settings: Mapping[str, Any], **how: Any) -> Any:
    """A module of the user's, or RLlib's own class, on the device of the caller."""
    kind = spec.module_class or class_of_installed(MODULES[algorithm])
    catalog = {} if spec.catalog_class is None else {"catalog_class": spec.catalog_class}
    module = kind(
        observation_space=spec.observation_space or spaces.spaces[0],
        action_space=spec.action_space or spaces.spaces[1],
        model_config=dict(settings), **catalog, **how,
    )  # fmt: skip
    if hasattr(module, "make_target_networks") and not how.get("inference_only"):
        module.make_target_networks()
    return module


def length_of(module: Any, settings: Mapping[str, Any]) -> int:
    """Env steps of a sample: recurrent modules learn from rows of them."""
    recurrent = bool(state_of(module, 1))
    return int(settings.get("max_seq_len", DefaultModelConfig.max_seq_len)) if recurrent else 1


def batch_of(
    module: Any, spaces: Spaces, samples: int, steps: int, algorithm: str
) -> dict[str, Any]:
    """A train batch's columns, of so many samples, each a row of steps if there are any."""
    state = state_of(module, samples)
    lead = (samples, steps) if state else (samples,)

    def of(space: Any) -> Any:
        return like(space, lead)

    observation, action = spaces.spaces
    found: dict[str, Any] = {"obs": of(observation), "new_obs": of(observation),
                             "actions": of(action)}  # fmt: skip
    found |= {name: torch.empty(lead, device="meta") for name in OF_A_STEP}
    flags = (*FLAGS, "loss_mask") if algorithm in ("IMPALA", "APPO") else FLAGS
    found |= {name: torch.empty(lead, device="meta", dtype=torch.bool) for name in flags}
    found["action_dist_inputs"] = torch.empty((*lead, spaces.logits), device="meta")
    found |= state
    if hasattr(module, "compute_values") and algorithm in ("PPO", "APPO"):
        with torch.no_grad(), unchecked(), said_of(module):
            module.compute_values(found)  # as advantages do, before the batch is learned from
    return found


def asked_of(module: Any, spaces: Spaces, samples: int) -> dict[str, Any]:
    """What an env runner asks a module with."""
    state = state_of(module, samples)
    return {"obs": like(spaces.spaces[0], (samples, 1) if state else (samples,)), **state}


@contextmanager
def said_of(module: Any) -> Iterator[None]:
    """Whose forward pass it is that fails.

    Raises
    ------
    NotEmulatedError
        It looks at values, or takes other columns.
    """
    try:
        yield
    except NotEmulatedError:
        raise
    except Exception as error:
        kind = type(module)
        raise NotEmulatedError(
            f"{kind.__module__}.{kind.__qualname__} on shapes alone "
            f"({type(error).__name__}: {error})",
            "RLModules whose forward passes take RLlib's columns and do not look at values",
        ) from error


def state_of(module: Any, samples: int) -> dict[str, Any]:
    """``state_in`` of a recurrent module."""
    state = module.get_initial_state() if hasattr(module, "get_initial_state") else None
    if not state:
        return {}
    return {
        "state_in": trees.tree_map(
            lambda part: torch.empty((samples, *part.shape), device="meta"), state
        )
    }


def like(space: Any, lead: tuple[int, ...]) -> Any:
    """Tensors of a space's values, nested as they are."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return {name: like(part, lead) for name, part in parts.items()}
    if parts is not None:
        return tuple(like(part, lead) for part in parts)
    shape = tuple(space.shape or ())
    kind = type(space).__name__
    dtype = torch.long if kind in ("Discrete", "MultiDiscrete") else torch.float32
    return torch.empty((*lead, *shape), device="meta", dtype=dtype)


@contextmanager
def unchecked() -> Iterator[None]:
    """Distributions do not look at values, which are not there."""
    kind = torch.distributions.Distribution
    before = kind._validate_args  # noqa: SLF001  (torch has no other way to ask)
    kind.set_default_validate_args(value=False)
    try:
        yield
    finally:
        kind.set_default_validate_args(value=before)


class _Columns(nn.Module):
    """A user's module, called with leaves of a batch."""

    def __init__(self, user: nn.Module, batch: Any) -> None:
        super().__init__()
        self.user = user
        self.leaves, self._tree = trees.tree_flatten(batch)

    def batch(self, leaves: Any) -> Any:
        """As RLlib hands it over."""
        return trees.tree_unflatten(list(leaves), self._tree)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        vars(made).update({n: v for n, v in vars(self).items() if n != "_modules"})
        made._modules = copy.deepcopy(self._modules, memo)  # noqa: SLF001  (torch's own)
        return made


class Inference(_Columns):
    """As an env runner calls it."""

    def forward(self, *leaves: Any) -> Any:
        """What a distribution over actions is made of, or the actions."""
        user: Any = self.user
        with unchecked():
            ask = user._forward_exploration  # noqa: SLF001
            if "t" in inspect.signature(ask).parameters:  # DQN's, which draws by epsilon(t)
                ask = user._forward_inference  # noqa: SLF001
            found = ask(self.batch(leaves))
        tensors = [part for part in trees.tree_leaves(found) if isinstance(part, torch.Tensor)]
        return found.get("action_dist_inputs", tensors[0])


class Outputs(_Columns):
    """As a learner calls it, for a loss that is RLlib's: logits, and values if it has them."""

    def forward(self, *leaves: Any) -> Any:
        """Both."""
        batch, user = self.batch(leaves), self.user
        with unchecked():
            found = user._forward_train(batch)  # type: ignore[operator]  # noqa: SLF001
            logits = found["action_dist_inputs"]
            values = getattr(user, "compute_values", None)
            if values is None:
                return logits, logits.mean(-1)
            return logits, values(batch, embeddings=found.get("embeddings"))


class Losses(_Columns):
    """A forward pass, and the loss that a learner makes of it."""

    def __init__(
        self, user: nn.Module, batch: Any, learner: type, config: Any, policy: str
    ) -> None:
        super().__init__(user, batch)
        self._learner, self._config, self._policy = learner, config, policy

    def forward(self, *leaves: Any) -> Any:
        """The loss."""
        batch, user = self.batch(leaves), self.user
        with unchecked():
            found = user._forward_train(batch)  # type: ignore[operator]  # noqa: SLF001
            logits = found.get("action_dist_inputs")
            if logits is not None:
                batch["action_dist_inputs"] = torch.empty_like(logits)
            learner = _standing(self._learner, self._config, {self._policy: user})
            return learner.compute_loss_for_module(
                module_id=self._policy, config=self._config, batch=batch, fwd_out=found
            )


def _standing(kind: Any, config: Any, modules: Mapping[str, Any]) -> Any:
    """A learner that has not been built: what a loss asks of it."""
    learner = kind.__new__(kind)
    coefficient = SimpleNamespace(get_current_value=lambda: 0.0)
    zero = torch.zeros((), device="meta")
    vars(learner).update(
        config=config, _module=dict(modules), metrics=_Silent(), _device="meta",
        curr_kl_coeffs_per_module=defaultdict(lambda: zero),
        entropy_coeff_schedulers_per_module=defaultdict(lambda: coefficient),
    )  # fmt: skip
    return learner


class _Silent:
    """``MetricsLogger``: values of losses are not there."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_named: None
