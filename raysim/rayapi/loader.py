"""Running an unmodified Ray program: ``import ray`` finds this package, time is virtual.

Real counterpart: ``python script.py`` on a machine of the cluster.

While a program runs, ``sys.modules`` has this package under Ray's names, whether the real Ray is
installed or not, and the functions of ``time``, ``datetime``, ``os`` and ``asyncio`` that would
look outside answer from the simulation. All of it is put back afterwards, so a session is one at a
time. Workers' output goes to the driver's, each line with its process, as Ray prints it.

Not modelled: sockets. Subprocesses are real ones, which know nothing of the emulated world; ``ray
start`` and its like are refused.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import cloudpickle

from raysim.perf.constants import TrainingConstants
from raysim.rayapi import asyncio_loop, clock, serialization, threads
from raysim.rayapi.compute import Compute
from raysim.rayapi.execution import ProcessExit
from raysim.rayapi.fibers import HUB
from raysim.rayapi.serve import bound, clients
from raysim.rayapi.session import LIMIT_S, Session
from raysim.rayapi.torch_programs import load_for, torch_world
from raysim.rayapi.unsupported import NotEmulatedError, RefusedImports, getattr_of

_DATASOURCE = (
    "datasource",
    "datasink",
    "file_datasink",
    "file_based_datasource",
    "filename_provider",
)
_PREPROCESSORS = (
    "chain", "concatenator", "discretizer", "encoder", "hasher", "imputer", "normalizer", "scaler",
    "tokenizer", "transformer", "vectorizer",
)  # fmt: skip


_SCHEDULERS = (
    "async_hyperband", "hb_bohb", "hyperband", "median_stopping_rule", "pbt", "trial_scheduler",
)  # fmt: skip
_SEARCH = (
    "basic_variant", "concurrency_limiter", "repeater", "search_algorithm", "search_generator",
    "searcher", "variant_generator",
)  # fmt: skip
_TRAIN_V2 = (
    "config", "context", "data_parallel_trainer", "exceptions", "preemption", "report_config",
    "reported_checkpoint", "result", "train_fn_utils",
)  # fmt: skip
_STOPPERS = (
    "experiment_plateau", "function_stopper", "maximum_iteration", "noop", "stopper", "timeout",
    "trial_plateau",
)  # fmt: skip
_TRAINABLE = ("function_trainable", "trainable", "trainable_fn_utils", "util")
_LOGGERS = ("csv", "json", "logger", "tensorboardx")

_SEARCHERS = tuple(
    name
    for package in ("optuna", "hyperopt", "bayesopt", "ax", "hebo", "bohb", "nevergrad", "zoopt")
    for name in (package, f"{package}.{package}_search")
)


def _submodules(name: str, module: ModuleType, parts: tuple[str, ...]) -> dict[str, ModuleType]:
    """Modules of a package of Ray that are one here."""
    return {f"{name}.{part}": module for part in parts}


def _joined(name: str, data: ModuleType) -> ModuleType:
    """``ray.data``'s names beside those of batches: Ray's module imports both."""
    module = ModuleType(name)
    vars(module).update({**vars(data.collate), **vars(data)})
    module.__name__ = name
    return module


def _modules() -> dict[str, ModuleType]:
    """Ray's names for the package's modules."""
    from raysim.rayapi import (
        actors,
        api,
        exceptions,
        internal_kv,
        job_config,
        private,
        runtime_context,
        runtime_env,
        serve,
        util,
    )
    from raysim.rayapi.util import (
        accelerators,
        actor_pool,
        collective,
        helpers,
        locations,
        marks,
        metrics,
        multiprocessing,
        placement_group,  # noqa: F401  (the function; its module is in sys.modules)
        queue,
        scheduling_strategies,
        state,
        testing,
        tqdm_ray,
    )
    from raysim.rayapi.util.multiprocessing import pool

    experimental = ModuleType("ray.experimental")
    vars(experimental).update(
        tqdm_ray=tqdm_ray, __path__=[], __getattr__=getattr_of("ray.experimental"),
        internal_kv=internal_kv,
        get_object_locations=locations.get_object_locations,
        get_local_object_locations=locations.get_local_object_locations,
    )  # fmt: skip
    serve.metrics, api.experimental, api.cloudpickle = metrics, experimental, cloudpickle
    util.multiprocessing, util.metrics, util.accelerators = multiprocessing, metrics, accelerators
    return {
        "ray": api, "ray.actor": actors, "ray.exceptions": exceptions, "ray._raylet": _raylet(),
        "ray.runtime_context": runtime_context, "ray.runtime_env": runtime_env, "ray.util": util,
        "ray.job_config": job_config, "ray.util.annotations": marks,
        "ray.util.actor_pool": actor_pool, "ray.util.helpers": helpers, "ray.util.queue": queue,
        "ray.util.multiprocessing": multiprocessing, "ray.util.multiprocessing.pool": pool,
        "ray.util.placement_group": sys.modules["raysim.rayapi.util.placement_group"],
        "ray.util.scheduling_strategies": scheduling_strategies, "ray.util.state": state,
        "ray.util.metrics": metrics, "ray.serve.metrics": metrics,
        "ray.util.collective": collective, "ray.util.collective.collective": collective,
        "ray.util.collective.types": collective.types,
        "ray.util.accelerators": accelerators, "ray.util.accelerators.accelerators": accelerators,
        "ray.util.debug": util, "ray.util.check_serialize": util, "ray.util.serialization": util,
        "ray.runtime_env.runtime_env": runtime_env, "ray.experimental": experimental,
        "ray.experimental.tqdm_ray": tqdm_ray, "ray.experimental.locations": locations,
        "ray.experimental.internal_kv": internal_kv,
        "ray.util.state.api": state, "ray.cloudpickle": cloudpickle,
        **testing.test_utils(), **private.modules(util), **_libraries(),
    }  # fmt: skip


def _raylet() -> ModuleType:
    from raysim.rayapi import api, identifiers

    raylet = ModuleType("ray._raylet")
    for name in dir(identifiers):
        if isinstance(getattr(identifiers, name), type):
            setattr(raylet, name, getattr(identifiers, name))
    raylet.ObjectRef = api.ObjectRef  # type: ignore[attr-defined]
    raylet.ObjectRefGenerator = api.ObjectRefGenerator  # type: ignore[attr-defined]
    raylet.DynamicObjectRefGenerator = api.DynamicObjectRefGenerator  # type: ignore[attr-defined]
    return raylet


def _libraries() -> dict[str, ModuleType]:
    """Names of Ray's libraries, and of what is built on Ray Core."""
    from raysim.rayapi import air, api, autoscaler, dag, data, job_submission, serve, train, tune
    from raysim.rayapi.rllib.names import rllib_modules
    from raysim.rayapi.train import huggingface as train_hf
    from raysim.rayapi.train import lightning as train_pl
    from raysim.rayapi.train import torch as train_torch
    from raysim.rayapi.tune import pb2, registry, result
    from raysim.raylibs.tune import sample, trial

    api.train, api.tune, train.torch, api.serve, api.dag = train, tune, train_torch, serve, dag
    return {
        "ray.air": air, "ray.air.config": air, "ray.air.session": air.session,
        "ray.autoscaler": autoscaler, "ray.autoscaler.sdk": autoscaler,
        "ray.data": data, "ray.data.context": data.context, "ray.data.dataset": data,
        "ray.data.aggregate": data.aggregate, "ray.data.collate_fn": data.collate,
        "ray.data.grouped_data": data, "ray.data.iterator": _joined("ray.data.iterator", data),
        "ray.data.block": data.block, "ray.data.datasource": data.datasource,
        "ray.data.datasource.partitioning": data.partitioning,
        **_submodules("ray.data.datasource", data.datasource, _DATASOURCE),
        "ray.data.preprocessors": data.preprocessors,
        **_submodules("ray.data.preprocessors", data.preprocessors, _PREPROCESSORS),
        "ray.data.preprocessor": data.preprocessors.base,
        "ray.data.expressions": data.expressions, "ray.data.datatype": data.datatype,
        "ray.dag": dag, "ray.dag.context": dag, "ray.dag.dag_node": dag, "ray.dag.input_node": dag,
        "ray.dag.output_node": dag, "ray.dag.function_node": dag, "ray.dag.class_node": dag,
        "ray.dag.compiled_dag_node": dag, "ray.job_submission": job_submission,
        "ray.train": train, "ray.train.torch": train_torch,
        "ray.train.huggingface": train_hf, "ray.train.huggingface.transformers": train_hf,
        "ray.train.lightning": train_pl, "ray.train.data_parallel_trainer": train,
        "ray.train.collective": train.collective,
        "ray.train.error": train, "ray.train.v2": train,
        "ray.train.v2.api": ModuleType("ray.train.v2.api"),
        **_submodules("ray.train.v2.api", train, _TRAIN_V2),
        "ray.tune.experiment": trial, "ray.tune.experiment.trial": trial,
        "ray.tune": tune, "ray.tune.tune": tune, "ray.tune.schedulers": tune.schedulers,
        "ray.tune.search": tune.search, "ray.tune.search.sample": sample, "ray.tune.tuner": tune,
        "ray.tune.analysis": tune, "ray.tune.context": tune, "ray.tune.syncer": tune,
        "ray.tune.analysis.experiment_analysis": tune,
        **_submodules("ray.tune.search", tune.search, _SEARCH),
        **_submodules("ray.tune.stopper", tune.stoppers, _STOPPERS),
        **_submodules("ray.tune.trainable", tune, _TRAINABLE),
        **_submodules("ray.tune.logger", tune.callbacks, _LOGGERS),
        "ray.tune.error": tune, "ray.tune.tune_config": tune, "ray.tune.trainable": tune,
        "ray.tune.result_grid": tune, "ray.tune.execution": ModuleType("ray.tune.execution"),
        "ray.tune.execution.placement_groups": tune,
        "ray.tune.registry": registry, "ray.tune.result": result, **rllib_modules(),
        "ray.tune.stopper": tune.stoppers, "ray.tune.callback": tune.callbacks,
        "ray.tune.logger": tune.callbacks, "ray.tune.progress_reporter": tune.callbacks,
        **_submodules("ray.tune.schedulers", tune.schedulers, _SCHEDULERS),
        "ray.tune.schedulers.pb2": pb2,
        **_submodules("ray.tune.search", tune.searchers, _SEARCHERS),
        "ray.serve": serve, "ray.serve.api": serve,
        "ray.serve.config": serve.config, "ray.serve.context": serve.context,
        "ray.serve.deployment": serve, "ray.serve.exceptions": serve.exceptions,
        "ray.serve.grpc_util": serve.rpc, "ray.serve.handle": serve.handle,
        "ray.serve.schema": serve.schema,
    }  # fmt: skip


