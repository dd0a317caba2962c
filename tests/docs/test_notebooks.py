"""Notebooks run from top to bottom, and are kept without what running leaves in them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def by_name(path: Path) -> str:
    return path.stem


def read(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def test_there_are_notebooks_and_the_readme_lists_them_in_order() -> None:
    text = (ROOT / "notebooks/README.md").read_text(encoding="utf-8")
    listed = re.findall(r"\]\((\d\d_\w+\.ipynb)\)", text)
    assert listed == [path.name for path in NOTEBOOKS]
    assert len(listed) >= 7


@pytest.mark.parametrize("path", NOTEBOOKS, ids=by_name)
def test_a_notebook_is_clean(path: Path) -> None:
    """No outputs, no counts, no machine's metadata; ids that do not change from save to save."""
    book = read(path)
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    assert book["metadata"] == {"kernelspec": kernel, "language_info": {"name": "python"}}
    cells = book["cells"]
    assert [cell["id"] for cell in cells] == [f"cell-{i:02d}" for i in range(1, len(cells) + 1)]
    assert all(cell["metadata"] == {} for cell in cells)
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert cells[0]["cell_type"] == "markdown"
    assert cells[0]["source"][0].startswith("# ")
    text = json.dumps(book, indent=1, ensure_ascii=False) + "\n"
    assert text == path.read_text(encoding="utf-8"), "not as nbformat writes it"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=by_name)
def test_links_of_a_notebook_lead_somewhere(path: Path) -> None:
    told = "".join(
        "".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "markdown"
    )
    targets = re.findall(r"\]\(([^)#]+)\)", told)
    dead = [t for t in targets if "://" not in t and not (path.parent / t).resolve().exists()]
    assert dead == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=by_name)
def test_a_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With this interpreter, in its own folder, a minute a cell at most; nothing is left there."""
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    book = nbformat.read(path, as_version=4)
    before = set(path.parent.iterdir())
    where = {"metadata": {"path": str(path.parent)}}
    client.NotebookClient(book, timeout=150, kernel_name="python3", resources=where).execute()
    assert set(path.parent.iterdir()) == before
    errors = [o for cell in book.cells for o in cell.get("outputs", []) if o.output_type == "error"]
    assert errors == []
    drawn = [o for cell in book.cells for o in cell.get("outputs", []) if "data" in o]
    assert any("application/vnd.plotly.v1+json" in o.data for o in drawn), "it has a chart"
