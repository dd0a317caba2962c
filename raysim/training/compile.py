"""Compile a training plan into the program of one rank.

The compiler walks the pipeline schedule; for every forward and backward pass it walks the stage's
units, asks the data-parallel engine what to do around each, and emits operations. It knows order
and dependencies, not the clock. Real counterparts: ``deepspeed/runtime/pipe/engine.py`` and the
training loop of the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from raysim.errors import ScenarioError
from raysim.hardware.specs import CpuSpec
from raysim.models.table import COMPUTE_DTYPE_BYTES
from raysim.perf.compute import ComputeModel
from raysim.training.deepspeed import ZeroConfig
from raysim.training.engines.bf16 import Bf16Optimizer
from raysim.training.engines.context import Engine, EngineContext
from raysim.training.engines.ddp import Ddp
from raysim.training.engines.replicated import Replicated
from raysim.training.engines.zero3 import ZeroThree
from raysim.training.engines.zero12 import ZeroOneTwo
from raysim.training.parallel import Coordinate
from raysim.training.partition import partition_layers
from raysim.training.plan import TrainingPlan
from raysim.training.program import COMPUTE, D2H, H2D, LOADER, Call, Program, ProgramBuilder
from raysim.training.schedule import END_OF_BATCH, SCHEDULES, Do, inference_schedule
from raysim.training.sections import Cut, Pricer, Section, Unit, build_sections, tp_numel


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """What one micro-batch costs before the GPU sees it."""

    host_s: float = 0.0
    """The training process loads and collates itself."""
    loader_s: float = 0.0
    """Loader processes need this long per micro-batch, overlapping with the GPU."""
    copy_bytes: float = 0.0
    """Copied to the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """One pipeline stage: its layers and how they are cut and priced."""

    index: int
    sections: tuple[Section, ...]
    input_bytes: int
    output_bytes: int
    tied_bytes: int
    """Gradient bytes of weights shared with another stage; 0: none."""

    @property
    def units(self) -> tuple[Unit, ...]:
        """All units in forward order."""
        return tuple(u for s in self.sections for u in s.units)

    def visits(self) -> Iterator[Unit]:
        """Units of one micro-batch in execution order: forward, then recompute and backward."""
        yield from self.units
        for section in reversed(self.sections):
            if section.checkpointed:
                yield from section.units
            yield from reversed(section.units)


def gradient_cut(plan: TrainingPlan) -> Cut:
    """How finely the program must be cut: where hooks act, per module; elsewhere coarser."""
    zero = plan.zero
    hooked = plan.engine == "ddp" or zero.stage in {2, 3} or (zero.stage == 1 and zero.overlaps)
    return "module" if hooked and plan.mesh.pp == 1 else "collective"


def build_stages(plan: TrainingPlan, costs: ComputeModel) -> tuple[StageSpec, ...]:
    """Partition the model into stages and price every layer once.

    Raises
    ------
    ScenarioError
        The model cannot be cut as asked.
    """
    layers = plan.model.layers
    mesh = plan.mesh
    for key, value in plan.model.divisible:
        if value % mesh.tp:
            raise ScenarioError(f"tensor parallelism {mesh.tp} does not divide {key} {value}")
    bounds = [0, len(layers)]
    if mesh.pp > 1:
        bounds = partition_layers(layers, mesh.pp, plan.pipeline.partition_method)
    owners = {
        f"{layer.name}.{p.name}" if layer.name else p.name: stage
        for stage in range(mesh.pp)
        for layer in layers[bounds[stage] : bounds[stage + 1]]
        for p in layer.body.parameters
        if p.tied_to is None
    }
    stages = []
    for stage in range(mesh.pp):
        start, end = bounds[stage], bounds[stage + 1]
        resident = frozenset(name for name, owner in owners.items() if owner == stage)
        pricer = Pricer(
            costs,
            batch=plan.micro_batch,
            dtype=plan.compute_dtype,
            tp=mesh.tp,
            cut=gradient_cut(plan),
            resident=resident,
        )
        sections = build_sections(
            layers[start:end],
            pricer,
            input_numel=layers[start - 1].output if start else 0.0,
            checkpoint=plan.activation_checkpointing,
            interval=plan.pipeline.activation_checkpoint_interval if mesh.pp > 1 else 0,
        )
        stages.append(
            StageSpec(
                index=stage,
                sections=sections,
                input_bytes=sections[0].input_bytes,
                output_bytes=sections[-1].output_bytes,
                tied_bytes=_tied_bytes(plan, bounds, owners, stage),
            )
        )
    return tuple(stages)


