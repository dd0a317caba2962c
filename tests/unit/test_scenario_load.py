"""A scenario read, changed, resolved and read again."""

from __future__ import annotations

import io
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from raysim.errors import ScenarioError
from raysim.scenario.build import build_job, build_model
from raysim.scenario.load import Scenario, from_mapping, load
from raysim.scenario.schema import ScenarioSection, known_keys, section_at
from raysim.scenario.targets import METRICS, parse_target
from raysim.training.plan import TrainingPlan

BASE = Path(__file__).parents[1] / "data" / "malformed" / "base"


@pytest.fixture
def scenario() -> Scenario:
    return load(BASE)


def inline(**train: Any) -> Scenario:
    """Two nodes, a small model, plain DDP unless ``train`` says otherwise."""
    config = json.loads((BASE / "config.json").read_text())
    return from_mapping(
        {
            "cluster": {"nodes": 2, "node": "hgx-h100-8"},
            "model": {"from": config},
            "jobs": [{"train": {"seq_len": 512, "micro_batch": 2} | train}],
        }
    )


def plan(scenario: Scenario) -> TrainingPlan:
    return build_job(scenario).plan


def test_the_base_scenario_as_a_job(scenario: Scenario) -> None:
    job = build_job(scenario)
    assert (job.plan.mesh.world, job.plan.mesh.dp) == (16, 16)
    assert job.plan.samples_per_step * 2048 == 2**20
    assert (job.plan.micro_batch, job.plan.gradient_accumulation_steps) == (1, 32)
    assert (job.plan.engine, job.plan.precision, job.plan.zero.stage) == ("deepspeed", "bf16", 3)
    assert job.plan.zero.reduce_bucket_size == 512 * 512
    assert (job.steps, job.epochs) == (10, None)
    assert job.checkpoint.every_s == 1800
    assert job.data.cpu_seconds_per_sample == pytest.approx(1e-3)
    assert job.data.train_samples == 10_000


def test_auto_buckets_know_the_hidden_size_by_the_familys_own_name() -> None:
    config = {"model_type": "distilbert", "architectures": ["DistilBertForMaskedLM"], "dim": 384}
    zero = {"stage": 2, "reduce_bucket_size": "auto"}
    made = from_mapping(
        {
            "cluster": {"nodes": 1, "node": "hgx-h100-8"},
            "model": {"from": config},
            "jobs": [{"train": {"micro_batch": 1, "deepspeed": {"zero_optimization": zero}}}],
        }
    )
    assert isinstance(made, Scenario)
    assert plan(made).zero.reduce_bucket_size == 384**2


def test_files_are_known_by_hash(scenario: Scenario) -> None:
    assert set(scenario.files) == {"cluster.yaml", "config.json", "ds_config.json"}
    assert all(len(digest) == 64 for digest in scenario.files.values())


def test_resolved_yaml_replays_the_run_without_any_other_file(
    scenario: Scenario, tmp_path: Path
) -> None:
    resolved = scenario.with_({"train.zero_stage": 2, "seed": 7}).resolved()
    text = io.StringIO()
    YAML().dump(resolved, text)
    file = tmp_path / "scenario.resolved.yaml"
    file.write_text(text.getvalue())
    again = load(file)
    assert again.resolved() == resolved
    assert again.files == scenario.files
    assert again.seed == 7
    assert again.cluster == scenario.cluster
    ours, theirs = plan(again), plan(scenario.with_({"train.zero_stage": 2}))
    for name in TrainingPlan.__dataclass_fields__:
        if name != "model":
            assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.model.num_parameters == theirs.model.num_parameters


def test_resolved_needs_no_default_of_a_later_release(scenario: Scenario) -> None:
    resolved = scenario.resolved()
    train = resolved["jobs"][0]["train"]
    assert resolved["model"]["attention"] == "sdpa"
    assert train["ddp"] == {"bucket_cap_mb": 25.0, "gradient_as_bucket_view": False}
    assert train["checkpoint_every"] == "30min"
    assert train["deepspeed"]["train_batch_size"] == "auto"
    assert resolved["resolved"]["raysim"]


def test_every_default_taken_is_noted_with_its_key(scenario: Scenario) -> None:
    notes = {note.key: note.message for note in scenario.notes}
    assert notes["train.launcher"] == "default script"
    assert notes["model.fused_loss"] == "default false"
    assert notes["zero_optimization.sub_group_size"] == "DeepSpeed's default 1,000,000,000"
    assert "seed" not in notes


