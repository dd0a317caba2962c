"""Search spaces: what ``tune.uniform`` and its like return, and how they are drawn from.

Real counterpart: ``ray/tune/search/sample.py`` (ray 2.60). Drawing makes the same calls of numpy
as Ray does, so the same generator gives the same values; a ``RandomState`` and numpy's module
of global draws are taken as well as a ``Generator``. Domains are values: equal ones sample alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from math import inf, isclose, isfinite
from typing import Any, Literal

import numpy as np

from raysim.kernel.rng import random_of

How = Literal["uniform", "loguniform", "normal"]


@dataclass(frozen=True, slots=True)
class Float:
    """Real numbers of [lower, upper); ``q``: rounded to its multiples, upper included."""

    lower: float = -inf
    upper: float = inf
    how: How = "uniform"
    mean: float = 0.0
    sd: float = 1.0
    q: float | None = None

    def sample(self, config: Any = None, size: int = 1, random_state: Any = None) -> Any:
        """One value, or an array of ``size``; a list of quantized ones."""
        del config
        rng = random_of(random_state)
        if self.q is None:
            found = self._draw(rng, self.lower, self.upper, size)
            return found if size > 1 else float(found[0])
        lower = _grid_index(self.lower, self.q, np.ceil) * self.q
        upper = _grid_index(self.upper, self.q, np.floor) * self.q
        found = np.round(np.divide(self._draw(rng, lower, upper, size), self.q)) * self.q
        return [float(v) for v in found] if size > 1 else float(found[0])

    def _draw(self, rng: Any, lower: float, upper: float, size: int) -> Any:
        if self.how == "normal":
            return rng.normal(self.mean, self.sd, size=size)
        if self.how == "loguniform":
            return np.exp(rng.uniform(np.log(lower), np.log(upper), size=size))
        return rng.uniform(lower, upper, size=size)

    def quantized(self, q: float) -> Float:
        """Multiples of ``q``."""
        for side, bound in (("lower", self.lower), ("upper", self.upper)):
            if isfinite(bound) and not isclose(bound / q, round(bound / q)):
                raise ValueError(
                    f"Your {side} variable bound {bound} is not divisible by "
                    f"quantization factor {q}."
                )
        return replace(self, q=q)

    def get_sampler(self) -> str:
        """How it is drawn."""
        return {"uniform": "Uniform", "loguniform": "LogUniform", "normal": "Normal"}[self.how]

    def is_function(self) -> bool:
        """It is none."""
        return False

    def is_valid(self, value: float) -> bool:
        """In range."""
        return self.lower <= value <= self.upper

    @property
    def domain_str(self) -> str:
        """Its bounds."""
        return f"({self.lower}, {self.upper})"


@dataclass(frozen=True, slots=True)
class Integer:
    """Integers of [lower, upper); ``q``: its multiples, upper included but for 1."""

    lower: int
    upper: int
    how: How = "uniform"
    q: int | None = None

    def sample(self, config: Any = None, size: int = 1, random_state: Any = None) -> Any:
        """One value, or an array of ``size``; a list of quantized ones."""
        del config
        rng = random_of(random_state)
        if self.q is None:
            found = self._draw(rng, self.lower, self.upper, size)
            return found if size > 1 else int(found[0])
        lower = int(_grid_index(self.lower, self.q, np.ceil))
        upper = int(_grid_index(self.upper, self.q, np.floor))
        if upper < lower:
            raise ValueError(
                f"There is no multiple of the quantization factor q={self.q} "
                f"between the bounds {self.lower} and {self.upper} of this "
                "domain, so it has no values to sample."
            )
        found = self._draw(rng, lower, upper + (self.q != 1), size) * self.q
        return [int(v) for v in found] if size > 1 else int(found[0])

    def _draw(self, rng: Any, lower: int, upper: int, size: int) -> Any:
        if self.how == "loguniform":
            value = np.exp(rng.uniform(np.log(lower), np.log(upper), size=size))
            return np.floor(value).astype(int)
        integers = getattr(rng, "integers", None) or rng.randint
        return integers(lower, upper, size=size)

    def is_valid(self, value: int) -> bool:
        """In range."""
        return self.lower <= value <= self.upper

    @property
    def domain_str(self) -> str:
        """Its bounds."""
        return f"({self.lower}, {self.upper})"


class Categorical:
    """One of some values; of a grid, each of them."""

    __slots__ = ("categories", "is_grid")

    def __init__(self, categories: Sequence[Any], *, is_grid: bool = False) -> None:
        self.categories = list(categories)
        self.is_grid = is_grid

    def sample(self, config: Any = None, size: int = 1, random_state: Any = None) -> Any:
        """One value, or a list of ``size``."""
        del config
        numbers = random_of(random_state).choice(np.arange(0, len(self.categories)), size=size)
        found = [self.categories[int(n)] for n in numbers]
        return found if size > 1 else found[0]

    def is_valid(self, value: Any) -> bool:
        """One of them."""
        return value in self.categories

    def __len__(self) -> int:
        return len(self.categories)

    def __getitem__(self, number: int) -> Any:
        return self.categories[number]

    @property
    def domain_str(self) -> str:
        """They."""
        return f"{self.categories}"


class Function:
    """``tune.sample_from``: a function's value, of the values chosen before if it wants them."""

    __slots__ = ("func", "pass_config")

    def __init__(self, func: Callable[..., Any]) -> None:
        parameters = signature(func)
        self.func = func
        self.pass_config = True
        try:
            parameters.bind({})
        except TypeError:
            self.pass_config = False
            try:
                parameters.bind()
            except TypeError as error:
                raise ValueError(
                    "The function passed to a `Function` parameter must be "
                    "callable with either 0 or 1 parameters."
                ) from error

    def sample(self, config: Any = None, size: int = 1, random_state: Any = None) -> Any:
        """Call it, of each of ``size`` configurations."""
        del random_state
        configs = config if isinstance(config, list) else [config] * size
        found = [self.func(c) if self.pass_config else self.func() for c in configs[:size]]
        return found if size > 1 else found[0]

    def is_valid(self, value: Any) -> bool:
        """Nothing is known of it."""
        del value
        return True


