"""How much of a metric each key decides: a functional ANOVA on the trials that have it.

Fitted is ``ln y = m + sum a_j(x_j) + sum b_jk(x_j, x_k)``, a term per value and per pair of values,
by least squares with a ridge whose size has the least leave-one-out error (PRESS, Allen 1974). Over
the product of the values tried, all equally likely, its parts are orthogonal and their variances
add up (Hoeffding 1948; Sobol 1993): ``share_j = V_j / V``, ``share_jk = V_jk / V``. So do Hutter,
Hoos and Leyton-Brown (An Efficient Approach for Assessing Hyperparameter Importance, ICML 2014),
with a forest where sums of logarithms do here: times and costs are products of what is varied.

Trials that do not fit, or are refused, have no value: the fit says what they would have.
Interactions of three keys and more are not told apart from what the fit leaves unexplained.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from raysim.planner.choose import RUNS
from raysim.planner.trials import Trial

MOST_TRIALS = 4096
"""Trials that the fit sees at most, evenly spread."""
MOST_TERMS = 400
"""Above, interactions are left out."""
RIDGES = (1e-6, 1e-4, 1e-2, 0.1, 1.0, 10.0)
SURE = 0.9
"""Share of the variance of unseen trials that a fit to be trusted explains."""
NOTHING = 1e-12
Array = NDArray[np.float64]


class Effect(NamedTuple):
    """One value of a key, the other keys averaged out."""

    value: Any
    trials: int
    factor: float | None
    """The metric over its geometric mean; None of a value that no trial ran with."""


class Share(NamedTuple):
    """One key."""

    key: str
    frac: float
    effects: tuple[Effect, ...]


class Pair(NamedTuple):
    """What two keys decide together, beyond what each does alone."""

    keys: tuple[str, str]
    frac: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """Shares of the variance of ``ln`` of a metric; those of keys and pairs add up to one."""

    metric: str
    trials: int
    played: int
    """Of these; the others were estimated."""
    explained: float
    """Of the variance of trials that the fit has not seen (leave one out)."""
    interactions: bool
    """False: there were too many terms."""
    keys: tuple[Share, ...]
    """The strongest first."""
    pairs: tuple[Pair, ...]

    @property
    def sure(self) -> bool:
        """There are trials enough, and they are alike enough, to go by it."""
        values = sum(len(share.effects) - 1 for share in self.keys)
        return self.explained >= SURE and self.trials >= 2 * (values + 1)

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "metric": self.metric, "trials": self.trials, "played": self.played,
            "explained_frac": self.explained, "sure": self.sure,
            "interactions": self.interactions,
            "keys": [
                {"key": k.key, "frac": k.frac, "effects": [e._asdict() for e in k.effects]}
                for k in self.keys
            ],
            "pairs": [{"keys": list(p.keys), "frac": p.frac} for p in self.pairs],
        }  # fmt: skip


def importance(
    trials: Sequence[Trial], space: Mapping[str, Sequence[Any]], metric: str
) -> Importance | None:
    """What decides ``metric``; None where fewer than three trials have it, or it never changes."""
    have = [t for t in trials if t.status in RUNS and t.metrics.get(metric, 0.0) > 0]
    step = -(-len(have) // MOST_TRIALS) or 1
    seen = have[::step]
    y = np.log([t.metrics[metric] for t in seen]) if len(seen) > 2 else np.zeros(1)
    if float(np.var(y)) < NOTHING:
        return None
    space = {key: _values(seen, key, values) for key, values in space.items()}
    places = {key: _places(seen, key, values) for key, values in space.items()}
    ran = {key: sorted(set(at)) for key, at in places.items()}
    codes = {key: [ran[key].index(i) for i in at] for key, at in places.items()}
    sizes = {key: len(ran[key]) for key in space}
    pairs = [(a, b) for a, b in itertools.combinations(space, 2) if sizes[a] > 1 < sizes[b]]
    if sum(sizes.values()) + sum(sizes[a] * sizes[b] for a, b in pairs) > MOST_TERMS:
        pairs = []
    terms, explained = _fit(_columns(codes, sizes, pairs), y)
    mains, both = _orthogonal(terms, sizes, pairs)
    variances = {key: float(np.mean(effect**2)) for key, effect in mains.items()}
    joint = {pair: float(np.mean(effect**2)) for pair, effect in both.items()}
    whole = sum(variances.values()) + sum(joint.values()) or 1.0
    found = [
        Share(key, variances[key] / whole, _effects(values, ran[key], places[key], mains[key]))
        for key, values in space.items()
    ]
    return Importance(
        metric=metric, trials=len(seen), played=sum(t.status == "ok" for t in seen),
        explained=explained, interactions=bool(pairs) or len(space) < 2,
        keys=tuple(sorted(found, key=lambda s: -s.frac)),
        pairs=tuple(
            sorted((Pair(p, v / whole) for p, v in joint.items()), key=lambda p: -p.frac)
        ),
    )  # fmt: skip


def _values(trials: Sequence[Trial], key: str, values: Sequence[Any]) -> list[Any]:
    """Of a key: those asked for, then others that a search tried."""
    known = {repr(value): value for value in values}
    return list((known | {repr(t.choice[key]): t.choice[key] for t in trials}).values())


def _places(trials: Sequence[Trial], key: str, values: Sequence[Any]) -> list[int]:
    """Each trial's place among the values of a key; lists and objects count as well."""
    place = {repr(value): i for i, value in enumerate(values)}
    return [place[repr(t.choice[key])] for t in trials]


