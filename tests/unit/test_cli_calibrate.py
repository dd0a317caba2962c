"""``raysim calibrate`` on rows of a machine whose constants are known: an emulated one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raysim.cli import main
from raysim.measure.workload import read_workload
from raysim.perf.ray_core import RayCosts
from raysim.scenario.profile import load_profile
from raysim.validate.replayed import Against, predicted

WORKLOAD = '''"""A workload."""
# cluster: 2 CPU
# role: {role}

import json
import time

import ray

ray.init()


def row(name, act):
    start = time.perf_counter()
    act()
    print(json.dumps({{"row": name, "value": time.perf_counter() - start, "unit": "s"}}))


{rows}
'''
PUTS = 'row("puts", lambda: [ray.put(b"x") for _ in range({n})])'
GETS = 'here = ray.put(1)\nrow("gets", lambda: [ray.get(here) for _ in range({n})])'
TRUE = replace(RayCosts(), put_ns=170_000, get_ns=90_000)
ROLES = ("calibration", "validation")
META = """\
hardware: {cpu: Emulated, cores: 2, memory_bytes: 4000000000, gpus: [], disk: none, kernel: none}
versions: {python: "3.12", ray: "2.60.0"}
tables: {}
"""
WORKLOADS = {
    "store": ("calibration", [PUTS.format(n=50), GETS.format(n=50)]),
    "spare": ("calibration", [PUTS.format(n=90)]),
    "judge": ("validation", [GETS.format(n=90), PUTS.format(n=30)]),
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``data`` and ``workloads``."""
    root = tmp_path_factory.mktemp("calibrated")
    family, data = root / "workloads" / "ray_core", root / "data"
    family.mkdir(parents=True)
    data.mkdir()
    (data / "meta.yaml").write_text(META)
    tables = dict.fromkeys(ROLES, "workload,row,value,unit,repetitions,low,high\n")
    for name, (role, rows) in WORKLOADS.items():
        file = family / f"{name}.py"
        file.write_text(WORKLOAD.format(role=role, rows="\n".join(rows)))
        for row, value in predicted(read_workload(file), Against.at(data), TRUE).items():
            tables[role] += f"{name},{row},{value!r},s,5,{value * 0.99!r},{value * 1.01!r}\n"
    for role, table in tables.items():
        (data / f"replay_ray_core_{role}.csv").write_text(table)
    return root


def calibrate(measured: Path, out: Path, *more: str) -> int:
    where = ["--workloads", str(measured / "workloads"), "--out", str(out)]
    names = ["--fit", "put_ns,get_ns,gcs_placement_group_ns"]
    return main(["calibrate", str(measured / "data"), *names, *where, *more])


def test_a_profile_comes_out_and_predicts_what_was_not_fitted(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "here.yaml"
    assert calibrate(measured, out, "--hold", "spare") == 0
    said = capsys.readouterr().out
    profile = load_profile(out)
    assert profile.name == "here"
    assert "on Emulated, 2 cores, ray 2.60.0" in profile.source
    assert set(profile.ray) == {"put_ns", "get_ns"}
    assert profile.ray["put_ns"].value == pytest.approx(TRUE.put_ns, rel=0.02)
    assert profile.ray["get_ns"].value == pytest.approx(TRUE.get_ns, rel=0.02)
    assert profile.ray["put_ns"].rows[0] == "store/puts"
    for title, rows in {
        "Fitted rows": 2, "Calibration rows that were not fitted": 1, "Validation rows": 2,
    }.items():  # fmt: skip
        part = said.split(f"{title}: median error ")[1].split("\n\n")[0].splitlines()
        assert float(part[0].split("% before, ")[0]) > 10.0
        assert float(part[0].split("% before, ")[1].split("%")[0]) < 2.0
        assert len(part) == 2 + rows
    assert "gcs_placement_group_ns" in said
    assert "no row responds to it" in said


def test_processes_change_nothing_but_the_time_taken(measured: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "a" / "p.yaml", tmp_path / "b" / "p.yaml"
    for out, count in ((one, "1"), (two, "2")):
        out.parent.mkdir()
        assert calibrate(measured, out, "--processes", count) == 0
    assert one.read_text() == two.read_text()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--fit", "put_nss"], "unknown constant 'put_nss'; did you mean 'put_ns'?"),
        (["--hold", "nothing"], "--hold nothing: no measured workload of that name"),
        (["--family", "serve"], "no rows in replay_serve_calibration.csv"),
        (["--workloads", "nowhere"], "holds none of the 3 measured workloads"),
        (["--hold", "store,spare"], "no calibration row to fit"),
    ],
)
def test_what_cannot_be_done_is_said(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert calibrate(measured, tmp_path / "p.yaml", *more) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "p.yaml").exists()


def test_what_is_no_table_of_ours_leads_to_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text("batch,step_ms\n8,120\n")
    for data, family, said in [
        (mine, "ray_core", "is a file; calibrate takes a folder of tables that `raysim measure`"),
        (tmp_path / "nowhere", "training", "no such folder; calibrate takes"),
        (tmp_path, "ray_core", "measured by `raysim measure step` are --family training"),
        (tmp_path, "training", "has no meta.yaml, so no machine to emulate; `raysim measure`"),
    ]:
        assert main(["calibrate", str(data), "--family", family]) == 2
        assert said in capsys.readouterr().err
    (tmp_path / "training_cases.json").write_text("[]")
    assert main(["calibrate", str(tmp_path)]) == 2
    assert "here are rows of --family training" in capsys.readouterr().err


def test_a_workload_that_changed_its_role_is_refused(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family = tmp_path / "workloads" / "ray_core"
    family.mkdir(parents=True)
    for file in (measured / "workloads" / "ray_core").iterdir():
        text = file.read_text()
        (family / file.name).write_text(text.replace("role: calibration", "role: validation"))
    out = tmp_path / "p.yaml"
    assert calibrate(measured, out, "--workloads", str(family.parent)) == 2
    assert "is a validation workload, but its rows were measured as calibration" in (
        capsys.readouterr().err
    )
