"""Numbers of a program's summary against what can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from raysim.kernel.simulation import Simulation
from raysim.raycore.ids import WorkerAddress
from raysim.raycore.protocol import Bundle, LeaseSpec, PlacementGroupTableData
from raysim.raycore.resources import UNIT, ResourceSet
from raysim.raycore.state_log import Change
from raysim.raycore.tasks import RemoteFunction, TaskOptions, TaskSpec
from raysim.report import console
from raysim.report.charts import binned
from raysim.results import targets
from raysim.results.ray import state_file
from raysim.results.ray.activity import Activity
from raysim.scenario.targets import parse_target
from tests.unit.program_cases import SQUARES, run

S = 10**9
OWNER = WorkerAddress(1, "node-0/driver-1", 0)
FUNCTION = RemoteFunction(name="f", body=lambda _: None)
OPTIONS = TaskOptions(function=FUNCTION, resources=ResourceSet({"CPU": UNIT}))
LEASE = LeaseSpec(OPTIONS, OPTIONS.resources, (), OWNER, 1, 1)


def row(kind: str, number: int, state: str, t_s: float, **more: object) -> Change:
    given = {"node_id": -1, "worker_id": 0, "detail": None} | more
    return Change(kind, number, state, round(t_s * S), *given.values())  # type: ignore[arg-type]


def task(number: int, submitted_s: float, running_s: float, end_s: float) -> list[Change]:
    spec = TaskSpec(number, OPTIONS, (), OWNER)
    return [
        row("task", number, "PENDING_ARGS_AVAIL", submitted_s, detail=spec),
        row("task", number, "PENDING_NODE_ASSIGNMENT", submitted_s),
        row("task", number, "RUNNING", running_s, node_id=0, worker_id=number + 10),
        row("task", number, "FINISHED", end_s),
    ]


def by_time(*rows: list[Change]) -> list[Change]:
    return sorted((r for some in rows for r in some), key=lambda r: r.t_ns)


def test_the_parts_add_up_to_the_run() -> None:
    rows = by_time([row("job", 1, "RUNNING", 0.5, worker_id=1)], task(1, 1, 2, 4), task(2, 1, 3, 6))
    found = Activity(rows, 8 * S)
    assert sum(found.parts_ns.values()) == pytest.approx(8 * S)
    assert found.parts_ns["startup"] == 0.5 * S
    assert found.submitting_ns == 2 * 117_000
    found_s = {key: ns / S for key, ns in found.parts_ns.items()}
    assert found_s["ray"] == pytest.approx(1, abs=1e-3)  # submitted at 1, nothing runs until 2
    assert found_s["tasks"] == pytest.approx(4, abs=1e-3)
    assert found_s["own"] == pytest.approx(2.5, abs=1e-3)


@pytest.mark.parametrize(
    ("begun_s", "startup_s", "own_s"),
    [(3.0, 1.5, 4.5), (None, 0.0, 6.0), (0.0, 4.5, 1.5)],
)
def test_code_before_ray_init_is_the_drivers_own(
    begun_s: float | None, startup_s: float, own_s: float
) -> None:
    """Workers of its node start with it; without it nothing does."""
    rows = [row("node", 0, "ALIVE", 1e-4)]
    if begun_s is not None:
        rows += [row("worker", 5, "STARTING", begun_s), row("job", 1, "RUNNING", 4.5, worker_id=1)]
    found = Activity(rows, 6 * S).parts_ns
    assert (found["startup"] / S, found["own"] / S) == (startup_s, own_s)


def test_a_placement_group_holds_what_it_reserves_whether_leases_take_it_or_not() -> None:
    bundles = tuple(Bundle(7, i, ResourceSet({"GPU": 2 * UNIT})) for i in range(2))
    group = partial(PlacementGroupTableData, 7, "", strategy="SPREAD", bundles=bundles)
    taken = LeaseSpec(
        replace(OPTIONS, resources=ResourceSet({"GPU_group_7": UNIT, "GPU_group_0_7": UNIT})),
        OPTIONS.resources, (), OWNER, 1, 1,
    )  # fmt: skip
    rows = [
        row("placement_group", 7, "PENDING", 0, detail=group(state="PENDING", nodes=(-1, -1))),
        row("placement_group", 7, "CREATED", 1, detail=group(state="CREATED", nodes=(0, 1))),
        row("lease", 1, "GRANTED", 2, node_id=0, worker_id=11, detail=taken),
        row(
            "placement_group",
            7,
            "RESCHEDULING",
            4,
            detail=group(state="RESCHEDULING", nodes=(0, -1)),
        ),
        row("placement_group", 7, "REMOVED", 5, detail=group(state="REMOVED", nodes=(0, -1))),
    ]
    held = Activity(rows, 8 * S).held
    assert {where: series.total(8 * S) / UNIT / S for where, series in held.items()} == {
        (0, "GPU"): 2 * 4, (1, "GPU"): 2 * 3,
    }  # fmt: skip


def test_what_waits_for_resources_waits_for_who_holds_them() -> None:
    waits = [
        row("lease", 1, "PENDING_WORKER", 1, node_id=0, detail=LEASE),
        row("lease", 2, "PENDING_RESOURCES", 1, node_id=0, detail=LEASE),
        row("lease", 1, "GRANTED", 3, node_id=0, worker_id=11, detail=LEASE),
        row("lease", 1, "RETURNED", 7, node_id=0, worker_id=11, detail=LEASE),
        row("lease", 2, "GRANTED", 7, node_id=0, worker_id=11, detail=LEASE),
        row("lease", 2, "RETURNED", 8, node_id=0, worker_id=11, detail=LEASE),
    ]
    found = Activity(by_time(waits, task(1, 0, 3, 7), task(2, 0, 7, 8)), 8 * S)
    assert found.parts_ns["cold"] == pytest.approx(2 * S)
    assert found.parts_ns["full"] == pytest.approx(4 * S)
    assert found.parts_ns["tasks"] == pytest.approx(1 * S)
    assert found.held[0, "CPU"].total(8 * S) == 7 * S * UNIT


def test_tasks_on_a_silent_node_are_lost_until_it_is_known() -> None:
    ends = [*task(1, 0, 1, 6)[:3], row("task", 1, "FAILED", 6)]
    found = Activity(ends, 6 * S, lost=[(2 * S, 0)])
    assert found.parts_ns["failure"] == pytest.approx(4 * S)
    assert found.running[0].total(6 * S) == 1 * S


def test_objects_are_counted_where_they_are() -> None:
    rows = [
        row("object", 5, "CREATED", 1, node_id=0, detail=(100, OWNER, True)),
        row("object", 5, "COPY", 2, node_id=1, detail=(100, OWNER, False)),
        row("object", 5, "SPILLED", 3, node_id=0),
        row("object", 5, "EVICTED", 4, node_id=0),
        row("object", 5, "RESTORED", 5, node_id=0),
        row("object", 5, "COPY", 5, node_id=0, detail=(100, OWNER, False)),
        row("object", 6, "FALLBACK", 5, node_id=0),
        row("object", 6, "CREATED", 5, node_id=0, detail=(70, OWNER, True)),
        row("object", 5, "FREED", 6, node_id=0),
        row("object", 5, "FREED", 6, node_id=1),
    ]
    found = Activity(rows, 7 * S)
    assert found.transfers == {(0, 1): [1, 100]}
    counted = (found.spilled_bytes, found.restored_bytes, found.fallback_bytes)
    assert counted == (100, 100, 70)
    assert found.store[0].steps == [(S, 100), (4 * S, 0), (5 * S, 100), (6 * S, 0)]
    assert found.disk[0].steps == [(3 * S, 100), (6 * S, 0)]


def test_means_of_equal_parts_keep_the_integral() -> None:
    steps = [(0, 2.0), (3, 4.0), (10, 0.0)]
    means = binned(steps, 12, 5)
    assert sum(means) * 12 / 5 == pytest.approx(2 * 3 + 4 * 7)
    assert means[0] == 2.0


def test_rows_come_back_from_a_file(tmp_path: Path) -> None:
    result = run(tmp_path, SQUARES)
    assert result.program is not None
    recorded = result.program
    path = state_file.write(
        recorded.rows, tmp_path / "state.parquet", end_ns=7, config=recorded.config
    )
    rows, end_ns, config = state_file.read(path)
    assert (end_ns, config) == (7, recorded.config)
    assert state_file.encode(rows) == state_file.encode(recorded.rows)
    assert [r[:6] for r in rows] == [r[:6] for r in recorded.rows]


def test_numbers_of_a_whole_program(tmp_path: Path) -> None:
    summary = run(tmp_path, SQUARES).summary
    (row_,) = summary["tasks"]["by_function"]
    assert (row_["name"], row_["count"], row_["finished"]) == ("square", 32, 32)
    assert row_["mean_seconds"] == pytest.approx(2.0, abs=0.01)
    (group,) = summary["utilisation"]
    cpu = group["resources"]["CPU"]
    cold_s = 16 * 0.7  # sixteen processes on eight cores; what each takes is drawn
    assert cpu["busy_seconds"] == pytest.approx(64 + cold_s, rel=0.1)  # 32 tasks of 2 s
    assert cpu["capacity_seconds"] == pytest.approx(16 * summary["run"]["seconds"], rel=0.01)
    assert sum(part["frac"] for part in summary["time"]) == pytest.approx(1)
    assert summary["bound_by"]["what"] == "full"
    assert summary["cost"]["usd"] == pytest.approx(
        2 * 0.384 * summary["run"]["seconds"] / 3600, rel=0.01
    )
    counts = [summary["trust"][basis] for basis in ("measured", "datasheet", "assumed")]
    assert sum(counts) == len(summary["trust"]["inputs"])


def test_percentiles_lie_between_the_nearest_durations(tmp_path: Path) -> None:
    naps = SQUARES.replace("time.sleep(2)", "time.sleep(1 + x)").replace("else 32", "else 4")
    (row_,) = run(tmp_path, naps).summary["tasks"]["by_function"]
    assert row_["p50_seconds"] == pytest.approx(2.5, abs=0.01)  # of 1, 2, 3 and 4 s
    assert row_["p95_seconds"] == pytest.approx(3.85, abs=0.01)


BINDS = {
    "driver": "x = [f.remote(0) for _ in range(20_000)]",
    "dependencies": "x = [0]\nfor _ in range(10): x = [s.remote(x[0])]",
    "actors": "a = A.remote()\nx = [a.f.remote() for _ in range(10)]",
}


@pytest.mark.parametrize("what", BINDS)
def test_what_binds_is_told_from_the_rows(tmp_path: Path, what: str) -> None:
    head = """
