"""``DistributedDataParallel`` in training workers, without groups; ``DataParallel``.

Real counterparts: ``torch/nn/parallel/distributed.py``, ``data_parallel.py``. The classes are
torch's own, so ``isinstance`` answers as ever; in a worker, their constructors only note how the
model is trained, and calling them calls the model.

``DataParallel`` of N GPUs is a broadcast of the weights before and a sum of the gradients after the
passes: what one all-reduce behind backward moves on the same ring, with every micro-batch. A loss
of the script's is of all outputs, which the first GPU gathers (``models.gathered``); what a model
with a loss of its own returns beside it is taken to be gathered for nothing, and inputs scattered.

Not modelled: of ``DataParallel``, how modules are copied; hooks of communication (refused), static
graphs, unused parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from raysim.rayapi.shapes import devices
from raysim.rayapi.shapes.mesh import ranks_of
from raysim.rayapi.shapes.plans import Wrapping
from raysim.rayapi.shapes.steps import Steps
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.training.plan import DdpSettings

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced

DATA_PARALLEL = (
    "DataParallel over {} GPUs in one process: their forwards are issued one after the other, "
    "weights are broadcast and gradients summed beside no kernel in every micro-batch, the loss is "
    "the first one's, which is the fullest. DistributedDataParallel is faster"
)


def install(r: Replaced) -> None:
    """Constructors and forwards of torch's wrappers."""
    ddp = DistributedDataParallel
    r.around(ddp, "__init__", _ddp)
    r.around(DataParallel, "__init__", _data_parallel)
    r.around(DataParallel, "forward", handed_on)
    r.around(ddp, "forward", handed_on)
    r.around(ddp, "no_sync", lambda _real, steps, _self: unsynced(steps))
    r.around(ddp, "register_comm_hook", _hook)
    r.around(ddp, "train", lambda _real, _s, self, mode=True: _train(self, mode))
    r.around(torch.nn.Module, "train", _all_train)
    r.around(ddp, "__getstate__", lambda _real, _s, self: dict(self.__dict__))
    r.around(ddp, "__setstate__", lambda _real, _s, m, state: m.__dict__.update(state))


def handed_on(_real: Any, steps: Steps, self: Any, *args: Any, **kwargs: Any) -> Any:
    """A wrapper's ``forward``, within another module; by itself it is the model's call."""
    if not steps.inside and steps.signature(self) is not None:
        return torch.nn.Module.__call__(self, *args, **kwargs)
    args, kwargs = devices.given(steps, self, args, kwargs)
    return self.module(*args, **kwargs)


@contextmanager
def unsynced(steps: Steps) -> Iterator[None]:
    """``no_sync()``: backwards in it leave their gradients to a later one."""
    before, steps.sync = steps.sync, False
    try:
        yield
    finally:
        steps.sync = before


def _ddp(
    _real: Any, steps: Steps, self: Any, module: Any, device_ids: Any = None, *_positions: Any,
    bucket_cap_mb: float | None = None, gradient_as_bucket_view: bool = False,
    process_group: Any = None, **_others: Any,
) -> None:  # fmt: skip
    """``DistributedDataParallel(module)``."""
    steps.worker.expect_group()
    if not any(p.requires_grad for p in module.parameters()):
        raise RuntimeError(
            "DistributedDataParallel is not needed when a module doesn't have any parameter that "
            "requires a gradient."
        )
    torch.nn.Module.__init__(self)
    self.module, self.device_ids = module, list(device_ids or ())
    self.static_graph, self._get_ddp_logging_data = False, dict  # as Lightning asks
    self.raysim_wrapping = Wrapping(
        module=module,
        meets=True,
        among=len(ranks_of(process_group) or ()),
        ddp=DdpSettings(
            bucket_cap_mb=25.0 if bucket_cap_mb is None else float(bucket_cap_mb),
            gradient_as_bucket_view=gradient_as_bucket_view,
        ),
    )


def _data_parallel(
    _real: Any, steps: Steps, self: Any, module: Any, device_ids: Any = None,
    output_device: Any = None, dim: int = 0,
) -> None:  # fmt: skip
    """``DataParallel(module)``: of one GPU it only calls the module."""
    gpus = list(range(steps.worker.visible_devices)) if device_ids is None else list(device_ids)
    if len(gpus) > 1:
        steps.say(DATA_PARALLEL.format(len(gpus)))
    torch.nn.Module.__init__(self)
    self.module, self.dim, self.device_ids = module, dim, gpus
    self.output_device = output_device
    others = tuple(devices.named(gpu, 0) for gpu in gpus[1:])
    self.raysim_wrapping = Wrapping(module=module, copies=len(others) + 1, copied_to=others)


def _all_train(real: Any, _steps: Steps, module: Any, mode: Any = True) -> Any:
    """``train()`` of a module and those in it, as Trainers say before every micro-batch.

    Of hundreds of modules torch's own recursion takes longer than all else of a step on shapes:
    those that have no ``train`` of their own are told here.
    """
    ours, waiting = torch.nn.Module.train, [module]
    if not isinstance(mode, bool):
        return real(module, mode)  # which is an error
    while waiting:
        one = waiting.pop()
        vars(one)["training"] = mode
        for child in one._modules.values():  # noqa: SLF001  (``children`` takes longer)
            if child is None:
                continue
            if type(child).train is ours and "train" not in vars(child):
                waiting.append(child)
            else:
                child.train(mode)
    return module


def _train(module: Any, mode: bool) -> Any:
    torch.nn.Module.train(module, mode)
    return module


def _hook(*_args: Any, **_kwargs: Any) -> None:
    raise NotEmulatedError("DistributedDataParallel.register_comm_hook", "plain all-reduces")
