"""The page of a plan, in a browser: what is drawn, and that a filter reaches all of it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pandas as pd
import pytest

import raysim
from raysim.cli.plan import PlanOptions
from raysim.cli.plan import plan as plan_verb
from raysim.cli.run import parse_changes

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
ROOT = Path(__file__).parents[2]
NODES = "cluster.gpu-group.replicas"
COLORS_OF = """(id) => {
  const c = document.getElementById(id), seen = new Set();
  const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
  for (let i = 0; i < d.length; i += 4) if (d[i + 3]) seen.add(`${d[i]} ${d[i + 1]} ${d[i + 2]}`);
  return seen.size;
}"""
PICTURE_OF = "(id) => document.getElementById(id).toDataURL()"
SETTLED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small job's: some meet the target, some do not fit."""
    folder = tmp_path_factory.mktemp("plan")
    options = PlanOptions(
        vary=("train.zero_stage=1,3", "train.micro_batch=2,4,8,1024", f"{NODES}=1,2"),
        subject_to=("gpu_mem_peak <= 21.5%",), out=folder, as_json=True,
    )  # fmt: skip
    plan_verb(ROOT / "scenarios" / "bert_mrpc_zero3", options)
    (found,) = folder.glob("plan-*/report.html")
    return found


def rows(page) -> list[str]:
    return page.locator("#rows tbody tr td:first-child").all_inner_texts()


def column(page, name: str) -> list[str]:
    heads = page.locator("#rows thead th").all_inner_texts()
    at = heads.index(name) + 1
    return page.locator(f"#rows tbody tr td:nth-child({at})").all_inner_texts()


def test_the_choice_is_the_first_thing_and_its_pictures_are_drawn(report: Path, open_page) -> None:
    page = open_page(report)
    verdict = page.locator("main section").first.inner_text()
    assert "GPUs" in verdict
    assert "PASS" in verdict
    for canvas in ("scatter-canvas", "parallel-canvas"):
        assert page.evaluate(COLORS_OF, canvas) > 20
    assert page.locator("#minis canvas").count() == 3


@pytest.mark.parametrize("dark", [False, True])
def test_every_theme_draws_in_its_own_inks(report: Path, open_page, dark: bool) -> None:
    page = open_page(report, dark=dark)
    before = page.evaluate(PICTURE_OF, "scatter-canvas")
    page.locator("#theme").click()
    page.evaluate(SETTLED)
    assert page.evaluate(PICTURE_OF, "scatter-canvas") != before
    body = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g)[0]")
    assert (int(body) < 64) is not dark


def test_a_stretch_of_an_axis_kept_by_keys_filters_table_and_pictures(
    report: Path, open_page
) -> None:
    page = open_page(report)
    whole = len(rows(page))
    pictures = [page.evaluate(PICTURE_OF, c) for c in ("scatter-canvas", "parallel-canvas")]
    axis = page.get_by_role("slider", name="zero_stage")
    axis.focus()
    axis.press("ArrowUp")
    page.evaluate(SETTLED)
    assert set(column(page, "zero_stage")) == {"1"}
    assert axis.get_attribute("aria-valuetext") == "1"
    after = [page.evaluate(PICTURE_OF, c) for c in ("scatter-canvas", "parallel-canvas")]
    assert all(a != b for a, b in zip(pictures, after, strict=True))
    axis.press("ArrowUp")
    assert set(column(page, "zero_stage")) == {"3"}
    axis.press("Delete")
    assert len(rows(page)) == whole


def test_a_stretch_dragged_with_the_mouse_can_be_taken_away_again(report: Path, open_page) -> None:
    page = open_page(report)
    whole = len(rows(page))
    axis = page.get_by_role("slider", name="nodes", exact=True)
    axis.scroll_into_view_if_needed()
    box = axis.bounding_box()
    middle = box["x"] + box["width"] / 2
    page.mouse.move(middle, box["y"] + box["height"] - 30)
    page.mouse.down()
    page.mouse.move(middle, box["y"] + box["height"] - 4, steps=4)
    page.mouse.up()
    assert set(column(page, "nodes")) == {"1"}
    page.locator("#brushes .brush").click()
    assert len(rows(page)) == whole


