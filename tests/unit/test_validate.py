"""Points, their distributions, the report, and the emulated side of a small data folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from raysim.cli import main
from raysim.errors import CalibrationError
from raysim.measure.workload import read_workload
from raysim.perf.profile import Profile
from raysim.perf.ray_core import RayCosts
from raysim.validate.cases import keep
from raysim.validate.parity import parity_svg
from raysim.validate.points import (
    Point,
    by_family,
    coverage,
    errors,
    merged,
    read_points,
    write_points,
)
from raysim.validate.replayed import DRIVERS, Against, newest, predicted, replayed_points
from raysim.validate.report import report_text, write_report

META = """
hardware: {cpu: some cpu, cores: 2, memory_bytes: 17179869184, gpus: [], disk: ssd}
versions: {python: 3.11.1, ray: 2.60.0}
"""
PROGRAM = '''"""Sleeps."""
# cluster: 2 CPU; 2 CPU
# role: validation

import json
import time

import ray


@ray.remote
def doze(seconds):
    time.sleep(seconds)


ray.init()
ray.get([doze.remote(2) for _ in range(4)])
start = time.perf_counter()
ray.get([doze.remote(0.5) for _ in range(8)])
print(json.dumps({"row": "eight", "value": time.perf_counter() - start, "unit": "s"}))
'''


def point(measured: float, predicted: float, **more: object) -> Point:
    values: dict[str, object] = {"family": "a/b", "name": "p", "role": "validation", "unit": "s"}
    return Point(**(values | {"measured": measured, "predicted": predicted} | more))  # type: ignore[arg-type]


def test_errors_are_of_validation_rows_that_could_be_compared() -> None:
    points = [
        point(10, 11), point(10, 8), point(10, 10), point(10, 40, role="calibration"),
        point(10, 99, left_out="why"),
    ]  # fmt: skip
    found = errors(points, "all")
    assert found is not None
    assert (found.rows, found.within) == (3, 1.0)
    assert found.median == pytest.approx(0.1)
    assert found.worst == pytest.approx(0.2)
    assert found.p90 == pytest.approx(0.1 + 0.8 * 0.1)
    assert errors(points[3:], "none") is None


def test_rank_correlation_is_of_order_alone() -> None:
    rows = [(1, 5), (2, 50), (3, 51), (4, 1000)]
    assert by_family([point(m, p) for m, p in rows])[0].rank == pytest.approx(1)
    assert by_family([point(m, -p) for m, p in rows])[0].rank == pytest.approx(-1)
    ties = [point(m, p) for m, p in [(1, 1), (2, 2), (2, 3), (4, 4)]]
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: covariance 4.5 over sqrt(4.5 * 5).
    assert by_family(ties)[0].rank == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert by_family(ties[:2])[0].rank is None


def test_coverage_counts_only_stated_intervals() -> None:
    inside = point(10, 11, predicted_low=9, predicted_high=12)
    outside = point(13, 11, predicted_low=9, predicted_high=12)
    assert coverage([inside, outside, point(1, 2)]) == 0.5
    assert coverage([point(1, 2)]) is None


def test_points_survive_their_file(tmp_path: Path) -> None:
    points = [point(1.5, 2, low=1, high=2, repetitions=3), Point(family="a/c", name="x, y",
              role="validation", left_out="not measured")]  # fmt: skip
    path = tmp_path / "a.csv"
    write_points(points, path)
    assert read_points(path) == points
    path.write_text(path.read_text() + "a,b\n")
    with pytest.raises(CalibrationError, match=r"a\.csv:4"):
        read_points(path)


def test_new_points_replace_old_ones_of_the_same_name(tmp_path: Path) -> None:
    keep([point(1, 2), point(1, 3, name="q"), point(1, 1, family="z")], tmp_path)
    every = keep([point(1, 9)], tmp_path)
    assert [(p.family, p.name, p.predicted) for p in every] == [
        ("a/b", "p", 9), ("a/b", "q", 3), ("z", "p", 1),
    ]  # fmt: skip


def test_the_report_says_every_row_and_why_some_are_left_out(tmp_path: Path) -> None:
    points = [
        point(10, 12, name="slow", low=9, high=11, repetitions=3),
        point(10, 9, name="other", family="a/c"),
        point(10, 9, name="used", role="calibration"),
        point(10, 9, name="gone", left_out="ray.rllib is not emulated"),
    ]
    text = report_text(points, ["Profile: none."])
    assert "- Profile: none." in text
    assert "| a | 2 | 15.0 % | 19.0 % | 100 % | 20.0 % | 20.0 % | - | - |" in text
    assert "| slow | 12 | 10 | s | +20.0 % | 9 - 11 | 3 |" in text
    assert "## a/b: calibration rows" in text
    assert "| a/b: gone | ray.rllib is not emulated |" in text
    write_report(points, tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    write_report([replace(p) for p in points], tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_the_parity_plot_has_a_dot_per_compared_row() -> None:
    points = [point(10, 12, low=9, high=11), point(1, 1), point(3, 3, unit="MiB"),
              point(1, 1, left_out="no")]  # fmt: skip
    drawn = ET.fromstring(parity_svg(points))
    space = "{http://www.w3.org/2000/svg}"
    assert len([c for c in drawn.iter(f"{space}circle") if c.get("r") == "3.2"]) == 3
    dots = [c for c in drawn.iter(f"{space}circle") if c.get("r") == "3.2"]
    # Equal values lie on the diagonal of a square of 300.
    assert float(dots[1].get("cx", "")) + float(dots[1].get("cy", "")) == pytest.approx(300)
    assert float(dots[0].get("cx", "")) + float(dots[0].get("cy", "")) < 300 * 2


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A validation folder with one workload and what real Ray took for it."""
    program = tmp_path / "validation/workloads/own/bag_eight.py"
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM)
    data = tmp_path / "validation/data/some-cpu-2core/2026-11-22"
    data.mkdir(parents=True)
    (data / "meta.yaml").write_text(META)
    (data / "replay_own_validation.csv").write_text(
        "workload,row,value,unit,repetitions,low,high\n"
        "bag_eight,eight,1.02,s,3,1.01,1.05\nbag_eight,gone,1,s,3,1,1\n"
    )
    return tmp_path


