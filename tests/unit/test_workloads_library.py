"""A library's job through the whole house: driver, outcome, summary, targets, console, page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import raysim
from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
from raysim.kernel.rng import Streams
from raysim.kernel.simulation import Simulation
from raysim.raycore.scripts import Return, Script, drop, function, get, now, submit
from raysim.raycore.state_log import StateLog
from raysim.raycore.tasks import TaskError, TaskOptions
from raysim.raylibs.report import Input, LibraryReport, Table, Unit
from raysim.raylibs.warnings import PlannerWarning
from raysim.report import console, html
from raysim.results import targets
from raysim.results.program_summary import summarize_program
from raysim.results.result import Result
from raysim.scenario.targets import parse_target
from raysim.workloads.program import ProgramJob
from raysim.workloads.program_run import ProgramOutcome, play_program
from tests.hardware_parts import bare_node

SPEC = ClusterSpec(
    groups=(NodeGroup(name="head", node=bare_node(vcpus=4), count=1, head=True),),
    fabric=FabricSpec(kind="star"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Makes rows in tasks; fails if there are none."""

    rows: int
    core_s: float = 1.0
    kind: str = "data"

    @property
    def metrics(self) -> Mapping[str, Unit]:
        return {"rows_per_s": "per_s", "bytes_read": "bytes"}

    def main(self, _process: Any, _streams: Streams) -> Script:
        if not self.rows:
            return TaskError("TASK_EXECUTION_EXCEPTION", "no rows")
        began = yield now()
        options = TaskOptions(function=function(Return([8], core_s=self.core_s), "make_row"))
        refs = []
        for _ in range(self.rows):
            refs += yield submit(options)
        yield get(refs)
        yield drop(*refs)
        took_s = ((yield now()) - began) / 1e9
        return LibraryReport(
            kind="data",
            ok=self.rows > 1,
            text=f"{self.rows} rows made.",
            metrics={"rows_per_s": self.rows / took_s, "bytes_read": 2e9},
            tables=(
                Table(
                    title="operator",
                    columns=(("operator", "text"), ("rows", "count"), ("took", "seconds")),
                    rows=(("make", self.rows, took_s), ("drop", self.rows, None)),
                ),
            ),
            bound_by="The rows themselves.",
            would_help=("fewer rows",),
            warnings=(
                PlannerWarning(code="few-rows", cause="Rows are few.", fix="Make 1,000 of them."),
            ),
            inputs=(Input(name="row cost", value=1.0, basis="assumed", source="this test"),),
            simplifications=("Rows are empty.",),
        )


def play(job: Rows) -> tuple[ProgramOutcome, dict[str, Any]]:
    simulation = Simulation(seed=0)
    program = ProgramJob(name="rows", library=job, compute="drawn")
    outcome = play_program(program, SPEC, simulation, StateLog())
    summary = {
        "raysim": raysim.__version__, "scenario": "rows", "seed": 0, "run_id": "rows-000000",
        **summarize_program(outcome, digest=simulation.digest), "targets": [], "warnings": [],
    }  # fmt: skip
    return outcome, summary


def test_its_report_becomes_part_of_the_summary() -> None:
    outcome, summary = play(Rows(rows=8))
    assert outcome.job.title == "data"
    assert summary["program"]["exit"] == "ok"
    (job,) = summary["libraries"]
    assert 2 < job["metrics"]["rows_per_s"] < 4  # 8 core-seconds on 4 cores, and cold workers
    assert summary["verdict"]["ok"]
    assert summary["verdict"]["text"].endswith("8 rows made.")
    assert summary["bound_by"]["text"] == "The rows themselves."
    assert "Rows are empty." in summary["simplifications"]
    assert not any("generated workload" in said for said in summary["simplifications"])
    assert {"name": "row cost", "value": 1.0, "basis": "assumed", "source": "this test"} in (
        summary["trust"]["inputs"]
    )
    assert summary["tasks"]["finished"] == 8


def test_a_job_that_did_not_do_what_was_asked_is_not_ok() -> None:
    _, summary = play(Rows(rows=1))
    assert summary["program"]["exit"] == "ok"
    assert not summary["verdict"]["ok"]
    assert targets.missed(summary)


def test_a_job_that_fails_says_with_what() -> None:
    _, summary = play(Rows(rows=0))
    assert summary["program"]["exit"] == "exception"
    assert "no rows" in summary["verdict"]["text"]
    assert summary["libraries"] == []


def test_targets_name_its_metrics_in_their_units() -> None:
    _, summary = play(Rows(rows=8))
    units = {"seconds": "seconds", **Rows(rows=8).metrics}
    wanted = [
        parse_target(name, condition, units)  # type: ignore[arg-type]
        for name, condition in (
            ("rows_per_s", ">= 2/s"), ("rows_per_s", ">= 1k/s"), ("bytes_read", "<= 2GB"),
        )
    ]  # fmt: skip
    found = targets.evaluate(wanted, summary)
    assert [row["passed"] for row in found] == [True, False, True]
    assert found[1]["text"] == "rows_per_s >= 1,000/s"
    assert found[2]["value_text"] == "1.86 GiB"


def test_the_console_shows_tables_advice_and_warnings() -> None:
    _, summary = play(Rows(rows=8))
    lines = console.render(summary).plain.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith(" operator"))
    assert lines[head].split() == ["operator", "rows", "took"]
    assert lines[head + 2].split()[:2] == ["make", "8"]
    assert lines[head + 3].split() == ["drop", "8", "-"]
    assert "Bound by    The rows themselves." in lines
    assert "Would help  fewer rows" in lines
    assert "Warning     Rows are few. Make 1,000 of them." in lines


def test_the_page_shows_them_too() -> None:
    _, summary = play(Rows(rows=8))
    page = html.render(Result(summary=summary))
    assert "<caption>operator</caption>" in page
    assert 'Rows are few. <span class="fix">Make 1,000 of them.</span>' in page
