"""What FSDP2's parameters say of themselves, as the ``DTensor`` that each of them really is.

Real counterpart: ``torch/distributed/tensor`` of torch 2.x. Here a parameter stays whole, as a
shape; it answers what scripts ask of a shard: ``placements``, ``device_mesh``, ``to_local()``,
``full_tensor()``. Gathering takes no time.

Not modelled: ``isinstance(parameter, DTensor)`` is False, as of the tensors of other wrappers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import tensor as torch_tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from raysim.rayapi.shapes.known import META

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps

_C: Any = torch._C  # noqa: SLF001  (modes of a thread have no other door)
_FIRST = (Shard(0),)
"""How FSDP2 cuts a parameter, unless it is told otherwise."""


def install(r: Replaced) -> None:
    """Of ``torch.distributed.tensor``: a checkpoint's tensors, as their parameters are."""
    r.around(torch_tensor, "distribute_tensor", _distribute)


def _distribute(
    real: Any, steps: Steps, tensor: torch.Tensor, device_mesh: Any = None, placements: Any = None,
    **others: Any,
) -> Any:  # fmt: skip
    if device_mesh not in [*steps.worker.globals.get(mark, ()), None]:  # a script's own
        return real(tensor, device_mesh, placements, **others)
    shape = torch.empty(tensor.shape, dtype=tensor.dtype, device=META)
    _answer(shape, device_mesh or whole_mesh(steps), tuple(placements or _FIRST))
    return shape


def whole_mesh(steps: Steps) -> Any:
    """Of all ranks, in one dimension; made once per rank."""
    own = steps.worker.globals.setdefault(whole_mesh, {})
    if not own:
        own["mesh"] = DeviceMesh("cuda", list(range(steps.worker.context.world_size)))
    return own["mesh"]


def mark(steps: Steps, module: Any, mesh: Any) -> None:
    """Its parameters, and what its ``state_dict`` says of them, are shards over a mesh."""
    steps.worker.globals.setdefault(mark, {})[mesh] = None
    module.raysim_mesh = mesh
    mark_tensors(module.parameters(), mesh)
    module._register_state_dict_hook(partial(_mark_state, mesh))  # noqa: SLF001  (as FSDP1 does)


def mark_tensors(tensors: Iterable[torch.Tensor], mesh: Any) -> None:
    """Those that are not yet; one that tensor-parallel ranks share is theirs first."""
    for tensor in tensors:
        if isinstance(tensor, DTensor):
            tensor.to_local = partial(_own, tensor._local_tensor, mesh, _over(mesh))  # type: ignore[method-assign]  # noqa: SLF001
        elif not hasattr(tensor, "placements"):
            _answer(tensor, mesh, _over(mesh))


def mark_inner(module: Any, mesh: Any, dims: Iterable[tuple[str, int]]) -> None:
    """Parameters that are cut along another dimension than the first."""
    for name, dim in dims:
        tensor = module.get_parameter(name)
        if not isinstance(tensor, DTensor):
            _answer(tensor, mesh, _over(mesh, dim))


def _over(mesh: Any, cut: int = 0) -> tuple[Any, ...]:
    """Hybrid sharding: whole in every row of a mesh of two dimensions."""
    return (Shard(cut),) if getattr(mesh, "ndim", 1) == 1 else (Replicate(), Shard(cut))


def in_use(steps: Steps) -> bool:
    """Whether the script has sharded a module."""
    return mark in steps.worker.globals


def norm_of_gradients() -> torch.Tensor:
    """Spread as they are."""
    norm: Any = torch.empty((), device=META)
    norm.full_tensor = norm.to_local = norm.detach
    return norm  # type: ignore[no-any-return]


def _mark_state(mesh: Any, module: Any, state: Mapping[str, Any], prefix: str, *_more: Any) -> None:
    names = [name for name, _ in module.named_parameters()]
    mark_tensors([state[prefix + n] for n in names if prefix + n in state], mesh)


def _answer(tensor: Any, mesh: Any, placements: tuple[Any, ...]) -> None:
    tensor.placements, tensor.device_mesh = placements, mesh
    tensor.full_tensor = partial(_whole, tensor)
    tensor.to_local = partial(_own, tensor, mesh, placements)


def _whole(tensor: torch.Tensor, **_others: Any) -> torch.Tensor:
    with _C.DisableTorchFunction():
        return tensor.detach()


def _own(
    tensor: torch.Tensor, mesh: Any, placements: tuple[Any, ...], **_others: Any
) -> torch.Tensor:  # fmt: skip
    """The rank's part, of the size that chunks of ``torch.chunk`` have."""
    shape = list(tensor.shape)
    for dim, placement in enumerate(placements):
        if isinstance(placement, Shard):
            cut, parts = placement.dim, mesh.size(dim)
            chunk = -(-shape[cut] // parts)
            begin = mesh.get_local_rank(dim) * chunk
            shape[cut] = max(0, min(chunk, shape[cut] - begin))
    return torch.empty(shape, dtype=tensor.dtype, device=META)
