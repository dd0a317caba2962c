"""torch's functions as training workers see them: CUDA without a GPU, groups without sockets.

Real counterparts: ``torch.distributed``, ``torch.optim``, ``torch.amp`` of torch 2.x. Each function
asks who calls: outside of a training worker it is torch's own. Everything is put back at the end.

Not modelled: CUDA graphs and IPC.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import MethodType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch.distributed import rpc
from torch.utils.data import DataLoader

from raysim.rayapi.later import changed
from raysim.rayapi.shapes import (
    block_masks,
    collectives,
    compiled,
    context,
    cpu_patches,
    cuda,
    devices,
    downloads,
    files,
    fsdp,
    functions,
    hooks,
    links,
    loader,
    mesh,
    messages,
    numbers,
    pipelining,
    processes,
    sharded,
    split_models,
    spread,
    watching,
    wrappers,
)
from raysim.rayapi.shapes.cpu_work import stays_on_cpu
from raysim.rayapi.shapes.devices import on_gpu
from raysim.rayapi.shapes.here import steps_here, worker_here
from raysim.rayapi.shapes.known import META, to_device
from raysim.rayapi.shapes.mode import transforms
from raysim.rayapi.shapes.steps import Steps
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.tracing.operators import tensors


class Replaced:
    """Attributes that are something else in training workers."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """``make(real)`` instead of ``real``."""
        real = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
        self._before.append((owner, name, real))
        setattr(owner, name, make(real))

    def call(
        self, owner: Any, name: str, ours: Callable[..., Any], who: Callable[[], Any] = steps_here
    ) -> None:
        """A function: ``ours(who, *args)`` in workers."""

        def make(real: Any) -> Any:
            function = real.__func__ if isinstance(real, staticmethod) else real

            def either(*args: Any, **kwargs: Any) -> Any:
                caller = who()
                if caller is None:
                    return function(*args, **kwargs)
                return ours(caller, *args, **kwargs)

            _looks_like(either, function, name)
            return staticmethod(either) if isinstance(real, staticmethod) else either

        self.set(owner, name, make)

    def around(
        self, owner: Any, name: str, ours: Callable[..., Any],
        who: Callable[[], Any] = steps_here,
    ) -> None:  # fmt: skip
        """A method: ``ours(real, who, self, *args)`` in workers."""

        def make(real: Any) -> Any:
            def either(*args: Any, **kwargs: Any) -> Any:
                caller = who()
                if caller is None:
                    return real(*args, **kwargs)
                return ours(real, caller, *args, **kwargs)

            _looks_like(either, real, name)
            return either

        self.set(owner, name, make)

    def undo(self) -> None:
        """torch's own again."""
        while self._before:
            owner, name, real = self._before.pop()
            setattr(owner, name, real)


def _looks_like(either: Any, real: Any, name: str) -> None:
    """By its name pickle finds it in its module, where a script has imported it from."""
    either.__name__ = name
    either.__module__ = getattr(real, "__module__", None) or either.__module__
    either.__qualname__ = getattr(real, "__qualname__", name)
    either.__wrapped__ = real


_INSTALLED = Replaced()
_PRECISIONS = (
    ("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"),
)  # fmt: skip
"""Backends and operators of ``torch.backends``' flags."""


@contextmanager
def torch_of_workers() -> Iterator[Replaced]:
    """Training workers find their torch from here on."""
    with ExitStack() as stack:
        stack.callback(_INSTALLED.undo)
        stack.enter_context(_precisions_kept())
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)  # a worker's; several wait long for busy cores to make a batch
        _modules(_INSTALLED)
        compiled.install(_INSTALLED)
        cuda.install(_INSTALLED)
        watching.install(_INSTALLED)
        functions.install(_INSTALLED)
        hooks.install(_INSTALLED)
        mesh.install(_INSTALLED)
        _distributed(_INSTALLED)
        files.install(_INSTALLED)
        downloads.install(_INSTALLED)
        _optimizers(_INSTALLED)
        wrappers.install(_INSTALLED)
        fsdp.install(_INSTALLED)
        sharded.install(_INSTALLED)
        spread.install(_INSTALLED)
        context.install(_INSTALLED)
        cpu_patches.install(_INSTALLED)
        processes.install(_INSTALLED)
        links.install(_INSTALLED)
        numbers.install(_INSTALLED)
        later = {
            **dict.fromkeys(block_masks.MODULES, partial(block_masks.install, _INSTALLED)),
            "torch.distributed.pipelining": partial(pipelining.install, _INSTALLED),
            "torch.distributed.pipelining._IR": partial(split_models.install, _INSTALLED),
        }
        stack.enter_context(changed(later))
        yield _INSTALLED


@contextmanager
def _precisions_kept() -> Iterator[None]:
    """What a script allows tf32 to, by torch's old names or its new ones (2.9), is its own."""
    get: Any = getattr(torch._C, "_get_fp32_precision_getter", None)  # noqa: SLF001
    before = {key: get(*key) for key in _PRECISIONS} if get else {}
    try:
        yield
    finally:
        if any(get(*key) != value for key, value in before.items()):
            torch.backends.cuda.matmul.allow_tf32 = before["cuda", "matmul"] == "tf32"
            torch.backends.cudnn.allow_tf32 = before["cuda", "conv"] == "tf32"
            for key, value in before.items():
                torch._C._set_fp32_precision_setter(*key, value)  # noqa: SLF001


