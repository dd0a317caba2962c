"""Compile a training plan into the program of one rank.

The compiler walks the pipeline schedule; for every forward and backward pass it walks the stage's
units, asks the data-parallel engine what to do around each, and emits operations. It knows order
and dependencies, not the clock. Real counterparts: ``deepspeed/runtime/pipe/engine.py`` and the
training loop of the user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from raysim.hardware.specs import CpuSpec
from raysim.models.table import COMPUTE_DTYPE_BYTES
from raysim.perf.compute import ComputeModel
from raysim.perf.host import LOOPS, STAGED_BYTES
from raysim.perf.nvme import Volume
from raysim.training.compiler.emitter import UnitEmitter
from raysim.training.compiler.exchange import Exchanger
from raysim.training.compiler.feed import Feed, Own
from raysim.training.compiler.kept_inputs import KeptInputs
from raysim.training.compiler.stage_weights import StageWeights
from raysim.training.engines.choice import choose_engine, gather_ahead, piped
from raysim.training.engines.context import Engine, EngineContext
from raysim.training.engines.megatron import OUTPUT_LAYER
from raysim.training.layers.sections import Unit
from raysim.training.pipeline.schedule import END_OF_BATCH, PASSES, Do, Instruction
from raysim.training.plan import TrainingPlan
from raysim.training.program import COMPUTE, LOADER, Call, Program, ProgramBuilder, Stretch
from raysim.training.settings.parallel import Coordinate
from raysim.training.stages import StageSpec, pipeline_of

Handlers = dict[Do, Callable[[int], None]]


class RankCompiler:
    """Emits one rank's program."""

    loading = 0
    """The operation of loader processes that makes the next micro-batch meanwhile; 0: none."""

    def __init__(
        self,
        plan: TrainingPlan,
        at: Coordinate,
        chunks: Sequence[StageSpec],
        costs: ComputeModel,
        *,
        cpu: CpuSpec,
        ranks_per_node: int,
        copy_bytes_per_s: float,
        volume: Volume | None,
        feed: Feed,
        forward_only: bool = False,
        memory: bool = True,
        sm_s: Callable[[Call], float] = lambda _: 0.0,
    ) -> None:
        self.plan, self.at = plan, at
        self.pipeline = pipeline_of(plan)
        self.layout = self.pipeline.layout
        self.chunks = tuple(chunks)
        self.stage = self.chunks[0]  # the one at work
        self.costs = costs
        self.feed, self.cpu = feed, cpu
        self.b = ProgramBuilder(
            plan.mesh.rank(at),
            launch_s=costs.host.eager_s,
            collective_s=costs.host.collective_s,
            serial=costs.serial,
            launch_blocking=plan.launch_blocking,
            memory=memory,
        )
        self.exchange = Exchanger(plan, at, self.pipeline, self.b, forward_only=forward_only)
        context = EngineContext(
            plan=plan,
            builder=self.b,
            costs=costs,
            units=tuple(u for stage in self.chunks for u in stage.units),
            cpu=cpu,
            ranks_per_node=ranks_per_node,
            copy_bytes_per_s=copy_bytes_per_s,
            volume=volume,
            model_parallel=1 if self.layout.placed else plan.mesh.pp * plan.mesh.tp,
            sm_s=sm_s,
        )
        self.b.program.multiplies = any(u.multiplies for u in context.units)
        self.kept = KeptInputs(context)
        self.whole = choose_engine(context, self.stage, forward_only=forward_only)
        """Sets up and steps everything the rank holds."""
        self.engines: tuple[Engine, ...] = (self.whole,)
        """Around the passes of each chunk, which is wrapped on its own."""
        if len(self.chunks) > 1:
            self.engines = tuple(
                choose_engine(replace(context, units=stage.units), stage, forward_only=forward_only)
                for stage in self.chunks
            )
        self.emit = UnitEmitter(self.b, costs, self.engines[0])
        self.chunk = 0
        self.micro_batches = plan.gradient_accumulation_steps
        """Of the step being compiled."""
        self.done: Counter[tuple[Do, int]] = Counter()
        """Backward passes of that step, by kind and chunk."""
        self.weights = StageWeights(self.engines, self.pipeline)
        self.due: dict[int, tuple[int, ...]] = {}
        """Of that step: by how many forward passes came before, whose weights to gather."""
        self.forwards = self.deferred = 0
        """Of that step: passes forward, those whose output layer still lacks its gradient."""
        self.passes: dict[object, tuple[Stretch, tuple[int, ...], tuple[str, int], Hashable]] = {}
        """Passes to issue again, by what shapes them: what is pending then, the engine's state."""
        self.received: set[str] = set()
        """What buffers exist for: pipe_recv_buf and grad_layer, made once (pipe/engine.py)."""

    def _handlers(self) -> Handlers:
        """What each instruction does, given its micro-batch.

        The compiler does not keep them: it would hold itself, and its program be garbage that only
        the collector finds.
        """
        return {
            Do.LOAD_MICRO_BATCH: self._load,
            Do.FORWARD_PASS: self._forward_pass,
            Do.BACKWARD_PASS: self._backward_pass,
            Do.BACKWARD_INPUT: self._backward_input,
            Do.BACKWARD_WEIGHT: self._backward_weight,
            Do.SEND_ACTIVATION: lambda _: self._send("activation", self._after),
            Do.RECV_ACTIVATION: lambda m: self._recv("activation", self._before, m),
            Do.SEND_GRAD: lambda _: self._send("gradient", self._before),
            Do.RECV_GRAD: lambda m: self._recv("gradient", self._after, m),
            Do.AWAIT_GRAD: lambda m: self._arrived("gradient", m),
            Do.REDUCE_TIED_GRADS: lambda _: self._reduce_tied(),
            Do.REDUCE_GRADS: lambda _: self._reduce_gradients(),
            Do.OPTIMIZER_STEP: lambda _: self._optimizer_step(),
        }

    def compile(self, steps: int) -> Program:
        """The program of ``steps`` optimizer steps.

        All but the last warm up, with one micro-batch each where the schedule takes that few.
        """
        handlers = self._handlers()
        self.whole.setup()
        self.b.end_setup()
        for step in range(steps):
            self.done.clear()
            warm_up = step < steps - 1 and self.layout.stages == self.layout.ranks
            self.micro_batches = 1 if warm_up else self.plan.gradient_accumulation_steps
            self.due = self.pipeline.due(self.at.pp, self.micro_batches)
            self.weights.begin(self.at.pp, self.micro_batches)
            self.forwards = self.deferred = 0
            for instructions in self.pipeline.steps(self.at.pp, self.micro_batches):
                self.exchange.end_batch()
                for instruction in instructions:
                    self.b.hook(self._python_s(instruction.do))
                    self._do(instruction, handlers)
                self.weights.reduce()
            self.b.end_step()
        return self.b.program

    @property
    def engine(self) -> Engine:
        """Of the chunk at work."""
        return self.emit.engine

    def _do(self, instruction: Instruction, handlers: Handlers) -> None:
        micro_batch = -1 if instruction.micro_batch is None else instruction.micro_batch
        self.b.micro_batch = micro_batch
        self.stage = self.chunks[instruction.chunk]
        self.emit.engine = self.engines[instruction.chunk]
        self.chunk = instruction.chunk
        if instruction.do in PASSES:
            self.weights.move()
        handlers[instruction.do](micro_batch)

    @property
    def _before(self) -> int | None:
        return self.layout.before(self.stage.index)

    @property
    def _after(self) -> int | None:
        return self.layout.after(self.stage.index)

    def _python_s(self, do: Do) -> float:
        """What autograd's engine and DeepSpeed's spend on one instruction."""
        if self.plan.engine != "deepspeed":
            return self.costs.passes.engine_s if do == Do.BACKWARD_PASS else 0.0
        if do == Do.OPTIMIZER_STEP:
            return self.costs.host.engine_step_s
        if self.plan.mesh.pp > 1:
            return self.costs.host.instruction_s if do not in END_OF_BATCH else 0.0
        passes = {Do.FORWARD_PASS, Do.BACKWARD_PASS}
        return self.costs.host.engine_pass_s if do in passes else 0.0

    def compile_evaluation(self, batches: int) -> Program:
        """The program of ``batches`` forward passes without gradients.

        A batch ends with its last instruction: when it was sent on, or its last forward.
        """
        handlers = {**self._handlers(), Do.FORWARD_PASS: self._evaluate}
        self.whole.setup()
        self.b.end_setup()
        steps = [list(step) for step in self.pipeline.evaluation(self.at.pp, batches)]
        left = Counter(i.micro_batch for step in steps for i in step)
        for instructions in steps:
            self.exchange.end_batch()
            for instruction in instructions:
                self._do(instruction, handlers)
                left[instruction.micro_batch] -= 1
                if not left[instruction.micro_batch]:
                    self.b.end_step()
        return self.b.program

    def _evaluate(self, micro_batch: int) -> None:
        self._arrived("activation", micro_batch)
        self.engine.begin_forward()
        for unit in self.stage.units:
            self.emit.forward(unit, "forward", keep=False)

    def _own_work(self, own: Own) -> None:
        """What the script itself has the GPU do, before its forward."""
        b, costs = self.b, self.costs
        if own.waits:
            b.synchronize("a value")
        if own.loop:
            b.hook(costs.on_host_s(LOOPS[own.loop]))
        if own.operators:
            seconds = own.gpu_seconds(costs)
            host_s = costs.host.forward_s(round(own.operators), round(own.kernels))
            b.compute("script's own operators", "script", seconds, host_s=host_s)
        for issued_s, seconds in own.beside:
            b.compute("forward without gradients", "beside", seconds, host_s=issued_s)

    def _load(self, _: int) -> None:
        b, feed = self.b, self.feed
        self._own_work(feed.own)
        if host_s := feed.host_seconds(self.costs, self.cpu):
            b.host("load micro-batch", host_s, "data")
        if loader_s := feed.loader_seconds(self.costs, self.cpu):
            ready = self.loading or b.background("loader", LOADER, "data", loader_s)
            self.loading = b.background("loader", LOADER, "data", loader_s)
            b.sync("wait for data", (ready,))
        if feed.copy_bytes:
            seconds = self.costs.copy_s(feed.copy_bytes, "h2d", pinned=False)
            staged = feed.pageable and feed.copy_bytes > STAGED_BYTES
            if staged:
                b.sync("before pageable inputs", b.last_on(COMPUTE))
            copy = b.copy("inputs to GPU", "h2d", seconds)
            if staged:
                b.sync("pageable inputs", (copy,))
            self.emit.join((copy,))

    def _arrived(self, what: str, micro_batch: int) -> None:
        """The pass that begins waits for its message, and for the batch before it."""
        self.emit.join(self.exchange.take_batch())
        self.emit.join(self.exchange.take(what, self.stage.index, micro_batch))

    def _pass(self, do: Hashable, compile_it: Callable[[], None]) -> None:
        """Compile a pass; or issue again one that had everything it depends on in common.

        Operations refer to others by distance: alike surroundings make the same operations.
        """
        b, state = self.b, self.engine.alike() if self.kept.alike else None
        if state is None:
            compile_it()
            return
        emit = self.emit
        key = do, self.chunk, state, emit.lasting, b.surroundings(emit.pending)
        here, known = len(b.program.ops), self.passes.get(key)
        if known is None:
            changes = len(b.program.memory)
            compile_it()
            pending = tuple(p - here for p in emit.pending)
            self.passes[key] = b.stretch(here, changes), pending, emit.lasting, self.engine.alike()
            return
        stretch, pending, emit.lasting, left = known
        b.again(stretch)
        emit.pending = tuple(here + p for p in pending)
        self.engine.resume(left)

    def _forward_pass(self, micro_batch: int) -> None:
        for chunk in self.due.get(self.forwards, ()):
            gather_ahead(self.engines[chunk])
        self.forwards += 1
        self._arrived("activation", micro_batch)
        self.engine.begin_forward()
        self._pass(Do.FORWARD_PASS, self._forwards)

    def _forwards(self) -> None:
        """Through the stage's units; of those that are checkpointed only the input stays."""
        for section in self.stage.sections:
            if section.checkpointed:
                self.kept.boundary()
                self.b.hook(section.hooks_s)
                self.kept.keep(section, self.stage.sections)
            for unit in section.units:
                self.emit.forward(unit, "forward", keep=not section.checkpointed)
                if section.checkpointed:
                    held = unit.again.held
                    self.b.alloc("activation", sum(held), f"{unit.name} kept", tensors=held)
            if section.checkpointed:
                self.kept.boundary()
        self.emit.end_forward()
        self.b.alloc("input", self._kept_output_bytes(), "pipe buffers")

    def _kept_output_bytes(self) -> int:
        """Stage output (and received input) that pipe buffers hold until backward (spec 4.6).

        Only DeepSpeed clones what it received.
        """
        plan, stage = self.plan, self.stage
        if plan.mesh.pp == 1 or not self.pipeline.kind.keeps_output:
            return 0
        output = 0 if self._after is None else stage.output_bytes
        if self.pipeline.schedule != "1f1b":
            return output
        if plan.mesh.tp > 1 and plan.pipeline.pipe_partitioned:
            return output // plan.mesh.tp
        return output + stage.input_bytes

    def _restored_bytes(self) -> int:
        """Output and received gradient made whole where tensor-parallel ranks share them.

        ``_exec_backward_pass`` of the pipeline's engine; the last stage begins at its loss.
        """
        plan = self.plan
        if plan.mesh.tp == 1 or self._after is None:
            return 0
        whole = plan.pipeline.pipe_partitioned + plan.pipeline.grad_partitioned
        return whole * self.stage.output_bytes

    def _backward_pass(self, micro_batch: int) -> None:
        self._arrived("gradient", micro_batch)
        self._begin_gradients(Do.BACKWARD_PASS)
        if self._defers():
            self.deferred += 1
            self._pass((Do.BACKWARD_PASS, "deferred"), self._deferring_backwards)
        else:
            self._pass(Do.BACKWARD_PASS, self._whole_backwards)
        self.b.backward_index += 1
        self.b.program.backward_ends.append(len(self.b.program.ops))
        if self.b.backward_index < self.micro_batches:
            self._read_timers()

    def _read_timers(self) -> None:
        """At the end of ``engine.step()``, and where a forward begins, the host waits for the GPU.

        So ``ThroughputTimer`` does unless it is told otherwise, and ``wall_clock_breakdown``.
        Pipelines never stop the one, and read the others where steps are printed alone.
        """
        plan = self.plan
        timed = plan.throughput_timer or plan.wall_clock_breakdown
        if plan.engine == "deepspeed" and timed and plan.mesh.pp == 1:
            self.b.synchronize("timers")

    def _whole_backwards(self) -> None:
        self._backwards(self.emit.backward)
        self.engine.end_backward()

    def _defers(self) -> bool:
        """Whether the output layer's weight gradient waits for the end of the step."""
        m = self.plan.megatron
        if not m.defer_embedding_wgrad_compute or self.plan.engine != "megatron":
            return False
        last = self.plan.mesh.pp > 1 and self._after is None
        return last and (not m.wgrad_deferral_limit or self.deferred < m.wgrad_deferral_limit)

    def _deferring_backwards(self) -> None:
        emit = self.emit
        self._backwards(lambda u: (emit.input_gradient if is_output(u) else emit.backward)(u))
        self.engine.end_backward()

    def _make_deferred(self) -> None:
        """``finish_embedding_wgrad_compute``: one after the other, when all passes are over."""
        last = self.chunks[-1]
        for unit in [u for u in last.units if is_output(u)] if self.deferred else []:
            self.emit.engine = self.engines[-1]
            reduced = self.deferred < self.micro_batches
            for left in reversed(range(self.deferred)):
                self.emit.engine.begin_backward(boundary=not left and not reduced)
                self.emit.weight_gradient(unit)

    def _backward_input(self, micro_batch: int) -> None:
        """Input gradients; what the weight gradients need stays."""
        self._arrived("gradient", micro_batch)
        if (engine := piped(self.engine)) is not None:
            engine.begin_input_gradients()
        self._pass(Do.BACKWARD_INPUT, lambda: self._backwards(self.emit.input_gradient))
        self.b.program.backward_ends.append(len(self.b.program.ops))

    def _backward_weight(self, _: int) -> None:
        """Weight gradients, and with them all that an engine does around a backward."""
        self.emit.join(self.exchange.take_batch())
        self._begin_gradients(Do.BACKWARD_WEIGHT)
        self._pass(Do.BACKWARD_WEIGHT, self._weight_gradients)
        self.b.backward_index += 1

    def _weight_gradients(self) -> None:
        for unit in reversed(self.stage.units):
            if unit.gradients or unit.weights.kept_bytes:
                self.emit.weight_gradient(unit)
        self.engine.end_backward()

    def _begin_gradients(self, do: Do) -> None:
        """A micro-batch's weight gradients are about to be made."""
        halves = (Do.BACKWARD_PASS, Do.BACKWARD_WEIGHT)
        self.b.backward_index = sum(self.done[half, self.chunk] for half in halves)
        each = self.pipeline.micro_batches_of(self.micro_batches)
        # Copies of the model on other ranks are summed once, at the end of the batch.
        boundary = self.b.backward_index == each - 1 and self.layout.shape != "both"
        self.engine.begin_backward(boundary=boundary)
        if boundary:
            self.weights.finished.append(self.chunk)
        self.done[do, self.chunk] += 1

    def _backwards(self, one: Callable[[Unit], None]) -> None:
        """Recompute what is checkpointed, and go back through the stage's units."""
        self.b.free("input", self._kept_output_bytes(), "pipe buffers")
        whole = self._restored_bytes()
        self.b.alloc("input", whole, "output and gradient made whole")
        for section in reversed(self.stage.sections):
            if section.checkpointed:
                self.kept.boundary()
                self.b.hook(self.costs.passes.checkpoint_s + 2 * section.hooks_s)
                self.emit.join(self.kept.fetch(section))
                for unit in section.units:
                    self.b.free("activation", unit.again.held_bytes, f"{unit.name} kept")
                    self.emit.forward(unit, "recompute", keep=True)
                self.emit.end_forward()
            for unit in section.reached:
                one(unit)
            if section.checkpointed:
                self.kept.boundary()
                self.b.free("activation", section.input_bytes, "checkpoint")
        self.emit.end_backward()
        self.b.free("input", whole, "output and gradient made whole")

    def _send(self, what: str, to: int | None) -> None:
        assert to is not None, f"{what} of stage {self.stage.index} has nowhere to go"
        size = self.stage.output_bytes if what == "activation" else self.stage.input_bytes
        ready = self.emit.take_pending() if self.exchange.blocking else self.emit.pending
        self.exchange.send(what, to, size, ready)

    def _recv(self, what: str, source: int | None, micro_batch: int) -> None:
        assert source is not None, f"{what} for stage {self.stage.index} comes from nowhere"
        size = self.stage.input_bytes if what == "activation" else self.stage.output_bytes
        ready = self.emit.take_pending() if self.exchange.blocking else ()
        if self.exchange.blocking and what not in self.received:
            self.received.add(what)
            wire = self.exchange.wire_bytes(what, size)
            self.b.alloc("input", wire, f"receive buffer, {what}")
        at = self.stage.index
        self.emit.join(self.exchange.receive(what, source, at, micro_batch, size, ready))

    def _reduce_tied(self) -> None:
        self._make_deferred()
        tied = sum(stage.tied_bytes for stage in self.chunks)
        if tied:
            call = Call("all_reduce", "tied", tied)
            waits = self.b.last_on("compute")
            self.emit.join((self.b.collective("all-reduce tied gradients", call, waits=waits),))

    def _reduce_gradients(self) -> None:
        self.emit.join(self.exchange.take_batch())
        for engine in self.engines:
            engine.reduce_gradients()
        if self.layout.shape == "both":
            self._sum_copies()

    def _sum_copies(self) -> None:
        """DualPipe: each part of the model is on two ranks of a replica; both sum in one order.

        The published code leaves this to its user: one exposed all-reduce per part is assumed.
        """
        width = COMPUTE_DTYPE_BYTES[self.plan.precision]
        for stage in sorted(self.chunks, key=lambda stage: self.layout.of_model(stage.index)):
            size = sum(unit.numel for unit in stage.units) * width
            waits = self.b.last_on("compute")
            call = Call("all_reduce", "copies", size)
            self.emit.join((self.b.collective("all-reduce copies", call, waits=waits),))

    def _optimizer_step(self) -> None:
        pending = self.emit.take_pending()
        if pending:
            self.b.compute("gradients ready", "collective", 0.0, launches=0, waits=pending)
        self.whole.step()
        self._read_timers()
        if self.plan.mesh.pp > 1 and self.plan.engine == "deepspeed":
            # The last stage averages the loss over replicas and tells every stage (pipe/engine.py).
            waits = self.b.last_on("compute")
            if self.at.pp == self.plan.mesh.pp - 1 and self.plan.mesh.dp > 1:
                waits = (self.b.collective("loss", Call("all_reduce", "dp", 4), waits=waits),)
            told = self.b.collective("loss", Call("broadcast", "pp", 8), waits=waits)
            self.b.sync("loss", (told,))


def is_output(unit: Unit) -> bool:
    """Whether it is Megatron's output layer, not its loss."""
    return bool(unit.weights.seconds) and unit.modules[0].cls == OUTPUT_LAYER