def test_a_workload_is_predicted_on_the_machine_that_was_measured(measured: Path) -> None:
    workload = read_workload(measured / "validation/workloads/own/bag_eight.py")
    against = Against.at(newest(measured / "validation/data"))
    points = list(replayed_points([workload], against))
    assert [(p.family, p.name, p.left_out) for p in points] == [
        ("own/bag", "bag_eight eight", ""),
        ("own/bag", "bag_eight gone", "not printed on the emulator"),
    ]
    assert points[0].predicted is not None
    assert 1.0 < points[0].predicted < 2.0  # on one CPU: 4 s
    assert points == list(replayed_points([workload], against))


def test_a_row_is_the_median_of_plays_after_the_first(measured: Path) -> None:
    """As the program's own: each play waits longer than the last."""
    path = measured / "validation/workloads/own/bag_eight.py"
    plays = measured / "plays"
    count = f"from pathlib import Path\n\nplays = Path({str(plays)!r})\n"
    count += (
        'n = len(plays.read_text()) if plays.exists() else 0\nplays.write_text("x" * (n + 1))\n'
    )
    longer = PROGRAM.replace("ray.init()\n", f"{count}ray.init()\n").replace("0.5", "0.5 + n * n")
    path.write_text(longer)
    workload = read_workload(path)
    found = predicted(workload, Against.at(newest(measured / "validation/data")), RayCosts())
    assert found["eight"] == pytest.approx(2 * (0.5 + 2 * 2), rel=0.1)
    assert len(plays.read_text()) == DRIVERS


def test_a_folders_own_profile_is_used_and_gives_intervals(measured: Path) -> None:
    workload = read_workload(measured / "validation/workloads/own/bag_eight.py")
    against = Against.at(newest(measured / "validation/data"))
    assert against.profile() == Profile(name="raysim's own")
    own = next(replayed_points([workload], against))
    assert own.predicted_low is None
    (against.folder / "ray_profile.yaml").write_text(
        "profile: slow\nspread: 0.1\nray:\n  execute_ns: 100000000\n"
    )
    slow = next(replayed_points([workload], against, against.profile()))
    assert own.predicted is not None
    assert slow.predicted is not None
    assert slow.predicted > own.predicted + 0.1
    assert (slow.predicted_low, slow.predicted_high) == against.profile().interval(slow.predicted)


