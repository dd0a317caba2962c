"""From the layer table to priced pieces: what the compiler emits one operation for.

A ``Unit`` is a run of modules between two places where something else can happen: a tensor-parallel
all-reduce, or (``cut="module"``) the hooks of ZeRO-3 and of bucketed gradient reduction. A
``Section`` is a run of layers that activation checkpointing recomputes together, or one plain
layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from raysim.models.table import (
    COMPUTE_DTYPE_BYTES,
    FIXED_DTYPE_BYTES,
    Gemm,
    Layer,
    Module,
    Operator,
    Parameter,
    Saved,
)
from raysim.perf.compute import ComputeModel
from raysim.training.deepspeed import Precision
from raysim.training.early_stop import spared_units
from raysim.training.sharding import Exchange, Exchanges, Sharding, column_input, exchanges

Cut = Literal["module", "collective"]


class Gradient(NamedTuple):
    """One parameter's share on this rank."""

    name: str
    numel: int
    tied: bool = False
    """Named in full by the storage it shares with another layer of the stage."""
    expert: bool = False
    """Of routed experts: only every so many ranks hold it."""


TOKEN_COPIES = 3
"""Of routed tokens on their way: permuted, exchanged, sorted by expert (``MoELayer``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGradients:
    """Of a unit's backward, the products that nobody waits for until the optimizer step."""

    seconds: float
    host_s: float
    flops: float
    input_bytes: int
    """Of ``saved_bytes``, the inputs that they still need when the input gradients are made."""
    output_bytes: int
    """Output gradients that they keep from then on."""

    @property
    def kept_bytes(self) -> int:
        """What they keep until they are made."""
        return self.input_bytes + self.output_bytes


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
    forward_host_s: float
    backward_host_s: float
    """What dispatching them takes the host, module calls included."""
    syncs: bool
    """Forward ends with scalars copied to the GPU, for which the host waits."""
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
    weights: WeightGradients
    """The part of its backward that can wait."""
    exchanges: Exchanges = field(default_factory=Exchanges)
    """What peers of one replica exchange around it."""
    backward_tail_s: float = 0.0
    """Part of ``backward_s`` that runs beside ``exchanges.after_backward``."""

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
    spared: int = 0
    """Units at its end that recomputing need not run, see ``early_stop``."""

    @property
    def recomputed(self) -> tuple[Unit, ...]:
        """What runs again before its backward."""
        return self.units[: len(self.units) - self.spared]


