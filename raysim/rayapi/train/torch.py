"""``ray.train.torch`` (2.60) on virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raysim.rayapi.train.configs import BackendConfig
from raysim.rayapi.train.trainer import DataParallelTrainer
from raysim.rayapi.unsupported import getattr_of


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


__getattr__ = getattr_of("ray.train.torch")
