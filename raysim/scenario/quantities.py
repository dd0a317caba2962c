"""Types of scenario fields: text with a unit in, SI numbers out.

Bare numbers are accepted for counts and shares only; a duration, rate or size needs its unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, WithJsonSchema

from raysim import units
from raysim.hardware.specs import NicKind

COUNT_LIMIT = 10**18
"""Above this a count is a typing error, and int64 arithmetic would overflow."""


def _checked(
    parse: Callable[[Any], float], lowest: float, highest: float, *, units_needed: bool
) -> Callable[[Any], Any]:
    """A validator: ``parse``, then bounds; bare numbers refused when a unit is needed."""

    def validate(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ValueError(f"expected a quantity, got {type(value).__name__}")
        if units_needed and not isinstance(value, str) and value != 0:
            raise ValueError(f"needs a unit, for example {_EXAMPLES[parse]!r}")
        if isinstance(value, int) and abs(value) > COUNT_LIMIT:
            raise ValueError(f"is too large (at most {COUNT_LIMIT:.0e})")
        number = parse(value) if value != 0 or not units_needed else 0.0
        if number < lowest:
            raise ValueError(f"must be at least {lowest:g} (got {value!r})")
        if number > highest:
            raise ValueError(f"must be at most {highest:g} (got {value!r})")
        return number

    return validate


_EXAMPLES: dict[Callable[[Any], float], str] = {
    units.parse_seconds: "30min",
    units.parse_bytes_per_s: "400Gb/s",
    units.parse_bytes: "80GiB",
    units.parse_flops_per_s: "989 TFLOP/s",
    units.parse_usd_per_hour: "23.92 usd/h",
}


def _text_schema(example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": ["string", "number"], "examples": [example]})


parse_duration = _checked(units.parse_seconds, 0, 1e12, units_needed=True)
"""Seconds of text with a unit."""
_SECONDS = BeforeValidator(parse_duration)
_BYTES = BeforeValidator(_checked(units.parse_bytes, 0, 1e18, units_needed=True))
_RATE = BeforeValidator(_checked(units.parse_bytes_per_s, 0, 1e15, units_needed=True))
_PEAK = BeforeValidator(_checked(units.parse_flops_per_s, 1e9, 1e18, units_needed=True))
_PRICE = BeforeValidator(_checked(units.parse_usd_per_hour, 0, 1e9, units_needed=True))
_SHARE = BeforeValidator(_checked(units.parse_fraction, 0, 1, units_needed=False))
_COUNT = BeforeValidator(_checked(units.parse_count, 0, COUNT_LIMIT, units_needed=False))
_POSITIVE = BeforeValidator(_checked(units.parse_count, 1, COUNT_LIMIT, units_needed=False))

Seconds = Annotated[float, _SECONDS, _text_schema("30min")]
Bytes = Annotated[int, _BYTES, _text_schema("80GiB")]
BytesPerSecond = Annotated[float, _RATE, _text_schema("400Gb/s")]
FlopsPerSecond = Annotated[float, _PEAK, _text_schema("989 TFLOP/s")]
UsdPerHour = Annotated[float, _PRICE, _text_schema("23.92 usd/h")]
Share = Annotated[float, _SHARE, _text_schema("90%")]
Count = Annotated[int, _COUNT, _text_schema("100G")]
PositiveCount = Annotated[int, _POSITIVE, _text_schema("1Mi")]


NIC_KINDS = get_args(NicKind)
NICS_SAID = (
    "a rate, with its kind where it is not the node's (8x400Gb/s; 1x100Gb/s ethernet, infiniband, "
    "roce or efa), or a name (8x roce-400; raysim catalog nics)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NicChoice:
    """``8x400Gb/s`` or ``8x roce-400``: how many network interfaces a node has, and of what."""

    count: int
    bytes_per_s: float | None
    name: str | None
    kind: str | None = None
    """Of a rate; None: the node's own where there is one."""


def parse_nics(value: Any) -> NicChoice:
    """Read ``8x400Gb/s``, ``400Gb/s``, ``1x100Gb/s ethernet`` or ``4x roce-400``.

    Raises
    ------
    ValueError
        The text is neither.
    """
    if isinstance(value, NicChoice):
        return value
    match = re.fullmatch(r"\s*(?:(\d{1,3})\s*x\s*)?(\S.*?)\s*", value) if _is_text(value) else None
    if match is None or match[1] == "0":
        raise ValueError(f"expected a count and a rate such as '8x400Gb/s', got {value!r}")
    count = int(match[1] or 1)
    said, _, kind = match[2].partition(" ")
    kind = kind.strip().lower()
    if kind not in NIC_KINDS:
        said, kind = match[2], ""
    try:
        rate = units.parse_bytes_per_s(said)
    except ValueError:
        if said[0].isdigit():
            raise ValueError(f"expected {NICS_SAID}; got {value!r}") from None
        return NicChoice(count=count, bytes_per_s=None, name=match[2])
    if not 0 < rate < 1e13 or not math.isfinite(rate):
        raise ValueError(f"expected a rate such as '8x400Gb/s', got {value!r}")
    return NicChoice(count=count, bytes_per_s=rate, name=None, kind=kind or None)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


Nics = Annotated[
    NicChoice,
    BeforeValidator(parse_nics),
    WithJsonSchema({"type": "string", "examples": ["8x400Gb/s", "1x100Gb/s ethernet"]}),
]
