"""A worker's side of ``ray.train``: the user's loop in a fiber, ``report``, ``get_context``.

Real counterparts (ray 2.60): ``ray/train/v2/api/{train_fn_utils,context,report_config}.py``,
``v2/_internal/execution/context.py``. A loop that takes no training steps advances by one with
each of its reports, which is what a failure then costs.

Not modelled: ``checkpoint_upload_fn``, ``validation``.
"""

from __future__ import annotations

import copy
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

from raysim.rayapi.calls import program_call, this_fiber
from raysim.rayapi.checkpoint import Checkpoint
from raysim.rayapi.data.executions import iterator_of
from raysim.rayapi.failures import exception_of, raise_error
from raysim.rayapi.fibers import HUB
from raysim.rayapi.imports import load_program
from raysim.rayapi.library_code import in_fiber, play, state_of
from raysim.rayapi.lightning.ranks import OwnRank
from raysim.rayapi.process_state import ENVIRON, ProcessState
from raysim.rayapi.session import Session
from raysim.rayapi.train.configs import CheckpointUploadMode
from raysim.rayapi.train.environment import set_environment
from raysim.rayapi.train.hooks import Hooks
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raycore.scripts import Ask
from raysim.raycore.tasks import TaskError
from raysim.raylibs.train import reports
from raysim.raylibs.train.context import TrainContext as RankContext
from raysim.raylibs.train.trainer import PROCESS_GROUP_S
from raysim.units import to_ns

Call = tuple[Any, tuple[Any, ...], Mapping[str, Any]]
"""A function, its arguments, those by name."""
Environments = Sequence[Mapping[str, str]]
"""Of a node's processes, in order."""


@dataclass(kw_only=True)
class Run:
    """What the workers of one ``fit()`` share."""

    session: Session
    name: str
    folder: Path
    code: bytes = b""
    """The loop, pickled."""
    config: dict[str, Any] | None = None
    """None: the loop takes no argument."""
    launched: bool = False
    """The ranks are scripts of a launcher (``rayapi.launch``): they make their process group, and
    pay for the files they write, themselves."""
    checkpoint_names: dict[tuple[int, int], str] = field(default_factory=dict)
    """By attempt and report: the first rank that comes names it for all."""
    spawn: Callable[[Worker, Sequence[Call]], None] | None = None
    """Then: ``torch.multiprocessing.spawn``, of a call for each process."""
    start_others: Callable[[Worker, Sequence[Environments]], None] | None = None
    """And: the script again in other processes, beside the only one there is, which is the first of
    the first node."""
    gpus: float = 0.0
    """Of each worker."""
    cpus: float = 0.0
    bound: bool = False
    """Its ranks have cores of their own: ``deepspeed --bind_cores_to_rank``."""
    env_vars: Mapping[str, str] = field(default_factory=dict)
    """Of the runtime environment that its workers have from the driver's."""
    set_up: Callable[[Worker], None] | None = None
    """What a library of the worker's does before the loop."""
    datasets: Mapping[str, Any] = field(default_factory=dict)
    """Of the trainer."""
    brought: dict[Any, dict[int, Any]] = field(default_factory=dict)
    """By group and meeting, what each rank exchanges."""

    def loop(self, context: RankContext) -> Ask:
        """``UserFunction``: run the user's loop in a worker's process."""
        state = state_of(self.session, context.process)
        worker = Worker(run=self, context=context, state=state)
        state.training = worker
        return in_fiber(state, worker.main, self.name)


