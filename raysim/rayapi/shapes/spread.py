"""``DTensor`` and tensor parallelism in training workers: torch's own, of shapes.

Real counterparts: ``torch/distributed/tensor`` of torch 2.x. ``parallelize_module`` and its styles
run as they are: a parameter becomes a rank's part of it, on shapes, and torch decides where ranks
exchange what, which the tracer hears (``tracing.peers``).

Simplifications: what a script exchanges beside its model and loss (``full_tensor`` of a parameter)
takes no time; initial parts are not sent around; ranks of a mesh's dimension are priced as
neighbours (told where they are not).

Not modelled: parameters spread over meshes of more than two dimensions, workers on CPUs, whose
torch computes (refused).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import tensor as torch_tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, _dispatch, _random, parallel
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.parallel import loss

from raysim.rayapi.shapes import context
from raysim.rayapi.shapes.cuda import refuse
from raysim.rayapi.shapes.here import cpu_steps_here
from raysim.rayapi.shapes.known import META
from raysim.rayapi.shapes.plans import wrapping_in
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.tracing import peers

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.plans import Wrapping
    from raysim.rayapi.shapes.steps import Steps

APART = (
    "tensor-parallel ranks {} are no neighbours: they are priced as if they were (put the mesh's "
    "dimension of tensor parallelism last)"
)


def install(r: Replaced) -> None:
    """What turns one kind of tensor into another is part of a loss that is written down."""
    cls: Any = DTensor
    for owner, made in (
        (parallel, "parallelize_module"), (torch_tensor, "distribute_tensor"),
        (torch_tensor, "distribute_module"), (cls, "from_local"), (DeviceMesh, "get_group"),
        (dist, "new_group"),
    ):  # fmt: skip
        instead = refuse(f"{made} on CPU workers", "workers with GPUs, or DistributedDataParallel")
        r.call(owner, made, instead, cpu_steps_here)
    for name in ("to_local", "full_tensor", "redistribute"):
        r.around(cls, name, _noted(name))
    r.call(_dispatch, "is_rng_supported_mesh", lambda *_: False)  # shapes are not drawn
    r.call(_random, "manual_seed", lambda *_a, **_k: None)
    r.around(ShardingPropagator, "_propagate_tensor_meta_non_cached", _of_whole_tensors)
    r.around(loss, "_enable_custom_loss_ops", _enabled)
    r.around(loss, "_disable_custom_loss_ops", _disabled)


def _noted(name: str) -> Callable[..., Any]:
    def call(real: Any, steps: Steps, self: Any, *args: Any, **kwargs: Any) -> Any:
        mode = steps.mode
        tape, mode.tape = mode.tape, None  # what it calls is its own
        try:
            out = real(self, *args, **kwargs)
        finally:
            mode.tape = tape
        if tape is not None and not (mode.tracing or steps.inside):
            tape.note(getattr(DTensor, name), (self, *args), kwargs, out)
        return out

    return call


def _of_whole_tensors(real: Callable[..., Any], _steps: Steps, *args: Any) -> Any:
    """Torch remembers fake tensors with the GPU that is the caller's: here those of all ranks."""
    current, torch.cuda.current_device = torch.cuda.current_device, lambda: 0
    try:
        return real(*args)
    finally:
        torch.cuda.current_device = current


def _enabled(real: Callable[[], None], steps: Steps) -> None:
    """``with loss_parallel()``: of all workers, the first to enter."""
    within = steps.shared.within_loss
    if not within:
        real()
    within.append(steps)


def _disabled(real: Callable[[], None], steps: Steps) -> None:
    """The last to leave."""
    within = steps.shared.within_loss
    within.remove(steps)
    if not within:
        real()


def spread(steps: Steps, wrapping: Wrapping) -> Wrapping:
    """With the ranks that its parameters are spread over.

    Raises
    ------
    NotEmulatedError
        Some ranks are in no such group as it is trained over.
    """
    tp, world = degree(steps, wrapping), steps.worker.context.world_size
    cp = context.shared(steps, wrapping)
    if wrapping.among and wrapping.among * tp != world:
        raise NotEmulatedError(
            f"a process_group of {wrapping.among} of {world} ranks around a model",
            "all ranks, or a DeviceMesh's other dimension beside tensor parallelism or a pipeline",
        )
    return replace(wrapping, tp=tp, cp=cp)


