"""The module ``ray.tune.search`` (2.60): grid and random search, searchers by name, their limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raysim.rayapi.tune import searchers
from raysim.rayapi.unsupported import getattr_of, taken_by
from raysim.raylibs.tune.sample import grid_search
from raysim.raylibs.tune.search.algorithms import BasicVariantGenerator, ConcurrencyLimiter

_BY_NAME: dict[str, Callable[..., Any]] = {
    "variant_generator": BasicVariantGenerator, "random": BasicVariantGenerator,
    "ax": searchers.AxSearch, "hyperopt": searchers.HyperOptSearch,
    "bayesopt": searchers.BayesOptSearch, "bohb": searchers.TuneBOHB,
    "nevergrad": searchers.NevergradSearch, "optuna": searchers.OptunaSearch,
    "zoopt": searchers.ZOOptSearch, "hebo": searchers.HEBOSearch,
}  # fmt: skip
"""``SEARCH_ALG_IMPORT``."""


def create_searcher(search_alg: str, **kwargs: Any) -> Any:
    """``tune.search.create_searcher``: keywords that the class has not are dropped.

    Raises
    ------
    ValueError
        Ray has no searcher of this name.
    """
    name = search_alg.lower()
    if name not in _BY_NAME:
        raise ValueError(f"The `search_alg` argument must be one of {list(_BY_NAME)}. Got: {name}")
    made = _BY_NAME[name]
    return made(**taken_by(made, kwargs))


def searcher_of(tune: Any) -> Any:
    """Of a ``TuneConfig``: the one that is given, or named."""
    given = tune.search_alg
    if not isinstance(given, str):
        return given
    said = {"metric": tune.metric, "mode": tune.mode}
    return create_searcher(given, **{name: value for name, value in said.items() if value})


__getattr__ = getattr_of("ray.tune.search")

__all__ = ["BasicVariantGenerator", "ConcurrencyLimiter", "create_searcher", "grid_search"]
