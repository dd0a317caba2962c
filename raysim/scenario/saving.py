"""``train.checkpoint``, DeepSpeed's ``checkpoint`` block and Megatron's arguments on saving."""

from __future__ import annotations

from dataclasses import replace

from raysim.errors import ScenarioError
from raysim.scenario.load import Scenario
from raysim.scenario.overrides import TRAIN
from raysim.scenario.storage import storage_of
from raysim.training.plan import SavingSettings
from raysim.training.settings.fsdp import FsdpSettings


def saving_settings(scenario: Scenario) -> SavingSettings:
    """How checkpoints are written and read.

    Raises
    ------
    ScenarioError
        No storage has that name.
    """
    said, strategy = scenario.spec.train.checkpoint, scenario.strategy
    storage = storage_of(said.storage, (*TRAIN, "checkpoint", "storage"), scenario.document)
    found = SavingSettings(
        asynchronous=said.asynchronous,
        storage=storage,
        exclude_frozen=scenario.spec.train.peft is not None,
    )
    if strategy.deepspeed is not None:
        block = strategy.deepspeed.checkpoint
        return replace(
            found,
            pipeline_stage=block.pipeline_stage,
            use_node_local_storage=block.use_node_local_storage,
            load_universal=block.load_universal,
        )
    if strategy.megatron is not None:
        section = strategy.megatron.section
        both = said.asynchronous or section.async_save
        return replace(found, asynchronous=both, ckpt_format=section.ckpt_format)
    return found


def fsdp_saving(scenario: Scenario) -> FsdpSettings:
    """FSDP's settings with the scenario's word on its state dict.

    Raises
    ------
    ScenarioError
        The word is given, and the job has no FSDP.
    """
    said, settings = scenario.spec.train.checkpoint.state_dict, scenario.strategy.fsdp
    if said is None:
        return settings
    if scenario.strategy.engine != "fsdp":
        path = (*TRAIN, "checkpoint", "state_dict")
        message = f"is of FSDP; {scenario.strategy.engine} has files of its own: remove it"
        raise ScenarioError(scenario.document.problem(path, message, key=True))
    return replace(settings, full_state_dict=said == "full")
