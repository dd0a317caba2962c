"""The training steps of one worker without a GPU: torch really runs, the tower says what it takes.

Real counterpart: a rank on torch's ``cpu`` device with gloo. Values are torch's own, on this
machine: losses, weights, files. Gradients are averaged between the ranks where DDP does it, in
``backward``; what a step takes, gloo's all-reduces included, is the training tower's prediction for
the traced model on the catalog's ``cpu-rank``, and occupies a core of the rank's node when the
weights are updated, so that ranks without a core each, and other tasks, slow it down.

The first step of each role (a model, the shapes it is given, how it is wrapped) is traced. A model
that cannot be traced costs nothing, which is said once.

Not modelled: several threads of a rank, processes of a DataLoader (its batches are made in the
rank, for free), collectives of a script's own beyond ``all_reduce``, ``all_gather``, ``broadcast``
and ``barrier``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import torch

from raysim.errors import ScenarioError
from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, NodeGroup
from raysim.hardware.specs import CpuRankSpec
from raysim.models.table import Model
from raysim.perf.cpu_rank import gloo_s
from raysim.rayapi.calls import this_fiber
from raysim.rayapi.compute import use_cores
from raysim.rayapi.library_code import play
from raysim.rayapi.shapes import prediction
from raysim.rayapi.shapes.known import META
from raysim.rayapi.shapes.mode import Tape, TapeMode
from raysim.rayapi.shapes.optimizers import optimizer_of
from raysim.rayapi.shapes.plans import describe, wrapping_in
from raysim.rayapi.shapes.prediction import Prediction
from raysim.tracing import trace
from raysim.tracing.operators import tensors
from raysim.training.compiler.feed import Feed
from raysim.units import NS_PER_S

if TYPE_CHECKING:
    from raysim.rayapi.train.worker import Worker
    from raysim.raylibs.train.gang import Gang

NODE = "cpu-ranks-2"
"""Of the catalog: a host whose cores are ranks."""


@dataclass(kw_only=True)
class CpuShared:
    """What the ranks of a run know together."""

    models: dict[Any, Model | None] = field(default_factory=dict)
    """By role; None: it cannot be traced."""
    predictions: dict[Any, Prediction] = field(default_factory=dict)
    steps: dict[int, tuple[Prediction, int]] = field(default_factory=dict)
    """Optimizer steps under each prediction, of rank 0; by its identity."""
    brought: dict[Any, dict[int, Any]] = field(default_factory=dict)
    """By group and collective: what each rank has brought."""


class CpuSteps:
    """Of one worker."""

    def __init__(self, worker: Worker, shared: CpuShared) -> None:
        self.worker = worker
        self.shared = shared
        self.within: Any = None
        """What a library has wrapped the modules in that its steps call (``rayapi.lightning``)."""
        self._inside = False
        """A model, or a backward, is under way: what it calls belongs to it."""
        self._module: Any = None
        self._key: Any = None
        self._example: Any = None
        self._outputs: Any = None
        self._mode: TapeMode | None = None
        self._micro = self._forwards = self._collectives = 0
        self._batch = 1
        self._first = True

    @property
    def gang(self) -> Gang:
        """Its group."""
        return self.worker.context.gang

    # ---- forward and backward --------------------------------------------------------------------

    def forward(self, run: Callable[..., Any], module: Any, args: Any, kwargs: Any) -> Any:
        """Any module's call; the outermost one that learns is the model's."""
        if self._inside or not torch.is_grad_enabled() or not _learns(module):
            return run(module, *args, **kwargs)
        self._stop_tape()
        given = list(tensors((args, kwargs)))
        key = type(module).__qualname__, id(module), tuple((t.shape, t.dtype) for t in given)
        self._inside = True
        try:
            outputs = run(module, *args, **kwargs)
        finally:
            self._inside = False
        self._module, self._key = module, key
        self._batch = int(given[0].shape[0]) if given and given[0].dim() else 1
        self._forwards += 1
        if self._role not in self.shared.models:
            self._example = kwargs if kwargs and not args else args
            self._outputs = outputs
            self._mode = TapeMode(Tape(outputs))
            self._mode.__enter__()  # type: ignore[no-untyped-call]
        return outputs

    @property
    def _role(self) -> Any:
        """Alike for all ranks: without the module's identity."""
        return self._key[0], self._key[2], _shapes(self._module)

    def backward(self, run: Callable[..., Any], loss: Any, *args: Any, **kwargs: Any) -> Any:
        """``loss.backward()``: gradients, averaged if the model's wrapper does."""
        if self._inside:
            return run(loss, *args, **kwargs)
        mode = self._stop_tape()
        self._inside = True
        try:
            found = run(loss, *args, **kwargs)
        finally:
            self._inside = False
        if self._module is None:
            return found
        if mode is not None and self._role not in self.shared.models:
            self.shared.models[self._role] = self._traced(mode.tape, loss)
        self._micro += 1
        wrapped = self.within or self._module
        wrapping = describe(wrapped)
        if wrapping.meets and getattr(wrapped, "raysim_syncs", True):
            self._average(p for p in wrapping.module.parameters() if p.requires_grad)
        return found

    def _stop_tape(self) -> TapeMode | None:
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return mode

    def _traced(self, tape: Tape, loss: Any) -> Model | None:
        before, example = self._outputs, self._example
        self._outputs = self._example = None
        module = describe(self._module).module
        own = any(t is loss for t in tensors(before))
        self._inside = True
        try:
            return trace(
                module, example, name=type(module).__name__,
                loss=None if own else lambda outputs: tape.replay(loss, outputs, to=META),
            )  # fmt: skip
        except (ScenarioError, ValueError, RuntimeError) as error:
            sys.stderr.write(
                f"raysim: the time of training {type(module).__name__} is not predicted, "
                f"and costs nothing: {error}\n"
            )
            return None
        finally:
            self._inside = False

    # ---- the update ------------------------------------------------------------------------------

    def step(self, run: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """``optimizer.step()``: the whole step has passed when it returns."""
        found = run(optimizer, *args, **kwargs)
        model = self.shared.models.get(self._role) if self._micro else None
        if model is not None:
            self._take(self._predicted(model, optimizer))
        self._micro = self._forwards = 0
        return found

    def _take(self, found: Prediction) -> None:
        """On a core of the node; all ranks of one model end it together."""
        worker, gang = self.worker, self.gang
        worker.steps += 1
        if worker.context.rank == 0:
            found.counted_in(self.shared.steps)
        use_cores(this_fiber(), found.step_ns / NS_PER_S, 1.0)
        this_fiber().settle()
        play(lambda process: gang.step(process, worker.context.rank, 0))
        worker.run.session.enough.step_taken(worker, self.shared)

    def _predicted(self, model: Model, optimizer: Any) -> Prediction:
        gang, wrapping = self.gang, wrapping_in(self._module, self.within)
        each = max(1, self._forwards // self._micro)
        plan = wrapping.plan(
            model, world_size=self.worker.context.world_size, micro_batch=self._batch * each,
            accumulation=self._micro, optimizer=optimizer_of(optimizer), autocast=None,
            clipping=0.0,
        )  # fmt: skip
        plan = replace(plan, constants=self.worker.run.session.training)
        nothing: Any = None  # the model by its identity: comparing two takes long
        where = tuple((node, len(ranks)) for node, ranks in gang.nodes.items())
        key = replace(plan, model=nothing), id(model), where
        if key not in self.shared.predictions:
            cluster = _cluster(gang, alone=not wrapping.meets)
            seed = gang.env.sim.rng.seed
            self.shared.predictions[key] = prediction.predict(plan, cluster, Feed(), seed)
        return self.shared.predictions[key]

    # ---- between ranks ---------------------------------------------------------------------------

    def together(self, value: Any) -> dict[int, Any]:
        """All ranks bring something, and wait for the last; what they have brought."""
        self._collectives += 1
        key = id(self.gang), self._collectives
        brought = self.shared.brought.setdefault(key, {})
        brought[self.worker.context.rank] = value
        this_fiber().settle()
        play(self.gang.meet)
        self.shared.brought.pop((id(self.gang), self._collectives - 1), None)
        return brought

    def _average(self, parameters: Any) -> None:
        """Gradients of all ranks; their time is part of the step's."""
        mine = [p for p in parameters if p.grad is not None]
        brought = self.together([p.grad.clone() for p in mine])
        with torch.no_grad():
            for index, p in enumerate(mine):
                p.grad.copy_(sum(grads[index] for grads in brought.values()) / len(brought))

    def wraps(self) -> None:
        """A model in DDP, or weights in an optimizer: the first imports torch's compiler."""
        if self._first:
            self._first = False
            use_cores(this_fiber(), self.gang.env.costs.train_torch_core_s, 1.0)

    def same_weights(self, module: Any) -> None:
        """DDP's constructor: those of rank 0; no time."""
        state = [*module.parameters(), *module.buffers()]
        brought = self.together([t.detach().clone() for t in state])
        with torch.no_grad():
            for mine, first in zip(state, brought[0], strict=True):
                mine.copy_(first)

    def collective(self, op: Any, tensor: Any, made: Callable[[dict[int, Any]], Any]) -> None:
        """One of a script's own, by gloo."""
        brought = self.together(tensor.detach().clone())
        with torch.no_grad():
            tensor.copy_(made(brought))
        self._pay(op, tensor.nbytes, len(brought))

    def gather(self, outputs: Iterable[Any], tensor: Any) -> None:
        """``all_gather``: of each rank, in order."""
        brought = self.together(tensor.detach().clone())
        with torch.no_grad():
            for rank, output in enumerate(outputs):
                output.copy_(brought[rank])
        self._pay("all_gather", tensor.nbytes * len(brought), len(brought))

    def _pay(self, op: Any, size_bytes: int, ranks: int) -> None:
        use_cores(this_fiber(), sum(gloo_s(op, size_bytes, ranks, _rank(self.gang))), 1.0)


def _learns(module: Any) -> bool:
    """Whether it is a model to train, and not what hands calls on to one."""
    return not getattr(module, "raysim_hands_on", False) and any(
        p.requires_grad for p in module.parameters()
    )


def _shapes(module: Any) -> int:
    return hash(tuple((n, tuple(p.shape), p.dtype) for n, p in module.named_parameters()))


def _rank(gang: Gang) -> CpuRankSpec:
    """That of the gang's nodes, if a profile says one; else the catalog's."""
    there = gang.env.nodes[next(iter(gang.nodes))].spec.gpu
    return there if isinstance(there, CpuRankSpec) else cast("CpuRankSpec", catalog.node(NODE).gpu)


def _cluster(gang: Gang, *, alone: bool) -> ClusterSpec:
    """Hosts whose cores are the ranks."""
    nodes = dict(list(gang.nodes.items())[:1]) if alone else gang.nodes
    most = max(len(ranks) for ranks in nodes.values())
    there = gang.env.nodes[next(iter(nodes))].spec
    host = replace(
        catalog.node(NODE), vcpus=most, gpu=_rank(gang), gpu_count=most, nic=there.nic,
        nic_count=there.nic_count, memory_bytes=there.memory_bytes,
    )  # fmt: skip
    return ClusterSpec(groups=(NodeGroup(name="workers", node=host, count=len(nodes)),))
