"""Searchers of other packages (``ray.tune.search.optuna``, ``hyperopt``, ...), at random.

Real counterparts: ``search/*/*_search.py`` (ray 2.60). None of the packages need be installed. What
a searcher learns from depends on losses, which trials on GPUs do not have here: configurations are
drawn at random from its space, one at a time, each when the real searcher is asked for one.

Not modelled: what a searcher learns, its own time for a suggestion, stopping early (BayesOpt's
``skip_duplicate``), spaces of HyperOpt, ConfigSpace, Nevergrad and HEBO.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import nextafter
from typing import Any

from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raylibs.tune import sample
from raysim.raylibs.tune.search.algorithms import RandomSearcher
from raysim.raylibs.tune.search.variants import preset, variants

_INSTEAD = "its space as tune.uniform, tune.choice, ... in param_space"


class StandIn(RandomSearcher):
    """What the searchers of this module share.

    Parameters
    ----------
    space
        Its own, by name; None: the tuner's ``param_space``.
    metric, mode
        What it would learn from.
    points_to_evaluate
        Configurations tried first.
    seed
        Of its draws; else the experiment's.
    options
        What only the real one needs.
    """

    def __init__(
        self,
        space: Any = None,
        metric: Any = None,
        mode: Any = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(seed)
        del options
        name = type(self).__name__
        warnings.warn(f"raysim: {name} proposes at random here; nothing is learned", stacklevel=2)
        self.metric, self.mode = metric, mode
        self._own = _space_of(space, name)
        self._points = deque(points_to_evaluate or ())
        self._define = space if callable(space) else None

    def begin(self, space: Mapping[str, Any], rng: Any) -> None:
        """Its own space stands before what the tuner has under the same names."""
        super().begin({**space, **self._own}, rng)

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """A point to evaluate while there are some, then one at random."""
        del trial_id
        space = preset(self._space, self._points.popleft()) if self._points else self._space
        ((_, config),) = variants(space, self._rng)
        if self._define is not None:
            config |= _defined(self._define, self._rng)
        return config


class OptunaSearch(StandIn):
    """``ray.tune.search.optuna.OptunaSearch``, also with a function that defines its space."""


class HyperOptSearch(StandIn):
    """``ray.tune.search.hyperopt.HyperOptSearch``."""


class BayesOptSearch(StandIn):
    """``ray.tune.search.bayesopt.BayesOptSearch``; its spaces are (lower, upper) too."""


class AxSearch(StandIn):
    """``ray.tune.search.ax.AxSearch``."""


class HEBOSearch(StandIn):
    """``ray.tune.search.hebo.HEBOSearch``."""


class TuneBOHB(StandIn):
    """``ray.tune.search.bohb.TuneBOHB``."""

    def __init__(self, space: Any = None, bohb_config: Any = None, *args: Any, **options: Any):
        super().__init__(space, *args, bohb_config=bohb_config, **options)


class NevergradSearch(StandIn):
    """``ray.tune.search.nevergrad.NevergradSearch``."""

    def __init__(
        self, optimizer: Any = None, optimizer_kwargs: Any = None, *args: Any, **options: Any
    ) -> None:
        super().__init__(*args, optimizer=optimizer, optimizer_kwargs=optimizer_kwargs, **options)


class ZOOptSearch(StandIn):
    """``ray.tune.search.zoopt.ZOOptSearch``."""

    def __init__(
        self, algo: str = "asracos", budget: int | None = None, dim_dict: Any = None,
        *args: Any, **options: Any,
    ) -> None:  # fmt: skip
        assert budget is not None, "`budget` should not be None!"
        super().__init__(dim_dict, *args, algo=algo, **options)


class DrawnTrial:
    """What Optuna gives a function that defines its space: every suggestion is drawn at random."""

    def __init__(self, rng: Any) -> None:
        self._rng = rng
        self.params: dict[str, Any] = {}
        """Suggested so far, by name."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """A number from low to high, of ``step``s."""
        value: float = self._drawn(name, _float(low, high, step, log))
        return value

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        """A whole number from low to high, both of them too."""
        value: int = self._drawn(name, _integer(low, high, step, log))
        return value

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """One of them."""
        return self._drawn(name, sample.choice(list(choices)))

    def _drawn(self, name: str, domain: sample.Domain) -> Any:
        if name not in self.params:
            self.params[name] = domain.sample(random_state=self._rng)
        return self.params[name]


def _defined(define: Callable[[Any], Any], rng: Any) -> dict[str, Any]:
    trial = DrawnTrial(rng)
    constants = define(trial)
    return {**trial.params, **(constants or {})}


def _space_of(said: Any, searcher: str) -> dict[str, Any]:
    """As Tune writes spaces: of domains, (lower, upper) and Optuna's distributions."""
    if said is None or (callable(said) and searcher == "OptunaSearch"):
        return {}
    if not isinstance(said, Mapping):
        raise NotEmulatedError(f"{searcher} of a {type(said).__name__}", _INSTEAD)
    return {name: _domain(value, searcher) for name, value in said.items()}


def _domain(value: Any, searcher: str) -> Any:
    if sample.is_domain(value) or isinstance(value, str | int | float | bool | list | None):
        return value
    if isinstance(value, Mapping):
        return {name: _domain(each, searcher) for name, each in value.items()}
    if isinstance(value, tuple) and len(value) == 2 and searcher == "BayesOptSearch":
        return sample.uniform(*value)
    kind = type(value).__name__
    if kind == "CategoricalDistribution":
        return sample.choice(list(value.choices))
    if kind == "FloatDistribution":
        return _float(value.low, value.high, value.step, value.log)
    if kind == "IntDistribution":
        return _integer(value.low, value.high, value.step, value.log)
    raise NotEmulatedError(f"{searcher} over a {kind}", _INSTEAD)


def _float(low: float, high: float, step: float | None, log: bool) -> sample.Float:
    if low == high:  # of one value; Tune's intervals have a width
        high = nextafter(high, float("inf"))
    if log:
        return sample.loguniform(low, high)
    return sample.uniform(low, high) if step is None else sample.quniform(low, high, step)


def _integer(low: int, high: int, step: int, log: bool) -> sample.Domain:
    if log:
        return sample.lograndint(low, high + 1)
    if step != 1:
        return sample.choice(range(low, high + 1, step))
    return sample.randint(low, high + 1)