def _tied_bytes(plan: TrainingPlan, bounds: list[int], owners: dict[str, int], stage: int) -> int:
    """Bytes of gradients this stage must sum with another stage that stores the same weight."""
    total = 0
    for other in range(plan.mesh.pp):
        for layer in plan.model.layers[bounds[other] : bounds[other + 1]]:
            for p in layer.body.parameters:
                owner = owners.get(p.tied_to, other) if p.tied_to else other
                if owner != other and stage in {owner, other}:
                    total += tp_numel(p, plan.mesh.tp)
    return total * COMPUTE_DTYPE_BYTES[plan.precision]


def choose_engine(
    context: EngineContext, stage: StageSpec, *, forward_only: bool = False
) -> Engine:
    """The wrapper DeepSpeed would choose (``engine.py``, ``_configure_optimizer``), or DDP."""
    plan, zero = context.plan, context.plan.zero
    if plan.engine == "ddp":
        return Ddp(context)
    if zero.stage == 3:
        visits = stage.units if forward_only else tuple(stage.visits())
        return ZeroThree(context, visits)
    if _uses_bf16_optimizer(plan, zero):
        return Bf16Optimizer(context)
    return ZeroOneTwo(context) if zero.stage else Replicated(context)


def _uses_bf16_optimizer(plan: TrainingPlan, zero: ZeroConfig) -> bool:
    if plan.precision != "bf16" or zero.offload_optimizer.device != "none":
        return False
    if zero.stage == 1:
        return plan.grad_accum_dtype == "fp32"
    return zero.stage == 0 and plan.mesh.pp > 1


