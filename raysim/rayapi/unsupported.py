"""What Ray 2.60 has and this package does not: refused at once, by name.

A name that Ray does not have either stays an ``AttributeError`` or ``ModuleNotFoundError``, so that
programs that probe for features go on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any


class NotEmulatedError(NotImplementedError):
    """A part of Ray that is not emulated; says which, and what to use instead."""

    def __init__(self, name: str, instead: str = "") -> None:
        hint = f" Emulated instead: {instead}." if instead else ""
        super().__init__(f"{name} is not emulated by raysim.{hint}")
        self.name = name
        self.instead = instead

    def __reduce__(self) -> tuple[type[NotEmulatedError], tuple[str, str]]:
        """Made again of the name, not of the text that says it."""
        return type(self), (self.name, self.instead)


_CORE = "tasks, actors, objects, placement groups and ray.util of Ray Core"

_TUNE = "Tuner with grid, random, ASHA, HyperBand, median stopping and PBT"

_DATA = (
    "ray.data.range, from_items, from_numpy, from_pandas, from_arrow, from_torch, "
    "from_huggingface; read_parquet, read_csv, read_json, read_text, read_numpy, read_images and "
    "read_binary_files"
)

_TRAIN = "TorchTrainer, ray.train.report and ray.train.get_context"

_SERVE = (
    "serve.deployment, bind, run, handles, serve.batch, serve.multiplexed, serve.ingress, status"
)

_RLLIB = (
    "PPO, IMPALA, APPO, DQN and SAC of the new API stack, sampling from gymnasium's and your "
    "environments, under PPO of several agents; modules, learners, connectors, callbacks of one's "
    "own"
)

NAMES: dict[str, str] = {
    "ray.client": "ray.init()", "ray.ClientBuilder": "ray.init()",
    "ray.cpp_function": "Python functions", "ray.java_function": "Python functions",
    "ray.java_actor_class": "Python classes", "ray.Language": "", "ray.workflow": _CORE,
    "ray.internal": _CORE, "ray.widgets": "", "ray.LoggingConfig": "the logging module",
    "ray.cross_language": "Python functions", "ray.dag.plot": "str(node)",
    "ray.dag.CollectiveOutputNode": _CORE, "ray.dag.GPUFuture": _CORE,
    "ray.dag.DAGOperationFuture": _CORE,
    "ray.util.accelerators.tpu": "accelerator_type= with the type's name",
    "ray.util.pdb": "the machine's own debugger", "ray.util.rpdb": "the machine's own debugger",
    "ray.util.iter": "ray.util.ActorPool",
    "ray.util.connect": "ray.init()", "ray.util.disconnect": "ray.shutdown()",
    "ray.util.client": "ray.init()", "ray.util.dask": "ray.data, or tasks",
    "ray.util.joblib": "ray.util.multiprocessing.Pool",
    "ray.util.spark": _CORE, "ray.util.tpu": _CORE,
    "ray.util.tracing": "raysim's own timeline", "ray.util.debugpy": "",
    "ray.util.ray_debugpy": "", "ray.util.xgboost": _CORE, "ray.util.lightgbm": _CORE,
    "ray.util.timer": "the clock of time", "ray.util.common": _CORE,
    "ray.util.sgd": _CORE, "ray.util.horovod": _CORE, "ray.util.actor_group": "ray.util.ActorPool",
    "ray.dashboard": "raysim's own report",
    **{f"ray.data.{name}": _DATA for name in (
        "Catalog", "_internal", "catalog", "constants", "exceptions", "extensions", "stats",
        "namespace_expressions", "util", "datasource.file_meta_provider", "datasource.path_util",
        "datasource.util", "datasource.BaseFileMetadataProvider",
        "datasource.DefaultFileMetadataProvider", "datasource.FileMetadataProvider",
        "datasource.SaveMode", "datasource.Reader", "preprocessors.torch", "preprocessors.utils",
        "DatasetIterator", "DatasetSummary", "CatalogAccessMode", "ClickHouseTableSettings",
        "DatabricksUnityCatalog", "KafkaAuthConfig", "list_stats_summaries",
        "checkpoint", "random_access_dataset",
        "read_api", "datasource.DummyOutputDatasink",
        "datasource.LeRobotDatasource",
        "datasource.MCAPDatasource", "datasource.RandomIntRowDatasource",
        "datasource.TurbopufferDatasink", "datasource.DeltaSharingDatasource",
        "context.AutoscalingConfig", "context.DeltaConfig", "context.IcebergConfig",
        "context.LanceConfig",
        "from_daft", "from_dask", "from_mars", "from_modin",
        "from_spark", "from_tf",
        "preprocessors.TorchVisionPreprocessor",
    )},
    **{f"ray.data.expressions.{name}": "col, lit, star, udf" for name in (
        "monotonically_increasing_id", "random", "unnest", "MonotonicallyIncreasingIdExpr",
        "RandomExpr", "UnnestExpr",
    )},
    **{f"ray.train.{name}": _TRAIN for name in (
        "ValidationConfig", "ValidationFn", "ValidationTaskConfig",
        "backend", "base_trainer", "constants",
        "_internal", "context", "examples", "horovod", "lightgbm", "session",
        "tensorflow", "trainer", "utils", "v2._internal", "xgboost", "torch.TorchCheckpoint",
        "torch.accelerate", "torch.config", "torch.torch_trainer", "torch.train_loop_utils",
        "torch.xla",
    )},
    **{f"ray.util.state.{name}": "the listings of ray.util.state" for name in (
        "StateApiClient", "get_log", "list_cluster_events", "list_logs", "list_runtime_envs",
    )},
    **{f"ray.tune.{name}": _TUNE for name in (
        "Experiment", "ProgressReporter",
        "run_experiments", "integration", "experiment.Experiment", "callback.CallbackList",
        "logger.aim", "logger.comet", "logger.mlflow", "logger.wandb", "logger.UnifiedLogger",
        "progress_reporter.ProgressReporter", "utils", "examples", "automl", "cli", "constants",
        "resources", "experimental", "execution.tune_controller", "schedulers.util",
        "search.util", "trainable.metadata", "trainable.FunctionTrainable",
        "trainable.wrap_function",
    )},
    **{f"ray.tune.schedulers.{name}": _TUNE for name in (
        "HyperBandForBOHB", "PopulationBasedTrainingReplay", "ResourceChangingScheduler",
        "resource_changing_scheduler",
    )},
    **{f"ray.tune.search.{name}": _TUNE for name in (
        "Repeater", "SearchAlgorithm", "SearchGenerator", "Searcher",
    )},
    **{f"ray.serve.{name}": _SERVE for name in (
        "_private", "async_inference_autoscaling_policy", "taskiq_task_processor",
        "ControllerOptions", "TracingConfig", "get_deployment_actor",
        "get_deployment_actor_context", "get_trace_context", "shutdown_async",
        "autoscaling_policy", "batching", "dag", "experimental", "gang", "generated",
        "gradio_integrations", "multiplex", "request_router",
        "scripts", "task_consumer", "task_processor", "utils",
        "config.RequestRouterConfig", "config.AggregationFunction", "config.BackpressureConfig",
        "config.ControllerOptions", "config.DeploymentActorConfig", "config.GangPlacementStrategy",
        "config.GangRuntimeFailurePolicy", "config.GangSchedulingConfig",
        "context.DeploymentActorContext", "handle.DeploymentBroadcastResponse",
        "exceptions.gRPCStatusError", "schema.ServeDeploySchema", "schema.ServeApplicationSchema",
        "schema.DeploymentSchema", "schema.HTTPOptionsSchema", "schema.gRPCOptionsSchema",
        "schema.ApplicationDetails", "schema.DeploymentDetails", "schema.ReplicaDetails",
        "schema.ServeInstanceDetails", "schema.TaskProcessorConfig", "schema.CeleryAdapterConfig",
        "schema.TracingConfig",
    )},
    **{f"ray.serve.llm.{name}": "build_openai_app with more replicas" for name in (
        "build_dp_deployment", "build_dp_openai_app",
    )},
    "ray.data.llm.SGLangEngineProcessorConfig": "vLLMEngineProcessorConfig",
    "ray.rllib": _RLLIB,
    **{f"ray.air.{name}": "configs and report of ray.train or ray.tune" for name in (
        "AcquiredResources", "DataBatchType", "ResourceRequest", "constants", "data_batch_type",
        "execution", "integrations", "result", "util",
    )},
    "ray.llm": _CORE,
    "ray.cluster_utils": "a cluster file",
    "ray.experimental": _CORE, "ray.scripts": "raysim", "ray.core": _CORE, "ray.types": "",
    "ray.client_builder": "ray.init()",
    "ray.ray_constants": "", "ray.worker": "ray.get_runtime_context()",
    "ray.state": "ray.util.state", "ray.serialization": "ray.util.register_serializer",
    "ray.autoscaler": "ray.autoscaler.sdk.request_resources", "ray.setup-dev": "",
    "ray.remote_function": "ray.remote", "ray._private": "the public functions of ray",
    "ray._common": "the public functions of ray",
}  # fmt: skip
"""Public names of ray 2.60 that are refused, and what to say."""


def refuse(name: str) -> None:
    """Raise if Ray has it and this package does not."""
    parts = name.split(".")
    for length in range(len(parts), 1, -1):
        known = ".".join(parts[:length])
        if known in NAMES:
            raise NotEmulatedError(name, NAMES[known])


def check_names(function: str, names: Any, known: Any, refused: Any = ()) -> None:
    """Keywords as a signature takes them.

    Raises
    ------
    TypeError
        Ray has none of this name.
    NotEmulatedError
        It is one of those ``refused``.
    """
    for name in names:
        if name in refused:
            raise NotEmulatedError(f"{function}({name}=)")
        if name not in known:
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")


def taken_by(made: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the keywords that its signature has."""
    known = signature(made).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in known.values())
    return {name: value for name, value in given.items() if anything or name in known}