def test_a_status_is_put_out_of_sight_and_back(report: Path, open_page) -> None:
    page = open_page(report)
    whole = len(rows(page))
    page.locator("[data-status=out_of_memory]").click()
    assert "out of memory" not in column(page, "status")
    assert f"of {whole} trials" in page.locator("#count").inner_text()
    page.locator("#clear").click()
    assert len(rows(page)) == whole


def test_rows_sort_by_a_column_and_missing_values_stand_last(report: Path, open_page) -> None:
    page = open_page(report)
    button = page.locator("#rows th .sort", has_text="micro_batch")
    button.click()
    up = column(page, "micro_batch")
    assert up == sorted(up, key=["2", "4", "8", "1024"].index)
    page.locator("#rows th .sort", has_text="time").click()
    assert column(page, "time")[-1] == "-"
    page.locator("#rows th .sort", has_text="time").click()
    assert column(page, "time")[-1] == "-"


def test_words_filter_rows(report: Path, open_page) -> None:
    page = open_page(report)
    page.locator("#find").fill("memory zero_stage 3")
    assert set(column(page, "status")) == {"out of memory"}
    assert set(column(page, "zero_stage")) == {"3"}


def test_arrows_go_from_point_to_point_and_enter_pins_one(report: Path, open_page) -> None:
    page = open_page(report)
    canvas = page.locator("#scatter-canvas")
    canvas.focus()
    for way in ("ArrowRight", "ArrowLeft", "ArrowLeft"):  # from the choice, the last one there
        canvas.press(way)
    assert "trial" in page.locator(".tip").inner_text()
    canvas.press("Enter")
    assert page.locator("#pinned h3").inner_text().startswith("Pinned")
    assert page.locator("#rows tr.pin").count() == 1
    canvas.press("Escape")
    assert page.locator("#rows tr.pin").count() == 0


def test_a_row_pins_its_trial_and_gives_its_command(report: Path, open_page) -> None:
    page = open_page(report)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#rows .number").nth(1).click()
    page.locator("#copy-trial").click()
    page.locator("#copy-trial", has_text="Copied").wait_for()
    said = page.evaluate("navigator.clipboard.readText()")
    words = shlex.split(said)
    assert words[:2] == ["raysim", "run"]
    changes = parse_changes(tuple(words[4::2]))
    run = raysim.run(raysim.load(words[2], changes), record=False, what_if=False)
    number = int(page.locator("#rows .number").nth(1).inner_text())
    trials = pd.read_parquet(report.parent / "trials.parquet")
    assert run.summary["run_id"] == trials.loc[number, "run_id"]


def test_files_are_copied_and_downloaded(report: Path, open_page) -> None:
    page = open_page(report)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    file = page.locator("details.file", has=page.locator("[data-name='launch.sh']"))
    file.locator("[data-copy]").click()
    file.get_by_text("Copied").wait_for()
    script = (report.parent / "best" / "launch.sh").read_text(encoding="utf-8")
    assert page.evaluate("navigator.clipboard.readText()") == script
    with page.expect_download() as kept:
        file.locator("[data-keep]").click()
    assert kept.value.suggested_filename == "launch.sh"
    assert Path(kept.value.path()).read_text(encoding="utf-8") == script


def test_a_plan_fits_a_phone(report: Path, open_page) -> None:
    page = open_page(report, width=390, height=800)
    longer = "c => { c.textContent = 'offload_optimizer'; return c.getBoundingClientRect().height }"
    assert page.eval_on_selector("#matters td.key", longer) < 40, "a word is broken"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(COLORS_OF, "scatter-canvas") > 20
