"""Noise and failures of a job: from the scenario to the summary, the printed report, the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.cli.show import TABLES
from raysim.errors import ScenarioError
from raysim.kernel.simulation import Simulation
from raysim.report import console, goodput
from raysim.results.summary import summarize
from raysim.results.targets import evaluate
from raysim.scenario.build import build_job
from raysim.scenario.load import load
from raysim.scenario.targets import parse_target
from raysim.training.settings.parallel import Mesh
from raysim.units import to_ns
from raysim.workloads.failures import Failures
from raysim.workloads.goodput import Goodput
from raysim.workloads.machines import DegradedLink, Machines, SlowNode, Window
from raysim.workloads.train_job import CheckpointSettings, DataSettings, TrainJob
from raysim.workloads.train_run import JobOutcome, play_job
from tests.training_parts import cluster, llama, plan

SCENARIO = Path(__file__).resolve().parents[2] / "scenarios/llama3_8b_zero3"
DDP = plan(llama(hidden=1024, seq_len=512), mesh=Mesh(dp=16), micro_batch=8)
OFTEN = Failures(mtbf_per_node_s=2000.0, replacement_s=60.0, spare_nodes=1)


def played(**options: Any) -> JobOutcome:
    job = TrainJob(**{"name": "train", "plan": DDP, "steps": 50_000} | options)
    return play_job(job, cluster(2), Simulation(seed=options.get("seed", 0)))


def run_of(outcome: JobOutcome) -> Goodput:
    assert outcome.goodput is not None
    return outcome.goodput


@pytest.fixture(scope="module")
def alike() -> JobOutcome:
    return played()


@pytest.fixture(scope="module")
def troubled() -> JobOutcome:
    return played(
        machines=Machines(
            gpu_cv=0.03,
            slow_nodes=(SlowNode(node=1, slowdown=1.5, window=Window(from_s=100.0, for_s=200.0)),),
            links=(DegradedLink(node=0, share=0.0, window=Window(from_s=400.0, for_s=10.0)),),
        ),
        failures=OFTEN,
        checkpoint=CheckpointSettings(every_s=60.0),
    )


@pytest.fixture(scope="module")
def summary(troubled: JobOutcome) -> dict[str, Any]:
    found = summarize(troubled, [], [])
    return found | {"raysim": "0", "scenario": "troubled", "seed": 0, "run_id": "0"}


def test_a_job_on_machines_that_are_alike_has_no_goodput(alike: JobOutcome) -> None:
    assert alike.goodput is None
    assert alike.healthy_step_s == alike.step_s
    assert "goodput" not in summarize(alike, [], [])


def test_no_noise_changes_nothing(alike: JobOutcome) -> None:
    still = played(machines=Machines(gpu_cv=0.0, step_cv=0.0))
    assert summarize(still, [], []) == summarize(alike, [], [])


def test_a_run_without_failures_is_as_long_as_its_sum(alike: JobOutcome) -> None:
    calm = played(failures=Failures(times_s=(1e9,)))
    assert calm.total_s == pytest.approx(alike.total_s, rel=1e-6)
    assert run_of(calm).lives[0].failures == 0


def test_windows_change_the_pace(troubled: JobOutcome) -> None:
    pace = run_of(troubled).course.pace
    assert pace.changes_ns == (to_ns(100.0), to_ns(300.0))
    before, slow, after = pace.step_ns
    assert before == after == troubled.step.steady_step_ns
    assert before > to_ns(troubled.healthy_step_s)
    assert slow > 1.2 * before
    assert troubled.slow_step_s is not None
    assert troubled.slow_step_s > troubled.step_s


def test_an_outage_lasts_as_long_as_the_transport_retries(troubled: JobOutcome) -> None:
    """4.096 us x 2^20 for each of NCCL's 7 retries and the first try: 34 s."""
    (outage,) = run_of(troubled).course.outages
    assert (outage.begin_ns, outage.end_ns) == (to_ns(400.0), to_ns(410.0))
    assert outage.patience_ns == pytest.approx(34.36e9, rel=1e-3)


def test_a_job_inside_one_node_does_not_need_its_nics() -> None:
    down = DegradedLink(node=0, share=0.0, window=Window(from_s=1.0, for_s=5.0))
    alone = replace(DDP, mesh=Mesh(dp=8))
    inside = played(plan=alone, steps=500, machines=Machines(links=(down,)))
    assert run_of(inside).course.outages == ()


def test_a_link_that_stays_narrow_slows_every_step(alike: JobOutcome) -> None:
    narrow = played(machines=Machines(links=(DegradedLink(node=0, nic=2, share=0.1),)))
    assert narrow.step_s > 1.05 * alike.step_s
    assert narrow.healthy_step_s == alike.step_s
    assert run_of(narrow).parts_s["slow"] == pytest.approx(
        narrow.steps * (narrow.step_s - alike.step_s)  # type: ignore[operator]
    )


