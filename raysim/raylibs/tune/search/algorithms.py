"""Who proposes trials: the grid and random generator, searchers, and the limit on either.

Real counterparts (ray 2.60): ``search/basic_variant.py``, ``search/search_generator.py``,
``search/concurrency_limiter.py``. A searcher that learns (Optuna, HyperOpt, Ax, BOHB, ...) is not
emulated: ``RandomSearcher`` stands in for one where only the pace of its suggestions matters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from raysim.kernel.rng import generator
from raysim.raylibs.tune.search.variants import Path, count, format_vars, preset, variants
from raysim.raylibs.tune.trial import Trial

MakeTrial = Callable[[str, dict[str, Any], str, dict[str, Any]], Trial]
"""(trial_id, config, experiment_tag, evaluated_params) -> trial."""


class SearchAlgorithm(Protocol):
    """As Ray's interface of the same name."""

    suggests: bool
    """Whether its suggestions may depend on results."""

    def begin(self, space: Mapping[str, Any], num_samples: int, rng: Any, make: MakeTrial) -> None:
        """Of one experiment."""

    def resume(self, rng: Any, make: MakeTrial) -> None:
        """Go on where it was when it was pickled."""

    def next_trial(self) -> Trial | None:
        """One more, if there is one now."""

    def is_finished(self) -> bool:
        """There will be none any more."""

    def set_finished(self) -> None:
        """There shall be none."""

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """A trial goes on."""

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, *, error: bool = False
    ) -> None:
        """A trial has ended."""

    def max_pending_trials(self, cluster_cpus: float) -> int:
        """How many trials may wait for resources at once."""


class BasicVariantGenerator:
    """Grid and random search, Ray's default.

    Parameters
    ----------
    points_to_evaluate
        Configurations tried first; each replaces a sample.
    max_concurrent
        Trials at once; 0: any number.
    constant_grid_search
        Draw once for all points of the grid.
    random_state
        A seed or generator; else the controller's.
    """

    suggests = False

    def __init__(
        self,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        max_concurrent: int = 0,
        constant_grid_search: bool = False,
        random_state: Any = None,
    ) -> None:
        self._points = deque(points_to_evaluate or ())
        self.max_concurrent = max_concurrent
        self._constant_grid_search = constant_grid_search
        self._random_state = random_state
        self._ready: deque[tuple[dict[Path, Any], dict[str, Any]]] = deque()
        self._live: dict[str, None] = {}
        self._finished = False
        self._made = 0
        self.total_samples = 0
        self.prefix = "00000"
        """Of trial ids."""

    def begin(self, space: Mapping[str, Any], num_samples: int, rng: Any, make: MakeTrial) -> None:
        """See SearchAlgorithm."""
        self._space, self._make = space, make
        self._rng = _generator(self._random_state, rng)
        self._samples_left = num_samples
        presets = sum(count(preset(space, p)) for p in self._points)
        self.total_samples = presets + max(num_samples - len(self._points), 0) * count(space)

    def resume(self, rng: Any, make: MakeTrial) -> None:
        """See SearchAlgorithm; a generator of its own goes on with its draws."""
        self._make = make
        if self._random_state is None:
            self._rng = rng

    def __getstate__(self) -> dict[str, Any]:
        shared = ("_make",) if self._random_state is not None else ("_make", "_rng")
        return {k: v for k, v in vars(self).items() if k not in shared}

    def next_trial(self) -> Trial | None:
        """See SearchAlgorithm."""
        if self._finished or 0 < self.max_concurrent <= len(self._live):
            return None
        while not self._ready:
            if self._points:
                space = preset(self._space, self._points.popleft())
            elif self._samples_left > 0:
                space = dict(self._space)
            else:
                self._finished = True
                return None
            self._samples_left -= 1
            self._ready.extend(
                variants(space, self._rng, constant_grid_search=self._constant_grid_search)
            )
        chosen, config = self._ready.popleft()
        trial_id = f"{self.prefix}_{self._made:05d}"
        tag = f"{self._made}_{format_vars(chosen)}" if chosen else f"{self._made}"
        self._made += 1
        self._live[trial_id] = None
        return self._make(trial_id, config, tag, _by_name(chosen))

    def is_finished(self) -> bool:
        """See SearchAlgorithm."""
        return self._finished

    def set_finished(self) -> None:
        """See SearchAlgorithm."""
        self._finished = True

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """See SearchAlgorithm."""

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, *, error: bool = False
    ) -> None:
        """See SearchAlgorithm."""
        del result, error
        self._live.pop(trial_id, None)

    def max_pending_trials(self, cluster_cpus: float) -> int:
        """At least 200, to have the cluster grow fast (``_get_max_pending_trials``)."""
        return max(200, int(cluster_cpus * 1.1))


class Searcher(Protocol):
    """As Ray's interface of the same name: one suggestion at a time."""

    def begin(self, space: Mapping[str, Any], rng: Any) -> None:
        """Of one experiment."""

    def resume(self, rng: Any) -> None:
        """Go on where it was when it was pickled."""

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """A configuration; None: not now."""

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """A trial goes on."""

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, *, error: bool = False
    ) -> None:
        """A trial has ended."""


