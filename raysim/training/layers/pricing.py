"""Layers priced: units of a stage with their seconds, bytes, exchanges and what runs again.

Layers that are alike are priced once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from raysim.models.table import (
    COMPUTE_DTYPE_BYTES,
    Gemm,
    Layer,
    Module,
    Operator,
    Parameter,
    Saved,
)
from raysim.perf.compute import ComputeModel
from raysim.training.layers.recompute import MODULES, Again, Checkpointing, Kept, kept
from raysim.training.layers.sections import (
    Cut,
    Gradient,
    Unit,
    WeightGradients,
    tp_numel,
)
from raysim.training.layers.sharding import (
    SCATTER_SMS,
    Exchange,
    Exchanges,
    Sharding,
    column_input,
    exchanges,
    routed_passes,
)
from raysim.training.layers.temporaries import Temporaries, divisor_of
from raysim.training.settings.deepspeed import Precision


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
        checkpointing: Checkpointing = "none",
        modules: Sequence[str] = ("core_attn",),
        reentrant: bool = True,
        resident: frozenset[str] = frozenset(),
        holds_logits: bool = False,
        output_lasts: bool = False,
    ) -> None:
        self.costs = costs
        self.batch = batch
        self.dtype: Precision = dtype
        self.sharding = sharding
        self.tp = sharding.tp
        self.cut = cut
        self.checkpointing: Checkpointing = checkpointing
        self.reentrant = reentrant
        named = [MODULES[m] for m in modules if m in MODULES and checkpointing == "selective"]
        self.repeated = frozenset(o for operators, _ in named for o in operators)
        self.dropped = frozenset(t for _, tensors in named for t in tensors)
        """Operators and tensors of the modules that are recomputed, attention cores aside."""
        self.cores_again = checkpointing == "selective" and "core_attn" in modules
        self.resident = resident
        """Full names of the shared parameters that the stage stores: a weight tied to another
        stage is a copy.
        """
        self.holds_logits = holds_logits
        self.output_lasts = output_lasts
        self.memory = Temporaries(
            costs, batch=batch, dtype=dtype, sharding=sharding, cut=cut, holds_logits=holds_logits
        )
        self._units: dict[int, tuple[Unit, ...]] = {}
        self._bodies: list[object] = []
        self._own: dict[int, Operator] = {}

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
        stays = kept(
            tuple(layer.body.operators),
            self.checkpointing,
            reentrant=self.reentrant,
            compiled=self.costs.compiled,
            tensor_parallel=self.tp > 1,
        )
        operands = {s.name for o in layer.body.operators if o.gemm and o.saves for s in o.saves[:1]}
        units: list[Unit] = []
        run: list[Module] = []
        around = Exchanges()
        width = self.batch * COMPUTE_DTYPE_BYTES[self.dtype]

        def close() -> None:
            nonlocal run, around
            units.append(self._unit(run, seen, around, called, operands, stays))
            run, around = [], Exchanges()

        for module in layer.body.modules:
            own = exchanges(module, self.sharding, width=width, batch=self.batch, known=exchanged)
            if not module.has_backward:
                own = own.forward_only()
            if run and own.opens and self.cut == "collective":
                close()
            if run and around.beside and not any(o.split == "column" for o in module.operators):
                close()  # only products hide their exchange
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
        stays: Kept,
    ) -> Unit:
        operators = [o for m in run for o in m.operators]
        (saved, late), loss, lasting, needed = self._saved(operators, seen, operands)
        forward_temps, backward_temps = self.memory.of(operators, around)
        parameters = [p for m in run for p in m.parameters]
        gradients = tuple(
            self._gradient(p)
            for p in parameters
            if p.trainable and (p.tied_to is None or p.tied_to not in self.resident)
        )
        uses = tuple(
            self._gradient(p)._replace(name=p.tied_to, tied=True)
            if p.tied_to in self.resident
            else self._gradient(p)
            for p in parameters
        )
        forward, backward = (
            [self._seconds(o, m, backward=way) for m in run for o in m.operators]
            for way in (False, True)
        )
        backward += [s for o, s in zip(operators, forward, strict=True) if self._recomputed(o)]
        entered = {name for m in run for name in module_calls(m.name)} - called
        called |= entered
        passes = self.costs.passes
        return Unit(
            name=run[0].name if len(run) == 1 else _common_name(run),
            modules=tuple(run),
            gradients=gradients,
            uses=uses,
            forward_s=sum(forward) + self._permute_s(around.before_forward, around.after_forward),
            backward_s=sum(backward)
            + self._permute_s(around.before_backward, around.after_backward),
            forward_host_s=sum(self.costs.host_s(o) for o in operators)
            + len(entered) * passes.module_s,
            # Each parameter has a node that accumulates its gradient.
            backward_host_s=sum(self.costs.host_s(o, backward=True) for o in operators)
            + len(gradients) * passes.node_s,
            calls=len(entered),
            syncs=_syncs(run[-1]),
            syncs_backward=_syncs_backward(operators),
            flops=self._flops(operators),
            backward_flops=self._flops(operators, lambda o: o.backward_flops),
            saved_bytes=sum(saved) + sum(late),
            saved=tuple(saved),
            saved_late=tuple(late),
            loss_bytes=sum(loss),
            loss_saved=tuple(loss),
            lasting=tuple(lasting),
            forward_temp_bytes=sum(forward_temps),
            forward_temps=forward_temps,
            backward_temps=backward_temps,
            left=self.memory.left(operators),
            waiting=self.memory.waiting(operators),
            summed=any(o.summed for o in operators),
            temp_category="logits" if any(o.kind == "loss" for o in operators) else "temporary",
            exchanges=around,
            backward_tail_s=self._tail_s(run, around),
            weights=self._weights(run, needed),
            again=self._again(operators, forward, around, len(entered) * passes.module_s, stays),
        )

    def _saved(
        self, operators: Sequence[Operator], seen: set[str], operands: set[str]
    ) -> tuple[tuple[list[int], list[int]], list[int], list[int], int]:
        """Bytes of what was not ``seen`` before and is kept: the loss's and what lasts apart.

        Of the rest first what is there at a module's fullest moment. And how many of them are
        products' inputs.
        """
        saved, loss, lasting, needed = (list[int](), list[int]()), list[int](), list[int](), 0
        for o in operators:
            for s in self._kept(o):
                if s.numel and s.name not in seen:
                    seen.add(s.name)
                    size = self._bytes(s)
                    lasts = s.returned and self.output_lasts
                    own = saved[s.late and self.cut == "module"]
                    (lasting if lasts else loss if o.kind == "loss" else own).append(size)
                    needed += size if s.name in operands and o.kind != "loss" else 0
        return saved, loss, lasting, needed

    def _permute_s(self, *groups: Sequence[Exchange]) -> float:
        """Ulysses copies each tensor, in another order, before and after it exchanges it."""
        if not self.sharding.ulysses:
            return 0.0
        swapped = [e for group in groups for e in group if e.op == "all_to_all"]
        size = sum(e.size_bytes for e in swapped)
        return self.costs.memory_s(4.0 * size, kernels=2 * len(swapped)) if swapped else 0.0

    def _again(
        self,
        operators: Sequence[Operator],
        forward_s: Sequence[float],
        around: Exchanges,
        modules_s: float,
        stays: Kept,
    ) -> Again:
        """The unit's forward once more, without what ``stays`` says."""
        runs = [
            (o, s) for o, s in zip(operators, forward_s, strict=True) if o.name not in stays.skipped
        ]
        reduced = any(o.split == "row" and o.name in stays.skipped for o in operators)
        return Again(
            seconds=sum(seconds for _, seconds in runs)
            + self._permute_s(around.before_forward, around.after_forward),
            host_s=sum(self.costs.host_s(o) for o, _ in runs) + (modules_s if runs else 0.0),
            flops=self._flops(o for o, _ in runs),
            after=() if reduced else around.after_forward,
            hooks_s=0.0 if self.reentrant else self.costs.hooks_s(operators),
            held=tuple(
                size for o in operators if o.name in stays.outputs for size in self._outputs(o)
            ),
        )

    def _outputs(self, o: Operator) -> Sequence[int]:
        """Bytes of what an operator returns on this rank; a core returns its log-sum-exp too."""
        if o.attention is not None:
            return [self._bytes(s) for s in o.saves[3:]]
        width = COMPUTE_DTYPE_BYTES[self.dtype]
        divided = o.split == "column" or (o.split == "row" and self.sharding.sequence_parallel)
        share = (self.tp if divided else 1) * self.sharding.cp
        return [round(o.output * self.batch * width / share)]

    def _flops(
        self,
        operators: Iterable[Operator],
        of: Callable[[Operator], float] = attrgetter("flops"),
    ) -> float:
        """FLOPs of one micro-batch on this rank, forward's or another pass's."""
        whole = sum(of(o) / divisor_of(o, self.tp) for o in operators)
        return whole * self.batch / self.sharding.cp

    def _weights(self, run: Sequence[Module], input_bytes: int) -> WeightGradients:
        """Of the run's products, whose saved inputs take so many bytes."""
        products = [
            (o, m)
            for m in run
            for o in m.operators
            if o.gemm and o.attention is None and o.of_weights
        ]
        width = COMPUTE_DTYPE_BYTES[self.dtype]
        outputs = sum(
            o.output
            * (1 if o.fp8 else width)
            * self.sharding.samples(o, self.batch)
            / (divisor_of(o, self.tp) if o.split != "row" else 1)
            for o, _ in products
        )
        return WeightGradients(
            seconds=sum(self._weight_seconds(o, m) for o, m in products),
            host_s=len(products) * self.costs.passes.eager_s,
            flops=self._flops(o for o, _ in products),
            input_bytes=input_bytes,
            output_bytes=round(outputs),
        )

    def _recomputed(self, o: Operator) -> bool:
        return o.name in self.repeated or (self.cores_again and o.attention is not None)

    def _kept(self, o: Operator) -> Sequence[Saved]:
        """What stays for backward: of a recomputed core, query, key and value."""
        if self.cores_again and o.attention is not None:
            return o.saves[:3]
        if o.kind == "loss" and not self.holds_logits:
            return [s for s in o.saves if not s.returned]
        if self.dropped:
            return [s for s in o.saves if s.name not in self.dropped]
        if o.attention is not None and self.sharding.cp > 1 and self.sharding.cp_exchange == "a2a":
            # The core keeps its output by heads, the projection behind it that by positions.
            return (*o.saves, Saved(name=f"{o.name}.swapped", numel=o.output, sharded=True))
        return o.saves

    def _seconds(self, o: Operator, module: Module, *, backward: bool) -> float:
        row = o.split == "row" and o.gemm is not None
        o, batch, tp = self._local(o, module)
        seconds = self.costs.operator_s(o, batch=batch, dtype=self.dtype, tp=tp, backward=backward)
        if row and not backward and self.sharding.user_buffers:
            # ``set_sm_margin``: what is scattered behind it has SMs of its own.
            sms = self.costs.gpu.sm_count
            seconds *= sms / (sms - SCATTER_SMS)
        return seconds

    def _weight_seconds(self, o: Operator, module: Module) -> float:
        o, batch, tp = self._local(o, module)
        return self.costs.weight_gradient_s(o, batch=batch, dtype=self.dtype, tp=tp)

    def _local(self, o: Operator, module: Module) -> tuple[Operator, float, int]:
        """What this rank runs of an operator: over how many samples, and how it is divided."""
        tp, batch = self.tp, self.sharding.samples(o, self.batch)
        if o.split == "expert" and self.sharding.ep:
            return self._experts(o, module), batch, 1
        if o.kind == "routing" and self.sharding.ep > 1:
            o = self._own.setdefault(id(o), routed_passes(o, self.sharding))
        return o, batch, 1 if o.split == "none" else tp

    def _experts(self, o: Operator, module: Module) -> Operator:
        """The experts held here: whole ones of expert-parallel peers, slices of tensor-parallel."""
        key = id(o)
        if key not in self._own:
            assert o.gemm is not None
            width, depth = o.gemm.n, o.gemm.k
            if module.parameters and module.parameters[0].shard == 1:
                width = -(-width // self.tp)
            else:
                depth = -(-depth // self.tp)
            groups = -(-o.gemm.groups // self.sharding.ep)
            self._own[key] = replace(
                o, gemm=Gemm(rows=o.gemm.rows, n=width, k=depth, groups=groups)
            )
        return self._own[key]

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

    def _gradient(self, p: Parameter) -> Gradient:
        return Gradient(
            p.name, self._numel(p), expert=p.expert, among=p.among, fp8=p.fp8,
            stored_bytes=p.stored_bytes,
            whole_bytes=p.whole_bytes, matrix=len(p.shape) > 1,
            rows=round(p.sparse_rows * self.batch), row_numel=math.prod(p.shape[1:]),
        )  # fmt: skip

    def _numel(self, parameter: Parameter) -> int:
        numel = tp_numel(parameter, self.tp)
        return -(-numel // self.sharding.ep) if parameter.expert and self.sharding.ep else numel

    def _bytes(self, saved: Saved) -> int:
        return self.memory.bytes(saved)


def _syncs(module: Module) -> bool:
    return any(o.kind == "sync" for o in module.operators)


def _syncs_backward(operators: Sequence[Operator]) -> bool:
    syncs = (o for o in operators if o.kind == "sync" and o.gradients != "none")
    return any(o.backward_kernels for o in syncs)


def module_calls(name: str) -> list[str]:
    """The modules whose ``__call__`` leads to one: the layer itself, and each on the way."""
    parts = name.split(".") if name else []
    return ["", *(".".join(parts[: i + 1]) for i in range(len(parts)))]


def _common_name(run: Sequence[Module]) -> str:
    heads = {m.name.split(".")[0] for m in run if m.name}
    return heads.pop() if len(heads) == 1 else ""


def _named(unit: Unit, prefix: str, layer: Layer) -> Unit:
    name = (prefix + unit.name).rstrip(".") or layer.cls
    gradients = tuple([Gradient(prefix + g.name, *g[1:]) for g in unit.gradients])
    uses = tuple([g if g.tied else Gradient(prefix + g.name, *g[1:]) for g in unit.uses])
    return unit.renamed(name, gradients, uses)
