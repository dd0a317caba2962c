"""From outcome to summary: numbers that must agree with each other."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from raysim.kernel.record import ColumnRecorder
from raysim.kernel.simulation import Simulation
from raysim.results.collectives import _what
from raysim.results.summary import summarize
from raysim.training.recording import record_outcome
from raysim.training.settings.parallel import Mesh
from raysim.workloads.train_job import DataSettings, TrainJob
from raysim.workloads.train_run import JobOutcome, play_job
from tests.training_parts import cluster, llama, plan


def outcome(**options: Any) -> JobOutcome:
    job = TrainJob(
        name="train", plan=plan(**options), epochs=2, data=DataSettings(train_samples=640)
    )
    return play_job(job, cluster(1), Simulation())


@pytest.fixture(scope="module")
def played() -> JobOutcome:
    return outcome(stage=3, activation_checkpointing="full")


@pytest.fixture(scope="module")
def summary(played: JobOutcome) -> dict[str, Any]:
    return summarize(played, [], [])


def test_it_is_plain_json(summary: dict[str, Any]) -> None:
    assert json.loads(json.dumps(summary)) == summary


def test_step_parts_add_up(summary: dict[str, Any]) -> None:
    parts = summary["step"]["breakdown"]
    assert sum(p["seconds"] for p in parts) == pytest.approx(summary["step"]["seconds"], rel=1e-9)
    assert sum(p["frac"] for p in parts) == pytest.approx(1.0)


def test_memory_categories_add_up_to_the_peak(summary: dict[str, Any]) -> None:
    memory = summary["memory"]
    assert sum(c["bytes"] for c in memory["by_category"]) == memory["peak_bytes"]
    assert memory["frac"] == memory["peak_bytes"] / memory["capacity_bytes"]


def test_mfu_is_three_forwards_over_peak(played: JobOutcome, summary: dict[str, Any]) -> None:
    p, rate = played.job.plan, summary["throughput"]
    flops = 3 * p.model.flops * p.samples_per_step / summary["step"]["seconds"] / p.mesh.world
    assert rate["mfu"] == pytest.approx(flops / 989.4e12, rel=1e-3)
    # Full recomputation runs the blocks' forward once more; embedding and head are not repeated.
    assert 1.2 < rate["hfu"] / rate["mfu"] <= 4 / 3
    tokens = p.samples_per_step * p.model.seq_len / summary["step"]["seconds"]
    assert rate["tokens_per_s"] == pytest.approx(tokens)


def test_collectives_carry_what_zero3_moves(played: JobOutcome, summary: dict[str, Any]) -> None:
    """Per micro-batch one gather of everything, reused over the turn, and one reduce-scatter."""
    rows = summary["collectives"]
    gathered = sum(r["bytes"] for r in rows if r["op"] == "all_gather")
    reduced = sum(r["bytes"] for r in rows if r["op"] == "reduce_scatter")
    params = 2 * played.job.plan.model.num_parameters
    assert reduced == pytest.approx(2 * params, rel=0.01)
    assert gathered <= 2.1 * params
    assert all(0 < r["bus_bytes_per_s"] < 450e9 for r in rows if r["bytes"] > 1000)


def test_extrapolated_counts_are_those_of_the_full_step() -> None:
    def rows(extrapolates: bool) -> dict[tuple[str, str, str], dict[str, Any]]:
        p = plan(llama(layers=8), mesh=Mesh(pp=2, dp=2, tp=2), stage=1,
                 gradient_accumulation_steps=20 if extrapolates else 8)  # fmt: skip
        job = TrainJob(name="train", plan=p)
        found = summarize(play_job(job, cluster(1), Simulation()), [], [])["collectives"]
        return {(r["op"], r["group"], r["what"]): r for r in found}

    short, long = rows(extrapolates=False), rows(extrapolates=True)
    key = ("all_reduce", "tp", "tensor-parallel activations")
    assert long[key]["count"] == short[key]["count"] / 8 * 20
    assert long[key]["bytes"] == short[key]["bytes"] / 8 * 20
    key = ("all_reduce", "dp", "gradients")
    assert long[key]["count"] == short[key]["count"]


def test_records_hold_the_last_step_of_every_simulated_rank() -> None:
    found = outcome(stage=1, mesh=Mesh(pp=2, dp=2))
    recorder = ColumnRecorder()
    record_outcome(found.step, recorder)
    tracks = {s.track[:2] for s in recorder.spans()}
    assert len(tracks) == 2
    sends = [set(s.args["flow"]) for s in recorder.spans() if s.name.startswith("send")]
    receives = [set(s.args["flow"]) for s in recorder.spans() if s.name.startswith("recv")]
    assert [sum(bool(a & b) for b in receives) for a in sends] == [1] * len(receives)
    assert len(sends) == 4
    peaks = [i for i in recorder.instants() if i.name == "peak memory"]
    assert len(peaks) == 2


def test_memory_counters_replay_to_the_peak(played: JobOutcome) -> None:
    recorder = ColumnRecorder()
    record_outcome(played.step, recorder)
    held: dict[str, float] = {}
    most = 0.0
    for row in recorder.counters():
        if not row.name.startswith("memory/"):
            continue
        held[row.name] = row.value
        most = max(most, sum(held.values()))
    # The first step, whose gathers are not all prefetched, may peak a little higher.
    assert most == pytest.approx(played.step.fullest.peak_bytes, rel=0.01)


def test_link_counters_carry_the_bytes_of_the_step() -> None:
    """The area under the rate of rank 0's NVLink port is what the ring sends through it."""
    found = outcome(stage=1, gradient_accumulation_steps=1, mesh=Mesh(dp=4))  # too few for NVLS
    recorder = ColumnRecorder()
    record_outcome(found.step, recorder)
    links = [c for c in recorder.counters() if c.name.startswith("link/")]
    assert {c.name for c in links} == {f"link/node-0/gpu-0/nvlink-{way}" for way in ("in", "out")}
    rows = [c for c in links if c.name.endswith("out")]
    assert rows[-1].value == 0
    carried = sum(a.value * (b.t_ns - a.t_ns) / 1e9 for a, b in pairwise(rows))
    params = 2 * found.job.plan.model.num_parameters
    # Ring: 2 (n - 1) / n for the all-reduce, (n - 1) / n for the all-gather.
    assert carried == pytest.approx(params * (2 + 1) * 3 / 4, rel=0.05)


def test_past_error_is_said_only_of_the_kind_that_was_compared(summary: dict[str, Any]) -> None:
    assert summary["trust"]["past_error"] == 0.060
    assert summarize(outcome(stage=2), [], [])["trust"]["past_error"] is None
    assert summarize(outcome(stage=3, precision="fp16"), [], [])["trust"]["past_error"] is None


@pytest.mark.parametrize(("name", "group", "carries"), [
    ("all-gather model.layers.3", "dp", "parameters"),
    ("all-gather root", "dp", "parameters"),
    ("reduce-scatter model.layers.3", "dp", "gradients"),
    ("all-reduce model.layers.3", "dp_replicate:8", "gradients"),
    ("reduce-scatter decoder.layers.15.mlp", "tp", "tensor-parallel activations"),
    ("all-gather output_layer", "tp", "tensor-parallel activations"),
    ("reduce-scatter gradients", "dp", "gradients"),
    ("gradient norm", "dp", "gradient norm"),
])  # fmt: skip
def test_calls_are_grouped_by_what_they_carry(name: str, group: str, carries: str) -> None:
    assert _what(name, group) == carries
