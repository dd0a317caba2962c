"""``trainer`` jobs: what a scenario says, what is wrong with it, what they come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.errors import ScenarioError
from raysim.raylibs.train.job import TrainRun
from raysim.raylibs.train.loop import CheckpointSpec, ConstantStep
from raysim.scenario.load import from_mapping
from raysim.workloads.trainer_job import TrainerJob

MODEL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 1024,
    "intermediate_size": 2816, "num_attention_heads": 16, "num_hidden_layers": 8,
    "max_position_embeddings": 2048, "vocab_size": 32000, "hidden_act": "silu",
}  # fmt: skip
TRAIN = {
    "model": {"from": MODEL},
    "train": {
        "fsdp": {"version": 2, "mixed_precision": "bf16"}, "seq_len": 2048, "micro_batch": 1,
        "global_batch": 32, "steps": 200, "checkpoint": {"every_steps": 50, "storage": "s3"},
    },
    "num_workers": 16,
}  # fmt: skip
SAVES = {"size": "80GB", "every_steps": 100, "storage": {"write": "8GB/s"}}
LOOP = {"loop": {"steps": 400, "step": "2s", "checkpoint": SAVES}, "num_workers": 16}


def scenario(trainer: dict[str, Any], **more: Any) -> Any:
    data = {
        "name": "trainer", "cluster": {"node": "p4d.24xlarge", "nodes": 2},
        "jobs": [{"trainer": trainer}], **more,
    }  # fmt: skip
    return from_mapping(data)


def changed(data: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """With keys changed; ``train__steps`` is a key inside ``train``."""
    found = dict(data)
    for key, value in changes.items():
        outer, _, inner = key.partition("__")
        found[outer] = {**found[outer], inner: value} if inner else value
    return found


def metrics(trainer: dict[str, Any], **more: Any) -> dict[str, float]:
    summary = raysim.run(scenario(trainer, **more), record=False).summary
    assert summary["program"]["exit"] == "ok"
    found: dict[str, float] = summary["libraries"][0]["metrics"]
    return found


def test_a_loop_is_its_numbers() -> None:
    trainer = changed(
        LOOP, loop__fixed_batch=True, loop__batches_per_s=3, num_workers=[8, 16], num_to_keep=2,
        failure_config={"max_failures": -1}, weights="16GB", on_preemption="checkpoint",
    )  # fmt: skip
    run = scenario(trainer).job.library
    assert isinstance(run, TrainRun)
    loop, spec = run.spec.function.loop, run.spec
    assert loop is not None
    assert (loop.steps, loop.step) == (400, ConstantStep(step_s=2.0, world_size=16))
    assert loop.checkpoint == CheckpointSpec(total_bytes=80e9)
    assert (loop.checkpoint_every, loop.on_preemption) == (100, "checkpoint")
    assert loop.dataset is not None
    assert loop.dataset.batches_per_s == 3
    assert loop.set_up.read_bytes == 16e9
    assert (spec.scaling_config.min_workers, spec.scaling_config.max_workers) == (8, 16)
    assert spec.run_config.failure_config.max_failures == -1
    assert spec.run_config.checkpoint_config.num_to_keep == 2
    assert spec.run_config.storage is not None
    assert spec.run_config.storage.write_bytes_per_s == 8e9


def test_a_training_job_is_predicted_and_then_played() -> None:
    assert isinstance(scenario(TRAIN).job.library, TrainerJob)
    alone = raysim.run(
        from_mapping({
            "name": "alone", "cluster": {"node": "p4d.24xlarge", "nodes": 2},
            "model": TRAIN["model"], "jobs": [{"train": {**TRAIN["train"], "workers": 16}}],  # type: ignore[dict-item]
        }),
        record=False,
    ).summary  # fmt: skip
    found = metrics(TRAIN)
    assert found["step_seconds"] == pytest.approx(alone["step"]["seconds"])
    assert found["steps_s"] == pytest.approx(200 * found["step_seconds"], rel=1e-6)
    assert found["samples_per_s"] == pytest.approx(200 * 32 * 2048 / found["seconds"], rel=1e-6)


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        ({"num_workers": 4}, "needs model and train, or loop"),
        ({**LOOP, **TRAIN}, "give loop, or model and train"),
        (changed(LOOP, num_workers=[16, 8]), "num_workers: give the fewest first"),
        (changed(LOOP, loop__step=2), "needs a unit"),
        (changed(LOOP, loop__checkpoint={**SAVES, "storage": "s4"}), "or disk, or rates"),
        (changed(LOOP, loop__checkpoint=None, on_preemption="checkpoint"),
         "on_preemption: checkpoint needs checkpoint.storage"),
        (changed(TRAIN, train__workers=8), "train.workers is num_workers here"),
        (changed(TRAIN, use_gpu=False), "use_gpu: false needs loop"),
        (changed(TRAIN, train__failures={"mtbf_per_node": "100h"}), "train.failures has no effect"),
        (changed(TRAIN, train__micro_batch=3), "cannot be split into 16 replicas"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(trainer: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario(trainer)
    assert said in "\n".join(map(str, caught.value.problems))


def test_of_two_jobs_the_one_that_is_wrong_is_named(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(
        "cluster: {node: p4d.24xlarge, nodes: 2}\njobs:\n"
        "  - tune: {trials: 4, trial: {iterations: 3, iteration: 1s}}\n"
        "  - name: other\n"
        "    tune: {trials: 4, trial: {iterations: 3, iteration: 1s}, settings: {max: 3}}\n"
        "  - trainer: {num_workers: 8, loop: {steps: 4, step: 1s}}\n",
        encoding="utf-8",
    )
    with pytest.raises(ScenarioError) as caught:
        raysim.load(path)
    (problem,) = caught.value.problems
    assert f"{problem}".startswith(f"{path}:5:")


def test_gathered_checkpoints_cost_more_than_sharded_ones() -> None:
    lost = [{"at": "500s", "fail_node": 1, "restart_after": "200s"}]
    forgiving = changed(LOOP, failure_config={"max_failures": 3})
    gathered = {**SAVES, "writers": "rank0", "readers": "whole", "gather": "10s"}
    sharded = metrics(forgiving, faults=lost)
    whole = metrics(changed(forgiving, loop__checkpoint=gathered), faults=lost)
    assert sharded["restarts"] == whole["restarts"] == 1
    assert whole["checkpoint_stall_s"] > 5 * sharded["checkpoint_stall_s"]
    assert whole["restart_s"] > sharded["restart_s"]
    assert whole["goodput"] < sharded["goodput"]


def test_what_does_not_fit_a_gpu_is_said_before_anything_runs() -> None:
    large = changed(TRAIN, model={"from": {**MODEL, "hidden_size": 16384, "num_hidden_layers": 80,
                                           "intermediate_size": 53248}})  # fmt: skip
    summary = raysim.run(scenario(large), record=False).summary
    assert not summary["verdict"]["ok"]
    assert "does not fit" in summary["verdict"]["text"]


def test_zero_checkpoints_do_not_fit_another_size() -> None:
    train = {k: v for k, v in TRAIN["train"].items() if k not in ("fsdp", "global_batch")}  # type: ignore[attr-defined]
    ds = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
    zero = {**TRAIN, "train": {**train, "deepspeed": ds, "gradient_accumulation_steps": 1,
                               "optimizer": "AdamW"}}  # fmt: skip

    def codes(**changes: Any) -> str:
        summary = raysim.run(scenario(changed(zero, **changes)), record=False).summary
        assert summary["verdict"]["ok"], summary["verdict"]["text"]
        return str(summary["libraries"][0]["warnings"])

    said = "zero-checkpoint-of-another-size"
    assert said in codes(num_workers=[8, 16])
    assert said not in codes()
    universal = {**ds, "checkpoint": {"load_universal": True}}
    assert said not in codes(num_workers=[8, 16], train__deepspeed=universal)


@pytest.mark.parametrize(
    ("resources", "threads", "few"), [(None, 1, True), ({"GPU": 1, "CPU": 6}, 6, False)]
)
def test_threads_of_an_offloaded_optimizer_are_the_worker_s_cpus(
    resources: dict[str, float] | None, threads: int, few: bool
) -> None:
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    deepspeed = {
        "bf16": {"enabled": True}, "zero_optimization": zero, "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {}},
    }  # fmt: skip
    train = {"deepspeed": deepspeed, "seq_len": 2048, "steps": 3}
    found = scenario(changed(TRAIN, resources_per_worker=resources, num_workers=2, train=train))
    job, _ = found.job.library.job_of(2)
    assert job.plan.host_pool.threads == threads
    summary = raysim.run(found, record=False).summary
    said = {w["code"]: w["cause"] for w in summary["libraries"][0]["warnings"]}
    assert ("host-optimizer-with-few-threads" in said) == few
