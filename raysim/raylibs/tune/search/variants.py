"""From a search space to configurations: the grid's product, samples of the rest.

Real counterpart: ``ray/tune/search/variant_generator.py`` and ``ray/tune/impl/placeholder.py``
(ray 2.60): domains are drawn in the order of the space for each point of the grid, whose first
key turns fastest; ``sample_from`` functions come last and see the values chosen.

Not modelled: ``{"eval": ...}``, domains inside tuples.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from raysim.raylibs.tune.sample import Categorical, Domain, Function, is_domain

Path = tuple[Any, ...]


def unresolved(space: Any, path: Path = ()) -> Iterator[tuple[Path, Domain]]:
    """What is to be chosen, in the order of the space: (path, domain)."""
    if is_domain(space):
        yield path, space
    elif isinstance(space, Mapping) and len(space) == 1 and "grid_search" in space:
        yield path, Categorical(space["grid_search"], is_grid=True)
    elif isinstance(space, Mapping):
        for key, value in space.items():
            yield from unresolved(value, (*path, key))
    elif isinstance(space, list):
        for index, value in enumerate(space):
            yield from unresolved(value, (*path, index))


def variants(
    space: Mapping[str, Any], rng: Any, *, constant_grid_search: bool = False
) -> Iterator[tuple[dict[Path, Any], dict[str, Any]]]:
    """(values chosen by path, configuration) of one sample: one for each point of the grid."""
    found = list(unresolved(space))
    grids = sorted(
        ((p, d) for p, d in found if isinstance(d, Categorical) and d.is_grid), key=lambda g: g[0]
    )
    functions = [(p, d) for p, d in found if isinstance(d, Function)]
    drawn = [(p, d) for p, d in found if not _is_grid(d) and not isinstance(d, Function)]
    constant = {p: d.sample(random_state=rng) for p, d in drawn} if constant_grid_search else {}
    turning = [grid.categories for _, grid in reversed(grids)]
    for point in product(*turning):
        config = _copied(space)
        chosen = dict(constant) or {p: d.sample(random_state=rng) for p, d in drawn}
        chosen.update(zip((p for p, _ in reversed(grids)), point, strict=True))
        for path, value in chosen.items():
            _assign(config, path, value)
        for path, function in functions:
            chosen[path] = _call(function, config)
            _assign(config, path, chosen[path])
        yield chosen, config


def count(space: Mapping[str, Any]) -> int:
    """Points of its grid."""
    total = 1
    for _, domain in unresolved(space):
        if isinstance(domain, Categorical) and domain.is_grid:
            total *= len(domain.categories)
    return total


def preset(space: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """The space with some values settled (``points_to_evaluate``)."""
    settled: dict[str, Any] = _copied(space)
    for path, value in _leaves(point):
        try:
            _assign(settled, path, value, known=True)
        except (KeyError, IndexError) as error:
            raise ValueError(
                f"Pre-set config key `{'/'.join(map(str, path))}` does not correspond "
                "to a valid key in the search space definition. Please add "
                "this path to the `param_space` variable passed to `tune.Tuner()`."
            ) from error
    return settled


def format_vars(chosen: Mapping[Path, Any]) -> str:
    """``lr=0.0100,units=32``, as experiment tags and directories have it."""
    pairs = sorted((p, v) for p, v in chosen.items() if p not in _NOT_SHOWN)
    return ",".join(f"{_clean(path[-1])}={_clean(value)}" for path, value in pairs)


_NOT_SHOWN: tuple[Path, ...] = (("run",), ("env",), ("resources_per_trial",))


def _is_grid(domain: Domain) -> bool:
    return isinstance(domain, Categorical) and domain.is_grid


def _clean(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return re.sub(r"[^a-zA-Z0-9_-]+", "_", str(value)).strip("_")


def _copied(space: Any) -> Any:
    """A copy of its dictionaries and lists; domains and objects are shared."""
    if isinstance(space, Mapping):
        return {k: _copied(v) for k, v in space.items()}
    if isinstance(space, list):
        return [_copied(v) for v in space]
    return space if is_domain(space) else copy.copy(space)


def _leaves(point: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    for key, value in point.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _assign(config: Any, path: Path, value: Any, *, known: bool = False) -> None:
    for key in path[:-1]:
        config = config[key]
    if known:
        config[path[-1]]  # raises if the space has no such key
    config[path[-1]] = value


def _call(function: Function, config: dict[str, Any]) -> Any:
    try:
        return function.sample(config)
    except (AttributeError, KeyError):  # older functions take ``spec`` and read ``spec.config.x``
        return function.sample(_Attributes({"config": config}))


class _Attributes(dict[str, Any]):
    """A dictionary whose keys are attributes."""

    def __getattr__(self, name: str) -> Any:
        """A value; dictionaries the same way."""
        value = self[name]
        return _Attributes(value) if isinstance(value, dict) else value