def test_evaluation_waits_for_the_slowest_too() -> None:
    data = DataSettings(train_samples=12_800, eval_samples=12_800)
    slow = Machines(slow_nodes=(SlowNode(node=0, slowdown=2.0),))
    plain, throttled = (
        played(steps=None, epochs=1, data=data, machines=m) for m in (Machines(), slow)
    )
    assert throttled.evaluation_s > 1.5 * plain.evaluation_s
    assert run_of(throttled).parts_s["evaluation"] == pytest.approx(throttled.evaluation_s)


def test_the_rate_of_failures_is_that_of_the_nodes_used(troubled: JobOutcome) -> None:
    assert run_of(troubled).course.mtbf_s == 1000.0
    per_gpu = Failures(mtbf_per_gpu_s=16_000.0)
    assert per_gpu.mtbf_s(2, 16) == 1000.0
    assert replace(per_gpu, mtbf_per_node_s=2000.0).mtbf_s(2, 16) == 500.0


def test_the_summary_adds_up(summary: dict[str, Any], troubled: JobOutcome) -> None:
    found = summary["goodput"]
    assert sum(p["seconds"] for p in found["parts"]) == pytest.approx(found["wall_seconds"])
    assert sum(p["frac"] for p in found["parts"]) == pytest.approx(1.0)
    assert found["parts"][0]["key"] == "kept"
    assert found["parts"][0]["frac"] == pytest.approx(found["frac"])
    assert found["ideal_seconds"] == pytest.approx(found["frac"] * found["wall_seconds"])
    assert summary["run"]["seconds"] == found["wall_seconds"] == troubled.total_s
    rate = summary["run"]["tokens"] / found["wall_seconds"]
    assert found["effective_tokens_per_s"] == pytest.approx(rate)
    assert rate < summary["throughput"]["tokens_per_s"]
    low, high = found["wall_seconds_p5_p95"]
    assert low < found["wall_seconds"] < high


def test_nodes_that_stand_by_are_paid_for(summary: dict[str, Any], troubled: JobOutcome) -> None:
    hours = troubled.total_s / 3600  # type: ignore[operator]
    assert summary["cost"]["gpu_hours"] == pytest.approx(24 * hours)
    assert summary["cost"]["usd"] == pytest.approx(1.5 * summary["cluster"]["usd_per_hour"] * hours)


def test_what_was_left_to_raysim_is_among_the_inputs(summary: dict[str, Any]) -> None:
    names = {row["name"]: row["basis"] for row in summary["trust"]["inputs"]}
    assert names["failure detection"] == "assumed"
    assert names["RDMA transport timeout"] == "datasheet"
    assert "node replacement" not in names
    assert "process group timeout" not in names


def test_the_best_interval_saves_time() -> None:
    rare, best = (
        played(failures=OFTEN, checkpoint=c)
        for c in (CheckpointSettings(every_s=600.0), CheckpointSettings(optimal=True))
    )
    assert run_of(best).interval == run_of(best).best == run_of(rare).best
    assert run_of(best).wall_s < run_of(rare).wall_s
    assert best.checkpoints > rare.checkpoints
    delta = summarize(rare, [], [])["goodput"]["best_interval"]["wall_delta_frac"]
    assert delta < 0
    assert run_of(best).wall_s / run_of(rare).wall_s - 1 == pytest.approx(delta, abs=0.05)


def test_another_spare_is_worth_what_a_life_with_it_saves() -> None:
    how = replace(OFTEN, spare_nodes=0, replacement_s=120.0)
    saving = CheckpointSettings(every_s=30.0)
    none, one = (played(failures=replace(how, spare_nodes=n), checkpoint=saving) for n in (0, 1))
    delta = run_of(none).one_more_spare
    assert delta is not None
    assert delta == pytest.approx(run_of(one).wall_s / run_of(none).wall_s - 1, abs=0.01)
    assert delta < -0.05
    gone = played(failures=replace(how, takes_node=0.0), checkpoint=saving)
    assert run_of(gone).one_more_spare is None


def test_targets_on_goodput(summary: dict[str, Any], alike: JobOutcome) -> None:
    wanted = [parse_target("goodput", ">= 1%"), parse_target("goodput", ">= 99.9%")]
    assert [row["passed"] for row in evaluate(wanted, summary)] == [True, False]
    (row,) = evaluate(wanted[:1], summarize(alike, [], []))
    assert (row["passed"], row["value_text"]) == (False, "not reached")


def test_it_is_printed(summary: dict[str, Any]) -> None:
    printed = console.text(summary)
    assert "the whole run, mean of" in printed
    assert "work lost to failures" in printed
    assert "the slowest" in printed
    assert "Saving      every 60.0 s of steps" in printed.replace("59.9 s", "60.0 s")
    assert "Run time" not in printed
    assert all(len(line) <= 100 for line in printed.splitlines())
    assert all(len(line) <= 80 for line in console.text(summary, width=80).splitlines())