def _modules(r: Replaced) -> None:
    r.around(torch.nn.Module, "__call__", _call)
    r.around(torch.nn.Parameter, "__new__", devices.parameter)
    r.around(torch.Tensor, "backward", _backward)
    r.around(torch.autograd, "backward", _backward)
    r.around(DataLoader, "__iter__", lambda _real, steps, self: loader.batches(self, steps))
    r.around(DataLoader, "check_worker_number_rationality", lambda *_: None)
    r.around(torch._utils, "_rebuild_tensor", _unpickled)  # noqa: SLF001  (no other door)
    r.around(torch.autocast, "__init__", _autocast_made)
    r.around(torch.autocast, "__enter__", _autocast)
    for name in ("is_autocast_enabled", "get_autocast_dtype"):
        r.around(torch, name, _of_gpus)
    # ``checkpoint`` itself may have been imported by name before, as transformers does.
    r.set(torch.utils.checkpoint, "CheckpointFunction", _reentrant)
    r.call(torch.utils.checkpoint, "_checkpoint_without_reentrant_generator", _not_reentrant)
    for name in ("clip_grad_norm_", "clip_grads_with_norm_"):
        r.call(torch.nn.utils, name, _clip)
    r.call(torch.nn.utils, "get_total_norm", _norm)
    r.around(torch.nn.SyncBatchNorm, "forward", _of_own_batch)


TRANSFORMED = (
    "a model within torch.func's transforms (vmap, grad, jacrev) runs on shapes, and takes no time"
)


def _call(real: Any, steps: Steps, module: Any, *args: Any, **kwargs: Any) -> Any:
    """Any module's call; the outermost of one with parameters is the model's, but for wrappers."""
    hands_on = getattr(module, "raysim_hands_on", False)
    if steps.inside or hands_on or steps.signature(module) is None:
        return real(module, *args, **kwargs)
    if transforms() is not None:
        steps.say(TRANSFORMED)
        return real(module, *args, **kwargs)
    if torch.is_grad_enabled():
        steps.loose.end()
    devices.entered(steps, module)
    args, kwargs = devices.given(steps, module, args, kwargs)
    if len(args) == 1 and isinstance(args[0], UserDict) and not list(tensors(kwargs)):
        real, args = partial(_of_whole, real, args[0]), (dict(args[0].data),)
    return steps.forward(real, module, args, kwargs)


def _of_whole(real: Any, whole: Any, module: Any, _data: Any, **kwargs: Any) -> Any:
    """Of a ``BatchEncoding`` alone (sentence-transformers), whose tensors no pytree sees."""
    return real(module, whole, **kwargs)


def _of_own_batch(_real: Any, steps: Steps, norm: Any, given: torch.Tensor) -> torch.Tensor:
    """``SyncBatchNorm``, which on shapes would ask for a GPU."""
    steps.say(
        "SyncBatchNorm is priced as a batch norm: its gathers of means and variances take no time"
    )
    out: torch.Tensor = torch.nn.modules.batchnorm._BatchNorm.forward(norm, given)  # noqa: SLF001
    return out


def _backward(real: Any, steps: Steps, loss: Any, *args: Any, **kwargs: Any) -> None:
    """Of a model: the tracer's own runs."""
    if steps.inside:
        real(loss, *args, **kwargs)
    else:
        one = loss if isinstance(loss, torch.Tensor) else next(iter(loss))
        steps.backward(steps.loose.forward(one))


def _unpickled(real: Any, _steps: Steps, *parts: Any) -> torch.Tensor:
    """A tensor that pickle puts together: a real one is as one of the CPU is here."""
    with torch._C.DisableTorchFunction():  # noqa: SLF001
        made: torch.Tensor = real(*parts)
    if made.is_meta or not (made.is_floating_point() or made.is_complex()):
        return made
    out: torch.Tensor = stays_on_cpu(to_device(made))
    return out


def _of_gpus(real: Any, _steps: Steps, *device: Any) -> Any:
    """Autocast as a tensor's device asks for it."""
    return real(*("cuda" if name == META.type else name for name in device))


def _autocast_made(
    real: Any, _steps: Steps, context: Any, device_type: str, *args: Any, **kwargs: Any
) -> None:
    """``torch.autocast(x.device.type)``, as rotary embeddings of transformers 4 say."""
    real(context, "cuda" if device_type == META.type else device_type, *args, **kwargs)


def _autocast(real: Any, steps: Steps, context: Any) -> Any:
    """``with torch.autocast``: of a model's own, the outermost counts."""
    if steps.inside and steps.half is None and context._enabled:  # noqa: SLF001  (no other door)
        steps.half = context.fast_dtype
    return real(context)