def test_what_is_not_simulated_is_a_warning_with_position(scenario: Scenario) -> None:
    said = [str(warning) for warning in scenario.warnings]
    assert any("faults: not simulated; say what to expect in `failures`" in line for line in said)
    assert any("scenario.yaml:28:1   vary: used by plan; ignored by run" in line for line in said)


def test_gpus_that_no_worker_has_are_a_warning() -> None:
    def idle(workers: int) -> list[str]:
        train = {"seq_len": 128, "micro_batch": 1, "steps": 1, "workers": workers}
        cluster = {"nodes": 2, "node": "hgx-h100-8"}
        model = {"from": {"model_type": "gpt2"}}
        made = from_mapping({"cluster": cluster, "model": model, "jobs": [{"train": train}]})
        assert isinstance(made, Scenario)
        return [w.message for w in made.warnings if w.key == "train.workers"]

    assert idle(16) == []
    assert idle(8) == ["8 of the cluster's 16 GPUs work; the others are paid for and idle"]


def test_scenarios_are_frozen_and_pickle(scenario: Scenario) -> None:
    with pytest.raises(AttributeError):
        scenario.folder = Path()  # type: ignore[misc]
    again = pickle.loads(pickle.dumps(scenario))
    assert again.resolved() == scenario.resolved()


def test_with_leaves_the_original_alone(scenario: Scenario) -> None:
    before = scenario.resolved()
    changed = scenario.with_({"train.deepspeed.zero_optimization.overlap_comm": False})
    assert changed.strategy.deepspeed is not None
    assert changed.strategy.deepspeed.zero.overlap_comm is False
    assert scenario.resolved() == before


@pytest.mark.parametrize(
    ("changes", "micro", "accumulation", "world"),
    [
        ({"train.micro_batch": 4}, 4, 8, 16),
        ({"train.micro_batch": 4, "train.gradient_accumulation_steps": 8}, 4, 8, 16),
        ({"cluster.gpu-worker.replicas": 4, "train.workers": 32}, 1, 16, 32),
        ({"train.global_batch_tokens": "2Mi"}, 1, 64, 16),
        ({"train.zero_stage": 1, "train.pipeline.stages": 2}, 1, 64, 16),
        ({"train.tensor_parallel": 4}, 1, 128, 16),
    ],
)
def test_changed_batch_sizes_stay_consistent(
    scenario: Scenario, changes: dict[str, Any], micro: int, accumulation: int, world: int
) -> None:
    changed = plan(scenario.with_(changes))
    assert (changed.micro_batch, changed.gradient_accumulation_steps) == (micro, accumulation)
    assert changed.mesh.world == world


@pytest.mark.parametrize(
    ("batches", "more", "triple"),
    [
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}, {}, (32, 4, 2)),
        ({"train_micro_batch_size_per_gpu": 4}, {"global_batch": 32}, (32, 4, 2)),
    ],
)
def test_ranks_of_autotp_count_as_replicas_in_the_batch_and_read_the_same_samples(
    batches: dict[str, int], more: dict[str, Any], triple: tuple[int, int, int]
) -> None:
    """DeepSpeedConfig: train = micro x accumulation x dist.get_world_size(), without an mpu."""
    shared = {"tensor_parallel": {"autotp_size": 2}}
    made = inline(workers=8, micro_batch=None, deepspeed=batches | shared, **more).strategy
    assert (made.mesh.dp, made.mesh.tp) == (4, 2)
    assert (made.batch.train, made.batch.micro, made.batch.accumulation) == triple


@pytest.mark.parametrize(
    ("changes", "triple"),
    [
        ({"train.micro_batch": 4}, (64, 4, 1)),
        ({"train.micro_batch": 1, "train.gradient_accumulation_steps": 2}, (32, 1, 2)),
        ({"train.gradient_accumulation_steps": 8}, (256, 2, 8)),
        ({"train.workers": 8}, (32, 2, 2)),
        ({"train.global_batch": 128}, (128, 2, 4)),
    ],
)
def test_a_change_reaches_into_a_json_that_states_all_three(
    changes: dict[str, Any], triple: tuple[int, int, int]
) -> None:
    scenario = inline(
        micro_batch=None,
        deepspeed={
            "train_batch_size": 64,
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 2,
        },
    )
    if "train.global_batch" in changes:
        changes = {**changes, "train.gradient_accumulation_steps": 4}
    batch = scenario.with_(changes).strategy.batch
    assert (batch.train, batch.micro, batch.accumulation) == triple


def test_keys_of_the_users_own_files_can_be_set(scenario: Scenario) -> None:
    assert build_model(scenario.with_({"model.num_hidden_layers": 2})).num_parameters < (
        build_model(scenario).num_parameters
    )
    grown = scenario.with_({"cluster.from.spec.workerGroupSpecs.0.replicas": 4})
    assert grown.cluster.num_gpus == 32


