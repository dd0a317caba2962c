"""Scripts of ``scenarios/scripts`` print what stands beside them, numbers within a twentieth."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "scenarios" / "scripts").glob("*.py"))
NUMBER = re.compile(r"\d[\d,]*\.?\d*")


def numbers(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in NUMBER.findall(text)]


def words(text: str) -> list[str]:
    return NUMBER.sub("n", text).split()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_a_script_prints_what_stands_beside_it(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    expected = script.with_suffix(".txt").read_text(encoding="utf-8")
    assert words(printed) == words(expected)
    assert numbers(printed) == pytest.approx(numbers(expected), rel=0.05)
    for name in (script.name, script.with_suffix(".txt").name):
        assert name in (script.parent / "README.md").read_text(encoding="utf-8")
