"""What each scenario prints, against its expected.txt; ``--update-golden`` writes the files."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

import raysim

SCENARIOS = sorted((Path(__file__).resolve().parents[2] / "scenarios").glob("*/scenario.yaml"))
MAX_LINES = 60
NEEDS = {"vit_lightning": "lightning"}
"""Packages beside torch and ray that a scenario's script imports."""


@pytest.mark.filterwarnings("default")  # what a program's libraries warn of is its own affair
@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.parent.name)
def test_scenario_prints_what_is_expected(
    path: Path, update_golden: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec(NEEDS.get(path.parent.name, "raysim")) is None:
        pytest.skip(f"{NEEDS[path.parent.name]} is not installed")
    monkeypatch.chdir(root)
    printed = str(raysim.run(raysim.load(path.parent.relative_to(root)), record=False))
    expected = path.parent / "expected.txt"
    if update_golden:
        expected.write_text(printed, encoding="utf-8", newline="\n")
    assert printed == expected.read_text(encoding="utf-8")
    assert len(printed.splitlines()) <= MAX_LINES


def test_there_are_scenarios() -> None:
    assert SCENARIOS
