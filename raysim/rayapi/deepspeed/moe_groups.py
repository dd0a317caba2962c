"""``deepspeed.moe.utils``: experts' parameters, in groups of their own for the optimizer.

Real counterpart: ``deepspeed/moe/utils.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from raysim.training.states.zero import EXPERT_GROUP_NUMEL

_Groups = list[dict[str, Any]]


def has_moe_layers(m: nn.Module) -> tuple[bool, int]:
    """Whether a model has a mixture, and how many experts its first one has."""
    from raysim.rayapi.deepspeed.moe import MoE

    first = next((module for module in m.modules() if isinstance(module, MoE)), None)
    return (False, 0) if first is None else (True, first.num_experts)


def is_moe_param(param: torch.Tensor) -> bool:
    """Whether it is an expert's."""
    return not getattr(param, "allreduce", True)


def is_moe_param_group(param_group: dict[str, Any]) -> bool:
    """Whether it is of experts."""
    return bool(param_group.get("moe", False))


def split_params_into_shared_and_expert_params(
    params: Iterable[torch.Tensor],
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Dense ones, and experts'."""
    every = list(params)
    return [p for p in every if not is_moe_param(p)], [p for p in every if is_moe_param(p)]


def split_params_into_different_moe_groups_for_optimizer(
    param_groups: Any, max_group_size: float | None = EXPERT_GROUP_NUMEL
) -> _Groups:
    """Experts' parameters taken out of each group into groups of at most ``max_group_size``."""
    if isinstance(param_groups, tuple):
        param_groups = list(param_groups)
    elif isinstance(param_groups, dict):
        param_groups = [param_groups]
    elif not isinstance(param_groups, list):
        raise ValueError(f"Unknown param group type of {type(param_groups)}")
    names = dict.fromkeys(
        p.group_name for group in param_groups for p in group["params"] if is_moe_param(p)
    )
    apart: _Groups = []
    for group in param_groups:
        dense, experts = split_params_into_shared_and_expert_params(group["params"])
        for name in names:
            own = [p for p in experts if p.group_name == name]  # type: ignore[attr-defined]
            made = {**group, "name": name, "moe": True}
            parts = [own] if max_group_size is None else _parts(own, max_group_size)
            apart += [{**made, "params": part} for part in parts]
        if names:
            group["name"]  # which DeepSpeed asks for
        group["params"] = dense
    found: _Groups = [*param_groups, *apart]
    return found


def _parts(params: list[torch.Tensor], most: float) -> list[list[torch.Tensor]]:
    """In order, each of at most so many elements."""
    parts: list[list[torch.Tensor]] = []
    held = 0
    for p in params:
        if not parts or held + p.numel() > most:
            parts.append([])
            held = 0
        parts[-1].append(p)
        held += p.numel()
    return parts


def configure_moe_param_groups(model_parameters: Any) -> Any:
    """Groups of a list of parameters, or of groups that have none of experts yet."""
    assert isinstance(model_parameters, list), "model_parameters must be a list"
    for p in model_parameters:
        if not isinstance(p, torch.Tensor | dict):
            raise TypeError(
                "param argument that would be given to the optimizer should be an iterable of "
                f"Tensors or dicts, but got {type(p)}"
            )
    if isinstance(model_parameters[0], torch.nn.Parameter):
        given = {"params": model_parameters, "name": "dense-params"}
        return split_params_into_different_moe_groups_for_optimizer(given)
    if any("moe" in group for group in model_parameters):
        return model_parameters
    return split_params_into_different_moe_groups_for_optimizer(model_parameters)