def test_a_wrong_change_is_named_as_its_own_place(scenario: Scenario) -> None:
    with pytest.raises(ScenarioError, match=r"^--set train.micro_batsh=2   unknown key"):
        scenario.with_({"train.micro_batsh": 2})
    with pytest.raises(ScenarioError, match=r"^--set train.zero_stage=9   zero_optimization.stage"):
        scenario.with_({"train.zero_stage": 9})


def test_changes_before_checking_can_mend_a_scenario(tmp_path: Path) -> None:
    shutil.copytree(BASE, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "scenario.yaml"
    file.write_text(file.read_text().replace("workers: 16", "workers: 17"))
    with pytest.raises(ScenarioError):
        load(tmp_path)
    assert load(tmp_path, {"train.workers": 16}).strategy.mesh.world == 16


def test_ddp() -> None:
    made = plan(inline(ddp={"autocast": "bf16"}, optimizer="SGD", gradient_accumulation_steps=3))
    assert (made.engine, made.mesh.dp, made.precision) == ("ddp", 16, "fp32")
    assert (made.ddp.autocast, made.optimizer.type) == ("bf16", "SGD")
    assert made.samples_per_step == 2 * 3 * 16
    assert made.gradient_clipping == 0.0
    assert plan(inline(micro_batch=None, global_batch=64)).micro_batch == 4


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        ({"micro_batch": None}, "needs micro_batch"),
        ({"micro_batch": None, "global_batch": 10}, "10 samples per step cannot be split"),
        ({"pipeline": {"stages": 2}}, "needs DeepSpeed's engine"),
        ({"ddp": {"autocast": "bf16"}, "precision": "fp16"}, "autocast keeps parameters in fp32"),
        ({"seq_len": None, "global_batch_tokens": "1Mi"}, "needs seq_len"),
    ],
)
def test_ddp_contradictions(train: dict[str, Any], reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason):
        inline(**train)


@pytest.mark.parametrize(
    ("train", "steps", "epochs"),
    [
        ({"tokens": "1Mi"}, 64, None),
        ({"tokens": 1_000_000}, 62, None),
        ({"steps": 5}, 5, None),
        ({"epochs": 2, "data": {"train_samples": "50k"}}, None, 2),
        ({"data": {"train_samples": "50k"}}, None, 1),
        ({}, 100, None),
    ],
)
def test_length(train: dict[str, Any], steps: int | None, epochs: int | None) -> None:
    job = build_job(inline(**train))
    assert (job.steps, job.epochs) == (steps, epochs)


def test_bytes_per_sample_follow_the_model() -> None:
    assert build_job(inline()).data.bytes_per_sample == 24 * 512
    assert build_job(inline(data={"bytes_per_sample": 7})).data.bytes_per_sample == 7


@pytest.mark.parametrize(
    ("name", "condition", "limit", "unit"),
    [
        ("days", "<= 14", 14, "days"),
        ("days", "< 36h", 1.5, "days"),
        ("epoch_seconds", "<= 2min", 120, "seconds"),
        ("usd", "<= $12k", 12_000, "usd"),
        ("usd", "<= 99.5 usd", 99.5, "usd"),
        ("tokens_per_s", ">= 1.5e5", 150_000, "count"),
        ("mfu", "> 40%", 0.4, "share"),
        ("gpu_mem_peak", "<= 70GiB", 70 * 2**30, "bytes"),
        ("gpu_mem_peak", "<= 0.9", 0.9, "share"),
    ],
)
def test_targets(name: str, condition: str, limit: float, unit: str) -> None:
    target = parse_target(name, condition)
    assert (target.limit, target.unit) == (pytest.approx(limit), unit)
    assert target.passed(limit) == ("=" in target.op)
    assert target.passed(limit / 2) == target.op.startswith("<")


def test_targets_are_what_results_can_evaluate() -> None:
    from raysim.results.targets import METRICS as KNOWN

    assert set(METRICS) <= set(KNOWN)


def test_every_key_has_a_description() -> None:
    pending: list[tuple[str | int, ...]] = [()]
    seen = 0
    while pending:
        path = pending.pop()
        section = section_at(ScenarioSection, path)
        if section is None:
            continue
        for key, name in known_keys(section).items():
            seen += 1
            description = section.model_fields[name].description
            assert description, (path, key)
            assert description.endswith("."), (path, key)
            inner = {"hardware": ("group",), "jobs": (0,)}.get(key, ())
            pending.append((*path, key, *inner))
    assert seen > 100
