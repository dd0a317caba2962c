"""Groups that a program makes beside torch's: trainers and engines' workers, over NCCL.

Real counterparts: ``PyNcclCommunicator`` over ``StatelessProcessGroup`` (vLLM), and the second
"main" group that RLHF trainers make of ``torch.distributed``'s inner functions. Ranks wait for the
last one, then a collective takes what NCCL takes between their GPUs. Values are not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.multiprocessing import reductions

from raysim.perf.collectives import Operation
from raysim.rayapi.calls import this_fiber
from raysim.rayapi.serialization import inside
from raysim.rayapi.shapes.here import steps_here, worker_here
from raysim.rayapi.util.collective.groups import Group

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced

_OPERATIONS: dict[str, Operation] = {
    "all_reduce": "all_reduce", "broadcast": "broadcast", "reduce": "reduce",
    "all_gather": "all_gather", "all_gather_into_tensor": "all_gather",
}  # fmt: skip


class Link:
    """One rank's end.

    Raises
    ------
    RuntimeError
        Two ranks have the same GPU, as NCCL says.
    """

    def __init__(self, name: str, world_size: int, rank: int, local_rank: int = 0) -> None:
        worker: Any = worker_here()
        places = getattr(worker, "places", ())
        if not places:
            raise RuntimeError(f"NCCL needs a GPU for each rank: rank {rank} of {name} has none")
        self.rank, self.world_size = rank, world_size
        self._worker = worker
        self._group = Group(name, "NCCL", world_size, rank, place=places[local_rank])
        found = self._group.meet("places", places[local_rank])
        if len(set(found.values())) < len(found):
            raise RuntimeError(
                "NCCL error: invalid usage: Duplicate GPU detected: two ranks of one group share a "
                "GPU; colocated processes hand weights over by CUDA IPC"
            )

    def collective(self, name: str, tensor: Any) -> None:
        """All ranks meet, then it takes its time."""
        self.takes(name, tensor.nbytes * (self.world_size if "gather" in name else 1))

    def takes(self, name: str, size_bytes: float) -> None:
        """Likewise, of so many bytes together."""
        self._group.meet(name, None)
        began_ns = this_fiber().process.session.sim.now_ns
        self._group.pay(_OPERATIONS[name], size_bytes)
        self._worker.spends("weight sync", began_ns)

    def barrier(self) -> None:
        """All wait."""
        self._group.meet("barrier", None)


def install(r: Replaced) -> None:
    """What such a group is made of, where scripts import it from."""
    r.call(c10d, "rendezvous", _rendezvous, worker_here)
    r.call(c10d, "_new_process_group_helper", _new_group, worker_here)
    r.around(reductions, "reduce_tensor", _handle, worker_here)
    r.around(torch.Tensor, "__reduce_ex__", _travels, worker_here)
    for name in ("allclose", "equal"):
        r.around(torch, name, _taken_to_be_equal, worker_here)


def _handle(real: Any, _worker: Any, tensor: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
    """A CUDA IPC handle, whose seventh argument is the device that it is opened on."""
    if not tensor.is_meta:
        found: tuple[Any, tuple[Any, ...]] = real(tensor)
        return found
    return _opened, (tensor.shape, tensor.dtype, tensor.stride(), 0, 0, None, 0)


def _opened(shape: Any, dtype: Any, stride: Any, *_where: Any) -> torch.Tensor:
    """The same memory in another process."""
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def _travels(real: Any, worker: Any, tensor: torch.Tensor, protocol: int) -> Any:
    """To another process, which may have a GPU or not: torch pickles the whole storage."""
    if not (worker.prices_first and tensor.is_meta and type(tensor) is torch.Tensor):
        return real(tensor, protocol)
    values = getattr(tensor, "raysim_values", None)
    if inside and values is None:
        inside[-1].unseen_bytes += tensor.untyped_storage().nbytes()
    return _arrived, (tuple(tensor.shape), tensor.dtype, values)


def _arrived(shape: Any, dtype: torch.dtype, values: torch.Tensor | None) -> torch.Tensor:
    """Shapes where torch works on them; else what is known, or nan and 0, in no memory."""
    if steps_here() is not None:
        made = torch.empty(shape, dtype=dtype, device="meta")
        if values is not None:
            made.raysim_values = values  # type: ignore[attr-defined]
        return made
    if values is not None:
        return values
    return torch.full((), float("nan") if dtype.is_floating_point else 0, dtype=dtype).expand(shape)


def _taken_to_be_equal(real: Any, worker: Any, a: Any, b: Any, *more: Any, **named: Any) -> Any:
    """Of weights that nobody knows: what engines' workers check is taken to hold."""
    unknown = any(t.is_meta and not hasattr(t, "raysim_values") for t in (a, b))
    if not unknown or not isinstance(getattr(worker, "places", None), tuple):
        return real(a, b, *more, **named)
    worker.torch_steps.say("torch.allclose and torch.equal of unknown values are taken to hold")
    return True


def _rendezvous(worker: Any, url: str, rank: int = -1, world_size: int = -1, **_more: Any) -> Any:
    worker.met_at = url
    torch_s: Any = dist  # whose stores are not typed
    yield torch_s.HashStore(), rank, world_size


def _new_group(
    worker: Any, world_size: int, rank: int, _ranks: Any, _backend: Any = None, _store: Any = None,
    group_name: Any = "", **_more: Any,
) -> tuple[Link, Any]:  # fmt: skip
    return Link(f"{getattr(worker, 'met_at', '')} {group_name}", world_size, rank), None


def found_in(args: Any, kwargs: Any) -> Link | None:
    """Of a call of ``torch.distributed``, if it is over one of these."""
    return next((a for a in (*args, *kwargs.values()) if isinstance(a, Link)), None)


def tensor_in(args: Any, kwargs: Any) -> torch.Tensor:
    """What such a call is of: its last tensor, which gathers are of."""
    given = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
    return given[-1]