class Worker(Hooks):
    """One rank of one attempt."""

    def __init__(self, *, run: Run, context: RankContext, state: ProcessState) -> None:
        self.run = run
        self.context = context
        self.state = state
        restored = context.restored
        self.checkpoint: Checkpoint | None = restored.data if restored is not None else None
        self.torch_steps: Any = None
        """Of a worker whose torch works on shapes (``shapes.steps.Steps``)."""
        self.cpu_steps: Any = None
        """Of one whose torch runs on CPUs (``shapes.cpu_steps.CpuSteps``)."""
        self.state_of_torch: Any = None
        self.rank_zero = OwnRank()
        self.globals: dict[Any, dict[Any, Any]] = {}
        """What libraries keep of their process, by what keeps it."""
        self.shards: dict[str, Any] = {}
        """Iterators that it has asked for."""
        self.in_group = not run.launched
        """Whether it is a member of torch's process group."""
        self.shown_devices = math.ceil(context.local_world_size * run.gpus)
        """GPUs that are there for it: those that the workers of its node hold together."""
        self.children: list[Any] = []
        """Processes that it has started by hand and not waited for (``shapes.processes``)."""
        self._reports, self._exchanges = 0, dict[Any, int]()

    @property
    def gpus(self) -> float:
        """It holds."""
        return self.run.gpus

    @property
    def visible_devices(self) -> int:
        """GPUs it sees: of a launched script those that ``CUDA_VISIBLE_DEVICES`` names, if it does.

        As CUDA reads it: up to the first that is not there.
        """
        said = self.state.environ.get(ENVIRON.encodekey("CUDA_VISIBLE_DEVICES"))
        if said is None or not self.run.launched:
            return self.shown_devices
        named = [part.strip() for part in ENVIRON.decodevalue(said).split(",")]
        there = set(map(str, range(self.shown_devices)))
        return sum(1 for _ in takewhile(there.__contains__, named))

    @property
    def devices(self) -> range:
        """Its GPUs, among those of all workers on its node, which Ray Train shows each of them."""
        first = int(self.context.local_rank * self.gpus)
        return range(first, first + max(1, int(self.gpus))) if self.gpus else range(0)

    def enter(self) -> None:
        """A slice of its process begins."""
        self.rank_zero.enter()
        if self.state_of_torch is not None:
            self.state_of_torch.enter()

    def leave(self) -> None:
        """It has ended, or waits."""
        if self.state_of_torch is not None:
            self.state_of_torch.leave()
        self.rank_zero.leave()

    def main(self) -> Any:
        """In its fiber."""
        run = self.run
        this_fiber().depth = 1  # what its own code takes on this machine is not charged
        set_environment(self)
        if run.set_up is not None:
            run.set_up(self)
        if self.torch_steps is None:
            self.phase("steps")
        function = load_program(run.code, there=frozenset(["torch"]))  # its backend's own
        value = function() if run.config is None else function(copy.deepcopy(run.config))
        self.phase("reports")
        this_fiber().settle()
        return value

    def phase(self, phase: str) -> None:
        """What the run does from here on; rank 0 speaks for all."""
        gang = self.context.gang
        if self.context.rank == 0 and not gang.over and gang.record.spans[-1].phase != phase:
            this_fiber().settle()
            gang.record.phase(gang.env.sim.now_ns, phase)

    def waits_for_data(self) -> None:
        """From here on, until ``has_data``."""
        self.phase("data")

    def has_data(self) -> None:
        """A batch is there, or there are no more."""
        self.phase("steps" if self.torch_steps is None else "between")

    def join_group(
        self, backend: Any = None, *_more: Any, world_size: int = -1, rank: int = -1, **_others: Any
    ) -> None:  # fmt: skip
        """``init_process_group``: Ray Train has done it; of launched ranks all wait for the last.

        Raises
        ------
        ValueError
            It is one already, or nobody has said which.
        NotEmulatedError
            The script wants another group than the launcher's ranks.
        """
        del backend
        if not self.run.launched:
            return
        if rank in (-1, None) and "RANK" not in os.environ:
            raise ValueError(
                "Error initializing torch.distributed using env:// rendezvous: environment "
                "variable RANK expected, but not set"
            )
        if world_size not in (-1, None, self.context.world_size):
            raise NotEmulatedError(
                f"a process group of {world_size} where {self.context.world_size} run",
                "raysim run torchrun --nproc-per-node N SCRIPT",
            )
        if self.in_group:
            raise ValueError("trying to initialize the default process group twice!")
        if self.context.world_size > 1:
            self.meet()
            self.sleep_ns(to_ns(PROCESS_GROUP_S))
        self.in_group = True
        self.phase("between")

    def start_processes(
        self, function: Any, args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True,
        daemon: bool = False, start_method: str = "spawn",
    ) -> None:  # fmt: skip
        """``torch.multiprocessing.spawn``."""
        del daemon, start_method
        if self.run.spawn is None or not join:
            raise NotEmulatedError("torch.multiprocessing.spawn", "raysim run python SCRIPT")
        self.run.spawn(self, [(function, (i, *args), {}) for i in range(nprocs)])

    def run_children(self) -> None:
        """Processes that it has started by hand, to their ends."""
        begun, self.children = self.children, []
        if begun:
            assert self.run.spawn is not None, "only a script's own process starts others"
            self.run.spawn(self, [child.call for child in begun])
            for child in begun:
                child.returncode = 0

    def leave_group(self) -> None:
        """``destroy_process_group``."""
        self.in_group = not self.run.launched

    def expect_group(self) -> Worker:
        """Of calls that need it.

        Raises
        ------
        ValueError
            There is none, as torch says.
        """
        if not self.in_group:
            raise ValueError(
                "Default process group has not been initialized, "
                "please make sure to call init_process_group."
            )
        return self

    def write_file(self, size_bytes: float) -> None:
        """Of a launched rank: to its node's disk. Ray Train pays when a checkpoint is reported."""
        if self.run.launched and size_bytes:
            self.phase("checkpoints")
            play(lambda _: self.context.move("write", size_bytes))
            self.phase("between")

    def meet(self, ranks: tuple[int, ...] = ()) -> None:
        """A collective of the loop's own: these ranks, or all, wait for the last."""
        if self.torch_steps is not None:
            self.torch_steps.synchronize()
        this_fiber().settle()
        play(lambda process: self.context.gang.meet(process, ranks))

    def exchange(
        self, value: Any, ranks: tuple[int, ...] = (), copied: Callable[[Any], Any] = copy.deepcopy
    ) -> list[Any]:
        """Objects of ranks, in order; what was exchanged two meetings ago everybody has."""
        self._exchanges[ranks] = count = self._exchanges.get(ranks, 0) + 1
        who, brought = (id(self.context.gang), ranks), self.run.brought
        brought.pop((*who, count - 2), None)
        mine = brought.setdefault((*who, count), {})
        mine[self.context.rank] = copied(value)
        self.meet(ranks)
        return [copied(mine[rank]) for rank in sorted(mine)]

    def waits_for_gpu(self, length_ns: int, *, learns: bool) -> None:
        """What was queued runs to its end; ``learns``: some of it is a step's."""
        del learns
        self.sleep_ns(length_ns)

    def sleep_ns(self, length_ns: int) -> None:
        """Let time pass on its thread."""
        fiber = this_fiber()
        fiber.sleep(fiber.take_lead() + length_ns)

    def read_bytes(self, size_bytes: float) -> None:
        """From where the run keeps its checkpoints."""
        self.phase("load")
        play(lambda _: self.context.move("read", size_bytes))
        self.phase("between")

    # ---- report() --------------------------------------------------------------------------------

    def report(
        self,
        metrics: Mapping[str, Any],
        checkpoint: Checkpoint | None,
        dir_name: str | None,
        mode: CheckpointUploadMode,
        *,
        delete: bool,
    ) -> None:
        """``ray.train.report``."""
        context, record = self.context, self.context.gang.record
        fiber = this_fiber()
        fiber.settle()
        self._reports += 1
        key = (len(record.attempts), self._reports)
        default = f"checkpoint_{datetime.today():%Y-%m-%d_%H-%M-%S.%f}"
        name = self.run.checkpoint_names.setdefault(key, dir_name or default)
        self._count(record)
        self.phase("checkpoints" if checkpoint is not None else "reports")
        saved = self._saved(checkpoint, name, mode, delete=delete)
        said = copy.deepcopy(dict(metrics) if isinstance(metrics, Mapping) else metrics)
        failed = play(lambda _: context.report(said, saved, mode.value))
        if isinstance(failed, TaskError):
            raise_error(exception_of(failed, ""))
        if saved is not None:
            self.checkpoint = saved.data
        self.phase("steps" if self.torch_steps is None else "between")

    def _count(self, record: Any) -> None:
        """Without training steps, reports are what the run advances by."""
        if self.context.rank == 0 and not self.steps and not self.context.gang.over:
            self.phase("steps")
            record.stepped(self.context.gang.env.sim.now_ns, 1)

    def _saved(
        self, checkpoint: Checkpoint | None, name: str, mode: CheckpointUploadMode, *, delete: bool
    ) -> reports.Checkpoint | None:
        """Its files where the run keeps them; virtual time pays when they are uploaded."""
        if checkpoint is None:
            return None
        kept = checkpoint
        if mode is not CheckpointUploadMode.NO_UPLOAD:
            kept = Checkpoint(str(self.run.folder / name))
            shutil.copytree(checkpoint.path, kept.path, dirs_exist_ok=True)
        gang = self.context.gang
        size_bytes = float(checkpoint.size_bytes)
        if delete:
            shutil.rmtree(checkpoint.path, ignore_errors=True)
        return reports.Checkpoint(
            name=name, step=gang.record.step, reported_ns=gang.env.sim.now_ns,
            size_bytes=size_bytes, data=kept,
        )  # fmt: skip