class RankCompiler:
    """Emits one rank's program."""

    def __init__(
        self,
        plan: TrainingPlan,
        at: Coordinate,
        stage: StageSpec,
        costs: ComputeModel,
        *,
        cpu: CpuSpec,
        ranks_per_node: int,
        copy_bytes_per_s: float,
        feed: Feed,
        forward_only: bool = False,
        memory: bool = True,
    ) -> None:
        self.plan = plan
        self.at = at
        self.stage = stage
        self.costs = costs
        self.feed = feed
        self.b = ProgramBuilder(
            plan.mesh.rank(at), launch_s=costs.launch_s, serial=costs.serial, memory=memory
        )
        self.engine = choose_engine(
            EngineContext(
                plan=plan,
                builder=self.b,
                costs=costs,
                units=stage.units,
                cpu=cpu,
                ranks_per_node=ranks_per_node,
                copy_bytes_per_s=copy_bytes_per_s,
                model_parallel=plan.mesh.pp * plan.mesh.tp,
            ),
            stage,
            forward_only=forward_only,
        )
        self.micro_batches = plan.gradient_accumulation_steps
        """Of the step being compiled."""
        self.pending: tuple[int, ...] = ()
        self.received: set[str] = set()
        """What buffers exist for: pipe_recv_buf and grad_layer, made once (pipe/engine.py)."""
        self.handlers: dict[Do, Callable[[int], None]] = {
            Do.LOAD_MICRO_BATCH: self._load,
            Do.FORWARD_PASS: self._forward_pass,
            Do.BACKWARD_PASS: self._backward_pass,
            Do.SEND_ACTIVATION: lambda _: self._send("activation", +1, stage.output_bytes),
            Do.RECV_ACTIVATION: lambda _: self._recv("activation", -1, stage.input_bytes),
            Do.SEND_GRAD: lambda _: self._send("gradient", -1, stage.input_bytes),
            Do.RECV_GRAD: lambda _: self._recv("gradient", +1, stage.output_bytes),
            Do.REDUCE_TIED_GRADS: lambda _: self._reduce_tied(),
            Do.REDUCE_GRADS: lambda _: self.engine.reduce_gradients(),
            Do.OPTIMIZER_STEP: lambda _: self._optimizer_step(),
        }

    def compile(self, steps: int) -> Program:
        """The program of ``steps`` optimizer steps.

        All but the last warm up, with one micro-batch each.
        """
        self.engine.setup()
        self.b.end_setup()
        schedule = SCHEDULES[self.plan.pipeline.schedule]
        for step in range(steps):
            self.b.backward_index = 0
            warm_up = step < steps - 1
            self.micro_batches = 1 if warm_up else self.plan.gradient_accumulation_steps
            for instructions in schedule(self.stage.index, self.plan.mesh.pp, self.micro_batches):
                for instruction in instructions:
                    self.b.hook(self._python_s(instruction.do))
                    micro_batch = -1 if instruction.micro_batch is None else instruction.micro_batch
                    self.b.micro_batch = micro_batch
                    self.handlers[instruction.do](micro_batch)
            self.b.end_step()
        return self.b.program

    def _python_s(self, do: Do) -> float:
        """What DeepSpeed's engine spends in Python on one instruction."""
        if self.plan.engine == "ddp":
            return 0.0
        if do == Do.OPTIMIZER_STEP:
            return self.plan.constants.engine_step_s
        if self.plan.mesh.pp > 1:
            return self.plan.constants.instruction_s if do not in END_OF_BATCH else 0.0
        passes = {Do.FORWARD_PASS, Do.BACKWARD_PASS}
        return self.plan.constants.engine_pass_s if do in passes else 0.0

    def compile_evaluation(self, batches: int) -> Program:
        """The program of ``batches`` forward passes without gradients.

        A batch ends when it was sent on, at the last stage with its forward.
        """
        ends = Do.FORWARD_PASS if self.stage.index == self.plan.mesh.pp - 1 else Do.SEND_ACTIVATION
        self.handlers[Do.FORWARD_PASS] = self._evaluate
        self.engine.setup()
        self.b.end_setup()
        for instructions in inference_schedule(self.stage.index, self.plan.mesh.pp, batches):
            for instruction in instructions:
                assert instruction.micro_batch is not None
                self.b.micro_batch = instruction.micro_batch
                self.handlers[instruction.do](instruction.micro_batch)
                if instruction.do == ends:
                    self.b.end_step()
        return self.b.program

    def _evaluate(self, _: int) -> None:
        self.engine.begin_forward()
        for unit in self.stage.units:
            self._forward(unit, "forward", keep=False)

    def _load(self, _: int) -> None:
        b, feed = self.b, self.feed
        if feed.host_s:
            b.host("load micro-batch", feed.host_s, "data")
        if feed.loader_s:
            ready = b.background("loader", LOADER, "data", feed.loader_s)
            b.sync("wait for data", (ready,))
        if feed.copy_bytes:
            seconds = self.costs.copy_s(feed.copy_bytes, "h2d", pinned=False)
            self._join((b.copy("inputs to GPU", "h2d", seconds),))

    def _join(self, waits: tuple[int, ...]) -> None:
        """The next operation on the compute stream waits for these."""
        self.pending += waits

    def _take_pending(self) -> tuple[int, ...]:
        pending, self.pending = self.pending, ()
        return pending

    def _forward_pass(self, _: int) -> None:
        self.engine.begin_forward()
        for section in self.stage.sections:
            if section.checkpointed:
                self._keep_checkpoint(section)
            for unit in section.units:
                self._forward(unit, "forward", keep=not section.checkpointed)
        self.b.alloc("input", self._kept_output_bytes(), "pipe buffers")

    def _checkpoint_bytes(self, section: Section) -> int:
        """What this rank keeps of a checkpoint: its share under ``partition_activations``."""
        share = self.plan.mesh.tp if self.plan.partition_activations else 1
        return section.input_bytes // share

    def _keep_checkpoint(self, section: Section) -> None:
        size = self._checkpoint_bytes(section)
        if not self.plan.cpu_checkpointing:
            self.b.alloc("activation", size, "checkpoint")
            return
        waits = self.b.last_on(COMPUTE)
        self.b.copy("checkpoint to CPU", D2H, self.costs.copy_s(size, "d2h"), waits)

    def _fetch_checkpoint(self, section: Section) -> None:
        """Bring a checkpoint back whole: from the CPU, from its tensor-parallel shares."""
        size = self._checkpoint_bytes(section)
        arrived: tuple[int, ...] = ()
        if self.plan.cpu_checkpointing:
            self.b.alloc("activation", size, "checkpoint")
            arrived = (self.b.copy("checkpoint to GPU", H2D, self.costs.copy_s(size, "h2d")),)
        if size < section.input_bytes:
            self.b.alloc("activation", section.input_bytes - size, "gathered checkpoint")
            call = Call("all_gather", "tp", section.input_bytes)
            arrived = (self.b.collective("all-gather checkpoint", call, waits=arrived),)
        self._join(arrived)

    def _kept_output_bytes(self) -> int:
        """Stage output (and received input) that pipe buffers hold until backward (spec 4.6)."""
        plan, stage = self.plan, self.stage
        if plan.mesh.pp == 1:
            return 0
        output = 0 if stage.index == plan.mesh.pp - 1 else stage.output_bytes
        if plan.mesh.tp > 1 and plan.pipeline.pipe_partitioned:
            return output // plan.mesh.tp
        return output + stage.input_bytes

    def _restored_bytes(self) -> int:
        """Output and received gradient made whole where tensor-parallel ranks share them.

        ``_exec_backward_pass`` of the pipeline's engine; the last stage begins at its loss.
        """
        plan = self.plan
        if plan.mesh.tp == 1 or self.stage.index == plan.mesh.pp - 1:
            return 0
        whole = plan.pipeline.pipe_partitioned + plan.pipeline.grad_partitioned
        return whole * self.stage.output_bytes

    def _forward(self, unit: Unit, phase: str, *, keep: bool) -> None:
        b = self.b
        waits = (*self.engine.before(unit, phase), *self._take_pending())
        if keep:
            b.alloc("activation", unit.saved_bytes, unit.name, tensors=unit.saved)
            b.alloc("logits", unit.loss_bytes, unit.name, tensors=unit.loss_saved)
        b.alloc(unit.temp_category, unit.forward_temp_bytes, unit.name)
        op = b.compute(
            unit.name,
            phase,
            unit.forward_s,
            launches=unit.forward_launches,
            waits=waits,
            flops=unit.flops,
        )
        b.free(unit.temp_category, unit.forward_temp_bytes, unit.name)
        self._tensor_all_reduce(unit, unit.forward_reduce_bytes, op)
        self.engine.after(unit, phase, op)

    def _tensor_all_reduce(self, unit: Unit, size_bytes: int, op: int) -> None:
        if size_bytes:
            call = Call("all_reduce", "tp", size_bytes)
            self._join((self.b.collective(f"all-reduce {unit.name}", call, waits=(op,)),))

    def _backward_pass(self, _: int) -> None:
        last = self.b.backward_index == self.micro_batches - 1
        self.engine.begin_backward(boundary=last)
        self.b.free("input", self._kept_output_bytes(), "pipe buffers")
        whole = self._restored_bytes()
        self.b.alloc("input", whole, "output and gradient made whole")
        for section in reversed(self.stage.sections):
            if section.checkpointed:
                self._fetch_checkpoint(section)
                for unit in section.units:
                    self._forward(unit, "recompute", keep=True)
            for unit in reversed(section.units):
                self._backward(unit)
            if section.checkpointed:
                self.b.free("activation", section.input_bytes, "checkpoint")
        self.b.free("input", whole, "output and gradient made whole")
        self.engine.end_backward()
        self.b.backward_index += 1
        self.b.program.backward_ends.append(len(self.b.program.ops))

    def _backward(self, unit: Unit) -> None:
        b = self.b
        waits = (*self.engine.before(unit, "backward"), *self._take_pending())
        extra_s, extra_launches = self.engine.backward_extra(unit)
        parts = unit.backward_temps
        b.alloc(unit.temp_category, unit.backward_temp_bytes, unit.name, tensors=parts)
        op = b.compute(
            unit.name,
            "backward",
            unit.backward_s + extra_s,
            launches=unit.backward_launches + extra_launches,
            waits=waits,
            flops=2 * unit.flops,
        )
        b.free(unit.temp_category, unit.backward_temp_bytes, unit.name)
        b.free("activation", unit.saved_bytes, unit.name)
        b.free("logits", unit.loss_bytes, unit.name)
        self._tensor_all_reduce(unit, unit.backward_reduce_bytes, op)
        self.engine.after(unit, "backward", op)

    def _peer(self, offset: int) -> int:
        at = Coordinate(pp=self.at.pp + offset, dp=self.at.dp, tp=self.at.tp)
        return self.plan.mesh.rank(at)

    def _wire_bytes(self, what: str, size_bytes: int) -> int:
        """Bytes per rank: partitioned over tensor-parallel peers unless told otherwise."""
        p, tp = self.plan.pipeline, self.plan.mesh.tp
        partitioned = p.pipe_partitioned if what == "activation" else p.grad_partitioned
        return -(-size_bytes // tp) if partitioned else size_bytes

    def _send(self, what: str, offset: int, size_bytes: int) -> None:
        waits = self._take_pending()
        wire = self._wire_bytes(what, size_bytes)
        self.b.send(f"send {what}", self._peer(offset), wire, waits=waits)

    def _recv(self, what: str, offset: int, size_bytes: int) -> None:
        waits = self._take_pending()
        wire = self._wire_bytes(what, size_bytes)
        if what not in self.received:
            self.received.add(what)
            self.b.alloc("input", wire, f"receive buffer, {what}")
        op = self.b.recv(f"recv {what}", self._peer(offset), wire, waits=waits)
        if wire < size_bytes:
            call = Call("all_gather", "tp", size_bytes)
            self._join((self.b.collective(f"all-gather {what}", call, waits=(op,)),))

    def _reduce_tied(self) -> None:
        if self.stage.tied_bytes:
            call = Call("all_reduce", "tied", self.stage.tied_bytes)
            waits = self.b.last_on("compute")
            self._join((self.b.collective("all-reduce tied gradients", call, waits=waits),))

    def _optimizer_step(self) -> None:
        pending = self._take_pending()
        if pending:
            self.b.compute("gradients ready", "collective", 0.0, launches=0, waits=pending)
        self.engine.step()
        if self.plan.mesh.pp > 1:
            # The last stage averages the loss over replicas and tells every stage (pipe/engine.py).
            waits = self.b.last_on("compute")
            if self.at.pp == self.plan.mesh.pp - 1 and self.plan.mesh.dp > 1:
                waits = (self.b.collective("loss", Call("all_reduce", "dp", 4), waits=waits),)
            told = self.b.collective("loss", Call("broadcast", "pp", 8), waits=waits)
            self.b.sync("loss", (told,))
