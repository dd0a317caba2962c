"""The module ``ray.tune`` (2.60) on virtual time."""

from __future__ import annotations

from raysim.rayapi.checkpoint import Checkpoint
from raysim.rayapi.tune import callbacks, schedulers, search, searchers, stoppers
from raysim.rayapi.tune.callbacks import Callback, CLIReporter, JupyterNotebookReporter
from raysim.rayapi.tune.configs import (
    CheckpointConfig,
    FailureConfig,
    ResumeConfig,
    RunConfig,
    SyncConfig,
    TuneConfig,
)
from raysim.rayapi.tune.registry import register_env, register_trainable
from raysim.rayapi.tune.results import ExperimentAnalysis, Result, ResultGrid
from raysim.rayapi.tune.schedulers import create_scheduler
from raysim.rayapi.tune.search import create_searcher
from raysim.rayapi.tune.stoppers import Stopper
from raysim.rayapi.tune.trainable import (
    Trainable,
    TuneContext,
    get_checkpoint,
    get_context,
    report,
    with_parameters,
    with_resources,
)
from raysim.rayapi.tune.tuner import Tuner, run
from raysim.rayapi.unsupported import getattr_of
from raysim.raylibs.tune.resources import PlacementGroupFactory
from raysim.raylibs.tune.sample import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)
from raysim.raylibs.tune.schedulers.decisions import TuneError

__getattr__ = getattr_of("ray.tune")

__all__ = [
    "CLIReporter",
    "Callback",
    "Checkpoint",
    "CheckpointConfig",
    "ExperimentAnalysis",
    "FailureConfig",
    "JupyterNotebookReporter",
    "PlacementGroupFactory",
    "Result",
    "ResultGrid",
    "ResumeConfig",
    "RunConfig",
    "Stopper",
    "SyncConfig",
    "Trainable",
    "TuneConfig",
    "TuneContext",
    "TuneError",
    "Tuner",
    "callbacks",
    "choice",
    "create_scheduler",
    "create_searcher",
    "get_checkpoint",
    "get_context",
    "grid_search",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "register_env",
    "register_trainable",
    "report",
    "run",
    "sample_from",
    "schedulers",
    "search",
    "searchers",
    "stoppers",
    "uniform",
    "with_parameters",
    "with_resources",
]
