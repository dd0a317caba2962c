"""Runs side by side, in a browser: one step of each, stream by stream."""

from __future__ import annotations

from pathlib import Path

import pytest

import raysim
from raysim.cli.compare import compare
from tests.browser.test_plan_page import COLORS_OF, PICTURE_OF, SETTLED

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """A small job with half of its micro-batch, and as it is."""
    folder = tmp_path_factory.mktemp("runs")
    found = []
    for size in (8, 16):
        scenario = raysim.load(ROOT / "scenarios" / "bert_mrpc_zero3", {"train.micro_batch": size})
        run = raysim.run(scenario, what_if=False)
        found.append(run.write(folder / f"micro-{size}", trace="none"))
    return tuple(found)


@pytest.fixture(scope="module")
def page_file(folders: tuple[Path, ...]) -> Path:
    """The page of both."""
    file = folders[0].parent / "compare.html"
    compare(folders, by=None, html=file)
    return file


def test_the_verdict_and_what_was_changed_come_first(page_file: Path, open_page) -> None:
    page = open_page(page_file)
    first = page.locator("main section").first.inner_text()
    assert "than A" in first
    assert "8 → 16" in first
    assert "16" in page.locator("#changed").inner_text()


@pytest.mark.parametrize("dark", [False, True])
def test_timeline_and_memory_are_drawn_in_every_theme(page_file, open_page, dark: bool) -> None:
    page = open_page(page_file, dark=dark)
    for canvas in ("timeline-canvas", "memory-canvas"):
        assert page.evaluate(COLORS_OF, canvas) > 10
    before = page.evaluate(PICTURE_OF, "timeline-canvas")
    page.locator("#theme").click()
    page.evaluate(SETTLED)
    assert page.evaluate(PICTURE_OF, "timeline-canvas") != before


def test_keys_zoom_both_pictures_and_go_back(page_file: Path, open_page) -> None:
    page = open_page(page_file)
    pictures = ("timeline-canvas", "memory-canvas")
    before = [page.evaluate(PICTURE_OF, c) for c in pictures]
    canvas = page.locator("#timeline-canvas")
    canvas.focus()
    canvas.press("+")
    page.evaluate(SETTLED)
    after = [page.evaluate(PICTURE_OF, c) for c in pictures]
    assert all(a != b for a, b in zip(before, after, strict=True))
    canvas.press("0")
    page.evaluate(SETTLED)
    assert [page.evaluate(PICTURE_OF, c) for c in pictures] == before


def test_a_slice_says_how_long_it_is_in_both(page_file: Path, open_page) -> None:
    page = open_page(page_file)
    canvas = page.locator("#timeline-canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 10)
    said = page.locator(".tip").inner_text()
    assert "run A" in said
    assert "in B" in said


def test_colours_change_between_change_and_kind(page_file: Path, open_page) -> None:
    page = open_page(page_file)
    before = page.evaluate(PICTURE_OF, "timeline-canvas")
    page.locator("#mode").select_option("kind")
    page.evaluate(SETTLED)
    assert page.evaluate(PICTURE_OF, "timeline-canvas") != before
    assert page.locator("#legend-kind").is_visible()
    assert not page.locator("#legend-change").is_visible()


def test_operations_sort(page_file: Path, open_page) -> None:
    page = open_page(page_file)
    table = page.locator("#operations table")
    table.locator(".sort", has_text="operation").click()
    table.locator(".sort", has_text="operation").click()
    names = table.locator("tbody tr td:first-child").all_inner_texts()
    assert len(names) > 3
    assert names == sorted(names, key=str.lower)


def test_a_comparison_fits_a_phone(page_file: Path, open_page) -> None:
    page = open_page(page_file, width=390, height=800)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