@contextmanager
def ray_names() -> Iterator[None]:
    """``import ray`` finds this package."""
    real = {name: module for name, module in sys.modules.items()
            if name == "ray" or name.startswith("ray.")}  # fmt: skip
    for name in real:
        del sys.modules[name]
    ours = _modules()
    sys.modules.update(ours)
    for name, module in ours.items():
        package, _, leaf = name.rpartition(".")
        if package in ours and leaf not in vars(ours[package]):  # as ``import ray`` has them in Ray
            setattr(ours[package], leaf, module)
    for module in ours.values():  # packages, so that ``import ray.data.llm`` asks the finder
        if module is not cloudpickle:
            vars(module).setdefault("__path__", [])
    refuse: Any = RefusedImports()
    sys.meta_path.insert(0, refuse)
    try:
        yield
    finally:
        sys.meta_path.remove(refuse)
        for name in [n for n in sys.modules if n == "ray" or n.startswith("ray.")]:
            del sys.modules[name]
        sys.modules.update(real)


class _Output(io.TextIOBase):
    """Standard output of all processes: workers' lines say whose they are."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._partial: dict[tuple[int, str], str] = {}

    def write(self, text: str) -> int:
        """A driver's text goes on as it is, when the clock has caught up; bytes raise TypeError."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        fiber = HUB.here()
        if fiber is None:
            return int(self._real.write(text))
        if not fiber.depth:
            fiber.settle()
        state = fiber.process
        write = state.sink or self._real.write
        if state.is_driver:
            write(text)
            return len(text)
        if os.environ.get("RAY_LOG_TO_DRIVER") == "0":
            return len(text)
        title = state.actor.info.name if state.actor is not None else fiber.name
        key = (state.pid, title)
        *lines, rest = (self._partial.get(key, "") + text).split("\n")
        for line in lines:
            write(f"({title} pid={state.pid}, ip={state.ip}) {line}\n")
        self._partial[key] = rest
        return len(text)

    def flush(self) -> None:
        """Lines are written as they end."""
        self._real.flush()

    def isatty(self) -> bool:
        """Programs that ask do not draw."""
        return False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the real one."""
        return str(getattr(self._real, "encoding", None) or "utf-8")


@contextmanager
def _output() -> Iterator[None]:
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Output(out), _Output(err)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err


def _exit_now(code: int) -> Any:
    if HUB.here() is None:
        _REAL_EXIT(code)
    raise ProcessExit(f"Worker exits with an exit code {code}.")


def _pid() -> int:
    fiber = HUB.here()
    if fiber is None or _asks_for_locks(sys._getframe(1)):  # noqa: SLF001  (as tracebacks do)
        return _REAL_PID()
    return fiber.process.pid


def _asks_for_locks(frame: FrameType) -> bool:
    """``filelock`` closes what another process has opened, which here is one and the same."""
    return str(frame.f_globals.get("__name__", "")).startswith("filelock.")


def _kill(pid: int, number: int) -> None:
    fiber = HUB.here()
    if fiber is None:
        _REAL_KILL(pid, number)
        return
    session = fiber.process.session
    if pid == fiber.process.pid and number in (signal.SIGKILL, signal.SIGTERM):
        raise ProcessExit(f"Worker was killed by signal {number}.")
    for worker_id, state in list(session.processes.items()):
        if state.pid == pid:
            fiber.settle()
            session.env.launcher.kill(worker_id, reason=f"killed by signal {number}")
            return
    raise ProcessLookupError(3, "No such process")


def _refuse_command(command: Any) -> None:
    """``ray start`` and ``ray stop`` would reach what really runs on this machine.

    Raises
    ------
    NotEmulatedError
        A program calls Ray's command line.
    """
    words = command.split() if isinstance(command, str) else list(command)
    if HUB.here() is not None and words and Path(os.fsdecode(words[0])).name == "ray":
        raise NotEmulatedError(
            f"Ray's command line ({' '.join(map(os.fsdecode, words))})",
            "the cluster of --cluster, and ray.init()",
        )


def _open_process(process: Any, args: Any, *more: Any, **options: Any) -> None:
    _refuse_command(args if isinstance(args, str | list | tuple) else [args])
    _REAL_OPEN(process, args, *more, **options)


def _system(command: Any) -> int:
    _refuse_command(command)
    return _REAL_SYSTEM(command)


_REAL_OPEN, _REAL_SYSTEM = subprocess.Popen.__init__, os.system
_REAL_EXIT, _REAL_PID, _REAL_KILL = os._exit, os.getpid, os.kill


@contextmanager
def _process_calls() -> Iterator[None]:
    os._exit = _exit_now  # type: ignore[assignment]
    os.getpid, os.kill = _pid, _kill
    subprocess.Popen.__init__ = _open_process  # type: ignore[assignment, method-assign]
    os.system = _system
    try:
        yield
    finally:
        subprocess.Popen.__init__ = _REAL_OPEN  # type: ignore[method-assign]
        os.system = _REAL_SYSTEM
        os._exit = _REAL_EXIT
        os.getpid, os.kill = _REAL_PID, _REAL_KILL


@contextmanager
def emulated_world() -> Iterator[None]:
    """Everything a program sees of the machine is the emulated one's."""
    tables = cloudpickle.cloudpickle
    classes = tables._DYNAMIC_CLASS_TRACKER_BY_CLASS  # noqa: SLF001  (see ProcessState.enter)
    class_ids = tables._DYNAMIC_CLASS_TRACKER_BY_ID  # noqa: SLF001  (see ProcessState.enter)
    policy = asyncio_loop.install()
    path = list(sys.path)
    clock.install()
    HUB.open = True
    try:
        with ray_names(), _output(), _process_calls(), threads.installed(), torch_world():
            yield
    finally:
        clients.remove()
        clock.remove()
        sys.path[:] = path
        asyncio_loop.remove(policy)
        serialization.inside.clear()
        HUB.open = False
        HUB.drops.clear()
        tables._DYNAMIC_CLASS_TRACKER_BY_CLASS = classes  # noqa: SLF001  (as it was)
        tables._DYNAMIC_CLASS_TRACKER_BY_ID = class_ids  # noqa: SLF001  (as it was)


