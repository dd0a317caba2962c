"""``ray.train.torch`` (2.60) on virtual time.

Real counterparts: ``ray/train/v2/torch/{torch_trainer,train_loop_utils}.py``,
``ray/train/torch/config.py``. A trainer with GPUs has workers in which torch works on shapes
(``rayapi.shapes``); without GPUs, the loop's torch is this machine's own.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from raysim.rayapi.calls import program_call
from raysim.rayapi.torch_programs import replace
from raysim.rayapi.train.configs import BackendConfig
from raysim.rayapi.train.summary import with_cpu_training, with_training
from raysim.rayapi.train.trainer import DataParallelTrainer
from raysim.rayapi.train.worker import Worker, here
from raysim.rayapi.unsupported import NotEmulatedError, getattr_of
from raysim.raylibs.report import LibraryReport


@dataclass
class TorchConfig(BackendConfig):
    """``ray.train.torch.TorchConfig``."""

    backend: str | None = None
    init_method: str = "env"
    timeout_s: int = 1800


class TorchTrainer(DataParallelTrainer):
    """``ray.train.torch.TorchTrainer``."""

    def __init__(
        self, train_loop_per_worker: Any, *, torch_config: TorchConfig | None = None, **more: Any
    ) -> None:
        super().__init__(
            train_loop_per_worker, backend_config=torch_config or TorchConfig(), **more
        )
        self._shared: Any = None
        self._cpu_shared: Any = None

    def _set_up(self, worker: Worker) -> None:
        device = f"cuda:{worker.devices[0]}" if worker.gpus else "cpu"
        worker.state.set_env("ACCELERATE_TORCH_DEVICE", device)
        if not worker.gpus:
            if "torch" in sys.modules:
                self._on_cpus(worker)
            return
        from raysim.rayapi.shapes.shared import Shared
        from raysim.rayapi.shapes.world import begin

        replace()
        if self._shared is None:
            self._shared = Shared()
        begin(worker, self._shared)

    def _on_cpus(self, worker: Worker) -> None:
        from raysim.rayapi.shapes.cpu_patches import begin
        from raysim.rayapi.shapes.cpu_steps import CpuShared

        replace()
        if self._cpu_shared is None:
            self._cpu_shared = CpuShared()
        begin(worker, self._cpu_shared)

    def _report(self, report: LibraryReport) -> LibraryReport:
        if self._cpu_shared is not None:
            return with_cpu_training(report, self._cpu_shared)
        return report if self._shared is None else with_training(report, self._shared)


@program_call
def get_devices() -> list[Any]:
    """``ray.train.torch.get_devices``."""
    import torch

    devices = here("get_devices").devices
    return [torch.device("cuda", i) for i in devices] or [torch.device("cpu")]


def get_device() -> Any:
    """``ray.train.torch.get_device``."""
    here("get_device")
    return get_devices()[0]


@program_call
def prepare_model(
    model: Any,
    move_to_device: Any = True,
    parallel_strategy: str | None = "ddp",
    parallel_strategy_kwargs: dict[str, Any] | None = None,
) -> Any:
    """``ray.train.torch.prepare_model``."""
    worker = here("prepare_model")
    if parallel_strategy not in {"ddp", "fsdp", None}:
        raise ValueError("parallel_strategy must be None, 'ddp' or 'fsdp'")
    if worker.torch_steps is None and parallel_strategy == "fsdp":
        raise NotEmulatedError("prepare_model(parallel_strategy='fsdp') on CPUs", "ddp")
    if not worker.gpus and worker.cpu_steps is None and worker.run.set_up is not None:
        worker.run.set_up(worker)  # torch had not been loaded before the loop
    if move_to_device:
        model = model.to(get_device() if move_to_device is True else move_to_device)
    if parallel_strategy is None or worker.context.world_size == 1:
        return model
    more = dict(parallel_strategy_kwargs or {})
    if parallel_strategy == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model, **more)
    from torch.nn.parallel import DistributedDataParallel

    if worker.gpus:
        more = {"device_ids": [get_device().index]} | more
    return DistributedDataParallel(model, **more)


@program_call
def prepare_data_loader(
    data_loader: Any,
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
    auto_transfer: bool = True,
) -> Any:
    """``ray.train.torch.prepare_data_loader``: each rank's own samples, on its device."""
    from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, SequentialSampler

    worker = here("prepare_data_loader")
    world, rank = worker.context.world_size, worker.context.rank
    mapped = not isinstance(data_loader.dataset, IterableDataset)
    sampled = isinstance(data_loader.sampler, DistributedSampler)
    if world > 1 and add_dist_sampler and mapped and not sampled:
        shuffle = not isinstance(data_loader.sampler, SequentialSampler)
        sampler: Any = DistributedSampler(
            data_loader.dataset, num_replicas=world, rank=rank, shuffle=shuffle
        )
        data_loader = DataLoader(
            data_loader.dataset, batch_size=data_loader.batch_size, shuffle=False, sampler=sampler,
            num_workers=data_loader.num_workers, collate_fn=data_loader.collate_fn,
            pin_memory=data_loader.pin_memory, drop_last=data_loader.drop_last,
            timeout=data_loader.timeout, worker_init_fn=data_loader.worker_init_fn,
            generator=data_loader.generator,
        )  # fmt: skip
    if not move_to_device:
        return data_loader
    data_loader.raysim_ahead = auto_transfer  # copied by a stream of its own, a batch ahead
    return _OnDevice(data_loader, get_device())


class _OnDevice:
    """``_WrappedDataLoader``: batches on the device."""

    def __init__(self, loader: Any, device: Any) -> None:
        self._dataloader = loader
        self.dataloader_iter: Any = None
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataloader, name)

    def __len__(self) -> int:
        return len(self._dataloader)

    def __iter__(self) -> Any:
        for batch in self._dataloader:
            yield self._moved(batch)

    def _moved(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._moved(v) for key, v in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._moved(v) for v in value))
        if isinstance(value, tuple | list):
            return type(value)(self._moved(v) for v in value)
        return value.to(self._device) if hasattr(value, "to") else value


def prepare_optimizer(optimizer: Any) -> Any:
    """``ray.train.torch.prepare_optimizer``: deprecated in Ray, of no effect without its AMP."""
    here("prepare_optimizer")
    return optimizer


def backward(tensor: Any) -> None:
    """``ray.train.torch.backward``."""
    here("backward")
    tensor.backward()


@program_call
def enable_reproducibility(seed: int = 0) -> None:
    """``ray.train.torch.enable_reproducibility``."""
    import torch

    here("enable_reproducibility")
    torch.manual_seed(seed)


__getattr__ = getattr_of("ray.train.torch")
