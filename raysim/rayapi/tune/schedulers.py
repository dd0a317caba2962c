"""The module ``ray.tune.schedulers`` (2.60); its classes are those of ``raylibs``."""

from raysim.rayapi.unsupported import getattr_of
from raysim.raylibs.tune.schedulers import (
    ASHAScheduler,
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)

__getattr__ = getattr_of("ray.tune.schedulers")

__all__ = [
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "FIFOScheduler",
    "HyperBandScheduler",
    "MedianStoppingRule",
    "PopulationBasedTraining",
]
