"""``raysim measure`` from the command line: what it says, what it refuses, how it ends."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from raysim.cli import main
from raysim.cli import measure as verb
from raysim.errors import CalibrationError
from raysim.measure.session import Point, Session
from raysim.measure.table import read_meta, read_rows


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "busy_share", lambda: 0.02)


def fake(monkeypatch: pytest.MonkeyPatch, fill: object) -> None:
    monkeypatch.setitem(sys.modules, "fake_measure", SimpleNamespace(measure=fill))
    monkeypatch.setitem(verb.WHAT, "disk", "fake_measure")


def two_points(session: Session) -> None:
    with session.table("disk", ("op",)) as table:
        session.run(table, [Point(parameters={"op": op}, measure=lambda _: [0.5]) for op in "ab"])


def test_tables_go_to_the_folder_of_this_hardware_and_day(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(monkeypatch, two_points)
    assert main(["measure", "disk", "--budget", "1min", "--quick"]) == 0
    (path,) = in_tmp.glob("validation/data/*core*/20*-*-*/disk.csv")
    assert len(read_rows(path)) == 2
    tables = read_meta(path.parent)["tables"]
    assert tables["disk"]["command"] == "raysim measure disk --budget 1min --quick"
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "disk  op=a  500 ms"
    assert said[2].startswith("2 rows measured in")
    assert said[-1] == f"Tables: {path.parent.relative_to(in_tmp)}"


def test_a_busy_machine_is_said_and_noted(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verb, "busy_share", lambda: 0.4)
    fake(monkeypatch, two_points)
    assert main(["measure", "disk", "--out", "here"]) == 0
    assert "Others keep the CPUs 40% busy" in capsys.readouterr().err
    assert read_meta(in_tmp / "here")["tables"]["disk"]["notes"] == "CPUs 40% busy before"


def test_an_interrupt_says_that_the_same_command_goes_on(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(session: Session) -> None:
        two_points(session)
        raise KeyboardInterrupt

    fake(monkeypatch, interrupted)
    assert main(["measure", "disk", "--out", "here"]) == 130
    assert "Interrupted; what was measured is in here" in capsys.readouterr().err
    assert len(read_rows(in_tmp / "here" / "disk.csv")) == 2


def test_absent_hardware_is_one_line(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(session: Session) -> None:
        raise CalibrationError("--device cuda: torch sees no GPU here")

    fake(monkeypatch, absent)
    assert main(["measure", "disk"]) == 2
    assert capsys.readouterr().err == "--device cuda: torch sees no GPU here\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpus"], "WHAT: must be one of gpu, collectives, ray, disk"),
        (["disk", "--budget", "soon"], "--budget: expected a duration"),
        (["disk", "--ranks", "2;4"], "--ranks: expected world sizes"),
        (["disk", "--ranks", "1"], "--ranks: expected world sizes"),
    ],
)
def test_flags_that_cannot_be_read_are_named(
    in_tmp: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["measure", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert list(in_tmp.iterdir()) == []
