"""Pages of Ray programs and of jobs of Ray's libraries, in a browser, with a mouse and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import raysim

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
ROOT = Path(__file__).parents[2]
SCENARIOS = ("ray_shuffle_spills", "ray_node_failure", "ray_shared_cluster", "serve_burst")
"""Spilling and transfers, failures, several jobs and machines that come, a library."""
MOST_BYTES = 8 * 2**20

Paths = Callable[[str], Path]


@pytest.fixture(scope="module")
def path_of(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    """The page of a scenario, run once."""
    made: dict[str, Path] = {}

    def path(name: str) -> Path:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            result = raysim.run(raysim.load(ROOT / "scenarios" / name))
            made[name] = folder / "report.html"
            result.write(folder, trace="none")
        return made[name]

    return path


def pixels(page: Page, selector: str) -> list[int]:
    """Of each canvas: how many colours it has, looked at every 97th pixel."""
    found: list[int] = page.eval_on_selector_all(
        selector,
        """(all) => all.map((c) => {
          const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data, seen = new Set();
          for (let i = 0; i < d.length; i += 4 * 97) seen.add(`${d[i]},${d[i + 1]},${d[i + 2]}`);
          return seen.size;
        })""",
    )
    return found


def scale(page: Page) -> float:
    """How much of the run is left out: 1 shows all."""
    return float(page.evaluate("document.documentElement.style.getPropertyValue('--s')"))


def picture(page: Page, selector: str) -> str:
    return str(page.eval_on_selector(selector, "(c) => c.toDataURL()"))


@pytest.mark.parametrize(
    ("name", "dark"),
    [*((name, False) for name in SCENARIOS), ("ray_shuffle_spills", True), ("serve_burst", True)],
)
def test_every_picture_is_there_and_not_blank(
    name: str, dark: bool, path_of: Paths, open_page: Any
) -> None:
    page = open_page(path_of(name), dark=dark)
    assert path_of(name).stat().st_size < MOST_BYTES
    drawn = page.eval_on_selector_all(
        "figure.lines svg .line",
        "(all) => all.map((p) => p.getBBox()).map((b) => b.width + b.height)",
    )
    assert drawn
    assert min(drawn) > 0
    bars = page.eval_on_selector_all(
        "figure.bars .area i", "(all) => all.map((b) => b.getBoundingClientRect().width)"
    )
    assert all(width > 0 for width in bars)
    lanes = pixels(page, ".lane canvas")
    assert lanes
    assert max(lanes) > 2
    assert all(colors > 2 for colors in pixels(page, "figure.heat canvas"))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    dead = page.eval_on_selector_all(
        "nav li a", "(all) => all.filter((a) => !document.querySelector(a.hash)).length"
    )
    assert dead == 0


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_phone_shows_it_without_scrolling_sideways(
    name: str, path_of: Paths, open_page: Any
) -> None:
    page = open_page(path_of(name), width=390, height=844)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    labels = page.eval_on_selector_all(
        ".xlab.time", "(all) => all.map((a) => a.querySelectorAll('span').length)"
    )
    assert min(labels) >= 2


def test_keys_zoom_all_figures_together(path_of: Paths, open_page: Any) -> None:
    page = open_page(path_of("ray_shuffle_spills"))
    assert scale(page) == 1
    assert page.locator("#zoombar").is_hidden()
    page.locator(".lane canvas").first.focus()
    page.keyboard.press("+")
    page.keyboard.press("+")
    assert scale(page) == pytest.approx(1 / 0.36)
    assert page.locator("#zoombar").is_visible()
    boxes = page.eval_on_selector_all(
        "figure.lines .area>svg", "(all) => all.map((s) => s.getAttribute('viewBox'))"
    )
    assert len(set(boxes)) == 1
    assert float(boxes[0].split()[2]) == pytest.approx(360, rel=1e-3)
    page.keyboard.press("0")
    assert scale(page) == 1
    page.locator("#zoom-in").click()
    assert scale(page) == 2
    page.locator("#whole").click()
    assert scale(page) == 1


def test_the_mouse_zooms_with_ctrl_and_moves_by_dragging(path_of: Paths, open_page: Any) -> None:
    page = open_page(path_of("ray_shuffle_spills"))
    area = page.locator("figure.lines .area").first
    wheel = """(a, held) => a.dispatchEvent(new WheelEvent("wheel", {deltaY: -100, ctrlKey: held,
      clientX: a.getBoundingClientRect().left + 200, cancelable: true, bubbles: true}))"""
    assert area.evaluate(wheel, False)  # not prevented: without Ctrl the page scrolls
    assert scale(page) == 1
    assert not area.evaluate(wheel, True)
    assert scale(page) == 1.25
    before = page.evaluate("window.raysim.view()[0]")
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + 40
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y)
    page.mouse.up()
    assert page.evaluate("window.raysim.view()[0]") < before


def test_focus_tells_what_is_there_and_keys_go_from_task_to_task(
    path_of: Paths, open_page: Any
) -> None:
    page = open_page(path_of("ray_node_failure"))
    tip = page.locator("#tip")
    page.locator(".lane .name").nth(2).focus()
    page.keyboard.press("Tab")
    assert "node-2" in tip.inner_text()
    page.keyboard.press("0")
    assert "silent, and nobody knows yet" in tip.inner_text()
    page.keyboard.press("n")
    assert "Progress.__init__" in tip.inner_text()
    for _ in range(3):  # past the actor's first calls
        page.keyboard.press("n")
    said = tip.inner_text()
    assert "simulate" in said
    assert "takes" in said
    assert page.locator("#said").inner_text().split() == said.split()
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    page.locator("figure.lines .area").first.focus()
    page.keyboard.press("ArrowRight")
    assert "run" in tip.inner_text()


def test_pointing_at_a_task_tells_function_duration_and_node(
    path_of: Paths, open_page: Any
) -> None:
    page = open_page(path_of("ray_shuffle_spills"))
    canvas = page.locator(".lane canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.1, box["y"] + 4)
    said = page.locator("#tip").inner_text()
    assert "map" in said
    assert "finished" in said
    assert "node-0" in said


def test_a_lane_opens(path_of: Paths, open_page: Any) -> None:
    page = open_page(path_of("ray_node_failure"))
    canvas, name = page.locator(".lane canvas").first, page.locator(".lane .name").first
    before = canvas.bounding_box()["height"]
    name.press("Enter")
    assert name.get_attribute("aria-expanded") == "true"
    assert canvas.bounding_box()["height"] > before + 40
    name.press("Enter")
    assert canvas.bounding_box()["height"] == before


def test_legends_hide_and_show(path_of: Paths, open_page: Any) -> None:
    page = open_page(path_of("ray_shuffle_spills"))
    first = ".lane canvas"
    before = picture(page, first)
    key = page.locator("#functions-legend button").first
    key.press("Enter")
    assert key.get_attribute("aria-pressed") == "false"
    assert picture(page, first) != before
    key.press("Enter")
    assert picture(page, first) == before
    figure = page.locator("#fig-store")
    line = figure.locator(".line").nth(1)
    figure.locator(".keys button").nth(1).click()
    assert not line.is_visible()
    figure.locator(".area").focus()
    assert "spilled to disk" not in page.locator("#tip").inner_text()


def test_what_happened_is_shown_on_the_timeline(path_of: Paths, open_page: Any) -> None:
    page = open_page(path_of("ray_shared_cluster"))
    page.locator("#timeline details summary").first.click()
    row = page.locator("[data-go]").first
    row.click()
    assert scale(page) > 4
    at = float(row.get_attribute("data-go"))
    end = page.evaluate("window.raysim.data.end")
    a, b = page.evaluate("window.raysim.view()")
    assert a <= at / end <= b


def test_jobs_have_bars_and_a_share_of_the_bill(path_of: Paths, open_page: Any) -> None:
    page = open_page(path_of("ray_shared_cluster"))
    assert page.locator("#fig-jobs-bars .rlab span").count() == 6
    page.locator("#fig-jobs-bars .area").focus()
    page.keyboard.press("n")
    assert "features" in page.locator("#tip").inner_text()
    shares = page.eval_on_selector_all(
        "#jobs td.grow + td", "(all) => all.map((c) => Number(c.dataset.v))"
    )
    assert sum(shares) == pytest.approx(1, abs=1e-6)


def test_a_library_leads_with_its_own_figures(path_of: Paths, open_page: Any) -> None:
    page = open_page(path_of("serve_burst"))
    order = page.eval_on_selector_all("main>section", "(all) => all.map((s) => s.id)")
    assert order[:3] == ["verdict", "libraries", "timeline"]
    assert page.locator("#libraries figure").count() == 5
    page.locator("figure.cloud .area").focus()
    page.keyboard.press("ArrowRight")
    said = page.locator("#tip").inner_text()
    assert "requests sent" in said
    assert "p99" in said
    assert "a target is missed" in page.locator("#verdict h2").inner_text()
    assert page.locator("#verdict .warns").count() == 1


def test_ports_are_told_by_keys(path_of: Paths, open_page: Any) -> None:
    page = open_page(path_of("ray_shuffle_spills"))
    page.locator("figure.heat .area").focus()
    page.keyboard.press("ArrowDown")
    said = page.locator("#tip").inner_text()
    assert "node-0 nic 0 out" in said
    assert "GiB" in said


def test_tables_sort(path_of: Paths, open_page: Any) -> None:
    page = open_page(path_of("ray_shared_cluster"))
    busy = page.locator("#functions th .sort", has_text="busy")
    busy.press("Enter")
    busy.press("Enter")
    header = page.locator("#functions th[aria-sort=ascending]")
    assert header.inner_text().startswith("busy")
    values = page.eval_on_selector_all(
        "#functions tbody tr", "(all) => all.map((r) => Number(r.children[5].dataset.v))"
    )
    assert values == sorted(values)


def test_the_theme_changes_the_canvases_too(path_of: Paths, open_page: Any) -> None:
    page = open_page(path_of("ray_shuffle_spills"))
    before = picture(page, ".lane canvas")
    page.locator("#theme").click()
    assert page.locator("#theme").inner_text() == "Light page"
    assert picture(page, ".lane canvas") != before


@pytest.mark.parametrize("name", ["ray_shared_cluster", "serve_burst"])
def test_everything_has_a_name_and_shows_its_focus(
    name: str, path_of: Paths, open_page: Any
) -> None:
    page = open_page(path_of(name))
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button,a,[tabindex='0'],summary,[role=img]")]
          .filter((e) => e.tagName !== "PRE" && !(e.getAttribute("aria-label") || e.innerText
            || e.textContent.trim()))
          .map((e) => e.outerHTML.slice(0, 120))"""
    )
    assert nameless == []
    page.locator(".lane .name").first.focus()
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_it_prints(path_of: Paths, open_page: Any) -> None:
    page = open_page(path_of("ray_node_failure"))
    page.emulate_media(media="print")
    assert page.locator("nav").is_hidden()
    assert len(page.pdf()) > 50_000
