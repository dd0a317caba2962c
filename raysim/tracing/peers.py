"""Collectives that a forward and its backward call: ``DTensor``'s, tensor parallelism's, experts'.

Real counterparts: ``torch/distributed/_functional_collectives.py``, ``torch/distributed/tensor``.
What is traced are a rank's own parts of parameters and activations, so that nothing is left to be
divided; torch itself decides what its ranks exchange, on shapes, and here it is heard.

Simplifications: a collective within a module runs before the module's backward or behind its
forward, alone on the compute stream, as torch waits for it at its first use. Gradients that are
sums over ranks of replicated parameters (norms between divided modules) are reduced once behind
their module's backward, as FSDP2 does, or where an optimizer uses them (``engines.ddp``). Python of
``DTensor`` costs the host the same per operator, whatever it redistributes (``DISPATCHED``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import _disable_current_modes

from raysim.models.shapes import Collective, When
from raysim.tracing.operators import Call, tensors
from raysim.tracing.storages import local_part
from raysim.tracing.walk import Walk

DISPATCHED = 19.0
"""ATen operators that one of ``DTensor`` costs the host as much as, beside those it calls: 16 us
each in an ``RMSNorm`` under ``SequenceParallel``, hooks and all, where ``add`` takes 0.8 (torch
2.13, one thread of a CPU). A parallel linear's are 32 to 50, an embedding's 120: this is least."""
OPS = {
    "all_gather_into_tensor": "all_gather", "all_reduce": "all_reduce",
    "reduce_scatter_tensor": "reduce_scatter", "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
}  # fmt: skip
EXPERTS = "raysim_expert_parallel"
"""The group's name of what expert-parallel ranks exchange (``rayapi.deepspeed.moe``); behind it,
the communicator of a mixture that fewer ranks share than another."""


class Ear(Protocol):
    """Of a trace that is under way."""

    def hear(self, op: str, group: str, given: Sequence[Any]) -> None:
        """A collective that the model's own code calls."""


DIMENSIONS: dict[str, str] = {}
"""Of meshes of several dimensions over which parameters are spread: the communicator of each
torch's group, by its name; other groups are all ranks that share a model."""
EARS: list[Ear] = []
"""Of the traces under way, the innermost last."""


def hear(op: str, group: str, given: Sequence[Any]) -> None:
    """Tell the trace of one of ``torch.distributed``'s, which no operator of torch's shows.

    ``given``: its arguments, of which the tensors of one are the whole that is exchanged.
    """
    if EARS:
        EARS[-1].hear(op, group, given)


def collective(
    name: str, args: Sequence[Any], out: Any, *, when: When, batch: int, width: int,
    grows: Callable[[torch.Tensor], bool],
) -> Collective:  # fmt: skip
    """What ranks exchange; as large as the whole that is gathered or reduced."""
    among = str(args[-1])
    group = DIMENSIONS.get(among, "tp")
    if among.startswith(EXPERTS):
        group = among.removeprefix(EXPERTS) or "ep"
    given = (args[0], *tensors(out))
    return exchanged(OPS[name], group, given, when=when, batch=batch, width=width, grows=grows)


def exchanged(
    op: str, group: str, given: Sequence[Any], *, when: When, batch: int, width: int,
    grows: Callable[[torch.Tensor], bool],
) -> Collective:  # fmt: skip
    """Likewise, of one whose largest argument (a tensor or a list of them) is the whole."""
    sizes = [sum(t.nbytes for t in tensors(each)) for each in given]
    size_bytes = max(sizes)
    whole = next(tensors(given[sizes.index(size_bytes)]))
    fixed = not any(grows(t) for t in tensors(given))
    computed = whole.is_floating_point() and whole.element_size() == width
    return Collective(
        op=op, when=when, fixed=fixed, group=group, dtype="compute" if computed else "fp32",
        numel=size_bytes / (width if computed else 4) / (1 if fixed else batch),
    )  # fmt: skip


def exchange_gradients(model: torch.nn.Module, walk: Walk, width: int) -> None:
    """Of replicated parameters whose gradients are sums over ranks, once backward is over."""
    owners: dict[str, list[Call]] = {}
    for visit in walk.visits:
        for entry in visit.entries:
            owners.setdefault(entry.path, []).extend(entry.calls)
    for name, p in model.named_parameters():
        places = getattr(p.grad, "placements", ())
        calls = owners.get(name.rpartition(".")[0], [])
        for dim, place in enumerate(places):
            if calls and place.is_partial():
                within: Any = getattr(p, "device_mesh").get_group(dim)  # noqa: B009  (a DTensor's)
                calls[-1].collectives.append(
                    Collective(
                        op="all_reduce", when="gradient", numel=local_part(p).nbytes / width,
                        fixed=True, group=DIMENSIONS.get(within.group_name, "tp"),
                    )
                )  # fmt: skip


def attend(
    attention: Callable[..., torch.Tensor], query: Any, key: Any, value: Any, *args: Any,
    **kwargs: Any,
) -> torch.Tensor:  # fmt: skip
    """Fused attention of a rank's own samples and heads, as ``DTensor`` has CUDA's kernels.

    The meta device would take its plain path, which spreads otherwise.
    """
    from torch.distributed.tensor import DTensor, Replicate

    apart = [p if p.is_replicate() or p.is_shard(0) or p.is_shard(1) else Replicate()
             for p in query.placements]  # fmt: skip
    given = (t.redistribute(placements=apart).to_local() for t in (query, key, value))
    masks = [t.to_local() if isinstance(t, DTensor) else t for t in args]
    out = attention(*given, *masks, **kwargs)
    made: torch.Tensor = DTensor.from_local(out, query.device_mesh, apart, run_check=False)
    return made


@contextmanager
def unheard() -> Iterator[None]:
    """``DTensor`` asks operators for shapes of whole tensors: no part of what runs."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    name = "_propagate_tensor_meta_non_cached"
    real = getattr(ShardingPropagator, name)

    def apart(*args: Any) -> Any:
        with _disable_current_modes(), torch._C.DisableTorchFunction():  # noqa: SLF001  (no other)
            return real(*args)

    setattr(ShardingPropagator, name, apart)
    try:
        yield
    finally:
        setattr(ShardingPropagator, name, real)
