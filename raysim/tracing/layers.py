"""From what a trace heard to the table: visits become layers, entries modules, calls operators.

Neighbouring memory-bound calls of one module become one operator with their kernels and bytes
summed, as the tables read from configs have it. A storage that several operators keep is one
tensor; the first layer that keeps it holds it. Layers with equal contents share one ``Body``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Literal

import torch

from raysim.models.shapes import LayerNorm, Recurrent
from raysim.models.table import (
    Body,
    Gradients,
    Layer,
    LayerKind,
    Model,
    Module,
    Operator,
    Parameter,
    Saved,
    TensorDtype,
)
from raysim.tracing.lifetimes import Lifetimes, Stretch, in_backward
from raysim.tracing.operators import Call, Kept
from raysim.tracing.recording import Listener
from raysim.tracing.storages import bytes_of
from raysim.tracing.walk import LOSS, Entry, Visit, Walk

FUSED = ("norm", "elementwise", "routing", "loss", "other")
"""Kinds whose neighbouring calls become one operator."""
FIXED: dict[torch.dtype, TensorDtype] = {
    torch.float32: "fp32", torch.int64: "int64", torch.int32: "int32", torch.bool: "bool",
    torch.uint8: "bool",
}  # fmt: skip


def assemble(
    walk: Walk,
    listener: Listener,
    outputs: Sequence[torch.Tensor],
    *,
    lets_go: bool,
    name: str,
    architecture: str,
    first: torch.Tensor,
    compute: torch.dtype,
    config_dtype: str | None,
    stacked: Literal["sequential", "stacks", "children"],
    has_loss: bool,
) -> Model:
    """The finished table.

    ``outputs`` live as long as the object that they are in: through backward, or, if the script
    ``lets_go`` of it, until the loss has read them.
    """
    ran = [c for v in walk.visits for c in v.calls]
    kept = {k.key for c in ran for k in c.keeps}
    sizes = {listener.key(t): bytes_of(t) for t in outputs if listener.grows(t)}
    lifetimes = Lifetimes(ran, sizes if lets_go else {}, listener.ends, listener.produced)
    for t in () if lets_go else outputs:
        if listener.loss is not None and listener.grows(t) and listener.key(t) not in kept:
            size = sizes[listener.key(t)]
            listener.loss.keeps.append(Kept(listener.key(t), size, t.dtype, returned=True))
    unused = walk.unused()
    if unused:
        walk.visits.append(Visit(None, entries=unused))
    for visit, following in pairwise(walk.visits):
        visit.output_shape = visit.output_shape or following.input_shape
    visits = _layers(walk.visits, stacked)
    writer = _Writer(listener, compute, lifetimes)
    entries = [e for v in visits for e in v.entries if e.calls or e.parameters]
    writer.tangents = sum(sizes[listener.key(t)] for t in outputs if _has_zeros(listener, t))
    writer.modules = {id(c): i for i, e in enumerate(entries) for c in e.calls}
    layers = [writer.layer(v, _place(i, visits, stacked)) for i, v in enumerate(visits)]
    if has_loss and stacked != "sequential":
        layers[-1] = replace(layers[-1], output=1.0)
    tokens, hidden = _hidden(visits, stacked)
    look_up = first.dtype in {torch.int64, torch.int32}
    if (
        hidden
        and look_up
        and first.dim() == 2
        and any(c.collectives for v in visits for c in v.calls)
    ):
        tokens = first.shape[1]  # of which ranks may have parts between their divided modules
    matrices = (p.shape for v in visits for p in v.parameters if len(p.shape) > 1)
    return Model(
        name=name,
        model_type="traced",
        architecture=architecture,
        layers=tuple(layers),
        seq_len=tokens,
        sample_unit="tokens" if look_up else "images" if first.dim() == 4 else "samples",
        hidden_size=hidden,
        vocab_size=next((shape[0] for shape in matrices), None) if look_up else None,
        config_dtype=config_dtype,
    )


def _has_zeros(listener: Listener, output: torch.Tensor) -> bool:
    """Whether a compiled function's backward is given zeros for it.

    It is, of every output that the loss does not come from (``torch.autograd.Function`` makes them
    unless ``set_materialize_grads(False)``, which AOTAutograd does not call).
    """
    within = listener.loss is not None and listener.loss.compiled
    return within and listener.grows(output) and output.requires_grad


def _hidden(visits: Sequence[Visit], stacked: str) -> tuple[int, int]:
    """Tokens and width of what the first block is given: [batch, tokens, width], else 1 and 0."""
    shapes = (v.input_shape for v in visits if v.path is not None) if stacked == "stacks" else ()
    shape = next(iter(shapes), ())
    return (shape[1], shape[2]) if len(shape) == 3 else (1, 0)


def _layers(visits: Sequence[Visit], stacked: str) -> list[Visit]:
    """Visits that are layers; what runs between two and owns nothing joins the one before."""
    layers: list[Visit] = []
    waiting: list[Entry] = []
    for i, visit in enumerate(visits):
        last = i == len(visits) - 1
        apart = visit.path is not None or any(visit.parameters) or (last and stacked == "stacks")
        if apart:
            visit.entries[:0] = waiting
            waiting = []
            layers += _norm_apart(visit) if last and stacked == "stacks" else [visit]
        elif layers:
            layers[-1].entries += visit.entries
        else:
            waiting += visit.entries
    if waiting:
        layers.append(Visit(None, entries=waiting))
    return layers


def _norm_apart(visit: Visit) -> list[Visit]:
    """A final norm ahead of the head is a layer of its own."""
    entries = visit.entries
    head = next((i for i, e in enumerate(entries) if e.path != entries[0].path), len(entries))
    if visit.path is None and 0 < head < len(entries) and "Norm" in entries[0].cls:
        return [Visit(None, entries=entries[:head]), Visit(None, entries=entries[head:])]
    return [visit]


def _place(i: int, visits: Sequence[Visit], stacked: str) -> LayerKind:
    """What kind of layer stands there."""
    visit, last = visits[i], i == len(visits) - 1
    if stacked != "stacks":
        return "head" if last else "block"
    if visit.path is not None:
        return "block"
    norm = all("Norm" in e.cls for e in visit.entries)
    if not any(v.path is not None for v in visits[:i]):
        looks_up = any(c.kind == "embedding" for c in visit.calls)
        return "embedding" if looks_up or any("Embed" in e.cls for e in visit.entries) else "other"
    if norm:
        return "norm"
    return "head" if last else "other"


class _Writer:
    """Writes layers in order; knows which storages earlier layers hold and which bodies exist."""

    def __init__(self, listener: Listener, compute: torch.dtype, lifetimes: Lifetimes) -> None:
        self.batch = listener.batch
        self.produced = listener.produced
        self.has_compiled = listener.has_compiled
        self.compute = compute
        self._lifetimes = lifetimes
        self.modules: dict[int, int] = {}
        """The place of each call's module among all."""
        self.tangents = 0
        """Bytes of zeros that a compiled loss's backward is given."""
        self._loss = listener.loss
        names = listener.walk.owners
        self._sparse = {names[i]: n / self.batch for i, n in listener.shared.sparse.items() if n}
        self._held: set[int] = set()
        self._bodies: dict[tuple[Module, ...], Body] = {}
        self._prefix = ""
        self._names: dict[int, str] = {}
        self._labels: dict[int, str] = {}

    def layer(self, visit: Visit, kind: LayerKind) -> Layer:
        """One layer with its modules."""
        self._prefix = _prefix(visit)
        self._names = {}
        self._labels = {
            id(c): f"{self._relative(e.path)}.{c.name}".strip(".")
            for e in visit.entries
            for c in e.calls
        }
        modules = tuple(m for e in visit.entries if (m := self._module(e)) is not None)
        if not any(c.kernels_backward or c.there for c in visit.calls):
            modules = tuple(_unreached(m) for m in modules)
        self._held.update(self._names)
        body = self._bodies.setdefault(modules, Body(modules=modules))
        return Layer(
            name=self._prefix,
            kind=kind,
            cls=visit.cls or _class(visit, self._prefix),
            body=body,
            output=self._output(visit),
        )

    def _output(self, visit: Visit) -> float:
        """Elements per sample handed on."""
        if visit.output_shape:
            return torch.Size(visit.output_shape).numel() / self.batch
        last = [c.output for c in visit.calls if c.output]
        return last[-1] / self.batch if last else 0.0

    def _relative(self, path: str) -> str:
        if path == LOSS:
            return "loss"
        if not self._prefix:
            return path
        inside = path.startswith(f"{self._prefix}.")
        return path[len(self._prefix) + 1 :] if inside else ""

    def _module(self, entry: Entry) -> Module | None:
        """One module, or None if it did nothing and owns nothing."""
        name = self._relative(entry.path)
        calls = entry.calls
        if not calls and not entry.parameters:
            return None
        operators: tuple[Operator, ...] = ()
        if calls:
            stretch = self._lifetimes.stretch(calls, self.modules)
            *most, last = (self._operator(run, name, entry.cls, stretch) for run in _runs(calls))
            each = 1 / self.compute.itemsize / self.batch
            left = tuple((size * each, after, late) for size, after, late in stretch.left)
            operators = (*most, replace(last, left=left))
        parameters = tuple(self._parameter(p) for p in entry.parameters)
        return Module(name=name, cls=entry.cls, operators=operators, parameters=parameters)

    def _parameter(self, parameter: Parameter) -> Parameter:
        local = parameter.name[len(self._prefix) + 1 :] if self._prefix else parameter.name
        return replace(
            parameter, name=local, sparse_rows=self._sparse.get(parameter.name, 0.0)
        )  # fmt: skip

    def _operator(self, calls: Sequence[Call], name: str, cls: str, stretch: Stretch) -> Operator:
        """Calls that run back to back, per sample."""
        head, batch = calls[0], self.batch
        own = head.kind in {"gemm", "conv", "embedding"} or len(calls) > 1
        outputs = [c.output for c in calls if c.output]
        gemm, again = head.gemm, head.flops_backward
        is_loss = head.kind == "loss"
        beside = stretch.most(calls)
        return Operator(
            name=(name or cls) if own else f"{name}.{head.name}".strip("."),
            kind=head.kind,
            flops=sum(c.flops for c in calls) / batch,
            flops_backward=None if again is None else again / batch,
            moved=sum(c.moved for c in calls) / batch,
            moved_backward=sum(c.moved_backward for c in calls) / batch,
            indexed=sum(c.indexed for c in calls) / batch,
            indexed_backward=sum(c.indexed_backward for c in calls) / batch,
            moved_fixed_backward=sum(c.fixed_backward for c in calls),
            gemm=None if gemm is None else replace(gemm, rows=gemm.rows / batch),
            narrow=head.narrow,
            exact=head.exact and self.compute != torch.float32,
            conv=head.conv,
            batch_norm=None if head.compiled else head.batch_norm,
            layer_norms=tuple(_layer_norms(calls, batch)),
            recurrent=_shared_out(head.recurrent, batch),
            attention=head.attention,
            saves=tuple(self._saves(calls, stretch.late)),
            output=outputs[-1] / batch if outputs else 0.0,
            kernels=sum(c.kernels for c in calls),
            kernels_backward=sum(c.kernels_backward for c in calls),
            dispatches=sum(c.dispatches for c in calls),
            scratch=self._scratch(self._lifetimes.in_forward(calls))
            if is_loss
            else self._made(beside),
            scratch_backward=self._scratch(*self._in_backward(calls, stretch)),
            traced=not is_loss,
            fullest_backward=stretch.most_back(calls) / self.compute.itemsize / batch,
            gradient=self._gradient(calls),
            waiting=() if is_loss else self._waiting(calls, stretch),
            overwritten=any(c.overwritten for c in calls),
            summed=any(c.summed for c in calls),
            collectives=tuple(c for call in calls for c in call.collectives),
            gradients=_gradients(head),
            compiled=head.compiled if self.has_compiled else None,
        )

    def _in_backward(self, calls: Sequence[Call], stretch: Stretch) -> Sequence[int]:
        """Bytes that live within it."""
        if calls[0].kind != "loss":
            return _beside(calls)
        beside, made = in_backward(calls)
        beside = max(0, beside - stretch.waits)  # which are told apart
        return beside + (self.tangents if any(c is self._loss for c in calls) else 0), made

    def _waiting(self, calls: Sequence[Call], stretch: Stretch) -> tuple[Saved, ...]:
        """Gradients that wait beside the fullest moment of their module's backward."""
        return self._scratch(*max((stretch.waiting(c) for c in calls), key=sum))

    def _gradient(self, calls: Sequence[Call]) -> float | None:
        """Elements of the largest that backward makes of an input."""
        heard = [c.gradient for c in calls if c.gradient is not None]
        return max(heard) / self.compute.itemsize / self.batch if heard else None

    def _scratch(self, *sizes: int) -> tuple[Saved, ...]:
        return tuple(
            Saved(name=f"temporary#{i}", numel=size / 4 / self.batch, dtype="fp32")
            for i, size in enumerate(sizes)
            if size > 0
        )

    def _made(self, sizes: Iterable[int]) -> tuple[Saved, ...]:
        """Of the compute type, as what is handed on."""
        each = 1 / self.compute.itemsize / self.batch
        return tuple(Saved(name=f"made#{i}", numel=n * each) for i, n in enumerate(sizes))

    def _saves(self, calls: Sequence[Call], late: Set[int]) -> Iterator[Saved]:
        """Storages kept, each once; one that an earlier layer holds is not listed again."""
        listed: set[int] = set()
        for kept in (k for c in calls for k in c.keeps):
            if kept.key in listed or kept.key in self._held:
                continue
            listed.add(kept.key)
            numel, dtype = self._stored(kept)
            yield Saved(
                name=self._name(kept.key), numel=numel / self.batch, dtype=dtype,
                returned=kept.returned, late=kept.key in late,
            )  # fmt: skip

    def _stored(self, kept: Kept) -> tuple[float, TensorDtype]:
        """Elements in the table's data types; another width is counted in fp32 elements."""
        if kept.dtype == self.compute:
            return kept.size_bytes / self.compute.itemsize, "compute"
        fixed = FIXED.get(kept.dtype)
        return (
            (kept.size_bytes / kept.dtype.itemsize, fixed)
            if fixed
            else (kept.size_bytes / 4, "fp32")
        )

    def _name(self, key: int) -> str:
        """What a storage is called in this layer: its operator, or input."""
        if key not in self._names:
            call = self.produced.get(key)
            label = self._labels.get(id(call), "input")
            taken = sum(1 for n in self._names.values() if n.split("#")[0] == label)
            self._names[key] = f"{label}#{taken}" if taken else label
        return self._names[key]


