"""fp16's dynamic loss scale: DeepSpeed's, Megatron's or torch's, each with its defaults."""

from __future__ import annotations

import math
from dataclasses import replace

from raysim.errors import ScenarioError
from raysim.scenario.load import Scenario
from raysim.scenario.overrides import TRAIN
from raysim.training.settings.loss_scale import LossScale

TORCH = LossScale(window=2000, hysteresis=1)
"""``torch.amp.GradScaler``: 65,536, doubled after 2,000 steps, halved at once."""


def loss_scale(scenario: Scenario) -> LossScale | None:
    """The scaler with the scenario's word on where gradients overflow; None: none.

    Raises
    ------
    ScenarioError
        The word is given, and nothing is scaled dynamically.
    """
    scaler, said = _scaler(scenario), scenario.spec.train.stable_scale_power
    if said is None:
        return scaler
    if scaler is None:
        message = "needs fp16 with a dynamic loss scale; remove it"
        path = (*TRAIN, "stable_scale_power")
        raise ScenarioError(scenario.document.problem(path, message, key=True))
    return replace(scaler, stable_power=said)


def _scaler(scenario: Scenario) -> LossScale | None:
    strategy = scenario.strategy
    if strategy.deepspeed is not None:
        return strategy.deepspeed.loss_scale
    if strategy.megatron is not None:
        said = strategy.megatron.section
        if not said.fp16 or said.loss_scale is not None:
            return None
        return LossScale(
            initial_power=math.ceil(math.log2(said.initial_loss_scale)),
            window=said.loss_scale_window,
            hysteresis=said.hysteresis,
        )
    return TORCH if scenario.spec.train.ddp.autocast == "fp16" else None
