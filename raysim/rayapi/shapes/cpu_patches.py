"""torch's functions in training workers without GPUs: who calls is asked, the rest is torch's own.

Real counterparts: ``torch/nn/parallel/distributed.py``, ``torch.distributed`` with gloo, of torch
2.x. Each worker has its own state of torch's random numbers, as each process has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from raysim.rayapi.huggingface.accelerate import ask_again
from raysim.rayapi.shapes.cpu_steps import CpuShared, CpuSteps
from raysim.rayapi.shapes.here import cpu_steps_here
from raysim.rayapi.shapes.plans import Wrapping
from raysim.rayapi.shapes.world import ThreadState
from raysim.training.plan import DdpSettings

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.train.worker import Worker


def install(r: Replaced) -> None:
    """What CPU workers ask for."""
    here = cpu_steps_here
    ddp = DistributedDataParallel
    r.around(torch.nn.Module, "__call__", _call, here)
    r.around(torch.Tensor, "backward", lambda run, s, *a, **k: s.backward(run, *a, **k), here)
    r.around(torch.autograd, "backward", lambda run, s, *a, **k: s.backward(run, *a, **k), here)
    r.around(torch.optim.Optimizer, "__init__", _new_optimizer, here)
    r.around(DataLoader, "__iter__", _batches, here)
    r.around(torch, "compile", lambda _run, _s, model=None, **_k: model or _as_it_is, here)
    r.around(ddp, "__init__", _ddp, here)
    r.around(ddp, "forward", lambda _run, _s, self, *a, **k: self.module(*a, **k), here)
    r.around(ddp, "no_sync", lambda _run, _s, self: _no_sync(self), here)
    r.around(ddp, "train", _train, here)
    r.around(ddp, "__getstate__", lambda _run, _s, self: dict(self.__dict__), here)
    r.around(ddp, "__setstate__", lambda _r, _s, m, state: m.__dict__.update(state), here)
    r.around(dist, "all_reduce", lambda _run, s, *a, **k: _all_reduce(s, *a, **k), here)
    r.around(dist, "all_gather", lambda _run, s, found, t, *_a, **_k: s.gather(found, t), here)
    r.around(dist, "all_gather_into_tensor", _all_gather_into, here)
    r.around(dist, "broadcast", lambda _run, s, *a, **k: _broadcast(s, *a, **k), here)


def begin(worker: Worker, shared: CpuShared) -> None:
    """From here on, in its fiber, training steps take time."""
    if worker.cpu_steps is not None:
        return
    worker.cpu_steps = CpuSteps(worker, shared)
    worker.state_of_torch = _CpuState(worker.context.gang.env.sim.rng.seed + worker.context.rank)
    worker.state_of_torch.enter()
    ask_again()


class _CpuState:
    """torch's state of the thread, and of random numbers, while the worker does not run."""

    def __init__(self, seed: int) -> None:
        self._modes = ThreadState([])
        generator = torch.Generator()
        generator.manual_seed(seed)
        self._random = generator.get_state()

    def enter(self) -> None:
        """It runs."""
        self._outside = torch.get_rng_state()
        torch.set_rng_state(self._random)
        self._modes.enter()

    def leave(self) -> None:
        """It waits, or has ended."""
        self._modes.leave()
        self._random = torch.get_rng_state()
        torch.set_rng_state(self._outside)


def _call(run: Any, steps: CpuSteps, module: Any, *args: Any, **kwargs: Any) -> Any:
    return steps.forward(run, module, args, kwargs)


def _new_optimizer(run: Any, steps: CpuSteps, self: Any, *args: Any, **kwargs: Any) -> None:
    """Its ``step`` is the worker's: of the instance, since each class has its own."""
    steps.wraps()
    run(self, *args, **kwargs)
    self.step = MethodType(_step, self)


def _step(self: Any, *args: Any, **kwargs: Any) -> Any:
    steps = cpu_steps_here()
    if steps is None:
        return type(self).step(self, *args, **kwargs)
    return steps.step(type(self).step, self, *args, **kwargs)


def _as_it_is(model: Any) -> Any:
    """``torch.compile`` as a decorator: compiling costs more than it would bring here."""
    return model


def _batches(run: Any, _steps: CpuSteps, self: Any) -> Iterator[Any]:
    """In the rank itself: an emulated process starts no others."""
    said, self.num_workers = self.num_workers, 0
    try:
        return iter(run(self))
    finally:
        self.num_workers = said


def _ddp(
    _run: Any, steps: CpuSteps, self: Any, module: Any, *_positions: Any,
    bucket_cap_mb: float | None = None, gradient_as_bucket_view: bool = False, **_others: Any,
) -> None:  # fmt: skip
    """``DistributedDataParallel(module)``: the weights of rank 0."""
    if not any(p.requires_grad for p in module.parameters()):
        raise RuntimeError(
            "DistributedDataParallel is not needed when a module doesn't have any parameter that "
            "requires a gradient."
        )
    torch.nn.Module.__init__(self)
    self.module = module
    self.static_graph, self._get_ddp_logging_data = False, dict  # as Lightning asks
    self.raysim_syncs = True
    self.raysim_wrapping = Wrapping(
        module=module,
        meets=True,
        ddp=DdpSettings(
            bucket_cap_mb=25.0 if bucket_cap_mb is None else float(bucket_cap_mb),
            gradient_as_bucket_view=gradient_as_bucket_view,
        ),
    )
    steps.wraps()
    steps.same_weights(module)


def _train(_run: Any, _steps: CpuSteps, self: Any, mode: bool = True) -> Any:
    torch.nn.Module.train(self, mode)
    return self


@contextmanager
def _no_sync(module: Any) -> Iterator[None]:
    """Gradients stay a rank's own."""
    before, module.raysim_syncs = module.raysim_syncs, False
    try:
        yield
    finally:
        module.raysim_syncs = before


def _all_reduce(
    steps: CpuSteps, tensor: Any, op: Any = dist.ReduceOp.SUM, *_a: Any, **_k: Any
) -> None:
    def reduced(brought: dict[int, Any]) -> Any:
        found = torch.stack([brought[rank] for rank in sorted(brought)])
        if op == dist.ReduceOp.SUM:
            return found.sum(0)
        if op == dist.ReduceOp.AVG:
            return found.mean(0)
        if op == dist.ReduceOp.MAX:
            return found.amax(0)
        if op == dist.ReduceOp.MIN:
            return found.amin(0)
        return found.prod(0)

    steps.collective("all_reduce", tensor, reduced)


def _all_gather_into(
    _run: Any, steps: CpuSteps, output: Any, tensor: Any, *_a: Any, **_k: Any
) -> None:
    steps.gather(output.view(-1, *tensor.shape), tensor)


def _broadcast(steps: CpuSteps, tensor: Any, src: int = 0, *_a: Any, **_k: Any) -> None:
    steps.collective("broadcast", tensor, lambda brought: brought[src])