def test_each_family_has_the_newest_folder_with_rows_of_its_own(measured: Path) -> None:
    """A folder in which only constants were measured is nobody's."""
    data = measured / "validation/data"
    later, last = (data / f"some-cpu-2core/2026-11-{day}" for day in (25, 26))
    for folder, table in ((later, "other_validation"), (last, "own_calibration")):
        folder.mkdir()
        (folder / f"replay_{table}.csv").write_text("")
    assert newest(data, "own").name == "2026-11-22"
    assert newest(data, "other") == newest(data) == later
    with pytest.raises(CalibrationError, match="no replayed workloads"):
        newest(data, "third")
    other = data / "other-cpu-2core/2026-11-25"
    other.mkdir(parents=True)
    (other / "replay_other_validation.csv").write_text("workload\na\n")
    assert newest(data, "other") == other


def test_workloads_of_a_running_cluster_are_predicted_on_its_nodes(measured: Path) -> None:
    """Four nodes on two machines, then one node of one CPU, whatever the file's header says."""
    nodes = [
        {"host": i // 2, "resources": {"CPU": 2.0, "memory": 2**33}, "object_store_bytes": 2**28}
        for i in range(4)
    ]
    folder = newest(measured / "validation/data")
    (folder / "cluster.json").write_text(json.dumps(nodes))
    against = Against.at(folder)
    assert against.host_of == (0, 0, 1, 1)
    workload = read_workload(measured / "validation/workloads/own/bag_eight.py")
    emulation = against.emulation(workload, RayCosts())
    assert emulation.cluster.spec.host_of == (0, 0, 1, 1)
    assert [box.vcpus for box in emulation.cluster.spec.nodes] == [4] * 4
    (folder / "cluster.json").write_text(json.dumps(nodes[:1]).replace("2.0", "1.0"))
    found = predicted(workload, Against.at(folder), RayCosts())
    assert 4.0 < found["eight"] < 4.3


def test_what_is_not_emulated_or_not_measured_is_left_out_with_why(measured: Path) -> None:
    path = measured / "validation/workloads/own/bag_eight.py"
    path.write_text(PROGRAM.replace("import ray\n", "import ray\nimport ray.llm\n", 1))
    other = path.with_name("bag_nine.py")
    other.write_text(PROGRAM)
    against = Against.at(newest(measured / "validation/data"))
    points = list(replayed_points([read_workload(path), read_workload(other)], against))
    assert "ray.llm is not emulated" in points[0].left_out
    assert points[2].left_out == "not measured"


def test_the_command_writes_the_same_report_twice(
    measured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(measured)
    assert main(["validate", "bag_eight"]) == 0
    printed = capsys.readouterr().out
    assert "bag_eight eight" in printed
    assert "left out: bag_eight gone: not printed on the emulator" in printed
    report = (measured / "validation/REPORT.md").read_bytes()
    assert main(["validate", "bag_eight", "--out", "again"]) == 0
    assert (measured / "again/REPORT.md").read_bytes() == report
    assert b"some cpu with 2 cores" in report


def test_wrong_cases_and_absent_data_are_told(
    measured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(measured)
    assert main(["validate", "bag_eigth"]) == 2
    assert "did you mean 'bag_eight'" in capsys.readouterr().err
    assert main(["validate", "bag_eight", "--against", "validation"]) == 2
    assert "validation: has no meta.yaml" in capsys.readouterr().err


def test_a_workload_with_rows_is_no_longer_said_to_lack_them() -> None:
    lacking = [
        Point(family="f", name=name, role="validation", left_out="not measured")
        for name in ("calls", "calls_fitted")
    ]
    row = Point(family="f", name="calls one", role="validation", measured=1.0, predicted=1.1)
    assert merged(lacking, [row]) == [row, lacking[1]]
