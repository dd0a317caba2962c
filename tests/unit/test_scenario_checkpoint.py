"""``train.checkpoint`` and ``resume``: what reaches the plan, what is refused, what a run shows."""

from __future__ import annotations

from typing import Any

import pytest

import raysim
from raysim.errors import ScenarioError
from raysim.scenario.build import build_job
from raysim.scenario.load import Scenario, from_mapping
from raysim.training.plan import TrainingPlan
from tests.unit.test_scenario_fsdp import FILES, MODEL

ZERO = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}


def scenario(checkpoint: dict[str, Any], **train: Any) -> Scenario:
    said: dict[str, Any] = {"seq_len": 64, "steps": 10, "checkpoint": checkpoint} | train
    if "deepspeed" not in said and "megatron" not in said:
        said["micro_batch"] = 1
    found = from_mapping(
        {
            "cluster": {"node": "hgx-h100-8", "nodes": 1},
            "model": {"from": MODEL},
            "jobs": [{"train": said}],
        },
        folder=FILES,
    )
    assert isinstance(found, Scenario)
    return found


def plan(checkpoint: dict[str, Any], **train: Any) -> TrainingPlan:
    return build_job(scenario(checkpoint, **train)).plan


def refused(checkpoint: dict[str, Any], **train: Any) -> str:
    with pytest.raises(ScenarioError) as caught:
        build_job(scenario(checkpoint, **train))
    assert len(caught.value.problems) == 1, str(caught.value)
    return str(caught.value)


def test_storage_by_name_or_by_its_rates() -> None:
    assert plan({"storage": "disk"}).saving.storage is None
    bucket = plan({"storage": "s3"}).saving.storage
    assert bucket is not None
    assert bucket.stream_write_bytes_per_s == 10 * 90e6
    store = plan({"storage": {"write": "58GB/s", "write_per_node": "10GB/s"}}).saving.storage
    assert store is not None
    assert (store.write_bytes_per_s, store.read_bytes_per_s) == (58e9, 58e9)
    assert store.node_write_bytes_per_s == 10e9


def test_mistakes_are_said_where_they_are() -> None:
    assert "unknown object storage 's4' (nearest: s3" in refused({"storage": "s4"})
    assert "needs a name (disk, s3" in refused({"storage": {"read": "1GB/s"}})
    named = refused({"storage": {"name": "s3", "write": "1GB/s"}})
    assert "a name has rates of its own; remove it, or write" in named
    assert "is of FSDP; deepspeed has files of its own" in refused(
        {"state_dict": "full"}, deepspeed=ZERO
    )
    assert "unknown key 'asynch'" in refused({"asynch": True})


def test_each_engines_own_words() -> None:
    assert plan({"async": True}, deepspeed=ZERO).saving.asynchronous
    block = {"parallel_write": {"pipeline_stage": True}, "use_node_local_storage": True}
    made = plan({}, deepspeed=ZERO | {"checkpoint": block | {"load_universal": True}}).saving
    assert (made.pipeline_stage, made.use_node_local_storage, made.load_universal) == (True,) * 3
    megatron = {"micro_batch_size": 1, "bf16": True, "async_save": True, "ckpt_format": "torch"}
    saving = plan({}, megatron=megatron).saving
    assert (saving.asynchronous, saving.ckpt_format) == (True, "torch")
    assert not plan({}, engine="fsdp").fsdp.full_state_dict
    assert plan({"state_dict": "full"}, engine="fsdp").fsdp.full_state_dict
    for version, whole in ((1, True), (2, False)):
        file = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": version}}
        assert plan({}, fsdp=file).fsdp.full_state_dict == whole
        assert not plan({}, fsdp=f"accelerate_v{version}.yaml").fsdp.full_state_dict


def test_a_run_shows_its_saves_and_its_load() -> None:
    options: dict[str, Any] = {"deepspeed": ZERO, "resume": True}
    slow = raysim.run(scenario({"every_steps": 5}, **options))
    run = slow.summary["run"]
    save = run["checkpoint"]
    assert (save["saves"], save["files"]) == (2, 16)
    assert run["checkpoint_seconds"] == pytest.approx(2 * save["stall_seconds"])
    assert {"name": "load checkpoint", "seconds": save["load_seconds"]} in run["phases"]
    free = raysim.run(scenario({"every_steps": 5, "async": True}, **options)).summary["run"]
    assert free["checkpoint"]["host_bytes"] > save["host_bytes"]
    assert free["seconds"] <= run["seconds"]


def test_a_save_waits_for_the_one_before_to_be_written() -> None:
    """A store so slow that writing outlasts the steps between saves binds the whole run."""
    checkpoint = {"every_steps": 1, "async": True, "storage": {"write": "1MB/s"}}
    run = raysim.run(scenario(checkpoint, deepspeed=ZERO, steps=4)).summary["run"]
    assert run["checkpoint_seconds"] == pytest.approx(
        5 * run["checkpoint"]["background_seconds"], rel=0.05
    )
