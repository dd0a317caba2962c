"""Parse and print quantities; SI inside, unit last in every name.

Inside raysim: seconds are ``float`` in formulas and ``int`` nanoseconds on the clock, sizes are
bytes, rates are bytes per second. Strings with units are read here and nowhere else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
NS_PER_US = 1_000

_SI = {"": 1, "k": KB, "K": KB, "M": MB, "G": GB, "T": TB, "P": 10**15}
_BINARY = {"Ki": KIB, "Mi": MIB, "Gi": GIB, "Ti": TIB, "Pi": 2**50}
_PREFIX = _SI | _BINARY
_SECONDS = {
    "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0,
    "h": 3600.0, "hour": 3600.0, "hours": 3600.0, "d": 86400.0, "day": 86400.0, "days": 86400.0,
    "w": 604800.0,
}  # fmt: skip
_BYTES = {f"{p}B": f for p, f in _PREFIX.items()} | dict(_BINARY)
_RATE = (
    {f"{p}B/s": f for p, f in _PREFIX.items()}
    | {f"{p}b/s": f / 8 for p, f in _PREFIX.items()}
    | {f"{p}bps": f / 8 for p, f in _PREFIX.items()}
)
_FLOPS = {
    f"{p}{unit}": f for p, f in _SI.items() for unit in ("FLOP/s", "FLOPS", "flop/s", "flops")
}
_QUANTITY = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S.*?)?\s*")


def _parse(text: str | float, units: Mapping[str, float], what: str, example: str) -> float:
    """Read ``text`` as a number and one of ``units``; ValueError says what is accepted."""
    if isinstance(text, bool):
        raise ValueError(f"expected {what} such as {example!r}, got {text!r}")
    if isinstance(text, (int, float)):
        text = repr(text)
    match = _QUANTITY.fullmatch(text)
    unit = (match[2] or "") if match else ""
    if match is None or unit not in units:
        raise ValueError(f"expected {what} such as {example!r}, got {text!r}")
    value = float(match[1].replace("_", "")) * units[unit]
    if not math.isfinite(value):
        raise ValueError(f"expected a finite {what}, got {text!r}")
    return value


def parse_bytes(text: str | float) -> int:
    """Bytes of ``"80GiB"``, ``"1.5 GB"``, ``"54Gi"`` or a bare count of bytes.

    Raises
    ------
    ValueError
        The text is not a size.
    """
    return round(_parse(text, _BYTES | {"": 1}, "a size", "80GiB"))


def parse_bytes_per_s(text: str | float) -> float:
    """Bytes per second of ``"400Gb/s"`` (bits), ``"50GB/s"`` (bytes) or ``"10Gbps"``.

    Raises
    ------
    ValueError
        The text is not a rate; a bare number is refused because bits and bytes differ.
    """
    return _parse(text, _RATE, "a rate", "400Gb/s")


def parse_flops_per_s(text: str | float) -> float:
    """Operations per second of ``"989 TFLOP/s"``, ``"2.3 PFLOPS"``.

    Raises
    ------
    ValueError
        The text is not such a rate; a bare number is refused.
    """
    return _parse(text, _FLOPS, "a peak", "989 TFLOP/s")


def parse_seconds(text: str | float) -> float:
    """Seconds of ``"3h"``, ``"30min"``, ``"14d"``, ``"20ms"``, ``"90 s"``.

    Raises
    ------
    ValueError
        The text is not a duration.
    """
    return _parse(text, _SECONDS, "a duration", "30min")


def parse_count(text: str | float) -> int:
    """A whole number: ``"1Mi"``, ``"100G"``, ``"5e8"``, ``4096``; ``"100B"`` is 100 billion.

    Raises
    ------
    ValueError
        The text is not a whole number.
    """
    value = _parse(text, _PREFIX | {"B": 1e9}, "a count", "100G")
    if abs(value - round(value)) > 1e-9 * abs(value):
        raise ValueError(f"expected a whole number, got {text!r}")
    return round(value)


def parse_fraction(text: str | float) -> float:
    """A share: ``"90%"`` or ``0.9``.

    Raises
    ------
    ValueError
        The text is not a share.
    """
    return _parse(text, {"": 1.0, "%": 0.01}, "a share", "90%")


def parse_usd_per_hour(text: str | float) -> float:
    """US dollars per hour: ``"23.92 usd/h"``, ``"$23.92/h"``, ``"23.92 USD/hour"``.

    Raises
    ------
    ValueError
        The text is not a price.
    """
    if isinstance(text, str):
        text = text.replace("$", "", 1).lower()
    known = {""} | {f"{what}/{per}" for what in ("", "usd") for per in ("h", "hr", "hour")}
    return _parse(text, dict.fromkeys(known, 1.0), "a price", "23.92 usd/h")


def to_ns(seconds: float) -> int:
    """Whole nanoseconds on the clock, rounded up so that nothing takes no time by rounding."""
    return math.ceil(seconds * NS_PER_S - 1e-6)


def to_seconds(ns: int) -> float:
    """Seconds of a clock reading."""
    return ns / NS_PER_S


def _significant(value: float) -> str:
    """``value`` with three significant digits and no exponent."""
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def format_bytes(size_bytes: float) -> str:
    """Binary size, three significant digits: ``"23.9 GiB"``."""
    for unit, scale in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(size_bytes) >= scale:
            return f"{_significant(size_bytes / scale)} {unit}"
    return f"{size_bytes:.0f} B"


def format_bytes_per_s(rate: float) -> str:
    """Decimal bytes per second, as nccl-tests prints: ``"46.2 GB/s"``."""
    for unit, scale in (("TB/s", TB), ("GB/s", GB), ("MB/s", MB), ("kB/s", KB)):
        if abs(rate) >= scale:
            return f"{_significant(rate / scale)} {unit}"
    return f"{rate:.0f} B/s"


def format_seconds(seconds: float) -> str:
    """A duration a person reads at a glance: ``"172 ms"``, ``"8.93 s"``, ``"9.9 days"``."""
    size = abs(seconds)
    if size >= 2 * 86400:
        return f"{_significant(seconds / 86400)} days"
    if size >= 2 * 3600:
        return f"{_significant(seconds / 3600)} h"
    if size >= 120:
        return f"{_significant(seconds / 60)} min"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if size >= scale:
            return f"{_significant(seconds / scale)} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def format_count(value: float) -> str:
    """A count with SI suffix: ``"8.03 B"`` for parameters, ``"524 k"`` for tokens."""
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{_significant(value / scale)} {unit}"
    return f"{value:,.0f}" if value == int(value) else _significant(value)
