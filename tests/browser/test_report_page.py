"""The page of a training job, in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raysim

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
ROOT = Path(__file__).parents[2]
MOST_BYTES = 8_000_000
PHONE = {"width": 390, "height": 844}
PICTURES = ("overview-canvas", "timeline-canvas", "memory-canvas", "links-canvas")


def written(name: str, folder: Path, changes: dict[str, Any] | None = None) -> Path:
    scenario = raysim.load(ROOT / "scenarios" / name)
    result = raysim.run(scenario.with_(changes or {}), what_if=not changes)
    return result.write(folder, trace="none") / "report.html"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The main job's page."""
    return written("llama3_8b_zero3", tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight GPUs, each simulated, no two alike, for years."""
    noise: dict[str, Any] = {
        "train.exact": True,
        "train.noise.gpu_cv": 0.03,
        "train.noise.step_cv": 0.02,
    }
    noise |= {"train.tokens": "10T"}
    return written("llama31_8b_fsdp2", tmp_path_factory.mktemp("ranks"), noise)


@pytest.fixture(scope="module")
def too_big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that runs out of memory."""
    folder = tmp_path_factory.mktemp("too_big")
    return written("llama31_8b_fsdp2", folder, {"train.micro_batch": 16})


@pytest.fixture
def opened(open_page) -> Any:
    """``open_page`` for who asks for less motion: what gets the focus is in sight at once."""

    def opener(path: Path, **how: Any) -> Any:
        page = open_page(path, **how)
        page.emulate_media(reduced_motion="reduce")
        return page

    return opener


def colours(page: Any, canvas: str) -> int:
    """How many different colours a canvas shows: 1 is blank."""
    return page.evaluate(
        """(id) => {
            const c = document.getElementById(id), g = c.getContext("2d");
            const d = g.getImageData(0, 0, c.width, c.height).data, found = new Set();
            for (let i = 0; i < d.length; i += 4 * 7) found.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);
            return found.size;
        }""",  # noqa: E501
        canvas,
    )


def picture(page: Any, canvas: str) -> str:
    page.evaluate("new Promise(requestAnimationFrame)")
    return page.evaluate("(id) => document.getElementById(id).toDataURL()", canvas)


def axis(page: Any) -> str:
    """The timeline as it is drawn: changes whenever the stretch of time does."""
    return picture(page, "timeline-canvas")


def test_the_verdict_is_the_first_thing_on_the_page(report: Path, opened) -> None:
    page = opened(report)
    assert "Fits" in page.locator("main section").first.inner_text()
    assert report.stat().st_size < MOST_BYTES


@pytest.mark.parametrize("dark", [False, True])
def test_every_picture_is_drawn_in_both_themes(report: Path, opened, dark: bool) -> None:
    page = opened(report, dark=dark)
    red, green, blue = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    )[:3]
    assert (max(red, green, blue) < 64) == dark
    for canvas in PICTURES:
        assert colours(page, canvas) > 8, canvas
    assert page.locator("#parity circle.dot").count() > 50
    before = axis(page)
    page.click("#theme")
    assert axis(page) != before
    assert page.evaluate("document.documentElement.dataset.theme") == ("light" if dark else "dark")


def test_every_section_that_the_page_promises_is_there(report: Path, opened) -> None:
    page = opened(report)
    for link in page.locator("nav a").all():
        target = page.locator(str(link.get_attribute("href")))
        assert target.locator("h2").count() >= 1
        assert target.bounding_box()["height"] > 60
    for heading in ("What the step rests on", "Where the money goes".lower()):
        assert page.get_by_text(heading).count() >= 1


def test_keys_zoom_move_and_come_back(report: Path, opened) -> None:
    page = opened(report)
    start = axis(page)
    page.focus("#timeline-canvas")
    page.keyboard.press("+")
    near = axis(page)
    assert near != start
    page.keyboard.press("ArrowRight")
    assert axis(page) != near
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("-")
    page.keyboard.press("0")
    page.mouse.move(0, 0)
    assert axis(page) == start


def test_a_slice_is_read_out_by_keys_and_by_pointer(report: Path, opened) -> None:
    page = opened(report)
    page.focus("#timeline-canvas")
    page.keyboard.press("n")
    first = page.inner_text("#tip")
    assert "collective" in first  # the SMs that the first gather holds
    assert "of the step" in first
    assert page.inner_text("#said") != ""
    page.keyboard.press("n")
    assert page.inner_text("#tip") != first
    page.keyboard.press("ArrowDown")
    assert "comm" in page.inner_text("#tip")
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()
    box = page.locator("#timeline-canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 36)
    assert page.locator("#tip").is_visible()


def test_dragging_moves_and_with_shift_measures(report: Path, opened) -> None:
    page = opened(report)
    page.locator("#timeline-canvas").scroll_into_view_if_needed()
    page.locator("#timeline button[data-do=in]").first.click()
    before = axis(page)
    box = page.locator("#timeline-canvas").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + 20

    def drag() -> None:
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + 150, y, steps=3)
        page.mouse.up()

    drag()
    assert axis(page) != before
    assert page.inner_text("#measured") == ""
    page.keyboard.down("Shift")
    drag()
    page.keyboard.up("Shift")
    said = page.inner_text("#measured")
    assert " s, from " in said
    page.click("#to-mark")
    page.focus("#timeline-canvas")
    page.keyboard.press("Escape")
    assert page.inner_text("#measured") == ""


def test_what_is_out_of_sight_is_drawn_when_it_comes_into_sight(report: Path, opened) -> None:
    page = opened(report)
    page.locator("#timeline-canvas").scroll_into_view_if_needed()
    before = picture(page, "links-canvas")
    page.locator("#timeline button[data-do=in]").first.click()
    page.locator("#links-canvas").scroll_into_view_if_needed()
    page.wait_for_function(
        "(old) => document.getElementById('links-canvas').toDataURL() !== old", arg=before
    )


