"""Engines in steps that train several modules: actor and critic, a GAN, under DeepSpeed or FSDP.

Real counterparts: ``deepspeed/runtime/engine.py``: each ``initialize`` makes an engine with
buffers, optimizer states and a step of its own, whose ``backward`` runs autograd's like any;
modules that torch's ``FullyShardedDataParallel`` or ``fully_shard`` have divided.

Simplified: a backward that goes through modules of several engines is priced as one engine's of
all of them, by the first one's settings; what another engine keeps is its weights and states at
the peak of its own step. Of modules beside FSDP's every rank has parameters, gradients and states
whole, as of FSDP's ignored ones; they compute in FSDP's type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from raysim.rayapi.shapes.plans import Wrapping, own_name
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.tracing.storages import key_of

if TYPE_CHECKING:
    from raysim.rayapi.shapes.prediction import Prediction


def around(phase: Any, parts: Sequence[Wrapping], say: Callable[[str], object]) -> Wrapping:
    """How modules that one backward goes through are trained together.

    Raises
    ------
    NotEmulatedError
        By engines that shard otherwise than each other, or FSDP's beside replicas that meet.
    """
    engines = [w for w in parts if w.engine != "ddp"]
    if not engines:
        return Wrapping(
            module=phase, meets=any(w.meets for w in parts), ddp=parts[0].ddp,
            copies=parts[0].copies, copied_to=parts[0].copied_to,
        )  # fmt: skip
    first = engines[0]
    theirs = {key_of(p) for w in engines for p in w.module.parameters()}
    parts = [w for w in parts if w in engines or not _is_part(w.module, theirs)]
    if len({_sharding(w) for w in engines}) > 1:
        raise NotEmulatedError(
            "a backward through engines of other ZeRO stages or FSDP settings than each other",
            "the same zero_optimization and precision, or the same FSDP settings, for all of them",
        )
    if first.engine == "fsdp" and any(w.meets for w in parts if w.engine == "ddp"):
        raise NotEmulatedError(
            "a backward through FSDP's modules and DistributedDataParallel's",
            "fully_shard or FullyShardedDataParallel around each of them",
        )
    if len(engines) < len(parts) and first.engine == "deepspeed":
        say("modules beside DeepSpeed's, in one backward with it, are priced as its own")
    classes = {name for w in engines for name in w.fsdp.layer_classes}
    fsdp = replace(
        first.fsdp, layer_classes=tuple(sorted(classes)), wrap=any(w.fsdp.wrap for w in engines),
        ignored=frozenset(_whole(phase, parts)), shard_dims=tuple(_cut(phase, engines)),
    )  # fmt: skip
    return replace(first, module=phase, moe=any(w.moe for w in engines), fsdp=fsdp)


def _whole(phase: Any, parts: Sequence[Wrapping]) -> Iterator[str]:
    """Parameters of modules that no engine has, and those that FSDP ignores."""
    those = {
        id(p) for w in parts for name, p in _named(w.module)
        if w.engine == "ddp" or name in w.fsdp.ignored
    }  # fmt: skip
    return (name for name, p in phase.named_parameters() if id(p) in those)


def _cut(phase: Any, parts: Sequence[Wrapping]) -> Iterator[tuple[str, int]]:
    """Parameters that FSDP cuts along another dimension than the first."""
    dims = {
        id(p): dict(w.fsdp.shard_dims)[name] for w in parts for name, p in _named(w.module)
        if name in dict(w.fsdp.shard_dims)
    }  # fmt: skip
    return ((name, dims[id(p)]) for name, p in phase.named_parameters() if id(p) in dims)


def _named(module: Any) -> Iterator[tuple[str, Any]]:
    return ((own_name(name), p) for name, p in module.named_parameters())


def put_part(phase: Any, name: str, module: Any) -> None:
    """Among a phase's modules, unless its parameters are all of others there (a loss's head)."""
    theirs = {key_of(p) for p in phase.parameters()}
    put = object.__setattr__ if theirs and _is_part(module, theirs) else setattr
    put(phase, name, module)


def _is_part(module: Any, theirs: set[int]) -> bool:
    return all(key_of(p) in theirs for p in module.parameters())


def _sharding(wrapping: Wrapping) -> tuple[Any, ...]:
    found, fsdp = wrapping.deepspeed, wrapping.fsdp
    apart = replace(
        fsdp, layer_classes=(), wrap=True, wrap_ends=False, ignored=frozenset(), shard_dims=()
    )
    return wrapping.engine, found and found.zero.stage, found and found.precision, apart


class Resting:
    """What engines keep on the GPU while another has its step, but for whole weights."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[set[int], float]] = {}
        """By optimizer: its parameters' storages, and bytes."""

    def note(self, optimizer: Any, step: Prediction, phase: Any) -> None:
        """An engine has taken a step."""
        mine = [p for group in optimizer.param_groups for p in group["params"]]
        trained = sum(p.numel() for p in phase.parameters() if p.requires_grad)
        share = min(1.0, sum(p.numel() for p in mine) / max(1, trained))
        self._kept[id(optimizer)] = (
            {key_of(p) for p in mine},
            share * step.outcome.fullest.states_bytes,
        )

    def has(self, optimizer: Any) -> bool:
        """Whether a step of it has been noted."""
        return id(optimizer) in self._kept

    def bytes_but(self, here: set[int], weights: Callable[[set[int]], float]) -> int:
        """Of engines whose parameters are not ``here``, without what others count: weights."""
        found = (
            max(0.0, kept - weights(storages))
            for storages, kept in self._kept.values() if here.isdisjoint(storages)
        )  # fmt: skip
        return round(sum(found))
