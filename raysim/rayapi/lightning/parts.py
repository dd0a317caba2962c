"""Small parts of Lightning that look for what is not there: streams, files of weights, values.

Real counterparts, of lightning 2.4 to 2.6: ``pytorch/strategies/{ddp,fsdp}.py``,
``pytorch/callbacks/early_stopping.py``, ``pytorch/accelerators/cpu.py``,
``fabric/plugins/io/torch_io.py``, ``fabric/utilities/seed.py``. And of torch, which only Lightning
asks for here: ``inference_mode``, which evaluation runs in (a mode of the thread that fibers cannot
take turns in, and ``no_grad`` to shapes), FSDP's scaler of losses, clipping by value (no time).
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.parallel import DistributedDataParallel

from raysim.rayapi.checkpoint import stands_for_bytes
from raysim.rayapi.shapes.cuda import refuse
from raysim.rayapi.shapes.here import steps_here, worker_here

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps


def install(r: Replaced) -> None:
    """Of torch itself."""
    r.around(torch.inference_mode, "__enter__", _no_grad, worker_here)
    r.around(torch.inference_mode, "__exit__", _grad_again, worker_here)
    r.around(ShardedGradScaler, "scale", lambda _real, _steps, _self, loss: loss)
    r.call(torch.nn.utils, "clip_grad_value_", lambda *_a, **_k: None)
    for name in ("unscale_", "update"):
        r.around(ShardedGradScaler, name, lambda *_a, **_k: None)


def _no_grad(_real: Any, _worker: Any, mode: Any) -> None:
    mode.raysim_before = torch.is_grad_enabled()
    if mode.mode:
        torch.set_grad_enabled(False)


def _grad_again(_real: Any, _worker: Any, mode: Any, *_raised: Any) -> None:
    torch.set_grad_enabled(mode.raysim_before)


def ddp(r: Replaced, module: ModuleType) -> None:
    """Of ``pytorch.strategies.ddp``: the wrapper is made in no stream, and has no reducer."""
    found: Any = module
    r.around(found.DDPStrategy, "_setup_model", _wrapped)
    r.call(found, "prepare_for_backward", lambda *_: None)
    r.call(found, "_sync_module_states", lambda *_: None)


def fabric_ddp(r: Replaced, module: ModuleType) -> None:
    """Of ``fabric.strategies.ddp``."""
    r.around(module.DDPStrategy, "setup_module", _wrapped)


def _wrapped(_real: Any, _steps: Steps, strategy: Any, model: Any) -> Any:
    more = strategy._ddp_kwargs  # noqa: SLF001  (as the strategy itself)
    return DistributedDataParallel(module=model, device_ids=[strategy.root_device.index], **more)


def fabric(r: Replaced, module: ModuleType) -> None:
    """Of ``fabric.fabric``: what has shapes only is on a GPU, and has nothing to wait for."""
    r.call(module, "_has_meta_device_parameters_or_buffers", lambda *_: False)


def fabric_module(_r: Replaced, module: ModuleType) -> None:
    """Of ``fabric.wrappers``: what ``Fabric.setup`` gives hands calls on to the wrapped model."""
    module._FabricModule.raysim_hands_on = True  # noqa: SLF001


def fsdp(r: Replaced, module: ModuleType) -> None:
    """Of both ``strategies.fsdp``: files of shapes are no archives to be read in parts."""
    r.call(module, "_lazy_load", lambda _steps, path: torch.load(path, weights_only=False))


def cpus(r: Replaced, module: ModuleType) -> None:
    """Of both ``accelerators.cpu``."""
    refused = refuse("accelerator='cpu' on nodes with GPUs", "nodes without GPUs")
    r.around(module.CPUAccelerator, "setup_device", refused)


def spawning(r: Replaced, module: ModuleType) -> None:
    """Of both ``strategies.launchers.multiprocessing``: trainers that go to other processes."""
    refused = refuse("strategy='ddp_spawn', or 'ddp_fork'", "strategy='ddp'")
    r.around(module._MultiProcessingLauncher, "launch", refused, worker_here)  # noqa: SLF001


def two_dimensions(r: Replaced, module: ModuleType) -> None:
    """Of both ``strategies.model_parallel``: shapes are there, and no values are drawn for them."""
    r.call(module, "_materialize_distributed_module", lambda *_: None)


def early_stopping(r: Replaced, module: ModuleType) -> None:
    """Of ``pytorch.callbacks.early_stopping``: of values that nobody knows, none is the last."""
    r.around(module.EarlyStopping, "_evaluate_stopping_criteria", lambda *_: (False, None))


def files(r: Replaced, module: ModuleType) -> None:
    """Of ``fabric.plugins.io.torch_io``: what it has written is paid for."""
    r.around(module, "_atomic_save", _saved, worker_here)


def _saved(real: Any, worker: Any, checkpoint: Any, filepath: Any) -> None:
    if worker.torch_steps is not None:
        worker.torch_steps.synchronize()
    real(checkpoint, filepath)
    if Path(filepath).is_file():  # not of a remote file system
        worker.write_file(stands_for_bytes(Path(filepath)))


def old_files(r: Replaced, module: ModuleType) -> None:
    """Of ``pytorch.utilities.migration.utils``: a lock, which all processes here would share.

    A rank that reads a checkpoint may wait for others meanwhile; it is for files of Lightning 1.
    """
    legacy: Any = module.pl_legacy_patch
    r.around(legacy, "__enter__", lambda _real, _worker, self: self, worker_here)
    r.around(legacy, "__exit__", lambda *_: None, worker_here)


def zero_summary(r: Replaced, module: ModuleType) -> None:
    """Of ``pytorch.utilities.model_summary.model_summary_deepspeed``: parameters are whole."""
    r.call(module, "deepspeed_param_size", lambda _steps, p: p.numel())

    def make(real: Any) -> Any:
        def share(summary: Any) -> int:
            steps = steps_here()
            if steps is None:
                return int(real.fget(summary))
            world = steps.worker.context.world_size
            return sum(-(-p.numel() // world) for p in summary._module.parameters())  # noqa: SLF001

        return property(share)

    r.set(module.DeepSpeedLayerSummary, "average_shard_parameters", make)


def seeds(r: Replaced, module: ModuleType) -> None:
    """Of ``fabric.utilities.seed``: GPUs have no random numbers of their own."""
    r.around(
        module, "_collect_rng_states", lambda real, *_a, **_k: real(include_cuda=False), worker_here
    )
