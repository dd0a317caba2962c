"""The training steps of one worker: forward, backward and update as a script calls them.

Real counterpart: the worker's GPU. It works in the background: a forward or a backward is queued,
and whoever asks for a value, synchronizes or updates the weights waits for it. All ranks meet where
the weights are updated; there the rest of the step's time passes.

The first step of each role (a model, the shapes it is given, how it is wrapped) really runs, on
shapes, and is traced once for all ranks. Later steps of that role are not run: the model answers
with outputs of the shapes it had, ``backward`` makes no gradients, optimizers find nothing to do.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from raysim.errors import ScenarioError
from raysim.hardware.cluster import ClusterSpec
from raysim.models.table import Model
from raysim.rayapi.calls import this_fiber
from raysim.rayapi.huggingface.four_bit import stored_as_asked
from raysim.rayapi.huggingface.tables import table_of
from raysim.rayapi.library_code import play
from raysim.rayapi.shapes import prediction, roles
from raysim.rayapi.shapes.apart import apart
from raysim.rayapi.shapes.bare import bare
from raysim.rayapi.shapes.beside import Beside
from raysim.rayapi.shapes.compiled import is_mostly_compiled
from raysim.rayapi.shapes.held import holding
from raysim.rayapi.shapes.hooks import Hooks, after_backward
from raysim.rayapi.shapes.known import with_values
from raysim.rayapi.shapes.loose import Loose
from raysim.rayapi.shapes.mode import ShapesMode, Tape, no_value
from raysim.rayapi.shapes.optimizers import Optimizers
from raysim.rayapi.shapes.own_work import OwnWork
from raysim.rayapi.shapes.plans import Wrapping, asked_tf32, describe, wrapping_in
from raysim.rayapi.shapes.prediction import Forward, Peaks, Prediction
from raysim.rayapi.shapes.roles import Role, again, call_key, example_of, role_of, signature_of
from raysim.rayapi.shapes.several import Several
from raysim.rayapi.shapes.shared import AskedFor, Shared
from raysim.rayapi.shapes.sizes import mean_of
from raysim.rayapi.shapes.spread import degree, heard, spread
from raysim.rayapi.train.environment import host_pool
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.tracing import Script, trace
from raysim.tracing.autocast import Casts
from raysim.tracing.operators import tensors
from raysim.tracing.walk import in_compiled_function
from raysim.training.compiler.feed import Feed
from raysim.training.plan import TrainingPlan
from raysim.training.settings.deepspeed import Optimizer

if TYPE_CHECKING:
    from raysim.rayapi.shapes.roles import Recomputing
    from raysim.rayapi.train.worker import Worker


class Steps:
    """Of one worker."""

    sync = True  # backwards reduce gradients: no ``no_sync`` is around them, nor was it asked for

    def __init__(self, worker: Worker, shared: Shared) -> None:
        self.worker = worker
        self.shared = shared
        self.mode = ShapesMode(self)
        self.feed: Feed | None = None
        """What the latest batch of a loader costs; None: the step before has paid for it."""
        self.latest: Prediction | None = None
        """Of the last step taken."""
        self.peaks = Peaks()
        self.clipping = 0.0
        self.scales = False
        """A ``GradScaler`` takes the steps."""
        self.compiled = False
        """The script has called ``torch.compile``."""
        self.cuda_graphs = False
        """In a mode that replays CUDA graphs."""
        self.recomputes: Recomputing = ""
        """The model has called ``torch.utils.checkpoint``."""
        self.half: torch.dtype | None = None
        """The model has entered autocast, as Accelerate puts it around ``forward``."""
        self.steady = False
        """The model under way answered without being run."""
        self.inside = False
        """A model runs: what it calls belongs to it."""
        self.within: Any = None
        """What a library has wrapped the modules in that its steps call (``rayapi.lightning``)."""
        self.whole: Any = None
        """Such a step, under way: several modules that it calls are one model."""
        self._key: AskedFor | None = None
        self._example: Any = None
        self._outputs: Any = None
        """Of a forward that was run, until its backward."""
        self._module: Any = None
        self._signatures: dict[int, tuple[Any, AskedFor | None]] = {}
        """By module's identity, with the module, which thus keeps it."""
        self._found: dict[Any, Prediction] = {}
        """What was asked before, by what tells one step from another at a glance."""
        self._batches = Counter[AskedFor]()  # of the step's backwards
        self._micro = self._reduced = self._forwards = 0
        """Backwards of the step, those with ``sync``, forwards since the last."""
        self._zeroes_late, self._repeats = False, False
        """The latter: a step has called its module twice that had called it once before."""
        self._views = 1
        """Forwards whose outputs one backward is of: a batch so many times as large."""
        self._paid_ns = self.queued_ns = 0  # the latter: of the GPU's work, what nobody waited for
        self._evaluated_ns = 0  # likewise, of forwards that are no part of a step
        self._gradients = False
        """A backward has made gradients, for optimizers of the script's own."""
        self.hooks, self.optimizers = Hooks(), Optimizers(self)
        self.own, self.beside = OwnWork(self), Beside(self)
        self.loose, self.several = Loose(self), Several(self)

    # ---- forward ---------------------------------------------------------------------------------

    def forward(self, run: Callable[..., Any], module: Any, args: Any, kwargs: Any) -> Any:
        """The outermost call of a module with parameters."""
        learns = torch.is_grad_enabled() and self.beside.learns(module, args, kwargs)
        learns = learns and not self.worker.only_asks(module)
        key = self._key_of(module, args, kwargs, learns=learns)
        if self.whole is not None and self.whole.takes(module):
            return self.whole.call(self._run, run, module, key, args, kwargs)
        role = self.shared.roles.get(key)
        if not learns:
            return self.beside.evaluate(partial(self._run, run), module, key, role, args, kwargs)
        another = self._is_another(module) if self._key else self.several.returns(module)
        if self.several.on or another:
            if not self.several.on:
                self.begin_several(module)
            return self.several.forward(partial(self._run, run), module, key, args, kwargs)
        self._key, self._module, self.own.paused = key, module, False
        self._forwards += module.training
        role = role or self.shared.between(key, args, kwargs, self.say)
        if self.latest is not None:
            self.queued_ns += self.latest.passes_ns[0]
        self.steady = role is not None and role.model is not None
        if role is not None and self.steady:
            self._repeats = self._repeats or (self._forwards > 1 and self._alone(module))
            return again(role.outputs)
        self.recomputes, self.half = "", None
        self._example = example_of(describe(module).module, args, kwargs)
        outputs = self._run(run, module, args, kwargs)
        if role is None:  # else another rank runs it too, and will trace it
            self.shared.roles[key] = replace(
                role_of(outputs, (args, kwargs)), recomputes=self.recomputes, half=self.half
            )
        self.mode.tape, self._outputs = Tape(outputs), outputs
        self.several.latest = module, key, args, kwargs, outputs
        return outputs

    def _is_another(self, module: Any) -> bool:
        """Whether a step calls another module, or the same once more before its backward."""
        if self._module is not module:
            return True
        waits = self.mode.tape is not None and (module.training or self.latest is None)
        return waits and self._alone(module)

    def _alone(self, module: Any) -> bool:
        """Whether several of its forwards can be told apart: no engine shards it."""
        return self.within is None and describe(module).engine == "ddp"

    def begin_several(self, module: Any) -> None:
        """The step under way is of several forwards."""
        waits = self.several.latest if self._forwards and self.mode.tape is not None else None
        tries = module is self._module
        self.several.begin(self._key, self._module, self._micro, waits, tries=tries)
        self.forget_forward()

    def forget_forward(self) -> None:
        """What was called was but a part of the model."""
        self._key = self._module = self._example = self._outputs = self.mode.tape = None
        self._forwards = self.queued_ns = 0
        self._batches.clear()

    def _run(self, run: Callable[..., Any], module: Any, args: Any, kwargs: Any) -> Any:
        self.inside = True
        try:
            return run(module, *args, **kwargs)
        except RuntimeError:  # 16 bits that a frozen model made meet fp32, say, which CUDA casts
            half = self.half or roles.half_here()
            if not half:
                raise
            with Casts(half, torch.Tensor.to).running():
                return run(module, *args, **kwargs)
        finally:
            self.inside = False

    def _key_of(self, module: Any, args: Any, kwargs: Any, *, learns: bool) -> AskedFor:
        how = {"learns": learns, "goes_on": self.mode.generates}
        return call_key(self.signature(module), args, kwargs, roles.half_here(), **how)

    def signature(self, module: Any) -> AskedFor | None:
        """What tells its parameters from others'; None: it has none."""
        known = self._signatures.get(id(module))
        if known is None:
            known = self._signatures[id(module)] = module, signature_of(module)
        return known[1]

    def forget_signatures(self) -> None:
        """Modules are no longer what they were."""
        self._signatures.clear()
        self.beside.forget()

    def evaluated(self, forward: Forward, *, within: bool) -> None:
        """A forward that learns nothing is queued; ``within``: it is part of the step under way."""
        if within:
            self.queued_ns += forward.ns
            self.own.called(forward)
        else:
            self._evaluated_ns += self.worker.queues(forward)

    # ---- backward --------------------------------------------------------------------------------

    def backward(self, loss: torch.Tensor, *, gradients: bool = True) -> None:
        """``loss.backward()``: no gradients, but what they take."""
        if self._key is not None and not self.several.on and self.several.asked(self.mode.tape):
            self.begin_several(self._module)
        if self.several.on:
            self.several.backward(loss)
            self.optimizers.has_gradients = gradients
            after_backward(self)
            return
        if self._key is None or self._after_backward():
            return
        role = self.shared.roles[self._key]
        if role.model is None:
            role.held, role.lasts = holding(self._outputs)
            role.model = self._trace(loss)
        self.mode.tape = self._example = self._outputs = None
        self._micro += 1
        self._batches[self._key] += 1
        self._reduced += self.sync and getattr(self._module, "require_backward_grad_sync", True)
        if self.latest is not None:
            self.queued_ns += self.latest.passes_ns[1]
        self._gradients = self._gradients or gradients
        self.optimizers.has_gradients = gradients
        after_backward(self)

    def _after_backward(self) -> bool:
        """A second backward of one forward: nothing of its own, in a step's prediction."""
        if not self._forwards and self._micro:
            return True
        self._views, self._forwards = max(1, self._forwards), 0
        return False

    def _trace(self, loss: torch.Tensor) -> Model:
        tape, before = self.mode.tape, self._outputs
        assert tape is not None, "a role without a model that was not run"
        assert self._key is not None, "a trace before a forward"
        role, wrapping = self.shared.roles[self._key], wrapping_in(self._module, self.within)
        inside = any(t is loss for t in tensors(before))
        own = getattr(before, "loss", None) is loss

        def again(outputs: Any) -> torch.Tensor:
            if inside:
                there = dict(zip(map(id, tensors(before)), tensors(outputs), strict=True))
                return there[id(loss)]
            return tape.replay(loss, outputs)

        self.mode.tape = None
        tape.hold()
        kept = partial(role.learn_kept, self._example)
        half = self._key[3] or role.half
        found = table_of(wrapping.module, self._example) if degree(self, wrapping) == 1 else None
        if found:
            role.learn_table(self._example, wrapping.cast_by(half))
        else:
            with self.tracing(self._module):
                found = trace(
                    wrapping.module, with_values(self._example), loss=None if own else again,
                    name=type(wrapping.module).__name__, autocast=wrapping.cast_by(half),
                    say=self.say, script=Script(
                        unknown=no_value, held=tape.held, kept=kept, lets_go=not role.held,
                        casts_itself=role.learn_casts,
                    ),
                )  # fmt: skip
        return stored_as_asked(found, wrapping.module)

    def say(self, message: str) -> None:
        """Tell the user, once."""
        if message not in self.shared.said:
            self.shared.said.add(message)
            sys.stderr.write(f"raysim: {message}\n")

    @contextmanager
    def tracing(self, module: Any) -> Iterator[None]:
        """What a model recomputes is the plan's; the tracer refuses those that say so."""
        self.inside = self.mode.tracing = True
        try:
            with bare(module), heard(self, module):
                yield
        finally:
            self.inside = self.mode.tracing = False

    # ---- pipelines -------------------------------------------------------------------------------

    def begin_pipeline(self, module: Any, batch: Any, *, learns: bool = True) -> AskedFor:
        """A step of a model whose stages ranks share; what tells its micro-batches from others."""
        key = self._key_of(module, (batch,), {}, learns=True)
        if learns:
            self._key, self._module = key, module
        return key

    def pipeline_ran(self, micro_batches: int) -> None:
        """Forward and backward of a step, whose time passes at the update."""
        self._micro += micro_batches
        self._gradients = self.optimizers.has_gradients = True
        after_backward(self)

    # ---- the update ------------------------------------------------------------------------------

    def step(self, run: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """``optimizer.step()``: the whole step has passed when it returns."""
        loss = None
        closure = args[0] if args else kwargs.get("closure")
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.several.on:
            self.several.step(run, optimizer, self.optimizers.of(run, optimizer))
        elif self._micro and self._key is not None:
            own = self.optimizers.of(run, optimizer)
            if in_compiled_function():
                own = replace(own, fused=True)
            self.take_step(self.asked(self._micro, own), optimizer=optimizer)
        if self._gradients:
            self.optimizers.begin(run, optimizer)
            self.optimizers.worked(optimizer)
        return loss

    def update_by_hand(self) -> None:
        """A script without optimizers asks for its first gradient: it updates weights in a loop."""
        if self._micro and self._key is not None and not self.optimizers.made:
            self.take_step(self.asked(self._micro, Optimizer(type="SGD", foreach=False)))
            self.own.paused = True  # what it does with them is that step's

    def take_step(self, found: Prediction, more_ns: int = 0, optimizer: Any = None) -> None:
        """All ranks meet, and what is left of the step passes, and ``more_ns``."""
        rest_ns = max(0, found.step_ns + more_ns - self._paid_ns) + self._evaluated_ns
        timed = self.latest is not None
        if self._module is not None and not self.several.on:
            self.several.stepped(self._module)
        self._micro = self.queued_ns = self._paid_ns = self._forwards = self._evaluated_ns = 0
        self._key, self.feed, self._reduced = None, None, 0
        if self._repeats and not self.several.on:
            self.several.begin(None, None, 0, None, tries=False)
        self.own.step_taken()
        if not found.fits:
            self.shared.too_large = found
            raise prediction.out_of_memory(found)
        self.latest = self.peaks.taken(found)
        worker = self.worker
        worker.took(found)
        if worker.context.rank == 0:
            found.counted_in(self.shared.steps)
            if timed:
                self.shared.paces.step_taken(optimizer, found.step_ns + more_ns)
        gang, rank = worker.context.gang, worker.context.rank
        this_fiber().settle()
        play(lambda process: gang.step(process, rank, rest_ns))
        worker.run.session.enough.step_taken(worker, self.shared)

    @property
    def between_passes(self) -> bool:
        """A forward has run whose backward has not: what is called makes the loss."""
        return self._forwards > 0 or self.several.pending

    @property
    def waits_ns(self) -> int:
        """How long whoever waits for the GPU would."""
        return self.queued_ns + self._evaluated_ns

    def synchronize(self) -> None:
        """Wait for what has been queued."""
        self.own.waited()
        queued_ns, learns = self.waits_ns, self.queued_ns > 0
        if queued_ns:
            self._paid_ns += self.queued_ns
            self.queued_ns = self._evaluated_ns = 0
            self.worker.phase("steps" if self._micro else "between")
            self.worker.waits_for_gpu(queued_ns, learns=learns)

    def zeroes(self, owner: Any) -> None:
        """``zero_grad()``: late between a forward and its backward."""
        self.several.zeroes(owner)
        self.optimizers.has_gradients = False
        self._zeroes_late = self._zeroes_late or (self._forwards > 0 and not self._micro)

    # ---- what it takes ---------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        """Of the run."""
        return self.worker.context.gang.env.sim.rng.seed

    @property
    def host_threads(self) -> int | None:
        """By which torch works on the CPU; None: as many as the worker's cores."""
        return host_pool(self.worker).threads

    def feed_of(self, role: Role) -> Feed:
        """What its batch costs the host."""
        return self.feed or Feed(copy_bytes=role.input_bytes)

    def asked_of(
        self, key: Any, module: Any, accumulation: int, reduced: int, optimizer: Any
    ) -> Prediction:
        """Of a phase of several modules' step, beside whose weights others lie."""
        self._key, self._module, self._views, self._reduced = key, module, 1, reduced
        return self.asked(accumulation, optimizer)

    def asked(
        self, accumulation: int, optimizer: Optimizer | None = None, key: AskedFor | None = None
    ) -> Prediction:
        """Of the step under way, or one of such forwards; an engine has its own optimizer."""
        batches, self._batches = self._batches, Counter()
        if len(batches) > 1 and any(self.shared.roles[k].between for k in batches):
            return mean_of(
                [(self.asked(accumulation, optimizer, k), n) for k, n in batches.items()]
            )
        key = key or self._key
        assert key is not None, "an update without a forward"
        role = self.shared.roles[key]
        assert role.model is not None, "an update of a model without backward"
        alike = (
            self._views, accumulation, self._reduced > 1, optimizer, self.clipping, self.scales,
            asked_tf32(),
        )  # fmt: skip
        if role.between:
            ask = partial(self.asked, accumulation, optimizer)
            return self.shared.sizes.step(role, (*alike, self.latest is None), ask)
        wrapping = apart(self, spread(self, wrapping_in(self._module, self.within)), role.model)
        others = (
            self.beside.trained(self._module) + self.several.idle_bytes,
            self.beside.script_bytes(role, self.mode.alive, whole=wrapping.engine == "ddp"),
        )
        feed = wrapping.fed(self.own.feed(self.feed, role.input_bytes, accumulation), role.model)
        glance = id(self._module), key, alike, feed, others
        if glance in self._found:
            return self._found[glance]
        plan = wrapping.plan(
            role.model,
            world_size=self.worker.context.world_size,
            micro_batch=role.batch * self._views,
            accumulation=accumulation,
            reduces_each=self._reduced > 1,
            optimizer=optimizer,
            autocast=key[3] or role.half,
            casts=role.casts,
            clipping=self.clipping,
            scales=self.scales,
        )
        compiled = self.compiled and is_mostly_compiled(role.model)
        plan = replace(
            plan, constants=self.worker.run.session.training, torch_compile=compiled,
            cuda_graphs=compiled and self.cuda_graphs, output_lasts=role.lasts,
            activation_checkpointing="full" if role.recomputes else "none",
            reentrant_checkpoints=role.recomputes == "reentrant",
            keeps_output=role.held, zeroes_late=self._zeroes_late, host_pool=host_pool(self.worker),
        )  # fmt: skip
        found = self.predicted(plan, role, wrapping, feed)
        found = self._found[glance] = self.shared.with_others(found, others)
        return found

    def cluster(self, *, alone: int) -> ClusterSpec:
        """The GPUs of all ranks, or so many of one."""
        gang = self.worker.context.gang
        fabric = self.worker.run.session.cluster.spec.fabric
        found = prediction.cluster_of(gang.env, fabric, gang, alone=alone)
        if found.gpu is None:
            raise NotEmulatedError(
                "training with torch on CPUs", "ScalingConfig(use_gpu=True) on nodes with GPUs"
            )
        return found

    def predicted(
        self, plan: TrainingPlan, role: Role, wrapping: Wrapping, feed: Feed
    ) -> Prediction:
        """Asked once for all ranks."""
        known, gang = self.shared.predictions, self.worker.context.gang
        where = tuple((node, tuple(ranks)) for node, ranks in gang.nodes.items())
        nothing: Any = None  # the model by its identity: comparing two takes long
        key = replace(plan, model=nothing), id(role.model), feed, where
        if key not in known:
            meet = wrapping.meets or plan.mesh.world == self.worker.context.world_size
            cluster = self.cluster(alone=0 if meet and not wrapping.gpus else plan.mesh.world)
            try:
                found = prediction.predict(plan, cluster, feed, self.seed)
                known[key] = replace(found, gpus=wrapping.gpus, copied_to=wrapping.copied_to)
            except ScenarioError as error:
                raise RuntimeError(f"raysim cannot predict this step: {error}") from error
        return known[key]
