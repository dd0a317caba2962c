"""The module as layer tables, traced: what a learner trains, and what an env runner asks."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING, Any

from raysim.rayapi.rllib.agents import MODULE
from raysim.rayapi.rllib.costed import REPLAY, name_of
from raysim.rayapi.rllib.episodes import class_of_installed
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

Tables = tuple["Model", "Model", int]
"""For the learner, for an env runner, env steps of one of the learner's samples."""
CLIP = 0.3
"""Of the ratio, where the algorithm does not say; it costs the same whatever it is."""
TWO = 2
"""Samples to trace with: what grows with them is told from what does not."""


def _ignored(_text: str) -> None:
    """Nobody is told."""


def module_of(
    config: AlgorithmConfig,
    spaces: Spaces,
    policy: str = MODULE,
    say: Callable[[str], object] = _ignored,
) -> Tables | None:
    """Of a policy; None: it has no network, as one of the user's heuristics."""
    import torch

    from raysim.tracing import trace

    spec, name = config.spec_of(policy), name_of(config)
    learner = config.get("_learner_class")
    own = learner is not None and own_loss(learner)
    if own or spec.module_class is not None or spec.catalog_class is not None:
        return _users(config, spec, spaces, policy, learner if own else None, say)
    replays = name in REPLAY
    whole, inference, loss, length = (_of_items if replays else _of_fragments)(config, spec, spaces)
    time = () if length == 1 else (length,)
    batch = _samples(config, length)
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


def own_loss(learner: Any) -> bool:
    """Whether it is not RLlib's."""
    method = getattr(learner, "compute_loss_for_module", None)
    return method is not None and not method.__module__.startswith("ray.rllib.algorithms.")


def _samples(config: AlgorithmConfig, length: int) -> int:
    return max(TWO, ceil(config.samples_of_a_step / length))


def _of_fragments(config: AlgorithmConfig, spec: Any, spaces: Spaces) -> tuple[Any, Any, Any, int]:
    """Of PPO and its like: (the learner's, an env runner's, the loss, env steps of a sample)."""
    loss = ppo_loss(spaces, getattr(config, "clip_param", CLIP))
    settings = {**config.model_config, **as_settings(spec.model_config)}
    whole = default_module(spaces, settings)
    recurrent = settings.get("use_lstm")
    length = int(settings.get("max_seq_len", DefaultModelConfig.max_seq_len)) if recurrent else 1
    return whole, inference_module(whole), loss, length


def _of_items(config: Any, spec: Any, spaces: Spaces) -> tuple[Any, Any, Any, int]:
    """The same of DQN and SAC."""
    from raysim.rayapi.rllib import q_modules

    name = name_of(config)
    settings = {**config.model_config, **as_settings(spec.model_config)}
    if name == "SAC":
        return *q_modules.sac_modules(spaces, settings), q_modules.sac_loss, 1
    return *q_modules.dqn_modules(spaces, settings), q_modules.dqn_loss(config.td_error_loss_fn), 1


def _users(
    config: Any, spec: Any, spaces: Spaces, policy: str, learner: Any, say: Callable[[str], object]
) -> Tables | None:
    """The same with a module or a loss of the user's, built on shapes alone."""
    import torch

    from raysim.rayapi.rllib import learners
    from raysim.tracing import trace

    name = name_of(config)
    settings = {**config.model_config, **as_settings(spec.model_config)}
    with torch.device("meta"):
        whole = learners.made(spec, spaces, name, settings)
        alone = learners.made(spec, spaces, name, settings, inference_only=True)
    if not isinstance(whole, torch.nn.Module):
        return None
    kind = learner or (None if name not in REPLAY else class_of_installed(learners.LEARNERS[name]))
    length = learners.length_of(whole, settings)
    batch = learners.batch_of(whole, spaces, _samples(config, length), length, name)
    one = learners.asked_of(whole, spaces, TWO)
    loss = ppo_loss(spaces, getattr(config, "clip_param", CLIP))

    def traced(kind: Any) -> Any:
        if kind is None:
            trained: Any = learners.Outputs(whole, batch)
            return trace(trained, tuple(trained.leaves), name="rl_module", loss=loss)
        trained = learners.Losses(whole, batch, kind, config, policy)
        return trace(trained, tuple(trained.leaves), name="rl_module", loss=_itself)

    with learners.said_of(whole):
        asked = learners.Inference(alone, one)
        forward = trace(asked, tuple(asked.leaves), name="rl_module", loss=None)
        if learner is None or name in REPLAY:
            return traced(kind), forward, length
        try:
            return traced(kind), forward, length
        except Exception as error:  # noqa: BLE001  (whatever a loss does without values)
            say(f"the loss of {learner.__name__} cannot be traced ({type(error).__name__}: "
                f"{str(error).splitlines()[0]}): RLlib's own is priced.")  # fmt: skip
            return traced(None), forward, length


def _itself(loss: Any) -> Any:
    return loss
