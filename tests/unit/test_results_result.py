"""A Result as a value: printed, pickled, written to a folder that says the same."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from raysim.results.result import Result, run_id, summary_json, written
from tests.unit.result_cases import recording, summary


@dataclass(frozen=True)
class Scenario:
    asked: Any = None

    def resolved(self) -> Mapping[str, Any]:
        return {"name": "small", "asked": self.asked, "rates": ["5e8", "on"]}


@pytest.fixture
def result() -> Result:
    return Result(summary=summary(), records=recording(), scenario=Scenario())


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def test_the_folder_is_named_after_scenario_and_id(result: Result, in_tmp: Path) -> None:
    assert result.write() == Path("runs/small-abc123")
    assert written(Path("runs/small-abc123")) == [
        "report.html", "trace.pftrace", "frames/", "summary.json", "summary.txt",
        "scenario.resolved.yaml",
    ]  # fmt: skip


def test_what_is_written_is_what_was_found(result: Result, tmp_path: Path) -> None:
    folder = result.write(tmp_path / "mine")
    assert json.loads((folder / "summary.json").read_text()) == result.summary
    assert (folder / "summary.txt").read_text(encoding="utf-8") == str(result)
    resolved = YAML(typ="safe").load((folder / "scenario.resolved.yaml").read_text())
    assert resolved == result.scenario.resolved()
    frames = {p.name for p in (folder / "frames").iterdir()}
    assert {"spans.parquet", "memory.parquet", "steps.parquet"} <= frames


def test_the_same_result_is_the_same_bytes(result: Result, tmp_path: Path) -> None:
    one, two = result.write(tmp_path / "one"), result.write(tmp_path / "two")
    assert contents(one) == contents(two)


def test_writing_again_replaces_what_an_older_run_left(result: Result, tmp_path: Path) -> None:
    result.write(tmp_path, trace="chrome")
    (tmp_path / "notes.md").write_text("mine")
    Result(summary=summary(), scenario=Scenario()).write(tmp_path)
    left = set(contents(tmp_path))
    assert "notes.md" in left
    assert not {name for name in left if "trace" in name or "parquet" in name}


def test_a_pickled_result_is_the_same_result(result: Result) -> None:
    assert len(result.steps) > 0
    again = pickle.loads(pickle.dumps(result))
    assert again == result
    assert str(again) == str(result)
    assert again.steps.equals(result.steps)
    assert again.scenario.resolved() == result.scenario.resolved()


def test_a_result_is_frozen(result: Result) -> None:
    with pytest.raises(FrozenInstanceError):
        result.summary = {}  # type: ignore[misc]


def test_json_has_no_nan_or_infinity() -> None:
    text = summary_json({"b": float("nan"), "a": [float("inf"), 1.5, (2, True)]})
    assert json.loads(text) == {"b": None, "a": [None, 1.5, [2, True]]}
    assert text.index('"b"') < text.index('"a"'), "the summary's own order is kept"


def test_run_id_depends_on_every_input_and_on_nothing_else() -> None:
    assert run_id({"a": 1, "b": 2}, "0.1.0") == run_id({"b": 2, "a": 1}, "0.1.0")
    different = {run_id(r, v) for r, v in [({"a": 1}, "1"), ({"a": 2}, "1"), ({"a": 1}, "2")]}
    assert len(different) == 3
    assert all(len(i) == 6 for i in different)