def getattr_of(module: str) -> Any:
    """A module's ``__getattr__``."""

    def missing(attribute: str) -> Any:
        name = f"{module}.{attribute}"
        if name in LATER and name.rpartition(".")[0] in sys.modules:
            return import_module(name)  # as ``from ray.serve import llm`` does
        if not attribute.startswith("__"):  # whoever looks through all modules asks for those
            refuse(name)
        raise AttributeError(f"module {module!r} has no attribute {attribute!r}")

    return missing


LATER = {
    "ray.serve.llm": "raysim.rayapi.llm.serving",
    "ray.serve.llm.deployment": "raysim.rayapi.llm.server",
    "ray.serve.llm.ingress": "raysim.rayapi.llm.ingress",
    "ray.serve.llm.openai_api_models": "raysim.rayapi.llm.openai_models",
    "ray.data.llm": "raysim.rayapi.llm.processors",
}
"""Modules that are imported when a program does: they need packages that others do without."""


EXAMPLES = ("ray.rllib.examples.", "ray.tune.examples", "ray.train.examples")
"""Code as users write it that lies in Ray's package: it is the installed Ray's, if there is one."""


def _installed(name: str) -> ModuleSpec | None:
    """A module of the Ray that is installed, which is not imported for it."""
    ray = PathFinder.find_spec("ray")
    for folder in (ray and ray.submodule_search_locations) or ():
        file = Path(folder, *name.split(".")[1:])
        if (file / "__init__.py").is_file():
            return spec_from_file_location(
                name, file / "__init__.py", submodule_search_locations=[str(file)]
            )
        if file.with_suffix(".py").is_file():
            return spec_from_file_location(name, file.with_suffix(".py"))
    return None


class RefusedImports:
    """A finder for ``import``: parts of Ray that are not there, or not yet."""

    def find_spec(
        self, name: str, _path: Any = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Called for every module that nobody else has; most of ours are in ``sys.modules``."""
        if name in LATER:
            return ModuleSpec(name, _Later(LATER[name]), is_package=True)
        if name.startswith(EXAMPLES) and (installed := _installed(name)) is not None:
            return installed
        if name == "ray" or name.startswith("ray."):
            if (installed := _of_rllib(name)) is not None:
                return installed
            refuse(name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def _of_rllib(name: str) -> ModuleSpec | None:
    from raysim.rayapi.rllib import installed  # its package imports what refuses

    return installed.find(name)


class _Later(Loader):
    """Of a module that has a name of this package."""

    def __init__(self, ours: str) -> None:
        self._ours = ours

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Under Ray's name the same one."""
        from raysim.rayapi.clock import import_unpatched  # it imports what refuses

        del spec
        module: ModuleType = import_unpatched(self._ours)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has run."""