def _layer_norms(calls: Sequence[Call], batch: int) -> Iterator[LayerNorm]:
    """Of one sample; the compiler writes its own."""
    for call in calls:
        if call.layer_norm is not None and not call.compiled:
            yield replace(call.layer_norm, rows=call.layer_norm.rows / batch)


def _shared_out(shape: Recurrent | None, batch: int) -> Recurrent | None:
    """Of one sample."""
    if shape is None:
        return None
    if shape.over_steps:
        return replace(shape, steps=shape.steps / batch)
    return replace(shape, rows=shape.rows / batch)


def _gradients(call: Call) -> Gradients:
    """What backward was heard to make of a product's operands; of others it is not told apart."""
    if call.gemm is None or call.kind not in {"gemm", "conv"} or len(call.products_backward) > 1:
        return "all"
    if not call.products_backward:
        return "none"
    return "inputs" if call.products_backward[0] else "weights"


def _unreached(module: Module) -> Module:
    """Of a layer in which backward ran nothing: what leads there is frozen."""
    operators = tuple(replace(o, gradients="none") for o in module.operators)
    return replace(module, operators=operators)


def _beside(calls: Sequence[Call]) -> tuple[int, ...]:
    """Bytes of a weight's second gradient."""
    return (max(c.beside for c in calls),)


