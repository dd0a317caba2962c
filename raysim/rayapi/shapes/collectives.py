"""``torch.distributed``'s collectives as a training worker's script calls them.

Real counterpart: ``torch/distributed/distributed_c10d.py`` over NCCL. Ranks wait for the last one,
then the collective takes what NCCL takes between their GPUs. Values are those that every rank
knows; of all else tensors stay as they are.

What a model calls in its forward, or an autograd function of its own in backward, its trace hears.

Messages between two ranks are in ``messages``.

Not modelled: overlap (what is asynchronous is over when the call returns).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functions
from torch.distributed.nn import functional as differentiable

from raysim.perf.collectives import GroupShape, Operation, collective
from raysim.rayapi.shapes import links, mesh, spread
from raysim.rayapi.shapes.here import worker_here
from raysim.tracing import peers
from raysim.units import to_ns

if TYPE_CHECKING:
    from raysim.hardware.topology import Topology
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps

_REDUCED: dict[Any, Callable[[torch.Tensor], torch.Tensor]] = {
    dist.ReduceOp.SUM: lambda t: t.sum(0, dtype=t.dtype), dist.ReduceOp.MAX: lambda t: t.amax(0),
    dist.ReduceOp.MIN: lambda t: t.amin(0),
}  # fmt: skip
_nn: Any = differentiable
"""Whose functions warn that they are no longer torch's choice."""
_FUTURE: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
_FUTURE.set_result([])
_DONE = SimpleNamespace(
    wait=lambda *_: True, is_completed=lambda: True, get_future=lambda: _FUTURE
)  # fmt: skip
"""What ``async_op=True`` returns."""


def install(r: Replaced) -> None:
    """Those on tensors, and those on objects."""
    r.call(dist, "all_gather_object", _all_gather_object, worker_here)
    r.call(dist, "broadcast_object_list", _broadcast_object_list, worker_here)
    r.call(dist, "get_process_group_ranks", _ranks, worker_here)
    for name, (operation, ours) in _COLLECTIVES.items():
        r.call(dist, name, _called(name, operation, ours))
    for name, functional in _FUNCTIONAL.items():
        r.around(functions, name, partial(_of_group, functional))
    r.call(dist, "gather_object", _gather_object, worker_here)
    r.call(dist, "scatter_object_list", _scatter_object_list, worker_here)


