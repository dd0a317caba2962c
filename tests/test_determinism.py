"""The same question gets the same answer: across hash seeds, with and without recording, folded
or rank by rank, extrapolated or in full.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.kernel.record import ColumnRecorder, NullRecorder
from raysim.kernel.simulation import Simulation
from raysim.scenario.build import build_cluster, build_job
from raysim.training import tower
from raysim.training.plan import TrainingPlan
from raysim.training.recording import record_outcome
from raysim.training.settings.deepspeed import PipelineSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome
from raysim.workloads.train_run import play_job
from tests.training_parts import cluster, llama, plan, play

ROOT = Path(__file__).resolve().parents[1]
SCENARIOS = ("mlp_pipeline", "bert_mrpc_zero3", "vit_cifar10_ddp")


def fingerprint(name: str, *, exact: bool, record: bool) -> dict[str, str]:
    """Digest of the events, hash of when every operation ran, and the summary's bytes."""
    scenario = raysim.load(ROOT / "scenarios" / name)
    recorder = ColumnRecorder() if record else NullRecorder()
    simulation = Simulation(seed=scenario.seed, recorder=recorder)
    if exact:
        scenario = scenario.with_({"train.exact": True})
    outcome = play_job(build_job(scenario), build_cluster(scenario), simulation)
    record_outcome(outcome.step, recorder)
    times = [(line.start_ns, line.end_ns) for line in outcome.step.timelines]
    summary = raysim.run(scenario, record=record).summary
    return {
        "digest": simulation.digest,
        "times": hashlib.sha256(repr(times).encode()).hexdigest(),
        "summary": json.dumps(summary, default=str),
    }


def fingerprints() -> list[dict[str, dict[str, str]]]:
    """Every scenario folded and rank by rank; first recorded, then not."""
    return [
        {
            f"{name} {'exact' if exact else 'folded'}": fingerprint(
                name, exact=exact, record=record
            )
            for name in SCENARIOS
            for exact in (False, True)
        }
        for record in (True, False)
    ]


def test_same_seed_same_answer_under_any_hash_seed_recorded_or_not() -> None:
    code = "import json, tests.test_determinism as t; print(json.dumps(t.fingerprints()))"
    answers = []
    for hash_seed in ("0", "1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        )
        answers += json.loads(done.stdout)
    first = answers[0]
    assert set(first) == {f"{n} {how}" for n in SCENARIOS for how in ("folded", "exact")}
    for other in answers[1:]:
        assert other == first
    exact = [value["digest"] for key, value in first.items() if key.endswith("exact")]
    assert len(set(exact)) == len(exact)  # different runs differ


def test_a_second_run_in_the_same_process_answers_the_same() -> None:
    first, second = (fingerprint("mlp_pipeline", exact=True, record=True) for _ in range(2))
    assert first == second


def test_checking_changes_nothing() -> None:
    scenario = raysim.load(ROOT / "scenarios" / "mlp_pipeline")
    assert raysim.run(scenario, check=True).summary == raysim.run(scenario).summary


# Folding: one rank of each class of equal ranks answers for all of them.

ZERO_THREE = {"stage": 3, "mesh": Mesh(dp=8), "micro_batch": 2}
THREE_AXES = {
    "stage": 1,
    "mesh": Mesh(pp=2, dp=2, tp=2),
    "gradient_accumulation_steps": 4,
    "pipeline": PipelineSettings(stages=2, partition_method="uniform"),
}


def answers(outcome: StepOutcome) -> dict[str, Any]:
    """What a user is told of a step."""
    return {
        "step_ns": outcome.step_ns,
        "peak_bytes": outcome.fullest.peak_bytes,
        "allocated_bytes": outcome.fullest.allocated_bytes,
        "by_category": outcome.fullest.by_category,
        "parts_ns": outcome.breakdown.parts_ns,
    }


@pytest.mark.parametrize("options", [ZERO_THREE, THREE_AXES], ids=["zero3", "pp2 dp2 tp2"])
@pytest.mark.parametrize("hidden", [256, 2048])
def test_folded_equals_every_rank(options: dict[str, Any], hidden: int) -> None:
    p = plan(llama(layers=4, hidden=hidden, seq_len=512), **options)
    where = cluster(nodes=2, gpus=4)
    folded, exact = play(p, where), play(p, where, exact=True)
    assert len(folded.timelines) == p.mesh.pp
    assert len(exact.timelines) == 8
    assert answers(folded) == answers(exact)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_folded_equals_every_rank_at_other_stages(stage: int) -> None:
    p = plan(stage=stage)
    where = cluster(nodes=2, gpus=4)
    assert answers(play(p, where)) == answers(play(p, where, exact=True))


# Extrapolation: the steady period stands for the micro-batches that were not simulated.


@pytest.mark.parametrize(
    "options",
    [
        {"stage": 3},
        {"stage": 2},
        {"engine": "ddp", "precision": "fp32"},
        THREE_AXES,
        THREE_AXES | {"mesh": Mesh(pp=4, dp=2), "pipeline": PipelineSettings(
            stages=4, partition_method="uniform"
        )},
    ],
    ids=["zero3", "zero2", "ddp", "pp2 dp2 tp2", "pp4 dp2"],
)  # fmt: skip
def test_extrapolated_micro_batches_equal_simulated_ones(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    p = plan(
        llama(layers=6, hidden=1024, seq_len=1024),
        **options | {"gradient_accumulation_steps": 40},
    )
    few = play(p)
    monkeypatch.setattr(tower, "enough", all_of_them)
    full = play(p)
    assert few.extrapolated > 0
    assert not full.extrapolated
    assert few.steady_step_ns == pytest.approx(full.steady_step_ns, rel=0.005)
    assert few.fullest.peak_bytes == full.fullest.peak_bytes
    few_parts, full_parts = few.breakdown.parts_ns, full.breakdown.parts_ns
    for part, spent in full_parts.items():
        assert few_parts[part] == pytest.approx(spent, abs=0.005 * full.steady_step_ns), part


def all_of_them(p: TrainingPlan) -> int:
    return p.gradient_accumulation_steps
