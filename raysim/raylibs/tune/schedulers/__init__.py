"""Tune's trial schedulers: what becomes of a trial after each of its results."""

from raysim.raylibs.tune.schedulers.asha import AsyncHyperBandScheduler
from raysim.raylibs.tune.schedulers.decisions import (
    CONTINUE,
    NOOP,
    PAUSE,
    STOP,
    Controller,
    TrialScheduler,
)
from raysim.raylibs.tune.schedulers.fifo import FIFOScheduler
from raysim.raylibs.tune.schedulers.hyperband import HyperBandScheduler
from raysim.raylibs.tune.schedulers.median_stopping import MedianStoppingRule
from raysim.raylibs.tune.schedulers.pbt import PopulationBasedTraining

ASHAScheduler = AsyncHyperBandScheduler

__all__ = [
    "CONTINUE",
    "NOOP",
    "PAUSE",
    "STOP",
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "Controller",
    "FIFOScheduler",
    "HyperBandScheduler",
    "MedianStoppingRule",
    "PopulationBasedTraining",
    "TrialScheduler",
]
