"""The page's style sheet: contrast of every text on every ground, in both themes (WCAG 2.1 AA)."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from raysim.report import html
from tests.unit import report_cases

TEXT = 4.5
"""Least ratio of luminances of text and what is behind it; 3 of large text and of graphics."""
GRAPHIC = 3.0
ON = {
    "ink": ("page", "card", "raised", "good-bg", "bad-bg"),
    "soft": ("page", "card", "raised"),
    "accent": ("page", "card"),
    "good": ("card", "good-bg"),
    "bad": ("card", "bad-bg"),
    "warn": ("card", "warn-bg"),
}


def luminance(color: str) -> float:
    digits = color.lstrip("#")
    digits = "".join(c * 2 for c in digits) if len(digits) == 3 else digits
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def theme(name: str) -> dict[str, str]:
    """Custom properties of one theme, as the rendered page defines them."""
    text = html.render(report_cases.ddp())
    blocks = re.findall(r"color-scheme:(light|dark);(.*?)\}", text, re.DOTALL)
    body = next(body for scheme, body in blocks if scheme == name)
    return dict(re.findall(r"--([\w-]+):(#[0-9a-fA-F]{3,6})", body))


@pytest.mark.parametrize("name", ["light", "dark"])
def test_every_text_can_be_read(name: str) -> None:
    colors = theme(name)
    for ink, grounds in ON.items():
        for ground in grounds:
            ratio = contrast(colors[ink], colors[ground])
            assert ratio >= TEXT, f"{name}: {ink} on {ground} is {ratio:.2f}"


@pytest.mark.parametrize("name", ["light", "dark"])
def test_bars_of_good_and_bad_stand_out(name: str) -> None:
    colors = theme(name)
    for key in ("good", "bad", "accent"):
        assert contrast(colors[key], colors["card"]) >= GRAPHIC


@pytest.mark.parametrize("name", ["light", "dark"])
def test_a_busier_link_differs_more_from_an_idle_one(name: str) -> None:
    """The scale is told apart by its lightness alone."""
    colors = theme(name)
    scale = [luminance(colors[f"heat-{k}"]) for k in range(4)]
    assert scale in (sorted(scale), sorted(scale, reverse=True))
    assert contrast(colors["heat-0"], colors["heat-3"]) >= 7


def test_no_two_neighbours_of_a_stack_differ_by_colour_alone() -> None:
    """Where categories touch, lightness or pattern tells them apart."""
    order = list(html.charts.MEMORY_COLORS)
    for below, above in pairwise(order):
        tones = [html.charts.MEMORY_COLORS[key].light for key in (below, above)]
        patterns = [html.charts.PATTERNS.get(key) for key in (below, above)]
        assert patterns[0] != patterns[1] or contrast(*tones) > 1.2, (below, above)
