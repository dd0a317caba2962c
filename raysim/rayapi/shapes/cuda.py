"""``torch.cuda`` and ``torch.accelerator`` as training workers see them: GPUs that are not there.

Real counterparts: ``torch/cuda/__init__.py``, ``torch/accelerator`` of torch 2.x.

What a script puts on a stream of its own is queued as on the default one: that is where the tower
overlaps copies of batches anyway. Not modelled: compute on several streams, graphs and IPC.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from raysim.rayapi.shapes import devices, sharded
from raysim.rayapi.shapes.here import steps_here
from raysim.rayapi.unsupported import NotEmulatedError

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.prediction import Prediction
    from raysim.rayapi.shapes.steps import Steps


_Generator: Any = torch.Generator


class _Kinds(type(_Generator)):  # type: ignore[misc]
    """Of torch's generators, all are."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Generator)


class Generator(_Generator, metaclass=_Kinds):  # type: ignore[misc]
    """``torch.Generator``, a GPU's too: shapes are not drawn."""

    device: Any = None

    def __new__(cls, device: Any = "cpu") -> Any:
        """torch's own of the CPU, for whichever device."""
        if steps_here() is None:
            return _Generator(device)
        made = super().__new__(cls)
        cuda = devices.on_gpu(device) and str(device) != "meta"
        made.device = torch.device(device if cuda else "cpu")
        return made

    def __init__(self, device: Any = "cpu") -> None:
        """It has been made."""


class _Stream(torch.Stream):
    """Any stream, of which there is one; torch itself asks for its type."""

    cuda_stream = priority = 0

    def record(self, *_: Any) -> None:
        """Queued in order anyway, as all below."""

    wait = wait_event = wait_stream = record  # type: ignore[assignment]

    def record_event(self, event: Any = None) -> Any:
        """The event, or a new one, behind all that is queued."""
        made: Any = torch.cuda.Event() if event is None else event  # type: ignore[no-untyped-call]
        made.record()
        return made

    def query(self) -> bool:
        """Whether all is done: nobody polls for long."""
        return True

    def is_capturing(self) -> bool:
        """Into a CUDA graph."""
        return False

    def synchronize(self) -> None:
        """Wait for what has been queued."""
        steps = steps_here()
        if steps is not None:
            steps.synchronize()


_CUDA = 1
"""``c10::DeviceType::CUDA``."""
_ONE_STREAM = _Stream(stream_id=0, device_index=0, device_type=_CUDA)
_NCCL, _CUDA_OF_WHEELS = (2, 29, 7), "13.0"
"""What torch 2.13's wheel on PyPI requires; scripts ask both before they train in bf16."""
_ACCELERATOR = {
    "is_available": "is_available", "device_count": "device_count",
    "current_device_index": "current_device", "current_device_idx": "current_device",
    "set_device_index": "set_device", "set_device_idx": "set_device",
    "synchronize": "synchronize", "current_stream": "current_stream",
    "empty_cache": "empty_cache", "memory_allocated": "memory_allocated",
    "max_memory_allocated": "max_memory_allocated", "memory_reserved": "memory_reserved",
    "max_memory_reserved": "max_memory_reserved", "memory_stats": "memory_stats",
    "reset_peak_memory_stats": "reset_peak_memory_stats", "get_memory_info": "mem_get_info",
}  # fmt: skip
"""Functions of ``torch.accelerator``, and what they are called in ``torch.cuda``."""


def refuse(name: str, instead: str) -> Callable[..., Any]:
    """What raises, by name."""

    def refused(*_args: Any, **_kwargs: Any) -> Any:
        raise NotEmulatedError(name, instead)

    return refused


def _whichever(ours: Callable[..., Any]) -> Callable[..., Any]:
    """An answer of the worker's GPU, whose ``device`` may be named; others hold nothing."""

    def answer(steps: Steps, *args: Any, device: Any = None, **options: Any) -> Any:
        said = next(iter(args), device)
        latest, asks = steps.latest, ours in _OF_MEMORY
        if asks and latest is not None and (latest.gpus or _named(steps, said) in latest.copied_to):
            return _of_one(steps, ours, latest, said)
        if asks and latest is None:
            known = steps.worker.answered_on(_named(steps, said))
            if known is not None:
                return _answered(steps, ours, *known)
        if asks and devices.is_elsewhere(steps, said):
            return 0 if ours is not _mem_info else (int(_gpu(steps).memory_bytes),) * 2
        return ours(steps, *args, **options)

    return answer


