"""``torch.distributed.device_mesh`` in training workers: coordinates, and groups of nobody.

Real counterpart: ``torch/distributed/device_mesh.py``. A group of a mesh's dimension knows its size
and the worker's place in it, which is what ``DTensor`` asks of it on shapes; there is nobody to
talk to. Whoever talks over it meets its ranks (``shapes.patches``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed.tensor import _collective_utils

from raysim.rayapi.shapes.here import worker_here

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps

_C: Any = torch._C._distributed_c10d  # noqa: SLF001  (the register of groups has no other door)
_GROUPS: dict[str, Any] = {}
"""By name, which says who is in it and who asks; torch's register does not keep them."""


def install(r: Replaced) -> None:
    """A mesh's constructor, and who it asks for its place."""
    mesh: Any = device_mesh.DeviceMesh
    # What the module has imported by name.
    r.call(device_mesh, "get_rank", _rank, worker_here)
    for module in (_collective_utils, dist):
        r.call(module, "get_group_rank", _place, worker_here)
    r.call(_collective_utils, "get_rank", _rank, worker_here)
    r.call(dist, "new_group", _new_group)
    r.call(dist, "new_subgroups", _new_subgroups)
    r.call(dist, "new_subgroups_by_enumeration", _enumerated)
    r.call(dist, "get_global_rank", _global_rank, worker_here)
    r.around(mesh, "__init__", _made, worker_here)
    r.around(mesh, "get_local_rank", _local_rank, worker_here)


def group_of(ranks: Sequence[int], me: int) -> Any:
    """The group of these ranks, as one of them has it."""
    name = f"raysim_{me}_in_{'_'.join(map(str, ranks))}"
    if name not in _GROUPS or not _is_registered(name):
        made: Any = dist.ProcessGroup  # whose other constructors are not typed
        group = made(place := ranks.index(me), len(ranks))
        nobody = _C.FakeProcessGroup._create_internal(place, len(ranks))  # noqa: SLF001
        group._register_backend(  # noqa: SLF001  (which keeps the name)
            torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, nobody
        )
        group._set_group_name(name)  # noqa: SLF001  (only ``new_group`` names one otherwise)
        _C._register_process_group(name, group)  # noqa: SLF001
        _GROUPS[name] = group
    return _GROUPS[name]


def _is_registered(name: str) -> bool:
    """No longer, once somebody has destroyed all of torch's groups."""
    try:
        _C._resolve_process_group(name)  # noqa: SLF001
    except RuntimeError:
        return False
    return True


def ranks_of(group: Any) -> tuple[int, ...]:
    """Who is in one that was made here; none: all ranks."""
    if not isinstance(group, dist.ProcessGroup):
        return ()
    name = str(group.group_name)
    return tuple(map(int, name.partition("_in_")[2].split("_"))) if name in _GROUPS else ()


def _new_group(steps: Steps, ranks: Sequence[int] | None = None, *_a: Any, **_k: Any) -> Any:
    """``new_group``, as a rank that is in it has it; making it takes no time."""
    context = steps.worker.expect_group().context
    who = sorted(ranks) if ranks else list(range(context.world_size))
    return group_of(who, context.rank) if context.rank in who else dist.GroupMember.NON_GROUP_MEMBER


def _new_subgroups(
    steps: Steps, group_size: int | None = None, group: Any = None, *_a: Any, **_k: Any
) -> tuple[Any, list[Any]]:  # fmt: skip
    """Of neighbours; as many as a node has GPUs, if nobody says."""
    context = steps.worker.expect_group().context
    size = group_size or context.local_world_size
    within = list(ranks_of(group) or range(context.world_size))
    if len(within) % size:
        raise ValueError(
            f"The world size ({len(within)}) must be divisible by group_size ({size})"
        )  # torch's words
    return _enumerated(steps, [within[i : i + size] for i in range(0, len(within), size)])


def _enumerated(
    steps: Steps, ranks_per_subgroup_list: Sequence[Sequence[int]], *_a: Any, **_k: Any
) -> tuple[Any, list[Any]]:  # fmt: skip
    """The group that the caller is in, and all of them."""
    found = [_new_group(steps, ranks) for ranks in ranks_per_subgroup_list]
    mine = [g for g in found if g is not dist.GroupMember.NON_GROUP_MEMBER]
    if len(mine) > 1:
        raise ValueError("ranks_per_subgroup_list contains duplicate subgroup ranks")
    return (mine[0] if mine else None), found


def _global_rank(_worker: Any, group: Any, group_rank: int) -> int:
    """Of one that is at this place of a group."""
    within = ranks_of(group)
    return within[group_rank] if within else group_rank


def _rank(worker: Any, group: Any = None) -> int:
    return int(group.rank() if ranks_of(group) else worker.context.rank)


def _place(_worker: Any, group: Any, rank: int) -> int:
    """In a group, of one of all ranks."""
    within = ranks_of(group)
    return within.index(rank) if within else rank


def _made(real: Callable[..., None], worker: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """The first one starts the group of all ranks, if nobody has."""
    if not worker.in_group:
        worker.join_group()
    me = worker.context.rank
    self._dim_group_names = []
    real(self, *args, **{**kwargs, "_init_backend": False, "_rank": me})
    place = self.get_coordinate()
    if place is None:  # other ranks' alone
        return
    whole = self.mesh
    for dim in range(whole.dim()):
        line = whole[tuple(slice(None) if d == dim else at for d, at in enumerate(place))]
        self._dim_group_names.append(group_of(line.tolist(), me).group_name)


def _local_rank(_real: Any, _worker: Any, self: Any, mesh_dim: int | str | None = None) -> int:
    """Along one dimension."""
    names = self.mesh_dim_names or ()
    place = names.index(mesh_dim) if isinstance(mesh_dim, str) else mesh_dim or 0
    return int(self.get_coordinate()[place])