def tp_numel(parameter: Parameter, tp: int) -> int:
    """Elements of a parameter on one tensor-parallel rank."""
    if parameter.shard is None or tp == 1:
        return parameter.numel
    return -(-parameter.numel // tp)


def saved_bytes(saved: Saved, batch: int, share: int, dtype: Precision) -> int:
    """Bytes one saved tensor takes on one rank, of ``share`` that divide it."""
    width = (
        COMPUTE_DTYPE_BYTES[dtype] if saved.dtype == "compute" else FIXED_DTYPE_BYTES[saved.dtype]
    )
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
        sharding: Sharding,
        cut: Cut,
        selective: bool = False,
        resident: frozenset[str] = frozenset(),
    ) -> None:
        self.costs = costs
        self.batch = batch
        self.dtype: Precision = dtype
        self.sharding = sharding
        self.tp = sharding.tp
        self.cut = cut
        self.selective = selective
        """Attention cores are recomputed: only their inputs are kept."""
        self.resident = resident
        """Full names of the parameters this stage stores: a weight tied to another stage is a
        copy.
        """
        self._units: dict[int, tuple[Unit, ...]] = {}
        self._bodies: list[object] = []
        self._own_experts: dict[int, Operator] = {}

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
        exchanged: set[str] = set()
        called: set[str] = set()
        operands = {s.name for o in layer.body.operators if o.gemm and o.saves for s in o.saves[:1]}
        units: list[Unit] = []
        run: list[Module] = []
        around = Exchanges()
        width = self.batch * COMPUTE_DTYPE_BYTES[self.dtype]

        def close() -> None:
            nonlocal run, around
            units.append(self._unit(run, seen, around, called, operands))
            run, around = [], Exchanges()

        for module in layer.body.modules:
            own = exchanges(module, self.sharding, width=width, known=exchanged)
            if run and own.opens and self.cut == "collective":
                close()
            run.append(module)
            around.add(own)
            exchanged |= {s.name for o in module.operators if (s := column_input(o))}
            if self.cut == "module" or own.closes or _syncs(module):
                close()
        if run:
            close()
        return tuple(units)

    def _unit(
        self,
        run: Sequence[Module],
        seen: set[str],
        around: Exchanges,
        called: set[str],
        operands: set[str],
    ) -> Unit:
        operators = [o for m in run for o in m.operators]
        kept, loss, needed = list[int](), list[int](), 0
        for o in operators:
            for s in self._kept(o):
                if s.name not in seen:
                    seen.add(s.name)
                    size = self._bytes(s)
                    (loss if o.kind == "loss" else kept).append(size)
                    needed += size if s.name in operands and o.kind != "loss" else 0
        forward_temp, backward_temps = self._temporaries(operators, around)
        parameters = [p for m in run for p in m.parameters]
        gradients = tuple(
            Gradient(p.name, self._numel(p), expert=p.expert)
            for p in parameters
            if p.trainable and (p.tied_to is None or p.tied_to not in self.resident)
        )
        uses = tuple(
            Gradient(p.tied_to, self._numel(p), tied=True, expert=p.expert)
            if p.tied_to in self.resident
            else Gradient(p.name, self._numel(p), expert=p.expert)
            for p in parameters
        )
        forward = [self._seconds(o, m, backward=False) for m in run for o in m.operators]
        backward_s = sum(self._seconds(o, m, backward=True) for m in run for o in m.operators)
        again = [
            seconds for o, seconds in zip(operators, forward, strict=True) if self._recomputed(o)
        ]
        entered = {name for m in run for name in module_calls(m.name)} - called
        called |= entered
        passes = self.costs.passes
        return Unit(
            name=run[0].name if len(run) == 1 else _common_name(run),
            modules=tuple(run),
            gradients=gradients,
            uses=uses,
            forward_s=sum(forward),
            backward_s=backward_s + sum(again),
            forward_host_s=sum(self.costs.host_s(o) for o in operators)
            + len(entered) * passes.module_s,
            # Each parameter has a node that accumulates its gradient.
            backward_host_s=sum(self.costs.host_s(o, backward=True) for o in operators)
            + len(gradients) * passes.node_s,
            syncs=_syncs(run[-1]),
            flops=self._flops(operators),
            saved_bytes=sum(kept),
            saved=tuple(kept),
            loss_bytes=sum(loss),
            loss_saved=tuple(loss),
            forward_temp_bytes=forward_temp,
            backward_temp_bytes=sum(backward_temps),
            backward_temps=backward_temps,
            temp_category="logits" if any(o.kind == "loss" for o in operators) else "temporary",
            exchanges=around,
            backward_tail_s=self._tail_s(run, around),
            weights=self._weights(run, needed),
        )

    def _flops(self, operators: Iterable[Operator]) -> float:
        """Forward FLOPs of one micro-batch on this rank."""
        whole = sum(o.flops / _divisor(o, self.tp) for o in operators)
        return whole * self.batch / self.sharding.cp

    def _weights(self, run: Sequence[Module], input_bytes: int) -> WeightGradients:
        """Of the run's products, whose saved inputs take so many bytes."""
        products = [(o, m) for m in run for o in m.operators if o.gemm and o.attention is None]
        outputs = sum(
            o.output
            * self.sharding.samples(o, self.batch)
            / (_divisor(o, self.tp) if o.split != "row" else 1)
            for o, _ in products
        )
        return WeightGradients(
            seconds=sum(self._weight_seconds(o, m) for o, m in products),
            host_s=len(products) * self.costs.passes.eager_s,
            flops=self._flops(o for o, _ in products),
            input_bytes=input_bytes,
            output_bytes=round(outputs * COMPUTE_DTYPE_BYTES[self.dtype]),
        )

    def _recomputed(self, o: Operator) -> bool:
        return self.selective and o.attention is not None

    def _kept(self, o: Operator) -> Sequence[Saved]:
        """What stays for backward: of a recomputed core, query, key and value."""
        if self._recomputed(o):
            return o.saves[:3]
        if o.attention is not None and self.sharding.cp > 1 and self.sharding.cp_exchange == "a2a":
            # The core keeps its output by heads, the projection behind it that by positions.
            return (*o.saves, Saved(name=f"{o.name}.swapped", numel=o.output, sharded=True))
        return o.saves

    def _seconds(self, o: Operator, module: Module, *, backward: bool) -> float:
        o, batch, tp = self._local(o, module)
        return self.costs.operator_s(o, batch=batch, dtype=self.dtype, tp=tp, backward=backward)

    def _weight_seconds(self, o: Operator, module: Module) -> float:
        o, batch, tp = self._local(o, module)
        return self.costs.weight_gradient_s(o, batch=batch, dtype=self.dtype, tp=tp)

    def _local(self, o: Operator, module: Module) -> tuple[Operator, float, int]:
        """What this rank runs of an operator: over how many samples, and how it is divided."""
        tp, batch = self.tp, self.sharding.samples(o, self.batch)
        if o.split == "expert" and self.sharding.ep:
            return self._experts(o, module), batch, 1
        return o, batch, 1 if o.split == "none" else tp

    def _experts(self, o: Operator, module: Module) -> Operator:
        """The experts held here: whole ones of expert-parallel peers, slices of tensor-parallel."""
        key = id(o)
        if key not in self._own_experts:
            assert o.gemm is not None
            width, depth = o.gemm.n, o.gemm.k
            if module.parameters and module.parameters[0].shard == 1:
                width = -(-width // self.tp)
            else:
                depth = -(-depth // self.tp)
            groups = -(-o.gemm.groups // self.sharding.ep)
            self._own_experts[key] = replace(
                o, gemm=Gemm(rows=o.gemm.rows, n=width, k=depth, groups=groups)
            )
        return self._own_experts[key]

    def _tail_s(self, run: Sequence[Module], around: Exchanges) -> float:
        """Weight gradients of column linears, beside which their input's gradient is exchanged."""
        if not (self.sharding.overlaps and around.after_backward):
            return 0.0
        return sum(
            self._weight_seconds(o, m)
            for m in run
            for o in m.operators
            if o.split == "column" and o.gemm is not None
        )

    def _numel(self, parameter: Parameter) -> int:
        numel = tp_numel(parameter, self.tp)
        return -(-numel // self.sharding.ep) if parameter.expert and self.sharding.ep else numel

    def _bytes(self, saved: Saved) -> int:
        return saved_bytes(saved, self.batch, self.sharding.kept(saved), self.dtype)

    def _temporaries(
        self, operators: Sequence[Operator], around: Exchanges
    ) -> tuple[int, tuple[int, ...]]:
        """Largest output alive in forward; largest output and input gradient in backward.

        What was gathered is whole beside them.
        """
        width = COMPUTE_DTYPE_BYTES[self.dtype]
        forward = 0.0
        backward = (0.0, 0.0)
        in_place = any(_overwrites(o) for o in operators)
        for o in operators:
            if o.kind == "loss":
                # Unfused cross-entropy: an fp32 copy of the logits in forward; in backward the
                # gradients of log-softmax's output and input side by side.
                logits = max((self._bytes(s) for s in o.saves if s.dtype == "fp32"), default=0)
                forward, backward = max(forward, logits), max(backward, (logits, logits), key=sum)
                continue
            divisor = _divisor(o, self.tp) if o.split != "row" else 1
            out = o.output * self.sharding.samples(o, self.batch) * width / divisor
            grad_in = self._bytes(o.saves[0]) if o.saves else out
            forward = max(forward, out)
            backward = max(backward, (0.0 if in_place else out, grad_in), key=sum)
        gathered = _largest(around.before_forward, "all_gather")
        again = _largest(around.beside_backward, "all_gather")
        again += _largest(around.after_backward, "reduce_scatter")
        sent = _largest(around.after_forward + around.before_forward, "all_to_all", "ep")
        back = _largest(around.before_backward + around.after_backward, "all_to_all", "ep")
        gathered, again = gathered + TOKEN_COPIES * sent, again + TOKEN_COPIES * back
        first = round(backward[0])
        parts = (first, round(sum(backward)) - first, again)
        return round(forward + gathered), tuple(size for size in parts if size)


def _syncs(module: Module) -> bool:
    return any(o.kind == "sync" for o in module.operators)


def module_calls(name: str) -> list[str]:
    """The modules whose ``__call__`` leads to one: the layer itself, and each on the way."""
    parts = name.split(".") if name else []
    return ["", *(".".join(parts[: i + 1]) for i in range(len(parts)))]


def _divisor(o: Operator, tp: int) -> int:
    return 1 if o.split == "none" else tp


def _largest(calls: Sequence[Exchange], op: str, group: str = "") -> int:
    """Bytes of the largest of these exchanges that are ``op``, of ``group`` or any."""
    sizes = (e.size_bytes for e in calls if e.op == op and group in ("", e.group))
    return max(sizes, default=0)


def _overwrites(o: Operator) -> bool:
    """A loss that keeps the logits themselves, and later their gradient in their place."""
    return o.kind == "loss" and bool(o.saves) and all(s.dtype == "compute" for s in o.saves)


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
    checkpoint: Literal["none", "selective", "full"],
    interval: int = 0,
    limit: int | None = None,
    early_stop: bool = False,
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
    limit
        Of ``full``: only so many blocks, from the first (Megatron's ``--recompute-method block``).
    early_stop
        Checkpoints are torch's non-reentrant ones, whose recomputation stops early.
    """
    width = COMPUTE_DTYPE_BYTES[pricer.dtype]

    def size(numel: float) -> int:
        return round(numel * pricer.batch * width / pricer.sharding.hidden)

    groups: list[tuple[list[int], bool]] = []
    if interval > 0:
        for start in range(0, len(layers), interval):
            run = list(range(start, min(start + interval, len(layers))))
            # A group without parameters has nothing to recompute for (module.py,
            # _is_checkpointable).
            groups.append((run, any(layers[i].body.numel for i in run)))
    else:
        blocks = [i for i, layer in enumerate(layers) if layer.kind == "block"][:limit]
        groups = [([i], checkpoint == "full" and i in blocks) for i in range(len(layers))]
    sections = []
    for run, checkpointed in groups:
        before = layers[run[0] - 1].output if run[0] else input_numel
        units = tuple(u for i in run for u in pricer.layer(layers[i]))
        stops = early_stop and checkpointed
        sections.append(
            Section(
                units=units,
                checkpointed=checkpointed,
                input_bytes=size(before),
                output_bytes=size(layers[run[-1]].output),
                spared=spared_units([u.modules for u in units]) if stops else 0,
            )
        )
    return tuple(sections)