def _reentrant(real: Any) -> Any:
    """Of ``torch.utils.checkpoint.checkpoint``: what runs again is the plan's."""

    def apply(function: Any, preserve: bool, *args: Any) -> Any:
        steps = steps_here()
        if steps is None:
            return real.apply(function, preserve, *args)
        steps.recomputes = "reentrant"
        return function(*args)

    return SimpleNamespace(apply=apply)


def _not_reentrant(steps: Steps, *_args: Any, **_kwargs: Any) -> Iterator[None]:
    """Around the function's run, likewise."""
    steps.recomputes = "non-reentrant"
    yield


def _clip(steps: Steps, _parameters: Any, max_norm: float, *_a: Any, **_k: Any) -> torch.Tensor:
    steps.clipping = float(max_norm)
    return _norm(steps)


def _norm(steps: Steps, *_a: Any, **_k: Any) -> torch.Tensor:
    return sharded.norm_of_gradients() if sharded.in_use(steps) else torch.empty((), device=META)


# ---- torch.distributed ---------------------------------------------------------------------------


def _distributed(r: Replaced) -> None:
    def meet(worker: Any, group: Any = None, *_a: Any, **_k: Any) -> None:
        worker.expect_group().meet(mesh.ranks_of(group))

    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda _: True, "is_initialized": lambda w: w.in_group,
        "is_nccl_available": lambda w: bool(w.gpus),
        "init_process_group": lambda w, *a, **k: w.join_group(*a, **k),
        "destroy_process_group": lambda w, *_a, **_k: w.leave_group(),
        "get_rank": _rank, "get_world_size": _world_size,
        "get_backend": lambda w, *_a, **_k: "nccl" if w.expect_group().gpus else "gloo",
        "get_node_local_rank": lambda w, *_a: w.context.local_rank,
        "barrier": meet, "monitored_barrier": meet,
    }  # fmt: skip
    for name, ours in answers.items():
        r.call(dist, name, ours, worker_here)
    r.call(dist.ProcessGroup, "monitored_barrier", meet, worker_here)
    r.call(
        torch.multiprocessing, "spawn", lambda w, *a, **k: w.start_processes(*a, **k), worker_here
    )
    for name in ("nested_tensor", "as_nested_tensor"):
        r.around(torch.nested, name, _not_nested)
    if hasattr(rpc, "init_rpc"):  # torch is built with it
        r.call(rpc, "init_rpc", _no_rpc, worker_here)
    collectives.install(r)
    messages.install(r)


def _not_nested(real: Any, _steps: Steps, *args: Any, **kwargs: Any) -> Any:
    """Its shapes are values: how long each sequence is."""
    if kwargs.get("device") is not None and on_gpu(kwargs["device"]):
        raise NotEmulatedError("torch.nested on a GPU", "a batch padded to one length, and a mask")
    return real(*args, **kwargs)


def _no_rpc(*_args: Any, **_kwargs: Any) -> None:
    """Agents would wait for each other on this machine's network."""
    raise NotEmulatedError("torch.distributed.rpc", "init_process_group, or actors of Ray")


def _rank(worker: Any, group: Any = None) -> int:
    if isinstance(group, links.Link):
        return group.rank
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return -1
    return int(group.rank() if mesh.ranks_of(group) else worker.expect_group().context.rank)


def _world_size(worker: Any, group: Any = None) -> int:
    if isinstance(group, links.Link):
        return group.world_size
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return -1
    return len(mesh.ranks_of(group)) or worker.expect_group().context.world_size


# ---- optimizers ----------------------------------------------------------------------------------


def _optimizers(r: Replaced) -> None:
    r.around(torch.optim.Optimizer, "__init__", _new_optimizer)
    for kind in (torch.optim.Optimizer, torch.nn.Module):
        r.around(kind, "zero_grad", lambda _real, steps, own, *_a, **_k: steps.zeroes(own))
    scaler = torch.amp.GradScaler
    r.around(scaler, "scale", lambda _real, _s, _self, loss: loss)
    r.around(scaler, "unscale_", lambda *_a: None)
    r.around(scaler, "step", _scaled_step)
    r.around(scaler, "update", lambda *_a, **_k: None)


def _scaled_step(_real: Any, steps: Steps, self: Any, optimizer: Any, *a: Any, **k: Any) -> Any:
    steps.scales = self.is_enabled()
    return optimizer.step(*a, **k)


def _new_optimizer(real: Any, steps: Steps, self: Any, *args: Any, **kwargs: Any) -> None:
    """Its ``step`` is the worker's: of the instance, since each class has its own."""
    real(self, *args, **kwargs)
    steps.optimizers.made.add(self)
    self.step = MethodType(_step, self)


def _step(self: Any, *args: Any, **kwargs: Any) -> Any:
    steps = steps_here()
    if steps is not None and type(self).__name__ == "ZeroRedundancyOptimizer":
        steps.say("ZeroRedundancyOptimizer: each rank's memory is counted with all states")
        return type(self).step(self, *args, **kwargs)  # of the one within, and broadcasts
    if steps is None:
        return type(self).step(self, *args, **kwargs)
    return steps.step(type(self).step, self, *args, **kwargs)
