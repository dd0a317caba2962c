"""What every data-parallel engine needs to know, and the protocol the compiler drives it by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from raysim.hardware.specs import CpuSpec
from raysim.models.table import COMPUTE_DTYPE_BYTES
from raysim.perf.compute import ComputeModel
from raysim.perf.nvme import Volume
from raysim.perf.optimizer import optimizer_key
from raysim.training.layers.sections import Gradient, Unit, weights_of
from raysim.training.plan import TrainingPlan
from raysim.training.program import COMPUTE, Call, ProgramBuilder
from raysim.training.settings.deepspeed import Precision
from raysim.training.states.optimizer import (
    muon_shapes,
    state_bytes_per_element,
    step_temporaries,
)
from raysim.training.states.zero import FlatGroup, flat_groups, optimizer_state_bytes

SCALAR_BYTES = 4
OVERFLOW_CHECK = "overflow.item()"
"""The host's wait for the flag: a step that overflows ends there."""
NORM_KERNELS, NORM_BYTES = 2, 16
"""Per gradient, of ZeRO's norms: cast to fp64, then the norm, per element written and read."""
FLAG_BYTES = 1
"""The overflow flag is a ByteTensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    """One rank's view: its plan, its program so far, the units it runs and the host under it."""

    plan: TrainingPlan
    builder: ProgramBuilder
    costs: ComputeModel
    units: tuple[Unit, ...]
    """All units of the stage in forward order."""
    cpu: CpuSpec
    ranks_per_node: int
    copy_bytes_per_s: float
    """Host to GPU, or back, while every GPU of the node copies."""
    volume: Volume | None
    """What ``nvme_path`` is on; None: the node has no disk."""
    model_parallel: int
    """Pipeline stages times tensor-parallel ranks: the group the gradient norm is summed over."""
    sm_s: Callable[[Call], float] = lambda _: 0.0
    """What a collective takes of the GPU: its seconds times the share of the SMs it holds."""

    def host_pass_s(self, size_bytes: float) -> float:
        """One plain pass of this rank's threads over main memory, while all ranks do as much."""
        return self.costs.host_pass_s(
            size_bytes, self.cpu, self.ranks_per_node, self.plan.host_pool
        )

    @property
    def ranks(self) -> int:
        """Data-parallel size N: ranks that hold the same weights."""
        return self.plan.mesh.weight_ranks

    @property
    def numel(self) -> int:
        """Trainable elements of this stage's shard."""
        return sum(u.numel for u in self.units)

    @property
    def built(self) -> list[Gradient]:
        """Trainable parameters in the order of ``named_parameters()``: DeepSpeed's flat order."""
        place = {name: i for i, name in enumerate(self.plan.model.built)}
        gradients = (g for u in self.units for g in u.gradients)
        return sorted(gradients, key=lambda g: place[g.name])

    @property
    def flat_groups(self) -> tuple[FlatGroup, ...]:
        """What DeepSpeed flattens together."""
        mesh = self.plan.mesh
        experts = mesh.expert_ranks if self.plan.moe_groups else None
        found = flat_groups(self.built, self.ranks, experts)
        if self.plan.zero.round_robin_gradients and self.plan.zero.stage in {1, 2}:
            return tuple(g.in_turns for g in found)
        return found

    @property
    def expert_groups(self) -> tuple[str, ...]:
        """Of ranks that share a mixture's experts, once each."""
        found = (g.sharers for g in self.flat_groups if g.group != "dp" and g.ranks < self.ranks)
        return tuple(dict.fromkeys(found))

    @property
    def stored_bytes(self) -> int:
        """Of all parameters stored here, frozen ones included."""
        return sum(self.weight_tensors)

    @property
    def tensors(self) -> int:
        """Trainable parameter tensors."""
        return len(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each of them."""
        return tuple(g.numel for u in self.units for g in u.gradients)

    @property
    def matrices(self) -> int:
        """Of them, those of two or more dimensions."""
        return sum(g.matrix for u in self.units for g in u.gradients)

    @property
    def on_muon(self) -> Counter[tuple[int, int]]:
        """Matrices of the whole model that Muon orthogonalizes, by rows and columns."""
        o = self.plan.optimizer
        key = optimizer_key(o.type, momentum=o.momentum)
        return muon_shapes(self.plan) if key == "muon" else Counter()

    @property
    def weight_tensors(self) -> tuple[int, ...]:
        """Bytes of each stored weight, as the modules made them."""
        return tuple(self._stored().values())

    def _stored(self) -> dict[str, int]:
        """Bytes of each stored weight by its name."""
        width = self.weight_bytes
        return {name: g.size_bytes(width) for name, g in weights_of(self.units).items()}

    def flatten_weights(self, *, clones: bool = False, on_host: bool = False) -> None:
        """One flat group in the place of the trained weights; frozen ones stay as they are.

        ``clones``: each is copied before. ``on_host``: where the GPU has no room for both, the
        weights leave it and come back flat (``stage_1_and_2.py``, ``flatten_on_accelerator``).
        """
        b, stored = self.builder, self._stored()
        trained = {g.name for u in self.units for g in u.gradients}
        frozen = [size for name, size in stored.items() if name not in trained]
        built = [size for name, size in stored.items() if name in trained]
        b.alloc("parameter", sum(frozen), "frozen weights", tensors=frozen)
        copied = [numel * self.weight_bytes for numel in self.sizes] if clones else []
        flats = [g.numel * self.weight_bytes for g in self.flat_groups]
        flat = sum(flats)
        gpu = self.costs.gpu
        if on_host and sum(frozen) + sum(built) + flat > gpu.memory_bytes - gpu.context_bytes:
            built = []
        b.scratch(sum(built), "weights as built", built)
        b.scratch(sum(copied), "clones", copied)
        b.alloc("parameter", flat, "weights", tensors=flats)
        b.free_scratch(sum(copied), "clones")
        b.free_scratch(sum(built), "weights as built")

    def states(self, size_bytes: float) -> tuple[int, ...]:
        """Optimizer states of a tensor, in bytes, one by one: Adam keeps two moments."""
        count = max(1, round(optimizer_state_bytes(self.plan.optimizer) / 4))
        each, whole = round(size_bytes / count), round(size_bytes)
        return (*(each,) * (count - 1), whole - each * (count - 1)) if whole else ()

    @property
    def weight_bytes(self) -> int:
        """Bytes per stored weight element."""
        return COMPUTE_DTYPE_BYTES[self.plan.precision]

    @property
    def comm_bytes(self) -> int:
        """Bytes per gradient element on the wire."""
        wire: Precision = self.plan.communication_data_type or self.plan.precision
        return COMPUTE_DTYPE_BYTES[wire]

    @property
    def master_bytes(self) -> float:
        """Bytes per element of the master copy.

        Without sharding, fp32 weights are their own; ZeRO clones its slice even of them.
        DeepSpeed's ``bf16_master_weights_and_grads`` keeps it in bf16.
        """
        if self.plan.precision == "fp32":
            return 4.0 if self.plan.zero.stage else 0.0
        return 2.0 if self.plan.bf16_master_weights_and_grads else 4.0

    @property
    def state_bytes(self) -> float:
        """Optimizer state bytes per element, master copy excluded."""
        full = state_bytes_per_element(self.plan)
        return full / 2 if self.plan.bf16_optimizer_states else full

    @property
    def checks_overflow(self) -> bool:
        """Whether the step scans gradients for inf or nan and waits for the answer."""
        return self.plan.precision == "fp16" or (
            self.plan.precision == "bf16" and self.plan.check_grad_overflow
        )

    def alloc_gradients(self, unit: Unit) -> None:
        """Gradients of a unit, in the weights' type, one tensor each."""
        width, b = self.weight_bytes, self.builder
        if b.keeps_memory and unit.gradients:
            tensors = unit.gradient_tensors(width)
            b.alloc("gradient", sum(tensors), unit.name, tensors=tensors)

    def alloc_first_gradients(self, unit: Unit, phase: str) -> None:
        """Those of a unit about to run, if they are the step's first: they are held until it."""
        if phase == "backward" and self.builder.backward_index == 0:
            self.alloc_gradients(unit)

    def added_gradients(self, unit: Unit) -> tuple[float, int]:
        """Seconds and launches of a unit's gradients added to those of earlier micro-batches."""
        tensors = len(unit.gradients)
        if self.builder.backward_index == 0 or not tensors:
            return 0.0, 0
        moved_bytes = 3.0 * unit.numel * self.weight_bytes
        return self.costs.memory_s(moved_bytes, kernels=tensors), tensors

    def copy_s(
        self, size_bytes: float, kind: Literal["h2d", "d2h"], *, pinned: bool = True
    ) -> float:
        """Seconds of a copy that every rank of the node makes at the same time."""
        alone = self.costs.copy_s(size_bytes, kind, pinned=pinned)
        return max(alone, size_bytes / self.copy_bytes_per_s)

    def beside(self, name: str, call: Call, waits: Sequence[int]) -> int:
        """A collective beside compute, which has the fewer SMs for as long as it runs.

        As if a kernel on all SMs took its part of the compute stream: what is hidden costs that, of
        what is exposed it is hidden.
        """
        done = self.builder.collective(name, call, waits=waits)
        seconds = self.sm_s(call)
        if seconds and not self.builder.takes_turns:
            self.builder.compute("SMs held by NCCL", "collective", seconds, launches=0)
        return done

    def aside(
        self,
        name: str,
        moved_bytes: float,
        stream: str,
        waits: Sequence[int],
        *,
        launches: int = 1,
        kernels: int = 1,
    ) -> int:
        """A pass over memory on a stream of its own, or in line if that is the compute stream.

        Its blocks fill every SM in their turn, so the compute stream's come later by as much.
        """
        b, seconds = self.builder, self.costs.memory_s(moved_bytes, kernels=kernels)
        done = b.compute(name, "collective", seconds, launches=launches, stream=stream, waits=waits)
        if stream != COMPUTE and not b.takes_turns:
            b.compute(f"GPU taken to {name}", "collective", seconds, launches=0)
        return done

    def scan(self, name: str, size_bytes: float, tensors: int, waits: Sequence[int] = ()) -> int:
        """Kernels over gradients, one for each of ``tensors``, that move ``size_bytes`` in all."""
        seconds = self.costs.memory_s(size_bytes, kernels=tensors)
        return self.builder.compute(name, "optimizer", seconds, launches=tensors, waits=waits)

    def scalar_all_reduce(
        self,
        name: str,
        size_bytes: int = SCALAR_BYTES,
        *,
        sharded: bool = True,
        groups: Sequence[str] = ("dp",),
    ) -> None:
        """Reduce one number over each of ``groups``, then wait for it (``.item()``).

        ``sharded``: each rank of a group has its own part of it.
        """
        b = self.builder
        waits = b.last_on("compute")
        if self.ranks > 1 and sharded and groups:
            calls = [Call("all_reduce", group, size_bytes) for group in groups]
            works = [b.collective(name, call, waits=waits) for call in calls]
            waits = (works[-1],)
        if self.model_parallel > 1:
            waits = (b.collective(name, Call("all_reduce", "mp", size_bytes), waits=waits),)
        if waits:
            b.sync(f"{name}.item()", waits)

    def check_overflow(
        self, size_bytes: float, kernels: int, *, sharded: bool = True, waits: Sequence[int] = (),
        groups: Sequence[str] = ("dp",),
    ) -> None:  # fmt: skip
        """Scan gradients for inf or nan in so many kernels; reduce the flag and wait for it.

        ``waits`` is what makes the gradients complete.
        """
        self.scan("check overflow", size_bytes, kernels, waits)
        self.scalar_all_reduce("overflow", FLAG_BYTES, sharded=sharded, groups=groups)

    def gradient_norm(
        self,
        size_bytes: float,
        kernels: int,
        *,
        norm_bytes: int = SCALAR_BYTES,
        sharded: bool = True,
        waits: Sequence[int] = (),
        groups: Sequence[str] = ("dp",),
    ) -> None:
        """Global gradient norm, with its scalar all-reduce and host sync.

        DeepSpeed's optimizers take it whether or not it clips. Where every rank holds all gradients
        (not ``sharded``), nothing is reduced over replicas.
        """
        self.scan("gradient norm", size_bytes, kernels, waits)
        self.scalar_all_reduce("gradient norm", norm_bytes, sharded=sharded, groups=groups)

    def average_expert_norms(self) -> None:
        """Those of experts, over the ranks that hold them (``_average_expert_grad_norms``)."""
        b = self.builder
        for group in self.flat_groups:
            if group.group != "dp" and group.ranks > 1:
                call = Call("all_reduce", group.group, SCALAR_BYTES)
                work = b.collective("norm of experts", call, waits=b.last_on("compute"))
                b.compute("norm of experts", "optimizer", 0.0, launches=1, waits=(work,))

    def optimizer_step(
        self,
        numel: float,
        *,
        low_precision_copy: bool,
        sizes: Sequence[int] = (),
        fused: bool | None = None,
        element_bytes: float = 4.0,
    ) -> int:
        """The optimizer's kernels over ``numel`` elements: tensors of ``sizes``, or one.

        ``fused`` None: as the plan says. ``element_bytes``: of parameters and states.
        """
        b, o = self.builder, self.plan.optimizer
        o = o if fused is None else replace(o, fused=fused)
        if o.heard:
            b.make_states()
            return b.compute(o.type, "optimizer", 0.0)
        share, muon = numel / max(1, self.plan.model.num_trainable), self.on_muon
        seconds = self.costs.optimizer_s(
            o.type,
            numel,
            fused=o.fused,
            low_precision_copy=low_precision_copy,
            momentum=o.momentum,
            foreach=o.foreach,
            element_bytes=element_bytes,
            sizes=sizes,
            on_muon={shape: n * share for shape, n in muon.items()},
        )
        tensors = max(1, len(sizes))
        whole = len(sizes) == self.tensors
        host_s = self.costs.optimizer_host_s(
            o.type, tensors, fused=o.fused, momentum=o.momentum, foreach=o.foreach,
            matrices=round(muon.total() * share) or (self.matrices if whole else 0),
        )  # fmt: skip
        parts = step_temporaries(o, [s * element_bytes for s in sizes or (numel,)])
        b.make_states()
        b.alloc("temporary", sum(parts), "optimizer temporaries", tensors=parts)
        done = b.compute(o.type, "optimizer", seconds, host_s=host_s)
        b.free("temporary", sum(parts), "optimizer temporaries")
        return done


class Engine(Protocol):
    """The compiler calls these around every unit of every micro-batch, in program order."""

    def setup(self) -> None:
        """Allocate what lives for the whole run."""

    def begin_forward(self) -> None:
        """A micro-batch's forward starts."""

    def begin_backward(self, *, boundary: bool) -> None:
        """A micro-batch's backward starts; ``boundary``: it is the last of its optimizer step."""

    def alike(self) -> Hashable:
        """What the pass about to begin depends on in the engine; None: on too much to tell.

        Passes of a chunk that have it in common are alike to the last operation, and have it in
        common afterwards.
        """

    def resume(self, state: Hashable) -> None:
        """A pass was issued again, not compiled: go on from what was ``alike`` after the first."""

    def before(self, unit: Unit, phase: str) -> Sequence[int]:
        """Before a unit's ``forward``, ``recompute`` or ``backward``; returns its waits."""

    def after(self, unit: Unit, phase: str, op: int) -> None:
        """After that unit's operation ``op``."""

    def backward_extra(self, unit: Unit) -> tuple[float, int]:
        """Seconds and launches a unit's backward pays for gradient bookkeeping."""

    def end_backward(self) -> None:
        """The micro-batch's backward is complete."""

    def reduce_gradients(self) -> None:
        """At the accumulation boundary, before the step."""

    def step(self) -> None:
        """The optimizer step."""
