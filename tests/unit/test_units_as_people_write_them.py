"""Counts and prices in the words that people use for them."""

from __future__ import annotations

import pytest

from raysim.units import parse_bytes, parse_count, parse_usd_per_hour


@pytest.mark.parametrize(
    ("text", "count"), [("100B", 10**11), ("1.5B", 1_500_000_000), ("7M", 7e6)]
)
def test_billions_of_tokens(text: str, count: int) -> None:
    assert parse_count(text) == count


def test_a_b_is_a_byte_where_bytes_are_asked_for() -> None:
    assert parse_bytes("100B") == 100


@pytest.mark.parametrize("text", ["2.5 usd/h", "2.5 USD/hour", "$2.5/h", "$2.50/hr", "2.5 usd/hr"])
def test_prices_per_hour(text: str) -> None:
    assert parse_usd_per_hour(text) == 2.5


@pytest.mark.parametrize("text", ["2.5 usd/day", "2.5 eur/h", "usd/h"])
def test_other_prices_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a price such as"):
        parse_usd_per_hour(text)
