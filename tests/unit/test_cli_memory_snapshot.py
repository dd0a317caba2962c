"""``raysim run --memory-snapshot``: a file more, or why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.cli.app import main
from tests.unit.program_cases import SQUARES, script

SCENARIO = Path(__file__).resolve().parents[2] / "scenarios/mlp_pipeline"


def run(*arguments: str | Path) -> int:
    return main(["run", *map(str, arguments)])


def test_it_is_listed_among_what_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(SCENARIO, "-o", tmp_path / "run", "--memory-snapshot") == 0
    assert "memory_snapshot.pickle" in capsys.readouterr().out
    assert (tmp_path / "run/memory_snapshot.pickle").stat().st_size > 1000


def test_programs_and_runs_without_records_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(script(tmp_path, SQUARES), "--memory-snapshot") == 2
    assert "goes with a training job" in capsys.readouterr().err
    assert run(SCENARIO, "--memory-snapshot", "--no-trace") == 2
    assert "needs the records that --no-trace leaves out" in capsys.readouterr().err