def _called(name: str, operation: Operation, ours: Callable[..., float]) -> Callable[..., Any]:
    """One whose ranks have met when it returns, also where the script would wait later."""
    order = list(inspect.signature(getattr(dist, name)).parameters)

    def call(steps: Steps, *args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        while len(args) < len(order) and order[len(args)] in kwargs:  # torch's names, not ours
            args = *args, kwargs.pop(order[len(args)])
        link = links.found_in(args, kwargs)
        if link is not None:
            steps.synchronize()
            link.collective(name, links.tensor_in(args, kwargs))
        elif steps.mode.tracing:  # one rank traces for all: nobody would meet it
            ranks = _ranks(steps.worker, _group_of(args, kwargs))
            if len(ranks) > 1:
                peers.hear(operation, spread.group_of(steps, ranks), (*args, *kwargs.values()))
        else:
            size_bytes = ours(steps, *args, **kwargs)
            if not steps.inside:
                _takes(steps, operation, size_bytes, _group_of(args, kwargs))
        return _DONE if async_op else None

    return call


def _of_group(ours: Callable[..., Any], real: Any, _: Steps, *args: Any, **kwargs: Any) -> Any:
    """A functional collective of a script's own (open_clip's loss); a mesh's is ``DTensor``'s."""
    asked = inspect.signature(real).bind(*args, **kwargs).arguments
    group = asked["group"]
    if group is None or isinstance(group, dist.ProcessGroup):
        return ours(**{name: value for name, value in asked.items() if name != "tag"})
    return real(*args, **kwargs)


def _gathered(self: torch.Tensor, gather_dim: int, group: Any) -> torch.Tensor:
    return torch.cat(_nn._AllGather.apply(group, self.contiguous()), gather_dim)  # noqa: SLF001


def _scattered(
    self: torch.Tensor, reduceOp: str, scatter_dim: int, group: Any  # noqa: N803  (torch's name)
) -> torch.Tensor:  # fmt: skip
    parts = [t.contiguous() for t in self.chunk(dist.get_world_size(group), scatter_dim)]
    out = torch.empty_like(parts[0])
    op = _OPS[reduceOp.lower()]
    made: torch.Tensor = _nn._Reduce_Scatter.apply(op, group, out, *parts)  # noqa: SLF001
    return made


def _summed(self: torch.Tensor, reduceOp: str, group: Any) -> torch.Tensor:  # noqa: N803
    op = _OPS[reduceOp.lower()]
    made: torch.Tensor = _nn._AllReduce.apply(op, group, self)  # noqa: SLF001
    return made


_OPS = {
    "sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}  # fmt: skip
_FUNCTIONAL: dict[str, Callable[..., Any]] = {
    "all_gather_tensor": _gathered, "all_gather_tensor_autograd": _gathered,
    "reduce_scatter_tensor": _scattered, "reduce_scatter_tensor_autograd": _scattered,
    "all_reduce": _summed,
}  # fmt: skip


def _group_of(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """By its name, or wherever it stands."""
    given = (a for a in args if isinstance(a, dist.ProcessGroup))
    return kwargs.get("group") or next(given, None)


def _takes(steps: Steps, operation: Operation, size_bytes: float, group: Any) -> None:
    """What NCCL takes between these GPUs, of the full buffer."""
    ranks = mesh.ranks_of(group)
    shape = _shape(steps, ranks)
    if shape.ranks > 1:
        seconds = collective(operation, size_bytes, shape).seconds
        steps.worker.sleep_ns(to_ns(seconds))


def shape_among(topology: Topology, places: Sequence[Any]) -> GroupShape:
    """Of ranks at these nodes and GPUs."""
    return GroupShape.on(topology.specs[places[0][0]], **topology.spread(places)._asdict())


def _shape(steps: Steps, ranks: tuple[int, ...]) -> GroupShape:
    """Of the GPUs of these ranks, or of all; they tell each other once."""
    worker = steps.worker
    context = worker.expect_group().context
    known = worker.globals.setdefault(_shape, {})
    key = id(context.gang), ranks
    if key not in known:
        places = worker.exchange((context.process.me.node_id, context.local_rank), ranks)
        topology = context.gang.env.topology
        known[key] = shape_among(topology, places)
    found: GroupShape = known[key]
    return found


# ---- what each does; the full buffer's bytes -----------------------------------------------------


def _meeting(steps: Steps, *_a: Any, group: Any = None, **_k: Any) -> None:
    steps.worker.expect_group().meet(mesh.ranks_of(group))


def _all_reduce(
    steps: Steps, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, *_a: Any
) -> float:  # fmt: skip
    """Of what every rank counts, the values; of all else, only the waiting."""
    values = _known_by_all(steps, tensor, group)
    reduced = _REDUCED.get(op)
    if values is not None and reduced is not None:
        tensor.raysim_values = reduced(torch.stack(values))  # type: ignore[attr-defined]
    return tensor.nbytes


def _all_reduce_coalesced(steps: Steps, tensors: list[torch.Tensor], *args: Any) -> float:
    return sum(_all_reduce(steps, t, *args) for t in tensors)


def _reduce(steps: Steps, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> float:
    """On GPUs few know values: they stay."""
    _meeting(steps, group=_group_of(args, kwargs))
    return tensor.nbytes


def _of_one(steps: Steps, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> float:
    """Gathered at one rank or scattered from it: a part for each."""
    group = _group_of(args, kwargs)
    _meeting(steps, group=group)
    return tensor.nbytes * _count(steps, group)


def _broadcast(
    steps: Steps, tensor: Any, src: int | None = None, group: Any = None, *_a: Any,
    group_src: int | None = None,
) -> float:  # fmt: skip
    within = mesh.ranks_of(group)
    own = getattr(tensor, "raysim_values", None)
    values = steps.worker.expect_group().exchange(own, within, _copied)
    at = within.index(src) if within and src is not None else src
    tensor.raysim_values = values[group_src or at or 0]
    if tensor.raysim_values is None:
        del tensor.raysim_values
    return float(tensor.nbytes)


def _all_gather(steps: Steps, found: Any, tensor: torch.Tensor, group: Any = None) -> float:
    for each, values in zip(found, _known_by_all(steps, tensor, group) or (), strict=False):
        each.raysim_values = values
    return tensor.nbytes * len(found)


def _all_gather_into(steps: Steps, found: Any, tensor: torch.Tensor, group: Any = None) -> float:
    values = _known_by_all(steps, tensor, group)
    if values is not None:
        found.raysim_values = torch.cat([v.reshape(-1) for v in values]).reshape(found.shape)
    return float(found.nbytes)


def _reduce_scatter(
    steps: Steps, found: torch.Tensor, _given: Any, op: Any = None, group: Any = None
) -> float:
    del op  # of values that nobody knows
    _meeting(steps, group=group)
    return found.nbytes * _count(steps, group)


def _all_to_all(
    steps: Steps, found: Sequence[torch.Tensor], _given: Any, group: Any = None
) -> float:
    _meeting(steps, group=group)
    return float(sum(t.nbytes for t in found))


def _all_to_all_single(
    steps: Steps, found: torch.Tensor, given: torch.Tensor, output_split_sizes: Any = None,
    input_split_sizes: Any = None, group: Any = None,
) -> float:  # fmt: skip
    if output_split_sizes is not None or input_split_sizes is not None:
        most = max(found.nbytes, given.nbytes)  # what the busiest rank sends or gets is waited for
        within = mesh.ranks_of(group)
        return float(max(steps.worker.expect_group().exchange(most, within)))
    values = _known_by_all(steps, given, group)
    if values is not None:
        ranks = mesh.ranks_of(group)
        rank = steps.worker.context.rank
        mine = ranks.index(rank) if ranks else rank
        parts = [v.chunk(len(values))[mine] for v in values]
        found.raysim_values = torch.cat(parts)  # type: ignore[attr-defined]
    return found.nbytes


def _count(steps: Steps, group: Any) -> int:
    return len(_ranks(steps.worker, group))


def _known_by_all(
    steps: Steps, tensor: torch.Tensor, group: Any = None
) -> list[torch.Tensor] | None:
    """Values of every rank of the group, or None: somebody's are not known."""
    own, within = getattr(tensor, "raysim_values", None), mesh.ranks_of(group)
    values = steps.worker.expect_group().exchange(own, within, _copied)
    return None if any(v is None for v in values) else values


def _copied(values: torch.Tensor | None) -> torch.Tensor | None:
    """Of a rank of its own; ``deepcopy`` of a tensor takes twenty times as long."""
    with torch._C.DisableTorchFunction():  # noqa: SLF001  (has no other door)
        return None if values is None else values.clone()


def _ranks(worker: Any, group: Any = None) -> list[int]:
    return list(mesh.ranks_of(group) or range(worker.expect_group().context.world_size))


def _all_gather_object(worker: Any, found: list[Any], obj: Any, group: Any = None) -> None:
    found[:] = worker.expect_group().exchange(obj, mesh.ranks_of(group))


def _broadcast_object_list(
    worker: Any, objects: list[Any], src: int = 0, *_a: Any, **_k: Any
) -> None:
    objects[:] = worker.expect_group().exchange(list(objects))[src or 0]


def _gather_object(
    worker: Any, obj: Any, object_gather_list: list[Any] | None = None, dst: int | None = None,
    group: Any = None, group_dst: int | None = None,
) -> None:  # fmt: skip
    found = worker.expect_group().exchange(obj, mesh.ranks_of(group))
    if object_gather_list is not None and worker.context.rank == _one(
        worker, dst, group_dst, group
    ):
        object_gather_list[:] = found


def _scatter_object_list(
    worker: Any, scatter_object_output_list: list[Any], scatter_object_input_list: Any = None,
    src: int | None = None, group: Any = None, group_src: int | None = None,
) -> None:  # fmt: skip
    ranks = _ranks(worker, group)
    given = worker.expect_group().exchange(scatter_object_input_list, mesh.ranks_of(group))
    whose = given[ranks.index(_one(worker, src, group_src, group))]
    scatter_object_output_list[0] = whose[ranks.index(worker.context.rank)]


def _one(worker: Any, rank: int | None, place: int | None, group: Any) -> int:
    """Of all ranks, the one that was said by either."""
    return _ranks(worker, group)[place] if place is not None else rank or 0


_COLLECTIVES: dict[str, tuple[Operation, Callable[..., float]]] = {
    "all_reduce": ("all_reduce", _all_reduce),
    "all_reduce_coalesced": ("all_reduce", _all_reduce_coalesced),
    "broadcast": ("broadcast", _broadcast),
    "reduce": ("reduce", _reduce), "gather": ("all_gather", _of_one),
    "scatter": ("broadcast", _of_one), "all_gather": ("all_gather", _all_gather),
    "all_gather_into_tensor": ("all_gather", _all_gather_into),
    "reduce_scatter": ("reduce_scatter", _reduce_scatter),
    "reduce_scatter_tensor": ("reduce_scatter", _reduce_scatter),
    "all_to_all": ("all_to_all", _all_to_all),
    "all_to_all_single": ("all_to_all", _all_to_all_single),
}  # fmt: skip
"""By torch's names: whose price each has (a gather that of one to all ranks), and what it does."""
