"""Batches whose sizes vary: what a step of them takes, from others that were traced.

Forwards of one *family* differ in the sizes of their tensors alone, as texts padded to the longest
of their batch do. The first of a family are traced, each. Once two that lay between known ones had
the operations, the bytes moved and kept that the known ones let expect (``MOST_OFF``), what lies
between is traced no longer: its outputs have the sizes that follow, its step takes time and memory
by linear regression over the traced ones nearest to it. What is smaller or larger than all before
is traced always, so that the fullest step is.

Not modelled: between traced ones, where kernels or collectives change their algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from raysim.rayapi.shapes.known import META
from raysim.rayapi.shapes.prediction import Figures, Prediction
from raysim.rayapi.shapes.roles import Role
from raysim.tracing.operators import tensors
from raysim.tracing.storages import PLAIN

MOST_OFF = 0.03
"""Of what others let expect, in two forwards one after the other."""
_MOST_WAYS = 4
"""In which the sizes of a family may vary apart from each other."""
SAID = (
    "batches have many sizes: what lies between those that were traced is taken to need what "
    "follows from the nearest of them, and is not traced (operations and bytes that two of them "
    f"let expect were less than {MOST_OFF:.0%} off)"
)

_C: Any = torch._C  # noqa: SLF001  (modes of a thread have no other door)
Key = tuple[Any, ...]
"""What makes two forwards alike (``steps``)."""
_Sizes = tuple[int, ...]


@dataclass(kw_only=True)
class _Family:
    keys: dict[_Sizes, Key] = field(default_factory=dict)
    """Of forwards that were traced, or are about to be."""
    off: dict[_Sizes, float] = field(default_factory=dict)
    """By how much those that lay between others differed from what these let expect."""

    def trusted(self) -> bool:
        """Whether others may be taken for what follows from the known ones."""
        last = list(self.off.values())[-2:]
        return len(last) > 1 and max(last) <= MOST_OFF


@dataclass(kw_only=True)
class Sizes:
    """Of a run, shared by its ranks."""

    families: dict[Key, _Family] = field(default_factory=dict)
    taken: dict[Any, Prediction] = field(default_factory=dict)
    """Steps by key and what was asked for beside it, whatever else their batches cost."""

    def between(
        self, key: Key, roles: Mapping[Key, Role], say: Callable[[str], None]
    ) -> Role | None:
        """A forward of sizes that nobody has seen, from others'; None: it is to be traced."""
        name, sizes = _family_of(key)
        family = self.families.setdefault(name, _Family())
        traced = [
            s for s, k in family.keys.items() if k in roles and roles[k].model is not None
        ]  # fmt: skip
        family.keys.setdefault(sizes, key)
        self._check(family, traced, roles)
        there = _inside(traced, sizes)
        if there is None or not family.trusted():
            return None
        outputs = _outputs(_of(traced, family, roles), *there)
        if outputs is None:
            return None
        del family.keys[sizes]
        say(SAID)
        near = tuple(family.keys[s] for s in _nearest(*there, traced))
        return replace(roles[near[0]], outputs=outputs, between=near, sizes=sizes)

    def _check(self, family: _Family, traced: Sequence[_Sizes], roles: Mapping[Key, Role]) -> None:
        """How well those traced since the last call could have been told from those before."""
        for at, sizes in enumerate(traced):
            there = None if sizes in family.off else _inside(traced[:at], sizes)
            if there is None:
                continue
            values = np.array([_work(r) for r in _of(traced[:at], family, roles)])
            own = _work(roles[family.keys[sizes]])
            family.off[sizes] = float(np.max(np.abs(_expected(*there, values) / own - 1)))

    def step(self, role: Role, alike: Key, ask: Callable[[Key], Prediction]) -> Prediction:
        """One optimizer step of such forwards; ``alike``: what makes two such steps alike."""
        if (role.sizes, alike) in self.taken:
            return self.taken[role.sizes, alike]
        known = []
        for key in role.between:
            if (key, alike) not in self.taken:
                self.taken[key, alike] = ask(key)
            known.append(self.taken[key, alike])
        sizes = [_family_of(key)[1] for key in role.between]
        there = _reduced(sizes, role.sizes)
        micro_batch, *found = _expected(*there, np.array([_figures(p) for p in known]))
        made = self.taken[role.sizes, alike] = replace(
            known[0], plan=replace(known[0].plan, micro_batch=round(micro_batch)),
            instead=Figures(*(max(0, round(value)) for value in found)),
        )  # fmt: skip
        return made


def mean_of(steps: Sequence[tuple[Prediction, int]]) -> Prediction:
    """A step whose micro-batches are as many of each: their mean time, the most of their memory."""
    whole = sum(n for _, n in steps)
    fullest = max((found for found, _ in steps), key=lambda found: found.peak_bytes)
    rows = np.array([_figures(found) for found, _ in steps])
    micro_batch, *mean = np.average(rows, axis=0, weights=[n / whole for _, n in steps])
    times = (round(value) for value in mean[:-3])
    most = (int(value) for value in rows[:, -3:].max(axis=0))
    return replace(
        fullest, plan=replace(fullest.plan, micro_batch=round(micro_batch)),
        instead=Figures(*times, *most),
    )  # fmt: skip


