"""Colours of a program's figures can be told from what they are drawn on (WCAG 2.2, 1.4.11)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import raysim

TEMPLATES = Path(raysim.__file__).parent / "report" / "templates"
LEAST = 3.0
"""Of graphics; text is in the page's own colours."""


def variables(text: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+):(#[0-9a-f]{3,6})\b", text))


def themes() -> dict[str, dict[str, str]]:
    """The page's colours and the figures', of each theme."""
    page = (TEMPLATES / "report.css.j2").read_text(encoding="utf-8")
    mine = (TEMPLATES / "program.css.j2").read_text(encoding="utf-8")
    dark_page, light_page = page.split("{% macro dark() %}")[1].split(":root{")[:2]
    light_mine, dark_mine = mine.split("{% macro dark() %}")
    return {
        "light": variables(light_page) | variables(light_mine),
        "dark": variables(dark_page) | variables(dark_mine.split(":root")[0]),
    }


def luminance(color: str) -> float:
    digits = color[1:] if len(color) == 7 else "".join(c * 2 for c in color[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("ground", ["card", "raised"])
def test_figures_stand_out(theme: str, ground: str) -> None:
    colors = themes()[theme]
    found = {f"p{i}": contrast(colors[f"p{i}"], colors[ground]) for i in range(9)}
    found |= {name: contrast(colors[name], colors[ground]) for name in ("bad", "soft")}
    assert {name: round(ratio, 2) for name, ratio in found.items() if ratio < LEAST} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_marks_and_words_are_readable(theme: str) -> None:
    colors = themes()[theme]
    for pair in (("soft", "card"), ("ink", "raised"), ("warn", "warn-bg"), ("good", "good-bg")):
        assert contrast(*(colors[name] for name in pair)) >= 4.5, pair
