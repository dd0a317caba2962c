"""What is changed of transformers, accelerate, diffusers and what they write with.

Real counterparts: the packages, installed on the workers. All else of them is their own code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from raysim.rayapi.calls import this_fiber
from raysim.rayapi.huggingface import (
    accelerate,
    device_maps,
    diffusers,
    files,
    generation,
    pretrained,
)
from raysim.rayapi.later import changed
from raysim.rayapi.shapes import downloads
from raysim.rayapi.shapes.here import worker_here
from raysim.rayapi.standins import configs, hub, pipelines, tokens, vision
from raysim.rayapi.standins.absent import evaluate

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced

_REAL = sys.modules[os.name]
"""``os``, as nobody has changed it."""
LOOK_NS = 20_000
"""What reading ``/proc/PID/statm`` by psutil takes (measured on a core of a Xeon)."""


def _this_process(r: Replaced, module: ModuleType) -> None:
    """``psutil.Process()``: a rank's number is no process of this machine."""

    def init(real: Any, _worker: Any, self: Any, pid: int | None = None) -> None:
        real(self, _REAL.getpid() if pid in (None, os.getpid()) else pid)

    def looked(real: Any, _worker: Any, self: Any) -> Any:
        this_fiber().pay(LOOK_NS)  # a thread that does nothing else gives way
        return real(self)

    def memory(real: Any, worker: Any) -> Any:
        size_bytes = int(worker.hardware.memory_bytes) if worker.places else real().total
        return real()._replace(total=size_bytes, available=size_bytes, free=size_bytes)

    r.around(module.Process, "__init__", init, worker_here)
    r.around(module, "virtual_memory", memory, worker_here)
    r.around(module.Process, "memory_info", looked, worker_here)


_CHANGES = {
    "transformers.configuration_utils": configs.install,
    "transformers.modeling_utils": pretrained.install,
    "transformers.generation.stopping_criteria": generation.install,
    "transformers.generation.utils": generation.install_mixin,
    "transformers.models.auto.tokenization_auto": tokens.install_auto,
    "transformers.tokenization_utils_base": tokens.install,
    "transformers.utils.hub": configs.install_hub,
    "transformers.training_args": accelerate.knows_tf32,
    "accelerate.big_modeling": device_maps.install,
    "accelerate.state": accelerate.install,
    "accelerate.utils.fsdp_utils": accelerate.no_loading,
    "accelerate.utils.imports": accelerate.remembers_packages,
    "accelerate.utils.modeling": files.own_storages,
    "accelerate.utils.other": files.own_storages,
    "datasets": hub.install,
    "datasets.arrow_dataset": hub.install_rows,
    "datasets.load": hub.install,
    "diffusers.configuration_utils": pipelines.install_configs,
    "diffusers.models.modeling_utils": diffusers.install,
    "diffusers.pipelines.pipeline_utils": pipelines.install_pipelines,
    "evaluate": evaluate.install,
    "huggingface_hub.hf_api": pipelines.install_hub,
    "psutil": _this_process,
    "safetensors": files.reading,
    "safetensors.torch": files.install,
    "timm.data.readers.reader_factory": vision.install_timm,
    "timm.models._hub": downloads.install_timm,
    "torchvision.datasets": vision.install,
}


@contextmanager
def huggingface_of_workers(r: Replaced) -> Iterator[None]:
    """Training workers find theirs from here on."""
    with changed({name: partial(change, r) for name, change in _CHANGES.items()}):
        try:
            yield
        finally:
            accelerate.ask_again()
            pretrained.forget()
