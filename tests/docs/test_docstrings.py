"""Examples in docstrings are run, every one: nothing is skipped."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

WITH_EXAMPLES = sorted(
    path
    for path in (ROOT / "raysim").rglob("*.py")
    if re.search(r"(?m)^\s*>>> ", path.read_text(encoding="utf-8"))
)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("name", [module_of(path) for path in WITH_EXAMPLES])
def test_examples_of_a_module_hold(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    module = importlib.import_module(name)
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert found.attempted > 0
    assert found.failed == 0


def test_no_example_is_skipped() -> None:
    assert [p.name for p in WITH_EXAMPLES if "+SKIP" in p.read_text(encoding="utf-8")] == []
