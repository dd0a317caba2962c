"""``torch.distributed.device_mesh`` in training workers: coordinates without process groups.

Real counterpart: ``torch/distributed/device_mesh.py``. What a mesh is for here is to be handed to
``fully_shard``; whoever asks it for a group of its own is refused, and tensor parallelism.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.distributed import device_mesh
from torch.distributed.tensor import parallel

from raysim.rayapi.shapes.cuda import refuse
from raysim.rayapi.shapes.here import worker_here

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced

_INSTEAD = "DistributedDataParallel, or fully_shard over all ranks"


def install(r: Replaced) -> None:
    """A mesh's constructor, and what would speak over it."""
    mesh: Any = device_mesh.DeviceMesh
    # What the module has imported by name.
    r.call(device_mesh, "get_rank", lambda w, *_: w.context.rank, worker_here)
    r.around(mesh, "__init__", _made, worker_here)
    r.around(mesh, "get_local_rank", _local_rank, worker_here)
    r.call(parallel, "parallelize_module", refuse("parallelize_module", _INSTEAD), worker_here)
    for name in ("get_group", "get_all_groups"):
        r.around(
            mesh, name, refuse("a process group of a DeviceMesh", _INSTEAD),
            worker_here,
        )  # fmt: skip


def _made(real: Callable[..., None], worker: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """The first one starts the group of all ranks, if nobody has."""
    if not worker.in_group:
        worker.join_group()
    self._dim_group_names = []
    real(self, *args, **{**kwargs, "_init_backend": False, "_rank": worker.context.rank})


def _local_rank(_real: Any, _worker: Any, self: Any, mesh_dim: int | str | None = None) -> int:
    """Along one dimension."""
    names = self.mesh_dim_names or ()
    place = names.index(mesh_dim) if isinstance(mesh_dim, str) else mesh_dim or 0
    return int(self.get_coordinate()[place])