def test_measuring_by_keys_alone(report: Path, opened) -> None:
    page = opened(report)
    page.focus("#timeline-canvas")
    for key in ("n", "m", "n", "n", "m"):
        page.keyboard.press(key)
    assert "s, from 0 ns to " in page.inner_text("#measured")


def test_finding_a_name_sums_its_slices_and_dims_the_others(report: Path, opened) -> None:
    page = opened(report)
    before = axis(page)
    page.fill("#find", "lm_head")
    assert "slices, " in page.inner_text("#found")
    assert " in all" in page.inner_text("#found")
    assert axis(page) != before
    page.press("#find", "Enter")
    assert "lm_head" in page.inner_text("#tip")
    page.fill("#find", "no such thing")
    assert "no slice" in page.inner_text("#found")
    page.press("#find", "Escape")
    assert page.inner_text("#found") == ""


def test_a_kind_is_hidden_and_shown_again(report: Path, opened) -> None:
    page = opened(report)
    before = axis(page)
    button = page.locator("#timeline-legend button", has_text="forward")
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    assert axis(page) != before
    button.press(" ")
    assert axis(page) == before


def test_every_rank_of_an_exact_run_can_be_looked_at(ranks: Path, opened) -> None:
    page = opened(ranks)
    assert page.input_value("#timeline-rows") == "compute"
    small = page.locator("#timeline-canvas").bounding_box()["height"]
    page.select_option("#timeline-rows", "all")
    assert page.locator("#timeline-canvas").bounding_box()["height"] > 2 * small
    page.select_option("#timeline-rows", label="rank 5")
    assert colours(page, "timeline-canvas") > 8
    assert page.locator("#memory-gpu option").count() == 8
    before = picture(page, "memory-canvas")
    page.select_option("#memory-gpu", "5")
    assert picture(page, "memory-canvas") != before
    assert ranks.stat().st_size < MOST_BYTES


def test_links_are_read_out_by_keys(report: Path, opened) -> None:
    page = opened(report)
    page.focus("#links-canvas")
    page.keyboard.press("n")
    first = page.inner_text("#tip")
    assert "node-0/gpu-0/nvlink-out" in first
    page.keyboard.press("ArrowDown")
    assert page.inner_text("#tip") != first
    before = page.locator("#links-canvas").bounding_box()["height"]
    page.select_option("#links-kind", label="NIC ports")
    assert page.locator("#links-canvas").bounding_box()["height"] < before


def test_a_table_sorts_both_ways(report: Path, opened) -> None:
    page = opened(report)
    button = page.locator("#links th .sort", has_text="mean")

    def means() -> list[float]:
        cells = page.locator("#links tbody tr td:nth-child(5)")
        return [float(str(c.get_attribute("data-v"))) for c in cells.all()]

    button.press("Enter")
    assert means() == sorted(means(), reverse=True)
    button.press("Enter")
    assert means() == sorted(means())
    assert page.locator("#links th[aria-sort=ascending]").count() == 1


def test_formulas_come_up_by_focus(report: Path, opened) -> None:
    page = opened(report)
    page.keyboard.press("Tab")
    assert "Skip" in page.evaluate("document.activeElement.textContent")
    row = page.locator("#step tbody tr").first
    page.locator("#step .scroll").focus()
    page.keyboard.press("Tab")
    assert row.evaluate("(r) => r === document.activeElement")
    assert "3 x forward FLOPs" in page.inner_text("#tip")
    width = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert float(width.removesuffix("px")) >= 2


def test_everything_to_press_has_a_name_and_every_header_a_scope(report: Path, opened) -> None:
    page = opened(report)
    nameless = page.evaluate(
        """[...document.querySelectorAll("button,select,input,canvas,[role=img],[role=region]")]
        .filter(e => !(e.textContent.trim() || e.ariaLabel || e.labels?.length || e.title))
        .map(e => e.outerHTML.slice(0, 80))"""
    )
    assert nameless == []
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator("canvas:not([tabindex])").count() == 0


def test_a_printed_page_shows_all_and_nothing_to_press(report: Path, opened, tmp_path) -> None:
    page = opened(report, dark=True)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert page.locator(".tools:visible").count() == 0
    assert page.locator("nav").is_hidden()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    pdf = page.pdf(path=str(tmp_path / "report.pdf"), format="A4")
    assert pdf.startswith(b"%PDF")
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() > 0


@pytest.mark.parametrize("name", ["report", "ranks", "too_big"])
def test_a_phone_scrolls_one_way_only(name: str, request, opened) -> None:
    page = opened(request.getfixturevalue(name), **PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    for canvas in PICTURES:
        assert page.locator(f"#{canvas}").bounding_box()["width"] <= PHONE["width"]


def test_no_number_under_the_verdict_is_cut_off(ranks: Path, opened) -> None:
    page = opened(ranks, width=1200)
    cut = "es => es.filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent)"
    assert page.locator(".tile .value").filter(has_text="$").inner_text().count(",") >= 2
    assert page.locator(".tile .value").evaluate_all(cut) == []


def test_a_job_that_does_not_fit_says_so_everywhere(too_big: Path, opened) -> None:
    page = opened(too_big)
    assert "Does not fit" in page.locator("main section").first.inner_text()
    assert "too much" in page.inner_text("#memory")
    assert "If there were memory enough" in page.inner_text("#cost")
    assert colours(page, "memory-canvas") > 8
    page.click("#memory button[data-do=peak]")