def degree(steps: Steps, wrapping: Wrapping) -> int:
    """Tensor-parallel ranks that share a model's parameters; 1: none do."""
    known: dict[int, tuple[Any, int]] = steps.worker.globals.setdefault(degree, {})
    key = id(wrapping.module)
    if key not in known:
        known[key] = wrapping.module, _degree(steps, wrapping.module)
    heard = steps.shared.peers.get(steps.signature(wrapping.module), 1)
    return max(known[key][1], heard)


@contextmanager
def heard(steps: Steps, module: Any) -> Iterator[None]:
    """A model's trace: its own collectives are over groups of the mesh that it is trained on."""
    within: list[Wrapping] = steps.worker.globals.setdefault(heard, {}).setdefault("within", [])
    within.append(wrapping_in(module, steps.within))
    peers.DIMENSIONS.update(_dimensions(module))
    try:
        yield
    finally:
        within.pop()
        peers.DIMENSIONS.clear()


def _dimensions(module: Any) -> Iterator[tuple[str, str]]:
    """Names of groups that are a dimension of two over which parameters are spread."""
    meshes = {p.device_mesh for p in module.parameters() if isinstance(p, DTensor)}
    for mesh in (m for m in meshes if m.ndim == 2):
        inner = mesh.size(1)
        for dim, name in enumerate((f"tp_replicate:{inner}", f"tp_shard:{inner}")):
            yield mesh.get_group(dim).group_name, name


def group_of(steps: Steps, ranks: Sequence[int]) -> str:
    """What the ranks of a collective within the model share: data, or the model itself.

    Its wrapper says which ranks are replicas. Of a model that nothing wraps its own groups do:
    who exchanges what within it has a part of it each.
    """
    wrapping, size = steps.worker.globals[heard]["within"][-1], len(ranks)
    world = steps.worker.context.world_size
    near = list(ranks) == list(range(ranks[0], ranks[0] + size))
    replicas = 1
    if wrapping.mesh is not None:
        replicas = wrapping.mesh.dp
    elif wrapping.meets:
        replicas = wrapping.among or world
    shares_model = replicas == 1 or (size == world // replicas and (near or size != replicas))
    if not shares_model and size >= replicas:
        return "dp"
    if not shares_model:
        return f"dp_shard:{size}" if near else f"dp_replicate:{replicas // size}"
    if not near:
        steps.say(APART.format(list(ranks)))
    key = steps.signature(wrapping.module)
    steps.shared.peers[key] = max(size, steps.shared.peers.get(key, 1))
    return "tp"


def _degree(steps: Steps, module: Any) -> int:
    meshes = {p.device_mesh for p in module.parameters() if isinstance(p, DTensor)}
    if any(mesh.ndim > 2 for mesh in meshes):
        raise NotEmulatedError(
            "DTensor parameters on a DeviceMesh of more than two dimensions",
            "parallelize_module over one of them, and fully_shard over the others",
        )
    sizes = {mesh.size() for mesh in meshes}
    if len(sizes) > 1:
        raise NotEmulatedError("modules spread over groups of several sizes", "one tp dimension")
    for mesh in meshes:
        ranks = mesh.mesh.flatten().tolist()
        if ranks != list(range(ranks[0], ranks[0] + len(ranks))):
            steps.say(APART.format(ranks))
    return sizes.pop() if sizes else 1


def like(tensor: torch.Tensor) -> torch.Tensor:
    """An empty one, spread as it is."""
    if not isinstance(tensor, DTensor):
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=META)
    part = tensor._local_tensor  # noqa: SLF001  (``to_local`` is autograd's)
    made: torch.Tensor = DTensor.from_local(
        torch.empty(part.shape, dtype=part.dtype, device=META),
        tensor.device_mesh, tensor.placements, run_check=False,
        shape=tensor.shape, stride=tensor.stride(),
    )  # fmt: skip
    return made
