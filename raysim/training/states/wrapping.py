"""Which parameters travel together under FSDP: the modules that are wrapped, as torch wraps them.

A ``Group`` is what one ``fully_shard`` call or one ``FullyShardedDataParallel`` holds: the
parameters of its modules that no inner group took. Sources: ``torch/distributed/fsdp/wrap.py``
(``_recursive_wrap``, ``size_based_auto_wrap_policy``), ``_fully_shard/_fsdp_init.py``.

Module trees are read off the parameters' names; a module whose children are all numbered is taken
for a ``ModuleList``, which the size-based policy never wraps itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from raysim.errors import ScenarioError
from raysim.models.table import Model, Parameter
from raysim.training.layers.sections import Unit
from raysim.training.settings.fsdp import FsdpSettings

ALIGNMENT_BYTES = 16
"""Of parameters inside a flat one (``_flat_param.py``, ``_get_aligned_numel``)."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One parameter of a group on this tensor-parallel rank."""

    name: str
    rows: int
    """Of the dimension that version 2 shards, the first but for ``inner``."""
    row_numel: int
    trainable: bool
    stored_bytes: float | None = None
    """Per element, where it is stored in fewer bits than the plan says."""
    whole_bytes: float = 0.0
    """Of those, what is not sharded."""
    inner: bool = False
    """It is cut along another dimension than the first: parts are not in one piece."""

    @property
    def numel(self) -> int:
        """Elements."""
        return self.rows * self.row_numel


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """Parameters gathered and reduced together, and the units they are needed for."""

    name: str
    tensors: tuple[Tensor, ...]
    """In the order of ``named_parameters()``."""
    first: int
    last: int
    """First and last unit, in forward order, between which its parameters are needed."""
    reduce_at: int
    """First unit in forward order that owns a parameter: the last to give a gradient."""
    root: bool = False
    frees: bool = True
    """Whether its parameters are given back after forward."""

    @property
    def trainable(self) -> tuple[Tensor, ...]:
        """Those that get gradients."""
        return tuple(t for t in self.tensors if t.trainable)

    def element_bytes(self, width: int) -> float:
        """Mean of what is sharded over its tensors, some stored narrower than ``width``."""
        if all(t.stored_bytes is None for t in self.tensors):
            return width
        size = sum(
            t.numel * (min(t.stored_bytes or width, width) - t.whole_bytes) for t in self.tensors
        )
        return size / sum(t.numel for t in self.tensors)

    def flat_numel(self, ranks: int, *, aligned: int = 0) -> int:
        """Elements of the flat parameter, padding included; ``aligned`` elements, or 0: not."""
        total = 0
        for t in self.tensors:
            if aligned:
                total = -(-total // aligned) * aligned
            total += t.numel
        return -(-total // ranks) * ranks


def padded_numel(tensors: Sequence[Tensor], ranks: int) -> int:
    """Elements of whole tensors as ``fully_shard`` sends them, padded.

    Every rank has as many rows of each parameter as the first one (``torch.chunk``).
    """
    return sum(-(-t.rows // ranks) * ranks * t.row_numel for t in tensors)


def make_groups(
    model: Model, units: Sequence[Unit], settings: FsdpSettings, tensor_parallel: int = 1,
    *, piped: bool = False,
) -> tuple[Group, ...]:  # fmt: skip
    """Groups with parameters, the root first, then in the order of ``named_modules()``.

    ``piped``: the units are a stage's, whose rank has no parameters but those that they read.

    Raises
    ------
    ScenarioError
        No module has a class that is to be wrapped, or a wrapped module holds a parameter that
        another group uses too.
    """
    owned = {n: p for n, p in _own_parameters(model).items() if n not in settings.ignored}
    wrapped, dims = wrapped_modules(model, settings), dict(settings.shard_dims)
    users: dict[str, list[int]] = {}
    for i, unit in enumerate(units):
        for used in unit.uses:
            users.setdefault(used.name, []).append(i)
    if piped:
        owned = {name: p for name, p in owned.items() if name in users}
    stays = {prefixes for prefixes, frees in settings.groups if not frees}
    if settings.keeps_last and wrapped:
        stays.add(wrapped[-1])
    members: dict[tuple[str, ...], list[str]] = {(): []}
    members |= {prefixes: [] for prefixes in wrapped}
    group_of = {p: prefixes for prefixes in reversed(wrapped) for p in prefixes}
    for name in owned:
        nearest = next((p for p in _modules_above(name) if p in group_of), "")
        members[group_of.get(nearest, ())].append(name)
    units_in: dict[str, list[int]] = {}
    for i, unit in enumerate(units):
        for module in _modules_above(unit.name):
            units_in.setdefault(module, []).append(i)
    made = []
    for prefixes, names in members.items():
        if not names:
            continue
        tensors = tuple(_tensor(n, owned[n], tensor_parallel, dims.get(n, 0)) for n in names)
        inside = sorted({i for p in prefixes for i in units_in.get(p, ())})
        readers = [i for name in names for i in users.get(name, ())]
        _refuse_strangers(prefixes, names, users, inside, settings)
        _refuse_mixture(prefixes, tensors, settings)
        owners = [users[name][0] for name in names if name in users]
        root = not prefixes
        tail = prefixes in stays or (len(prefixes) > 1 and not settings.groups)
        span = list(range(len(units))) if root else [*inside, *readers]
        made.append(
            Group(
                name=" + ".join(prefixes) or "root",
                tensors=tensors,
                first=min(span),
                last=max(span),
                reduce_at=min(owners, default=min(span)),
                root=root,
                frees=settings.frees and not tail if not root else _root_frees(settings),
            )
        )
    return tuple(made)


def ignored_tensors(
    model: Model, units: Sequence[Unit], settings: FsdpSettings, tensor_parallel: int = 1
) -> tuple[Tensor, ...]:
    """Parameters in no group that these units read."""
    read = {used.name for unit in units for used in unit.uses} & settings.ignored
    owned = _own_parameters(model)
    return tuple(_tensor(n, p, tensor_parallel) for n, p in owned.items() if n in read)


def _root_frees(settings: FsdpSettings) -> bool:
    return settings.version == 2 and settings.frees and settings.root_reshard_after_forward


def _own_parameters(model: Model) -> dict[str, Parameter]:
    """Every stored parameter by full name, in the order of ``named_parameters()``."""
    known = {name: p for name, p in model.parameters() if p.tied_to is None}
    return {name: known[name] for name in model.built if name in known}


def _tensor(name: str, p: Parameter, tp: int, dim: int = 0) -> Tensor:
    shape = list(p.shape) or [1]
    if p.shard is not None and tp > 1:
        shape[p.shard] = -(-shape[p.shard] // tp)
    rows = shape.pop(dim)
    stored = p.stored_bytes, p.whole_bytes
    return Tensor(name, rows, math.prod(shape), p.trainable, *stored, inner=dim > 0)


def _modules_above(name: str) -> Iterator[str]:
    """The name itself, its module, and so on outwards."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _refuse_strangers(
    prefixes: tuple[str, ...],
    names: Sequence[str],
    users: dict[str, list[int]],
    inside: Sequence[int],
    settings: FsdpSettings,
) -> None:
    """A tied weight outside its group would be used while it is sharded, unless it stays."""
    if not prefixes or len(prefixes) > 1 or not settings.frees:
        return
    for name in names:
        if set(users.get(name, ())) - set(inside):
            raise ScenarioError(
                f"{name} is shared with a module outside {prefixes[0]}, which FSDP would wrap "
                "alone: torch asks for shared parameters in one group; wrap blocks only"
            )


def _refuse_mixture(
    prefixes: tuple[str, ...], tensors: Sequence[Tensor], settings: FsdpSettings
) -> None:
    """``_flat_param.py``: must flatten tensors with uniform ``requires_grad``."""
    mixed = len({t.trainable for t in tensors}) > 1
    if mixed and settings.version == 1 and not settings.use_orig_params:
        where = " + ".join(prefixes) or "the root"
        raise ScenarioError(
            f"{where} would flatten trained and frozen parameters together, which torch refuses "
            "without use_orig_params"
        )


def wrapped_modules(model: Model, settings: FsdpSettings) -> list[tuple[str, ...]]:
    """Modules of each wrapped group, outer ones first; the root is left out.

    Raises
    ------
    ScenarioError
        No module has a class that is to be wrapped.
    """
    if settings.groups:
        return [prefixes for prefixes, _ in settings.groups]
    if not settings.wrap:
        found: list[str] = []
    elif settings.min_num_params is not None:
        found = _by_size(settings, _own_parameters(model))
    else:
        found = _by_class(model, settings.layer_classes)
    if settings.version == 1 and settings.wrap and settings.trained_apart:
        found += [name for name in _trained_leaves(model) if name not in found]
    groups: list[tuple[str, ...]] = [(name,) for name in found]
    if settings.wrap_ends and settings.version == 2:
        groups += [ends for ends in _ends(model) if ends not in groups]
    return groups


def _trained_leaves(model: Model) -> Iterator[str]:
    """Beside frozen weights, modules that are trained: a flat parameter is all trained or frozen.

    PEFT's ``fsdp_auto_wrap_policy``, which transformers' Trainer uses.
    """
    if model.num_trainable == model.num_parameters:
        return
    for layer in model.layers:
        for module in layer.body.modules:
            if module.parameters and all(p.trainable for p in module.parameters):
                yield layer.full(module.name)


def _by_class(model: Model, classes: Sequence[str]) -> list[str]:
    """Full names of modules of these classes; of the blocks where none is named."""
    if not classes:
        return [layer.name for layer in model.layers if layer.kind == "block" and layer.name]
    named: dict[str, str] = {}
    for layer in model.layers:
        if layer.name:
            named.setdefault(layer.name, layer.cls)
        for module in layer.body.modules:
            name = layer.full(module.name)
            named.setdefault(name, module.cls)
    known = set(named.values())
    for cls in classes:
        if cls not in known:
            blocks = dict.fromkeys(m.cls for m in model.layers if m.kind == "block")
            hint = f"; its blocks are {', '.join(blocks)}" if blocks else ""
            raise ScenarioError(f"the model has no module of class {cls}{hint}")
    return [name for name, cls in named.items() if cls in classes]


def _by_size(settings: FsdpSettings, owned: dict[str, Parameter]) -> list[str]:
    """``_recursive_wrap`` under ``size_based_auto_wrap_policy``."""
    assert settings.min_num_params is not None
    least = settings.min_num_params
    sizes: dict[str, int] = {}
    children: dict[str, dict[str, None]] = {}
    for name, p in owned.items():
        path = name.split(".")[:-1]
        for depth in range(len(path) + 1):
            at = ".".join(path[:depth])
            sizes[at] = sizes.get(at, 0) + p.numel
            if depth < len(path):
                children.setdefault(at, {})[".".join(path[: depth + 1])] = None
    found: list[str] = []

    def wrap(at: str) -> int:
        """Elements wrapped at or under a module."""
        if sizes[at] < least:
            return 0
        inside = sum(wrap(child) for child in children.get(at, ()))
        if at and sizes[at] - inside >= least and not _is_list(at, children):
            found.append(at)
            return sizes[at]
        return inside

    wrap("")
    return sorted(found, key=list(sizes).index)


def _is_list(name: str, children: dict[str, dict[str, None]]) -> bool:
    under = children.get(name, {})
    return bool(under) and all(child.rpartition(".")[2].isdigit() for child in under)


def _ends(model: Model) -> Iterator[tuple[str, ...]]:
    """The embedding alone; final norm and head. A tied head's weight is the embedding's."""
    by_kind = {layer.kind: layer for layer in model.layers if layer.name}
    embedding, head, norm = (by_kind.get(k) for k in ("embedding", "head", "norm"))
    if embedding is None or head is None:
        return
    weights = [m for m in embedding.body.modules if m.cls == "Embedding" and m.parameters]
    tokens = ".".join(p for p in (embedding.name, weights[0].name if weights else "") if p)
    tied = any(p.tied_to is not None for p in head.body.parameters)
    if not tied:
        yield (tokens,)
    tail = [norm.name] if norm is not None else []
    yield (*tail, tokens if tied else head.name)
