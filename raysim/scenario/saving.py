"""``train.checkpoint``, DeepSpeed's ``checkpoint`` block and Megatron's arguments on saving."""

from __future__ import annotations

import math
from dataclasses import replace

from raysim.errors import ScenarioError
from raysim.hardware import catalog
from raysim.hardware.specs import SharedStorageSpec
from raysim.hardware.storage import CONNECTIONS
from raysim.scenario.load import Scenario
from raysim.scenario.overrides import TRAIN
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
    found = SavingSettings(asynchronous=said.asynchronous, storage=_storage(scenario))
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


def _storage(scenario: Scenario) -> SharedStorageSpec | None:
    said = scenario.spec.train.checkpoint.storage
    if said is None or said.name == "disk":
        return None
    if said.name is None:
        assert said.write is not None, "the schema asks for a name or a rate"
        return SharedStorageSpec(
            name="shared store",
            write_bytes_per_s=said.write,
            read_bytes_per_s=said.read or said.write,
            node_write_bytes_per_s=said.write_per_node or math.inf,
            node_read_bytes_per_s=said.read_per_node or math.inf,
        )
    try:
        bucket = catalog.object_storage(said.name)
    except ScenarioError as error:
        path, known = (*TRAIN, "checkpoint", "storage"), error.problems[0].message
        message = f"{known}; or disk, or rates: {{write: 58GB/s}}"
        raise ScenarioError(scenario.document.problem(path, message)) from None
    return SharedStorageSpec(
        name=bucket.name,
        stream_write_bytes_per_s=CONNECTIONS * bucket.write_bytes_per_s_per_connection,
        stream_read_bytes_per_s=CONNECTIONS * bucket.read_bytes_per_s_per_connection,
        provenance=bucket.provenance,
    )
