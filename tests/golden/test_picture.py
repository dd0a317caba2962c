"""The picture in README.md: what the main job prints, in colour; ``--update-golden`` draws it."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.terminal_theme import TerminalTheme

import raysim
from raysim.report import console

PICTURE = Path("scenarios/llama3_8b_zero3/printed.svg")
MAX_BYTES = 200_000
WIDTH = 100

THEME = TerminalTheme(
    (250, 250, 248),
    (40, 44, 52),
    [(40, 44, 52), (178, 46, 46), (46, 125, 50), (150, 105, 0), (30, 90, 170), (130, 60, 140),
     (0, 120, 130), (110, 115, 120)],
    [(110, 115, 120), (200, 60, 60), (60, 140, 64), (170, 120, 0), (50, 110, 190), (150, 80, 160),
     (20, 140, 150), (40, 44, 52)],
)  # fmt: skip

FORMAT = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px;
}}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
<rect width="{width}" height="{height}" rx="8" fill="#fafaf8"/>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""rich's own frame without window buttons and without fonts fetched from the network."""


def drawn(summary: dict[str, object]) -> str:
    """The printed report as SVG; same summary, same bytes."""
    paper = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    paper.print(console.render(summary, width=WIDTH))
    return paper.export_svg(code_format=FORMAT, theme=THEME, unique_id="raysim")


def test_picture_shows_what_is_printed(
    update_golden: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    result = raysim.run(raysim.load(PICTURE.parent), record=False)
    picture = drawn(result.summary)
    if update_golden:
        PICTURE.write_text(picture, encoding="utf-8", newline="\n")
    assert picture == PICTURE.read_text(encoding="utf-8")
    assert len(picture.encode()) < MAX_BYTES
    assert not re.search(r"(href|src|url)\W+https?:", picture)