import ray, time
@ray.remote
def f(x): return x
@ray.remote
def s(x): time.sleep(1)
@ray.remote
class A:
    def f(self): time.sleep(1)
"""
    summary = run(tmp_path, f"{head}{BINDS[what]}\nray.get(x)\n").summary
    assert summary["bound_by"]["what"] == what


def test_targets_of_a_program(tmp_path: Path) -> None:
    summary = run(tmp_path, SQUARES).summary
    asked = [parse_target("seconds", "<= 1min"), parse_target("usd", "<= 0.0001")]
    summary["targets"] = targets.evaluate(asked, summary)
    assert [row["passed"] for row in summary["targets"]] == [True, False]
    assert targets.missed(summary)


@pytest.mark.parametrize("width", [80, 100])
def test_the_report_keeps_its_width(tmp_path: Path, width: int) -> None:
    failing = SQUARES + "\nraise RuntimeError('a message long enough that it has to be wrapped')\n"
    summary = run(tmp_path, failing).summary
    lines = console.text(summary, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("Failed after")


def test_simulations_share_nothing(tmp_path: Path) -> None:
    digests = {run(tmp_path, SQUARES).summary["simulation"]["digest"] for _ in range(2)}
    assert len(digests) == 1
    assert Simulation().digest not in digests


KILLED = """
import time
import ray
ray.init()
@ray.remote(num_cpus=1)
class A:
    def watch(self):
        time.sleep(100)
    def ready(self):
        pass
@ray.remote(num_cpus=1, max_retries=0)
def wrong():
    raise ValueError
a = A.remote()
a.watch.remote()
time.sleep(5)
ray.kill(a)
time.sleep(1)
ref = wrong.remote()
ray.wait([ref])
"""


def test_calls_that_the_program_ends_are_no_failures(tmp_path: Path) -> None:
    """``ray list tasks`` has them FAILED, as Ray Train's watcher at the end of every run."""
    summary = run(tmp_path, KILLED).summary
    assert summary["tasks"]["by_state"]["FAILED"] == 2
    (only,) = summary["failures"]
    assert (only["error_type"], only["attempts"]) == ("TASK_EXECUTION_EXCEPTION", 1)
