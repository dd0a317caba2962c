"""How long tasks run, as distributions; times between arrivals use the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from raysim.units import NS_PER_S
from raysim.workloads.ray.checks import Checks


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """Always the same."""

    seconds: float

    def __post_init__(self) -> None:
        checks = Checks("constant")
        checks.at_least("seconds", self.seconds, 0)
        checks.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """Anything between."""

    low_s: float
    high_s: float

    def __post_init__(self) -> None:
        checks = Checks("uniform")
        checks.at_least("low_s", self.low_s, 0)
        checks.at_least("high_s", self.high_s, self.low_s)
        checks.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential:
    """Memoryless."""

    mean_s: float

    def __post_init__(self) -> None:
        checks = Checks("exponential")
        checks.more_than("mean_s", self.mean_s, 0)
        checks.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """Most are near the median, few are far above: stragglers."""

    median_s: float
    sigma: float
    """Of the logarithm: 0.5 puts the 99th percentile at 3.2 times the median, 1 at 10 times."""

    def __post_init__(self) -> None:
        checks = Checks("lognormal")
        checks.more_than("median_s", self.median_s, 0)
        checks.at_least("sigma", self.sigma, 0)
        checks.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class Empirical:
    """Drawn from measured values, with replacement."""

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        checks = Checks("empirical")
        if not self.seconds:
            checks.wrong("seconds", "needs at least one value")
        for index, value in enumerate(self.seconds):
            checks.at_least(f"seconds[{index}]", value, 0)
        checks.done()


class Drawing(Protocol):
    """A named random stream, as far as it is used here."""

    def uniform(self, low: float, high: float, size: int) -> Any:
        """Anything between."""

    def exponential(self, scale: float, size: int) -> Any:
        """By its mean."""

    def lognormal(self, mean: float, sigma: float, size: int) -> Any:
        """By mean and deviation of the logarithm."""

    def integers(self, low: int, high: int, size: int) -> Any:
        """Whole numbers below ``high``."""


Duration = Constant | Uniform | Exponential | LogNormal | Empirical


def draw_s(law: Duration, rng: Drawing, n: int) -> list[float]:
    """``n`` values in seconds."""
    if isinstance(law, Constant):
        return [law.seconds] * n
    if isinstance(law, Uniform):
        return list(map(float, rng.uniform(law.low_s, law.high_s, n)))
    if isinstance(law, Exponential):
        return list(map(float, rng.exponential(law.mean_s, n)))
    if isinstance(law, LogNormal):
        return [law.median_s * float(x) for x in rng.lognormal(0.0, law.sigma, n)]
    return [law.seconds[int(i)] for i in rng.integers(0, len(law.seconds), n)]


def to_ns(seconds: float) -> int:
    """Rounded to a nanosecond."""
    return round(seconds * NS_PER_S)
