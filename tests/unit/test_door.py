"""The Python door: scenarios from mappings, models and clusters by name, frames of sweeps."""

from __future__ import annotations

import pytest

import raysim

CONFIG = "scenarios/bert_mrpc_zero3/config.json"
JOB = {
    "name": "by-hand",
    "cluster": {"node": "dgx-a100-80-8", "nodes": 1},
    "model": {"from": CONFIG},
    "jobs": [{"train": {
        "deepspeed": {
            "bf16": {"enabled": True}, "zero_optimization": {"stage": 2},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        },
        "seq_len": 128, "micro_batch": 8, "gradient_accumulation_steps": 1, "steps": 100,
    }}],
}  # fmt: skip


def test_a_mapping_is_a_scenario() -> None:
    scenario = raysim.load(JOB)
    result = raysim.run(scenario, record=False)
    assert result.summary["scenario"] == "by-hand"
    assert result.summary["throughput"]["samples_per_s"] > 0
    assert raysim.load(JOB, {"train.micro_batch": 4}).strategy.batch.micro == 4


def test_a_mapping_that_is_wrong_is_said() -> None:
    with pytest.raises(raysim.ScenarioError, match="unknown key 'nods'"):
        raysim.load({**JOB, "cluster": {"node": "dgx-a100-80-8", "nods": 1}})


def test_a_sweep_of_it_is_a_frame() -> None:
    table = raysim.sweep(raysim.load(JOB), {"train.zero_stage": [1, 3]})
    assert list(table["train.zero_stage"]) == [1, 3]
    assert (table.status == "ok").all()
    with pytest.raises(raysim.ScenarioError, match="processes or ray"):
        raysim.sweep(raysim.load(JOB), {"train.zero_stage": [1]}, on="slurm")


def test_a_model_of_a_config() -> None:
    model = raysim.Model.from_hf(CONFIG, seq_len=128)
    assert model.seq_len == 128
    assert model.num_parameters == pytest.approx(108e6, rel=0.01)
    with pytest.raises(raysim.ScenarioError, match=r"absent\.json"):
        raysim.Model.from_hf("absent.json")


def test_a_cluster_of_the_catalog() -> None:
    cluster = raysim.ClusterSpec.of("hgx-h100-8", 4)
    assert (cluster.num_gpus, len(cluster.nodes)) == (32, 4)
    assert cluster.usd_per_hour == pytest.approx(4 * 31.92)
    with pytest.raises(raysim.ScenarioError, match="hgx-h100-9"):
        raysim.ClusterSpec.of("hgx-h100-9")


def test_a_program_and_what_goes_wrong() -> None:
    job = {
        "name": "tasks", "cluster": {"node": "cpu-16", "nodes": 3},
        "jobs": [{"workload": {"task_bag": {"tasks": 60, "duration": "10s"}}}],
    }  # fmt: skip
    healthy = raysim.run(raysim.load(job))
    broken = raysim.run(raysim.load({**job, "faults": [{"at": "5s", "fail_node": 2}]}))
    assert broken.summary["run"]["seconds"] > healthy.summary["run"]["seconds"]
    assert len(healthy.table("tasks")) >= 60
