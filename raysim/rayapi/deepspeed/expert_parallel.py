"""What the engine asks of a model with mixtures of experts, as DeepSpeed does.

Real counterparts: ``runtime/engine.py`` (``_configure_distributed_model``,
``_validate_zero3_moe_compatibility``), ``runtime/zero/stage_1_and_2.py``
(``_configure_moe_settings``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch import nn

from raysim.rayapi.deepspeed.moe import MoE
from raysim.rayapi.deepspeed.moe_groups import is_moe_param, is_moe_param_group
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.tracing.peers import EXPERTS
from raysim.training.settings.deepspeed import DeepSpeedConfig

UNORDERED = (
    "MoE layers of several ep_size: DeepSpeed has their parameter groups in the order of a set of "
    "names, which differs between processes, so that ranks wait for each other for ever in ZeRO's "
    "reductions or FusedAdam's norms; with PYTHONHASHSEED=0 in every rank's environment they agree"
)
"""``split_params_into_different_moe_groups_for_optimizer`` of 0.19.8; four real ranks do."""
_UNTESTED = "{} must be set to True for MoE. Other code paths are not tested with MoE"


def mixtures(module: nn.Module) -> list[MoE]:
    """Of a model, in order."""
    return [m for m in module.modules() if isinstance(m, MoE)]


def ep_size(module: nn.Module, *, tp: int = 1) -> int:
    """How many ranks share its experts, at most; 1: none do.

    Raises
    ------
    NotEmulatedError
        They are tensor parallel.
    """
    sizes = {m.ep_size for m in mixtures(module)}
    if not sizes:
        return 1
    if tp > 1:
        raise NotEmulatedError(
            "deepspeed.moe.layer.MoE under an mpu", "MoE with data and expert parallelism"
        )
    return max(sizes)


def make_groups(module: nn.Module, *, largest: int, say: Callable[[str], None]) -> None:
    """Every layer's groups of ranks; ``largest``: ``ep_size`` of all."""
    every = mixtures(module)
    if len({m.ep_size for m in every}) > 1 and not os.environ.get("PYTHONHASHSEED"):
        say(UNORDERED)
    for mixture in every:
        if mixture.ep_size != largest:
            mixture.deepspeed_moe.gate.among = f"{EXPERTS}dp_shard:{mixture.ep_size}"
    for part in module.modules():
        own: Any = getattr(part, "set_deepspeed_parallelism", None)
        if own is not None:
            own()


def check(module: nn.Module, optimizer: Any, settings: DeepSpeedConfig) -> None:
    """What DeepSpeed refuses, in its words.

    Raises
    ------
    AssertionError
        ZeRO-3, settings that ZeRO-1 and 2 do not take, an optimizer without groups of experts.
    """
    zero = settings.zero
    if not zero.stage or not mixtures(module):
        return
    assert zero.stage < 3, (
        "Native DeepSpeed MoE is not supported with ZeRO Stage 3. Use AutoEP or choose ZeRO stage "
        "1/2."
    )
    contiguous = zero.stage == 1 or zero.contiguous_gradients
    assert contiguous, _UNTESTED.format("Contiguous Gradients in ZeRO Stage 2")
    assert zero.reduce_scatter, _UNTESTED.format("Reduce Scatter in ZeRO Stage 2")
    groups = [] if optimizer is None else optimizer.param_groups
    marked = [g for g in groups if is_moe_param_group(g)]
    assert marked, (
        "The model has moe layers, but None of the param groups are marked as MoE. Create a param "
        "group with 'moe' key set to True before creating optimizer"
    )
    of_experts = all(is_moe_param(p) for g in marked for p in g["params"])
    assert of_experts, "All params in MoE group must be MoE params"