def test_it_is_shown_in_tables(summary: dict[str, Any]) -> None:
    parts = TABLES["goodput"](summary)[1]
    assert [row[0] for row in parts] == [part["name"] for part in summary["goodput"]["parts"]]
    once = played(failures=Failures(times_s=(150.0,)), checkpoint=CheckpointSettings(every_s=60.0))
    headers, rows, _ = TABLES["failures"](summarize(once, [], []))
    assert headers == ["why", "at", "work lost", "down for"]
    assert [row[:2] for row in rows] == [["node", "2.50 min"]]


def test_it_is_on_the_page(summary: dict[str, Any], alike: JobOutcome) -> None:
    section = goodput.section(summary)
    assert section is not None
    assert section.bars[-1].left + section.bars[-1].width == pytest.approx(1.0)
    assert [label for label, _ in section.said] == ["Goodput", "Machines", "Failures", "Saving"]
    assert goodput.section(summarize(alike, [], [])) is None


def test_a_run_that_never_ends_is_said_to() -> None:
    lost = played(failures=replace(OFTEN, mtbf_per_node_s=20.0))
    assert lost.total_s is None
    found = summarize(lost, [], [])
    assert (found["cost"], found["goodput"]["frac"]) == (None, 0.0)
    found |= {"raysim": "0", "scenario": "lost", "seed": 0, "run_id": "0"}
    assert "given up" in console.text(found)
    (row,) = evaluate([parse_target("days", "<= 14")], found)
    assert not row["passed"]


def test_every_rank_drawn_agrees_with_the_folded_step() -> None:
    noise = Machines(gpu_cv=0.05)
    folded, exact = played(machines=noise, steps=100), played(machines=noise, steps=100, exact=True)
    assert exact.slow_step_s is None
    assert exact.step_s == pytest.approx(folded.step_s, rel=0.06)
    assert exact.healthy_step_s == folded.healthy_step_s


def test_a_scenario_says_it_and_its_resolved_file_replays_it(root: Path, tmp_path: Path) -> None:
    trouble = {
        "train.epochs": 20_000,
        "train.checkpoint_every": "optimal",
        "train.noise": {
            "step_cv": "2%",
            "slow_nodes": [{"node": 0, "from": "2min", "slowdown": 2}],
        },
        "train.failures": {"mtbf_per_node": "10min", "takes_node": 0.5, "warm_up": "10s"},
    }
    scenario = raysim.load(root / "scenarios" / "mlp_pipeline")
    first = raysim.run(scenario.with_(trouble), record=False)
    assert first.summary["goodput"]["failures"] > 0
    assert first.summary["goodput"]["interval"] == first.summary["goodput"]["best_interval"]
    again = tmp_path / "scenario.yaml"
    again.write_text(first.scenario_yaml, encoding="utf-8")
    replayed = raysim.run(raysim.load(again), record=False)
    assert replayed.summary["goodput"] == first.summary["goodput"]


def test_a_run_has_only_so_many_changes(root: Path) -> None:
    scenario = raysim.load(root / "scenarios" / "mlp_pipeline")
    slow = [{"node": 0, "slowdown": 1.1, "from": f"{n}h", "for": "30min"} for n in range(1, 40)]
    scenario.with_({"train.noise": {"slow_nodes": slow[:30]}})
    with pytest.raises(ScenarioError, match="78 moments at which something changes"):
        scenario.with_({"train.noise": {"slow_nodes": slow}})


def test_failures_without_a_checkpoint_are_warned_of(root: Path) -> None:
    scenario = raysim.load(root / "scenarios" / "mlp_pipeline")
    said = scenario.with_({"train.failures": {"mtbf_per_gpu": "1000h"}}).warnings
    assert any("no checkpoint is ever saved" in str(problem) for problem in said)
    saved = {"train.failures": {"mtbf_per_gpu": "1000h"}, "train.checkpoint_every": "1h"}
    assert not any("no checkpoint" in str(problem) for problem in scenario.with_(saved).warnings)


def test_a_step_with_every_kernel_drawn_stands_beside_the_expected_one(alike: JobOutcome) -> None:
    """What is asked for in the scenario is there, and moves nothing else."""
    drawn = played(machines=Machines(kernel_cv=0.1))
    assert (drawn.step_s, alike.drawn_step_s) == (alike.step_s, None)
    assert drawn.drawn_step_s is not None
    assert alike.step_s < drawn.drawn_step_s < 1.2 * alike.step_s
    found = summarize(drawn, [], [])
    assert found["step"].pop("drawn_seconds") == drawn.drawn_step_s
    assert found == summarize(alike, [], [])
    every = played(machines=Machines(kernel_cv=0.1), exact=True)
    assert every.drawn_step_s is None
    assert every.step_s == pytest.approx(drawn.drawn_step_s, rel=0.01)


def test_the_scenario_says_how_kernels_vary() -> None:
    job = build_job(load(SCENARIO).with_({"train.noise.kernel_cv": "3%"}))
    assert job.machines == Machines(kernel_cv=0.03)