class RandomSearcher:
    """Suggests at random: a stand-in for a searcher that learns."""

    def __init__(self, random_state: Any = None) -> None:
        self._random_state = random_state

    def begin(self, space: Mapping[str, Any], rng: Any) -> None:
        """See Searcher."""
        if count(space) > 1:
            raise ValueError(
                "Grid search parameters cannot be automatically converted to a searcher's space."
            )
        self._space = space
        self._rng = _generator(self._random_state, rng)

    def resume(self, rng: Any) -> None:
        """See Searcher."""
        if self._random_state is None:
            self._rng = rng

    def __getstate__(self) -> dict[str, Any]:
        shared = () if self._random_state is not None else ("_rng",)
        return {k: v for k, v in vars(self).items() if k not in shared}

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """See Searcher."""
        del trial_id
        ((_, config),) = variants(self._space, self._rng)
        return config

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """See Searcher."""

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, *, error: bool = False
    ) -> None:
        """See Searcher."""


class ConcurrencyLimiter:
    """No more suggestions than ``max_concurrent`` at once; ``batch``: and all end together."""

    def __init__(self, searcher: Searcher, max_concurrent: int, batch: bool = False) -> None:
        assert max_concurrent > 0, f"max_concurrent is {max_concurrent}"
        if not hasattr(searcher, "suggest"):
            raise RuntimeError(
                "The `ConcurrencyLimiter` only works with `Searcher` "
                f"objects (got {type(searcher)}). Please try to pass "
                "`max_concurrent` to the search generator directly."
            )
        self.searcher = searcher
        self.max_concurrent = max_concurrent
        self._batch = batch
        self._live: dict[str, None] = {}
        self._ended: dict[str, tuple[Mapping[str, Any] | None, bool]] = {}

    def begin(self, space: Mapping[str, Any], rng: Any) -> None:
        """See Searcher."""
        self.searcher.begin(space, rng)

    def resume(self, rng: Any) -> None:
        """See Searcher."""
        self.searcher.resume(rng)

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """See Searcher."""
        assert trial_id not in self._live, f"Trial ID {trial_id} must be unique."
        if len(self._live) >= self.max_concurrent:
            return None
        suggestion = self.searcher.suggest(trial_id)
        if suggestion is not None:
            self._live[trial_id] = None
        return suggestion

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """See Searcher."""
        self.searcher.on_trial_result(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, *, error: bool = False
    ) -> None:
        """See Searcher."""
        if trial_id not in self._live:
            return
        self._ended[trial_id] = (result, error)
        if self._batch and len(self._ended) < len(self._live):
            return
        for ended, (last, failed) in self._ended.items():
            self.searcher.on_trial_complete(ended, last, error=failed)
            del self._live[ended]
        self._ended = {}


class SearchGenerator:
    """A searcher as a search algorithm."""

    suggests = True

    def __init__(self, searcher: Searcher) -> None:
        self.searcher = searcher
        self._made = 0
        self._finished = False

    def begin(self, space: Mapping[str, Any], num_samples: int, rng: Any, make: MakeTrial) -> None:
        """See SearchAlgorithm."""
        self._num_samples, self._make = num_samples, make
        self.searcher.begin(space, rng)

    def resume(self, rng: Any, make: MakeTrial) -> None:
        """See SearchAlgorithm."""
        self._make = make
        self.searcher.resume(rng)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "_make"}

    def next_trial(self) -> Trial | None:
        """See SearchAlgorithm."""
        if self.is_finished():
            return None
        trial_id = f"{self._made:08x}"
        config = self.searcher.suggest(trial_id)
        if config is None:
            return None
        self._made += 1
        flat = dict(_flat(config))
        return self._make(trial_id, config, f"{self._made}_{format_vars(flat)}", _by_name(flat))

    def is_finished(self) -> bool:
        """See SearchAlgorithm."""
        return self._finished or self._made >= self._num_samples

    def set_finished(self) -> None:
        """See SearchAlgorithm."""
        self._finished = True

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """See SearchAlgorithm."""
        self.searcher.on_trial_result(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, *, error: bool = False
    ) -> None:
        """See SearchAlgorithm."""
        self.searcher.on_trial_complete(trial_id, result, error=error)

    def max_pending_trials(self, cluster_cpus: float) -> int:
        """The limiter's, else 1: the next suggestion waits until the last trial runs."""
        del cluster_cpus
        if isinstance(self.searcher, ConcurrencyLimiter):
            return self.searcher.max_concurrent
        return 1


def _generator(random_state: Any, rng: Any) -> Any:
    if random_state is None:
        return rng
    if hasattr(random_state, "uniform"):
        return random_state
    return generator(random_state)


def _flat(config: Mapping[str, Any], path: Path = ()) -> list[tuple[Path, Any]]:
    found: list[tuple[Path, Any]] = []
    for key, value in config.items():
        if isinstance(value, dict):
            found += _flat(value, (*path, key))
        else:
            found.append(((*path, key), value))
    return found


def _by_name(chosen: Mapping[Path, Any]) -> dict[str, Any]:
    return {"/".join(map(str, path)): value for path, value in chosen.items()}
