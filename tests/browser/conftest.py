"""A page opened in Chromium: nothing on its console, no request, a picture kept of every test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

NAMES = ("chromium", "chromium-browser", "google-chrome")
PICTURES = Path(__file__).parents[2] / "runs" / "screenshots"
"""Looked at by people; made anew by every run of these tests."""
LAPTOP = {"width": 1280, "height": 800}

Opener = Callable[..., "Page"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium of this machine, once for a file.

    Playwright keeps an event loop running in the process for as long: other tests have their own.
    """
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"none of {', '.join(NAMES)} is here")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Opener]:
    """Open a file; at the end fail on errors and requests, and keep a full picture of it.

    ``open_page(path, dark=False, width=1280, height=800)`` gives playwright's ``Page``.
    """
    opened: list[Page] = []
    wrong: list[str] = []

    def said(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            wrong.append(f"{message.type}: {message.text}")

    def asked(asked_for: Request) -> None:
        if not asked_for.url.startswith(("file:", "data:", "blob:")):
            wrong.append(f"request: {asked_for.url}")

    def opener(path: Path, *, dark: bool = False, **size: int) -> Page:
        context = browser.new_context(
            viewport={**LAPTOP, **size},  # type: ignore[typeddict-item]
            color_scheme="dark" if dark else "light",
        )
        page = context.new_page()
        page.on("console", said)
        page.on("pageerror", lambda error: wrong.append(f"uncaught: {error}"))
        page.on("request", asked)
        page.goto(path.resolve().as_uri())
        opened.append(page)
        return page

    yield opener
    PICTURES.mkdir(parents=True, exist_ok=True)
    for number, page in enumerate(opened):
        name = f"{request.node.name}{f'-{number}' if number else ''}.png"
        page.screenshot(path=PICTURES / name, full_page=True)
        page.context.close()
    assert wrong == []