def here(call: str) -> Worker:
    """The worker that calls."""
    fiber = HUB.here()
    worker = fiber.process.training if fiber is not None else None
    if worker is None:
        raise RuntimeError(
            f"`{call}` cannot be used outside of a Ray Train training function. "
            "You are calling this API from the driver or another non-training process. "
            "These utilities are only available within a function launched by `trainer.fit()`."
        )
    found: Worker = worker
    return found


@program_call
def report(
    metrics: dict[str, Any],
    checkpoint: Checkpoint | None = None,
    checkpoint_dir_name: str | None = None,
    checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
    delete_local_checkpoint_after_upload: bool | None = None,
    checkpoint_upload_fn: Any = None,
    validation: Any = False,
) -> None:
    """``ray.train.report``."""
    worker = here("report")
    if validation and not checkpoint:
        raise ValueError("Validation requires a checkpoint to be provided.")
    if validation or checkpoint_upload_fn:
        which = "validation" if validation else "checkpoint_upload_fn"
        raise NotEmulatedError(
            f"ray.train.report({which}=)", "ray.train.report(metrics, checkpoint)"
        )
    if _holds_tensor(metrics):
        raise ValueError(
            "Passing objects containing Torch tensors as metrics is not supported as it will "
            "throw an exception on deserialization. You can either convert the tensors to Python "
            "objects (ex: `.numpy()`, `.item()`, etc.) or save tensors as part of the checkpoint "
            "files instead."
        )
    delete = delete_local_checkpoint_after_upload
    if delete is None:
        delete = checkpoint_upload_mode.default_delete_local_checkpoint_after_upload()
    worker.report(metrics, checkpoint, checkpoint_dir_name, checkpoint_upload_mode, delete=delete)


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_tensor(v) for v in value.values())
    if isinstance(value, list | tuple):
        return any(_holds_tensor(v) for v in value)
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "backward")