def run_program(
    main: Callable[[], Any],
    cluster: Any,
    *,
    compute: Compute | None = None,
    limit_s: float = LIMIT_S,
    last: bool = False,
) -> tuple[Any, Session]:
    """Run a function as a driver; what it returns, and the session.

    Parameters
    ----------
    main
        May ``import ray``.
    cluster
        As for ``Session``.
    compute, limit_s, last
        As for ``Session``.
    """
    session = Session(cluster, compute=compute, limit_s=limit_s, last=last)
    with emulated_world():
        return session.run(main), session


def run_script(
    path: str | Path,
    argv: Sequence[str] = (),
    *,
    cluster: Any,
    compute: Compute | None = None,
    limit_s: float = LIMIT_S,
    training: TrainingConstants | None = None,
    last: bool = False,
    steps: int | None = 0,
) -> Session:
    """Run a script as ``python path argv...`` would.

    Parameters
    ----------
    path
        The script.
    argv
        Its arguments.
    cluster, compute, limit_s, training, last, steps
        As for ``Session``.

    Raises
    ------
    SystemExit
        The script exits with a code other than 0.
    """
    file = Path(path)
    text = file.read_text()
    code = compile(text, str(file), "exec")
    load_for(text, file.parent)  # C code looks at clocks when it is loaded: before the world
    session = Session(
        cluster, compute=compute, limit_s=limit_s, training=training, last=last, steps=steps
    )  # fmt: skip
    module = ModuleType("__main__")
    module.__dict__.update(__file__=str(file), __builtins__=__builtins__)
    before_main, before_argv = sys.modules["__main__"], sys.argv
    known = set(sys.modules)
    sys.modules["__main__"], sys.argv = module, [str(file), *argv]
    try:
        with emulated_world():
            sys.path.insert(0, str(file.parent.resolve()))
            session.run(partial(_to_the_end, code, module))
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise
    finally:
        sys.modules["__main__"], sys.argv = before_main, before_argv
        _forget_modules(set(sys.modules) - known, file.parent.resolve())
    return session


def _to_the_end(code: Any, module: ModuleType) -> None:
    exec(code, module.__dict__)  # noqa: S102  (what running means)
    bound.run_bound(vars(module))
    threads.join_all()


def _forget_modules(names: set[str], folder: Path) -> None:
    """Modules beside the script are its own; they hold references to this run."""
    for name in sorted(names):
        where = getattr(sys.modules.get(name), "__file__", None)
        if where is not None and Path(where).resolve().is_relative_to(folder):
            del sys.modules[name]