def _family_of(key: Key) -> tuple[Key, _Sizes]:
    """What forwards have in common that differ in their tensors' sizes, and these."""
    signature, shapes, *others = key
    kinds = tuple((len(shape), dtype) for shape, dtype in shapes)
    return (signature, kinds, *others), tuple(n for shape, _ in shapes for n in shape)


def _of(sizes: Sequence[_Sizes], family: _Family, roles: Mapping[Key, Role]) -> list[Role]:
    return [roles[family.keys[s]] for s in sizes]


def _reduced(known: Sequence[_Sizes], at: _Sizes) -> tuple[Any, Any]:
    """Points (one a row) and another one, of those sizes alone that vary apart, from 0 to 1."""
    rows = np.array([*known, at], dtype=float)
    columns = np.unique(rows[:, np.ptp(rows, axis=0) > 0], axis=1)
    least, width = columns.min(axis=0), np.maximum(np.ptp(columns, axis=0), 1)
    scaled = (columns - least) / width
    return scaled[:-1], scaled[-1]


def _inside(known: Sequence[_Sizes], at: _Sizes) -> tuple[Any, Any] | None:
    """As ``_reduced``; None: too few are known, or it does not lie between them."""
    if len(known) < 3:  # a line, and whether it is one
        return None
    points, point = _reduced(known, at)
    ways = points.shape[1]
    if not 0 < ways <= min(_MOST_WAYS, len(known) - 2):
        return None
    lies = (points.min(axis=0) <= point) & (point <= points.max(axis=0))
    return (points, point) if lies.all() else None


def _nearest(points: Any, point: Any, known: Sequence[_Sizes]) -> list[_Sizes]:
    """Of the known ones, as many as a regression needs, the nearest first."""
    order = np.argsort(((points - point) ** 2).sum(axis=1), kind="stable")
    return [known[i] for i in order[: points.shape[1] + 3]]


def _expected(points: Any, point: Any, values: Any) -> Any:
    """Values (a row for each point) at another point: linear, the nearest weigh most."""
    apart = ((points - point) ** 2).sum(axis=1)
    weights = 1 / np.sqrt(apart + 1e-6)
    terms = np.hstack([np.ones((len(points), 1)), points - point])
    found, *_ = np.linalg.lstsq(terms * weights[:, None], values * weights[:, None], rcond=None)
    return found[0] if found.shape[1] > 1 else float(found[0, 0])


def _work(role: Role) -> tuple[float, ...]:
    """Operations of a forward, bytes its kernels move and numbers it keeps, of its batch."""
    assert role.model is not None, "of a role that nobody has traced"
    bodies = [layer.body for layer in role.model.layers]
    kept = sum(s.numel for body in bodies for s in body.saved().values())
    moved = sum(o.moved for body in bodies for o in body.operators)
    return tuple(role.batch * n + 1 for n in (sum(b.flops for b in bodies), moved, kept))


def _figures(found: Prediction) -> tuple[int, ...]:
    """Its micro-batch, and what is in ``Figures``, in that order."""
    return (
        found.plan.micro_batch, found.step_ns, *found.passes_ns, found.busy_ns, found.peak_bytes,
        found.allocated_bytes, found.reserved_bytes,
    )  # fmt: skip


def _outputs(known: Sequence[Role], points: Any, point: Any) -> Any:
    """Outputs of the sizes that follow exactly from those of the known ones; None: none do."""
    all_of = [list(tensors(role.outputs)) for role in known]
    if len({tuple(t.dim() for t in each) for each in all_of}) > 1:
        return None
    if any(type(t) not in PLAIN for t in all_of[0]):
        return None  # spread over ranks
    terms = np.hstack([np.ones((len(points), 1)), points])
    shapes = []
    for alike in zip(*all_of, strict=True):
        sizes = np.array([t.shape for t in alike], dtype=float).reshape(len(known), -1)
        factors, *_ = np.linalg.lstsq(terms, sizes, rcond=None)
        made = np.array([1, *point]) @ factors
        if not np.allclose(terms @ factors, sizes, atol=1e-3) or not np.allclose(
            made, np.round(made), atol=1e-3
        ):
            return None
        shapes.append([int(n) for n in np.round(made)])
    new = iter(shapes)

    def like(t: torch.Tensor) -> torch.Tensor:
        made = torch.empty(next(new), dtype=t.dtype, device=META)
        return made.requires_grad_(t.requires_grad)

    with _C.DisableTorchFunction():  # none of the script's own
        return tree_map_only(torch.Tensor, like, known[0].outputs)
