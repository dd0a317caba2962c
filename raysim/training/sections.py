"""From the layer table to priced pieces: what the compiler emits one operation for.

A ``Unit`` is a run of modules between two places where something else can happen: a tensor-parallel
all-reduce, or (``cut="module"``) the hooks of ZeRO-3 and of bucketed gradient reduction. A
``Section`` is a run of layers that activation checkpointing recomputes together, or one plain
layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from raysim.models.table import (
    COMPUTE_DTYPE_BYTES,
    FIXED_DTYPE_BYTES,
    Layer,
    Module,
    Operator,
    Parameter,
    Saved,
)
from raysim.perf.compute import ComputeModel
from raysim.training.deepspeed import Precision

Cut = Literal["module", "collective"]


class Gradient(NamedTuple):
    """One parameter's share on this rank."""

    name: str
    numel: int
    tied: bool = False
    """Named in full by the storage it shares with another layer of the stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Modules that run back to back on the compute stream, priced for one micro-batch."""

    name: str
    modules: tuple[Module, ...]
    gradients: tuple[Gradient, ...]
    """Trainable parameters whose gradients this unit's backward produces, tied ones excluded."""
    uses: tuple[Gradient, ...]
    """Every parameter forward reads, by the name of its storage: what ZeRO-3 gathers."""
    forward_s: float
    backward_s: float
    forward_launches: int
    backward_launches: int
    flops: float
    """Forward FLOPs of one micro-batch on this rank."""
    saved_bytes: int
    """Tensors first saved here and kept for backward, loss tensors excluded."""
    saved: tuple[int, ...]
    """The same, tensor by tensor."""
    loss_bytes: int
    """Logits and what the loss keeps of them."""
    loss_saved: tuple[int, ...]
    """The same, tensor by tensor."""
    forward_temp_bytes: int
    backward_temp_bytes: int
    backward_temps: tuple[int, ...]
    """The same, tensor by tensor: the output's gradient and the input's."""
    temp_category: str
    """``logits`` where the temporaries are the loss's, else ``temporary``."""
    forward_reduce_bytes: int
    """Tensor-parallel all-reduce after forward; 0: none."""
    backward_reduce_bytes: int
    """Tensor-parallel all-reduce after backward."""

    @property
    def numel(self) -> int:
        """Trainable elements on this rank."""
        return sum(g.numel for g in self.gradients)

    def gradient_tensors(self, width: int) -> tuple[int, ...]:
        """Bytes of each gradient, the last parameter's first, as backward makes them."""
        return tuple(g.numel * width for g in reversed(self.gradients))


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Layers recomputed together (``checkpointed``), or one layer that is not."""

    units: tuple[Unit, ...]
    checkpointed: bool
    input_bytes: int
    """Hidden state handed in by the previous layer: all that a checkpoint keeps."""
    output_bytes: int


def tp_numel(parameter: Parameter, tp: int) -> int:
    """Elements of a parameter on one tensor-parallel rank."""
    if parameter.shard is None or tp == 1:
        return parameter.numel
    return -(-parameter.numel // tp)


def saved_bytes(saved: Saved, batch: int, tp: int, dtype: Precision) -> int:
    """Bytes one saved tensor takes on one rank."""
    width = (
        COMPUTE_DTYPE_BYTES[dtype] if saved.dtype == "compute" else FIXED_DTYPE_BYTES[saved.dtype]
    )
    share = tp if saved.sharded else 1
    return round(saved.numel * batch * width / share)


class Pricer:
    """Prices layers for one micro-batch size, data type and tensor-parallel degree.

    Identical layers share a ``Body``, so each body is priced once.
    """

    def __init__(
        self,
        costs: ComputeModel,
        *,
        batch: int,
        dtype: Precision,
        tp: int,
        cut: Cut,
        resident: frozenset[str] = frozenset(),
    ) -> None:
        self.costs = costs
        self.batch = batch
        self.dtype: Precision = dtype
        self.tp = tp
        self.cut = cut
        self.resident = resident
        """Full names of the parameters this stage stores: a weight tied to another stage is a
        copy.
        """
        self._units: dict[int, tuple[Unit, ...]] = {}
        self._bodies: list[object] = []

    def layer(self, layer: Layer) -> tuple[Unit, ...]:
        """Units of a layer in forward order, with full names."""
        key = id(layer.body)
        if key not in self._units:
            self._bodies.append(layer.body)  # keeps the id alive
            self._units[key] = self._price(layer)
        prefix = f"{layer.name}." if layer.name else ""
        return tuple(_named(unit, prefix, layer) for unit in self._units[key])

    def _price(self, layer: Layer) -> tuple[Unit, ...]:
        seen: set[str] = set()
        reduced: set[str] = set()
        units: list[Unit] = []
        run: list[Module] = []
        for module in layer.body.modules:
            starts_reduce = self.tp > 1 and any(_column_input(o) for o in module.operators)
            if run and starts_reduce and self.cut == "collective" and not _same_input(run, module):
                units.append(self._unit(run, seen, reduced))
                run = []
            run.append(module)
            ends_reduce = self.tp > 1 and any(_forward_reduced(o) for o in module.operators)
            if self.cut == "module" or ends_reduce:
                units.append(self._unit(run, seen, reduced))
                run = []
        if run:
            units.append(self._unit(run, seen, reduced))
        return tuple(units)

    def _unit(self, run: Sequence[Module], seen: set[str], reduced: set[str]) -> Unit:
        operators = [o for m in run for o in m.operators]
        kept, loss = list[int](), list[int]()
        for o in operators:
            for s in o.saves:
                if s.name not in seen:
                    seen.add(s.name)
                    (loss if o.kind == "loss" else kept).append(self._bytes(s))
        width = COMPUTE_DTYPE_BYTES[self.dtype]
        forward_reduce = backward_reduce = 0
        if self.tp > 1:
            forward_reduce = round(
                sum(o.output for o in operators if _forward_reduced(o)) * self.batch * width
            )
            for o in operators:
                source = _column_input(o)
                if source is not None and source.name not in reduced:
                    reduced.add(source.name)
                    backward_reduce += round(source.numel * self.batch * width)
        forward_temp, backward_temps = self._temporaries(operators)
        parameters = [p for m in run for p in m.parameters]
        gradients = tuple(
            Gradient(p.name, tp_numel(p, self.tp))
            for p in parameters
            if p.trainable and (p.tied_to is None or p.tied_to not in self.resident)
        )
        uses = tuple(
            Gradient(p.tied_to, tp_numel(p, self.tp), tied=True)
            if p.tied_to in self.resident
            else Gradient(p.name, tp_numel(p, self.tp))
            for p in parameters
        )

        def price(o: Operator, backward: bool) -> float:
            return self.costs.operator_s(
                o, batch=self.batch, dtype=self.dtype, tp=self.tp, backward=backward
            )

        return Unit(
            name=run[0].name if len(run) == 1 else _common_name(run),
            modules=tuple(run),
            gradients=gradients,
            uses=uses,
            forward_s=sum(price(o, False) for o in operators),
            backward_s=sum(price(o, True) for o in operators),
            forward_launches=sum(self.costs.launches(o, backward=False) for o in operators),
            backward_launches=sum(self.costs.launches(o, backward=True) for o in operators),
            flops=sum(o.flops / _divisor(o, self.tp) for o in operators) * self.batch,
            saved_bytes=sum(kept),
            saved=tuple(kept),
            loss_bytes=sum(loss),
            loss_saved=tuple(loss),
            forward_temp_bytes=forward_temp,
            backward_temp_bytes=sum(backward_temps),
            backward_temps=backward_temps,
            temp_category="logits" if any(o.kind == "loss" for o in operators) else "temporary",
            forward_reduce_bytes=forward_reduce,
            backward_reduce_bytes=backward_reduce,
        )

    def _bytes(self, saved: Saved) -> int:
        return saved_bytes(saved, self.batch, self.tp, self.dtype)

    def _temporaries(self, operators: Sequence[Operator]) -> tuple[int, tuple[int, int]]:
        """Largest output alive in forward; largest output and input gradient in backward."""
        width = COMPUTE_DTYPE_BYTES[self.dtype]
        forward = 0.0
        backward = (0.0, 0.0)
        for o in operators:
            if o.kind == "loss":
                # Unfused cross-entropy: an fp32 copy of the logits in forward; in backward the
                # gradients of log-softmax's output and input side by side.
                logits = max((self._bytes(s) for s in o.saves if s.dtype == "fp32"), default=0)
                forward, backward = max(forward, logits), max(backward, (logits, logits), key=sum)
                continue
            divisor = _divisor(o, self.tp) if o.split != "row" else 1
            out = o.output * self.batch * width / divisor
            grad_in = self._bytes(o.saves[0]) if o.saves else out
            forward = max(forward, out)
            backward = max(backward, (out, grad_in), key=sum)
        first = round(backward[0])
        return round(forward), (first, round(sum(backward)) - first)


def _divisor(o: Operator, tp: int) -> int:
    return 1 if o.split == "none" else tp


def _forward_reduced(o: Operator) -> bool:
    return o.split == "row" or (o.split == "vocab" and o.kind == "embedding")


def _column_input(o: Operator) -> Saved | None:
    return o.saves[0] if o.split == "column" and o.saves else None


def _same_input(run: Sequence[Module], module: Module) -> bool:
    """Whether ``module`` reads a column input that ``run`` already reads (q, k, v)."""
    inputs = {s.name for m in run for o in m.operators if (s := _column_input(o))}
    return any((s := _column_input(o)) and s.name in inputs for o in module.operators)


def _common_name(run: Sequence[Module]) -> str:
    heads = {m.name.split(".")[0] for m in run if m.name}
    return heads.pop() if len(heads) == 1 else ""


def _named(unit: Unit, prefix: str, layer: Layer) -> Unit:
    name = (prefix + unit.name).rstrip(".") or layer.cls
    gradients = tuple(g._replace(name=prefix + g.name) for g in unit.gradients)
    uses = tuple(g if g.tied else g._replace(name=prefix + g.name) for g in unit.uses)
    return replace(unit, name=name, gradients=gradients, uses=uses)


def build_sections(
    layers: Sequence[Layer],
    pricer: Pricer,
    *,
    input_numel: float,
    checkpoint: Literal["none", "full"],
    interval: int = 0,
) -> tuple[Section, ...]:
    """Cut a stage's layers into sections.

    Parameters
    ----------
    layers
        The stage's layers.
    input_numel
        Elements per sample handed in by the previous stage.
    checkpoint
        ``full``: every layer of kind ``block`` is its own checkpoint.
    interval
        PipelineModule's ``activation_checkpoint_interval``: groups of that many layers; 0: none.
    """
    width = COMPUTE_DTYPE_BYTES[pricer.dtype]

    def size(numel: float) -> int:
        return round(numel * pricer.batch * width)

    groups: list[tuple[list[int], bool]] = []
    if interval > 0:
        for start in range(0, len(layers), interval):
            run = list(range(start, min(start + interval, len(layers))))
            # A group without parameters has nothing to recompute for (module.py,
            # _is_checkpointable).
            groups.append((run, any(layers[i].body.numel for i in run)))
    else:
        groups = [
            ([i], checkpoint == "full" and layers[i].kind == "block") for i in range(len(layers))
        ]
    sections = []
    for run, checkpointed in groups:
        before = layers[run[0] - 1].output if run[0] else input_numel
        sections.append(
            Section(
                units=tuple(u for i in run for u in pricer.layer(layers[i])),
                checkpointed=checkpointed,
                input_bytes=size(before),
                output_bytes=size(layers[run[-1]].output),
            )
        )
    return tuple(sections)
