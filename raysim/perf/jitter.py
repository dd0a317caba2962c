"""The slowest of many: what a synchronous step waits for when its GPUs differ.

Each GPU's kernels take a lognormal factor of mean 1 longer; its coefficient of variation (standard
deviation over mean) is the input. Lognormal because times are positive and their tail is on the
slow side. The maximum over ranks follows from the distribution functions alone: with ``n``
independent ranks of scale ``s``, ``P(max <= x)`` is the product of ``P(X <= x / s)`` to the ``n``.

Not modelled: correlation between GPUs (a warm aisle) other than by a node's own scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

Scales = Iterable[tuple[float, int]]
"""(scale, how many ranks have it)."""
_REACH = 9.0
"""Standard deviations beyond which not one of 10^15 ranks lies."""
_NONE = 1e-9
"""A variation too small for a nanosecond in a second."""
_INTERVALS = 400
"""Of Simpson's rule, even."""


def combined_cv(*cvs: float) -> float:
    """Coefficient of variation of a product of independent factors of mean 1."""
    return math.sqrt(math.prod(1.0 + cv * cv for cv in cvs) - 1.0)


def lognormal_parameters(cv: float) -> tuple[float, float]:
    """``mu`` and ``sigma`` of the logarithm, for mean 1 and this coefficient of variation."""
    variance = math.log1p(cv * cv)
    return -variance / 2, math.sqrt(variance)


def expected_slowest(scales: Scales, cv: float) -> float:
    """Expected maximum of independent ``scale x lognormal(mean 1, cv)``.

    Never below the largest scale, as Jensen's inequality has it; equal to it without variation.
    """
    some = _some(scales)
    top = max(scale for scale, _ in some)
    if cv < _NONE:
        return top
    low, high = _range(top, cv)
    width = math.log(high / low) / _INTERVALS
    total = 0.0
    for i in range(_INTERVALS + 1):
        weight = 1 if i in (0, _INTERVALS) else 4 if i % 2 else 2
        x = low * math.exp(i * width)
        total += weight * (1.0 - _all_below(x, some, cv)) * x
    # E[X] of a positive X is the integral of P(X > x), here over log x; below `low` that is 1.
    return max(top, low + total * width / 3)


def slowest_quantile(scales: Scales, cv: float, share: float) -> float:
    """What the maximum stays below with probability ``share``."""
    some = _some(scales)
    top = max(scale for scale, _ in some)
    if cv < _NONE:
        return top
    low, high = _range(top, cv)
    for _ in range(60):
        middle = (low + high) / 2
        if _all_below(middle, some, cv) < share:
            low = middle
        else:
            high = middle
    return high


def _some(scales: Scales) -> list[tuple[float, int]]:
    return [(scale, count) for scale, count in scales if count]


def _range(top: float, cv: float) -> tuple[float, float]:
    """Where the maximum lies, but for a chance that no float can show."""
    mu, sigma = lognormal_parameters(cv)
    return top * math.exp(mu - _REACH * sigma), top * math.exp(mu + _REACH * sigma)


def _all_below(x: float, scales: list[tuple[float, int]], cv: float) -> float:
    """Probability that every one is at most ``x``."""
    mu, sigma = lognormal_parameters(cv)
    chance = 1.0
    for scale, count in scales:
        z = (math.log(x / scale) - mu) / sigma
        chance *= (0.5 * math.erfc(-z / math.sqrt(2))) ** count
    return chance