def install(r: Replaced) -> None:
    """``torch.cuda``, ``torch.accelerator``, and modules that are moved to a GPU's number."""
    cuda = torch.cuda
    answers: dict[str, Callable[..., Any]] = {
        "is_available": _has_gpu, "device_count": lambda s: s.worker.visible_devices,
        "current_device": lambda s: s.worker.devices[0], "set_device": devices.choose,
        "init": lambda _: None, "_exchange_device": lambda *_: 0,
        "_maybe_exchange_device": lambda *_: 0,
        "is_initialized": lambda _: True, "synchronize": lambda s, *_: s.synchronize(),
        "empty_cache": _empties,
        "is_bf16_supported": _bf16, "manual_seed": lambda *_: None,
        "manual_seed_all": lambda *_: None, "get_device_name": lambda s, *_: _gpu(s).name,
        "get_device_capability": lambda s, *_: _capability(s),
        "get_device_properties": _properties, "memory_allocated": _held,
        "memory_reserved": _reserved_now, "max_memory_allocated": _allocated,
        "max_memory_reserved": _reserved, "reset_peak_memory_stats": lambda s, *_: s.peaks.reset(),
        "reset_max_memory_allocated": lambda s, *_: s.peaks.reset(), "mem_get_info": _mem_info,
        "get_rng_state": lambda *_: _random_state(), "set_rng_state": lambda *_a, **_k: None,
        "get_rng_state_all": lambda s: [_random_state()] * s.worker.visible_devices,
        "set_rng_state_all": lambda *_: None, "initial_seed": lambda _: 0,
        "is_current_stream_capturing": lambda _: False, "ipc_collect": lambda _: None,
        "memory_stats": _memory_stats,
        "memory_summary": lambda s, *_a, **_k: f"{_allocated(s)} bytes at the peak (predicted)",
        "current_stream": lambda *_a, **_k: _ONE_STREAM,
        "default_stream": lambda *_a, **_k: _ONE_STREAM,
        "stream": lambda *_a, **_k: nullcontext(), "set_stream": lambda *_: None,
    }  # fmt: skip
    answers = {name: _whichever(ours) for name, ours in answers.items()}
    for name, ours in answers.items():
        r.call(cuda, name, ours)
        if name.endswith(("rng_state", "rng_state_all")):  # transformers asks there
            r.call(cuda.random, name, ours)
    for name in ("graph", "make_graphed_callables"):
        r.call(cuda, name, refuse(f"torch.cuda.{name}", "steps that are not replayed"))
    r.around(cuda.Stream, "__new__", lambda *_a, **_k: _ONE_STREAM)
    for name, as_cuda in _ACCELERATOR.items():
        if hasattr(torch.accelerator, name):
            r.call(torch.accelerator, name, answers[as_cuda])
    r.call(torch.accelerator, "current_accelerator", lambda *_a, **_k: torch.device("cuda"))
    r.call(cuda.nccl, "version", lambda *_: _NCCL)
    r.set(torch.version, "cuda", lambda real: real or _CUDA_OF_WHEELS)
    r.set(torch, "Generator", lambda _real: Generator)
    r.around(torch.nn.Module, "to", _module_to)
    r.around(torch.nn.Module, "cuda", _module_to_gpu)
    for name in ("half", "float", "bfloat16"):
        r.around(torch.nn.Module, name, _module_of_type)


def _gpu(steps: Steps) -> Any:
    context = steps.worker.context
    gpu = context.gang.env.nodes[context.process.me.node_id].spec.gpu
    if gpu is None:
        raise RuntimeError("No CUDA GPUs are available")
    return gpu


def _has_gpu(steps: Steps) -> bool:
    return bool(steps.worker.gpus)


def _random_state() -> torch.Tensor:
    """Seed and offset of a generator that nobody draws from."""
    return torch.zeros(16, dtype=torch.uint8)


def _bf16(steps: Steps, *_: Any, **__: Any) -> bool:
    return _has_gpu(steps) and "bf16" in _gpu(steps).flops_per_s


def _capability(steps: Steps) -> tuple[int, int]:
    major, minor = divmod(round(10 * _gpu(steps).compute_capability), 10)
    return major, minor


def _properties(steps: Steps, *_: Any) -> Any:
    gpu = _gpu(steps)
    major, minor = _capability(steps)
    return SimpleNamespace(
        name=gpu.name, total_memory=int(gpu.memory_bytes), major=major, minor=minor,
        multi_processor_count=gpu.sm_count,
    )  # fmt: skip


def _allocated(steps: Steps, *_: Any) -> int:
    """The peak since it was reset, which a step is known by when it has been taken."""
    if steps.latest is None:
        return steps.worker.answered_bytes[0]
    return max(steps.peaks.allocated_bytes, _held(steps))


def _empties(steps: Steps) -> Any:
    steps.peaks.cached_bytes = 0
    return steps.worker.empties_cache()