@program_call
def get_checkpoint() -> Checkpoint | None:
    """``ray.train.get_checkpoint``: the latest, reported or resumed from."""
    return here("get_checkpoint").checkpoint


@program_call
def get_dataset_shard(dataset_name: str | None = None) -> Any:
    """``ray.train.get_dataset_shard``: this rank's share of a dataset, or all of it."""
    worker = here("get_dataset_shard")
    name = "train" if dataset_name is None else dataset_name
    if name not in worker.run.datasets:
        raise KeyError(
            f"Dataset shard for '{name}' not found. Please ensure that the dataset is passed "
            "through the Trainer `datasets` argument."
        )
    if name not in worker.shards:
        context = worker.context
        assert context.data is not None, "a trainer with datasets has their manager"
        manager = context.data
        worker.waits_for_data()
        found = play(lambda _: manager.ask("coordinator_of", name, context.rank))
        worker.has_data()
        if isinstance(found, TaskError):
            raise_error(exception_of(found, ""))
        worker.shards[name] = iterator_of(
            worker.run.datasets[name], found, context.rank, context.world_size
        )
    return worker.shards[name]


_OF_TUNE = ("get_metadata", "get_trial_dir", "get_trial_id", "get_trial_name",
            "get_trial_resources")  # fmt: skip


class TrainContext:
    """``ray.train.TrainContext``."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def get_experiment_name(self) -> str:
        """Of the run."""
        return self._worker.context.run_name

    def get_world_size(self) -> int:
        """Workers."""
        return self._worker.context.world_size

    def get_world_rank(self) -> int:
        """Of this one."""
        return self._worker.context.rank

    def get_local_rank(self) -> int:
        """On its node."""
        return self._worker.context.local_rank

    def get_local_world_size(self) -> int:
        """Of its node."""
        return self._worker.context.local_world_size

    def get_node_rank(self) -> int:
        """Of its node among all."""
        return self._worker.context.node_rank

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_TUNE:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

        def deprecated() -> Any:
            raise DeprecationWarning(f"`{name}` is deprecated in Ray Train V2.")

        return deprecated

    def get_storage(self) -> Any:
        """Not emulated."""
        raise NotEmulatedError("TrainContext.get_storage", "RunConfig(storage_path=)")


def get_context() -> TrainContext:
    """``ray.train.get_context``."""
    return TrainContext(here("get_context"))