Domain = Float | Integer | Categorical | Function


def is_domain(value: object) -> bool:
    """Whether it is to be sampled."""
    return isinstance(value, Float | Integer | Categorical | Function)


def _grid_index(bound: float, q: float, inwards: Callable[[float], Any]) -> Any:
    if not isfinite(bound):
        return bound
    scaled = bound / q
    nearest = round(scaled)
    return nearest if isclose(scaled, nearest) else inwards(scaled)


def uniform(lower: float, upper: float) -> Float:
    """Real numbers of [lower, upper)."""
    for side, bound in (("lower", lower), ("upper", upper)):
        if not isfinite(bound):
            raise ValueError(
                f"Uniform requires a {side} bound. Make sure to set the "
                f"`{side}` parameter of `Float()`."
            )
    return Float(lower, upper)


def quniform(lower: float, upper: float, q: float) -> Float:
    """Multiples of ``q`` of [lower, upper]."""
    return uniform(lower, upper).quantized(q)


def loguniform(lower: float, upper: float) -> Float:
    """Uniform in the logarithm."""
    if not lower > 0:
        raise ValueError(
            "LogUniform requires a lower bound greater than 0."
            f"Got: {lower}. Did you pass a variable that has "
            "been log-transformed? If so, pass the non-transformed value instead."
        )
    if not 0 < upper < inf:
        raise ValueError(
            "LogUniform requires a upper bound greater than 0. "
            f"Got: {lower}. Did you pass a variable that has "
            "been log-transformed? If so, pass the non-transformed value instead."
        )
    return Float(lower, upper, how="loguniform")


def qloguniform(lower: float, upper: float, q: float) -> Float:
    """Multiples of ``q``, uniform in the logarithm."""
    return loguniform(lower, upper).quantized(q)


def randn(mean: float = 0.0, sd: float = 1.0) -> Float:
    """Normally distributed."""
    assert sd > 0, "SD has to be strictly greater than 0"
    return Float(how="normal", mean=mean, sd=sd)


def qrandn(mean: float, sd: float, q: float) -> Float:
    """Normally distributed multiples of ``q``."""
    return randn(mean, sd).quantized(q)


def randint(lower: int, upper: int) -> Integer:
    """Integers of [lower, upper)."""
    return Integer(lower, upper)


def lograndint(lower: int, upper: int) -> Integer:
    """Integers, uniform in the logarithm."""
    loguniform(lower, upper)
    return Integer(lower, upper, how="loguniform")


def qrandint(lower: int, upper: int, q: int = 1) -> Integer:
    """Integer multiples of ``q`` of [lower, upper]."""
    return replace(Integer(lower, upper), q=q)


def qlograndint(lower: int, upper: int, q: int) -> Integer:
    """Integer multiples of ``q``, uniform in the logarithm."""
    return replace(lograndint(lower, upper), q=q)


def choice(categories: Sequence[Any]) -> Categorical:
    """One of them."""
    return Categorical(categories)


def sample_from(func: Callable[..., Any]) -> Function:
    """What a function returns."""
    return Function(func)


def grid_search(values: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Every one of them."""
    return {"grid_search": values}