def _held(steps: Steps, *_: Any) -> int:
    """Between steps what stays, in one its peak; before the first what the script put there."""
    found = steps.several.fullest or steps.latest
    if found is None:
        weights = steps.worker.weights
        own_bytes = steps.mode.alive.bytes_but(weights)
        return 0 if sharded.in_use(steps) else own_bytes + round(sum(weights.values()))
    kept = max(0, found.kept_bytes - round(steps.worker.offloaded_bytes))
    return kept if steps.mode.tape is None else found.allocated_bytes


def _reserved_now(steps: Steps, *_: Any) -> int:
    """What steps have taken, until the cache is emptied; DeepSpeed's states may be elsewhere."""
    found = steps.several.fullest or steps.latest
    if steps.worker.offloaded_bytes or found is None:
        return _held(steps) if steps.worker.offloaded_bytes else _reserved(steps)
    return max(steps.peaks.cached_bytes, found.reserved_bytes)


def _reserved(steps: Steps, *_: Any) -> int:
    found = steps.several.fullest or steps.latest
    if found is None:
        return steps.worker.answered_bytes[1]
    return max(steps.peaks.reserved_bytes, found.reserved_bytes)


_COUNTED = (
    "allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes",
    "active_bytes", "inactive_split_bytes", "requested_bytes", "oversize_allocations",
    "oversize_segments",
)  # fmt: skip
_POOLS = ("all", "small_pool", "large_pool")
_OF_EACH = ("current", "peak", "allocated", "freed")
_ALONE = (
    "num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc",
    "num_device_free", "max_split_size",
)  # fmt: skip


def _memory_stats(steps: Steps, *_: Any, **__: Any) -> dict[str, int]:
    """The names of torch 2.13; those of bytes held are the prediction's, others are 0."""
    pools = {kind: ("",) if "oversize" in kind else _POOLS for kind in _COUNTED}
    names = ((kind, pool, m) for kind in _COUNTED for pool in pools[kind] for m in _OF_EACH)
    stats = {".".join(filter(None, each)): 0 for each in names} | dict.fromkeys(_ALONE, 0)
    held = _held(steps)
    found = dict.fromkeys(("allocated", "active", "requested"), (held, _allocated(steps)))
    found["reserved"] = (_reserved(steps),) * 2
    for kind, values in found.items():
        for metric, value in zip(_OF_EACH[:2], values, strict=True):
            stats |= dict.fromkeys((f"{kind}_bytes.{p}.{metric}" for p in _POOLS[::2]), value)
    return dict(sorted(stats.items()))


def _mem_info(steps: Steps, *_: Any) -> tuple[int, int]:
    total = int(_gpu(steps).memory_bytes)
    return total - _reserved_now(steps), total


def _named(steps: Steps, said: Any) -> str:
    return devices.named(said, steps.worker.devices[0])


def _of_one(steps: Steps, ours: Any, latest: Prediction, said: Any) -> Any:
    """Of one of the GPUs that a process's model lies on; of a step, whatever was reset since."""
    found = latest.on_gpu(_named(steps, said))
    total = int(_gpu(steps).memory_bytes)
    if found is None:
        return (total, total) if ours is _mem_info else 0
    if ours is _mem_info:
        return total - found.reserved_bytes, total
    if ours is _held and steps.mode.tape is None:
        return found.kept_bytes
    return found.allocated_bytes if ours in (_held, _allocated) else found.reserved_bytes


def _answered(steps: Steps, ours: Any, now: int, allocated: int, reserved: int) -> Any:
    """Of a GPU that has a part of models that have not been trained."""
    if ours is _mem_info:
        total = int(_gpu(steps).memory_bytes)
        return total - reserved, total
    return {_held: now, _allocated: allocated}.get(ours, reserved)


_OF_MEMORY = (_held, _reserved_now, _allocated, _reserved, _mem_info)


def _module_to_gpu(real: Any, steps: Steps, module: Any, *args: Any, **kwargs: Any) -> Any:
    out = real(module, *args, **kwargs)
    if steps.worker.answers:
        steps.worker.rests_with(module)
    return out


def _module_of_type(real: Any, steps: Steps, module: Any) -> Any:
    out = real(module)
    steps.forget_signatures()
    return out


def _module_to(real: Any, steps: Steps, module: Any, *args: Any, **kwargs: Any) -> Any:
    """``module.to(1)``: a number is a GPU's, which only machines with one know."""
    if args and isinstance(args[0], int) and not isinstance(args[0], bool):
        args = (torch.device("cuda", args[0]), *args[1:])
    if isinstance(kwargs.get("device"), int):
        kwargs["device"] = torch.device("cuda", kwargs["device"])
    out = real(module, *args, **kwargs)
    said = (*args, kwargs.get("device"))
    if kwargs.get("dtype") is not None or any(isinstance(a, torch.dtype) for a in args):
        steps.forget_signatures()
    there = any(str(a).startswith("cuda") for a in said if isinstance(a, str | torch.device))
    if there and steps.worker.answers:
        steps.worker.rests_with(module)
    return out