def _effects(
    values: Sequence[Any], ran: Sequence[int], places: Sequence[int], main: Array
) -> tuple[Effect, ...]:
    factors = dict(zip(ran, np.exp(main).tolist(), strict=True))
    return tuple(Effect(v, places.count(i), factors.get(i)) for i, v in enumerate(values))


def _columns(
    codes: Mapping[str, Sequence[int]], sizes: Mapping[str, int], pairs: Sequence[tuple[str, str]]
) -> Array:
    """Ones where a trial has a value, or a pair of values."""
    numbers = [(np.asarray(codes[key]), size) for key, size in sizes.items()]
    numbers += [
        (np.asarray(codes[a]) * sizes[b] + np.asarray(codes[b]), sizes[a] * sizes[b])
        for a, b in pairs
    ]
    return np.hstack([np.eye(size)[number] for number, size in numbers])


def _fit(x: Array, y: Array) -> tuple[Array, float]:
    """Terms by ridge regression; how much of the variance of a trial left out they explain."""
    n = len(y)
    x, centred = x - x.mean(axis=0), y - y.mean()
    squares, v = np.linalg.eigh(x.T @ x)
    kept = squares > NOTHING * squares.max(initial=1.0)
    s, v = np.sqrt(squares[kept]), v[:, kept]
    u = x @ v / s
    along = u.T @ centred

    def left_out(ridge: float) -> float:
        shrunk = s**2 / (s**2 + ridge)
        leverage = np.minimum(1 / n + (u**2) @ shrunk, 1 - 1e-6)
        return float(np.sum(((centred - u @ (shrunk * along)) / (1 - leverage)) ** 2))

    ridge = min(RIDGES, key=left_out)
    alone = float(np.sum((centred * n / (n - 1)) ** 2))
    return v @ (s / (s**2 + ridge) * along), max(0.0, 1 - left_out(ridge) / alone)


def _orthogonal(
    terms: Array, sizes: Mapping[str, int], pairs: Sequence[tuple[str, str]]
) -> tuple[dict[str, Array], dict[tuple[str, str], Array]]:
    """The same function in parts that average to zero over each of their keys."""
    mains, both, at = {}, {}, 0
    for key, size in sizes.items():
        own = terms[at : at + size]
        mains[key], at = own - own.mean(), at + size
    for a, b in pairs:
        size = sizes[a] * sizes[b]
        table = terms[at : at + size].reshape(sizes[a], sizes[b])
        at += size
        rows, columns, middle = table.mean(axis=1), table.mean(axis=0), table.mean()
        mains[a], mains[b] = mains[a] + rows - middle, mains[b] + columns - middle
        both[a, b] = table - rows[:, None] - columns[None, :] + middle
    return mains, both