def _runs(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """Neighbours of one memory-bound kind together, everything else alone."""
    for (kind, *_), run in groupby(calls, key=_together):
        together = list(run)
        if kind in FUSED:
            yield together
        else:
            yield from ([c] for c in together)


def _together(call: Call) -> tuple[str, bool, int]:
    """What neighbours have alike that become one; a batch norm stays by itself."""
    alone = 0 if call.batch_norm is None or call.compiled else id(call)
    return call.kind, call.compiled, alone


def _prefix(visit: Visit) -> str:
    """The path that a layer's parameters (or, without any, its entries) all stand under."""
    if visit.path is not None:
        return visit.path
    owners = [e.path for e in visit.entries if e.parameters]
    paths = owners or [e.path for e in visit.entries if e.path != LOSS]
    if not paths:
        return ""
    common = paths[0].split(".")
    for path in paths[1:]:
        parts = path.split(".")
        same = next(
            (i for i, (a, b) in enumerate(zip(common, parts, strict=False)) if a != b),
            min(len(common), len(parts)),
        )
        common = common[:same]
    return ".".join(common)


def _class(visit: Visit, prefix: str) -> str:
    """Class of the module at the prefix, else of the first entry."""
    exact = [e.cls for e in visit.entries if e.path == prefix]
    return (exact or [e.cls for e in visit.entries] or ["Module"])[0]
