"""The module ``ray.tune.schedulers.pb2``: population based training that draws within bounds.

Real counterpart: ``ray/tune/schedulers/pb2.py`` (ray 2.60), which scikit-learn's Gaussian process
tells where to go on. What it learns from depends on losses, which trials on GPUs do not have here:
who takes over another's state gets settings drawn at random from the bounds. Whether scikit-learn
is installed does not matter. Not modelled: the driver's time for a fit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from raysim.raylibs.tune.sample import uniform
from raysim.raylibs.tune.schedulers import PopulationBasedTraining
from raysim.raylibs.tune.schedulers.decisions import TuneError


class PB2(PopulationBasedTraining):
    """Ray's constructor.

    Parameters
    ----------
    hyperparam_bounds
        Of each setting, ``[lowest, highest]``, or a dictionary of such.
    others
        As of ``PopulationBasedTraining``.

    Raises
    ------
    TuneError
        There are no bounds.
    ValueError
        They are no pair, or not in order.
    """

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        hyperparam_bounds: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        if not hyperparam_bounds:
            raise TuneError("`hyperparam_bounds` must be specified to use PB2 scheduler.")
        spaces = _spaces(hyperparam_bounds)
        warnings.warn("raysim: PB2 draws at random here; nothing is learned", stacklevel=2)
        super().__init__(
            time_attr, metric, mode, perturbation_interval,
            hyperparam_mutations=spaces, quantile_fraction=quantile_fraction,
            resample_probability=1.0, custom_explore_fn=custom_explore_fn, log_config=log_config,
            require_attrs=require_attrs, synch=synch,
        )  # fmt: skip


def _spaces(bounds: Mapping[str, Any]) -> dict[str, Any]:
    """To draw from."""
    found: dict[str, Any] = {}
    for key, value in bounds.items():
        if isinstance(value, Mapping):
            found[key] = _spaces(value)
            continue
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise ValueError(
                "`hyperparam_bounds` values must either be a list or tuple of size 2, but got "
                f"{value} instead for the param '{key}'"
            )
        low, high = value
        if low > high:
            raise ValueError(
                "`hyperparam_bounds` values must be of the form [low, high] where low <= high, "
                f"but got {value} instead for param '{key}'."
            )
        found[key] = uniform(low, high)
    return found
