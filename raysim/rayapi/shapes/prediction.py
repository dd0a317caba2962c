"""How long a step of the user's model takes, and what memory: asked of the training tower.

Real counterpart: the step itself, on the GPUs that the workers were placed on. The model is the
table that the tracer made of the first step; what the script asked for is the plan.

Not modelled: groups on nodes of several kinds (the first one's stands for all).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from raysim.hardware.cluster import ClusterSpec, NodeGroup
from raysim.kernel.simulation import Simulation
from raysim.models.gathered import is_of_outputs
from raysim.models.table import Model
from raysim.rayapi.shapes.copied import held_by_copies
from raysim.raycore.room import Surroundings
from raysim.raylibs.train.gang import Gang
from raysim.training.compiler.feed import Feed
from raysim.training.executor import Timeline
from raysim.training.memory.host import HostMemory
from raysim.training.memory.need import host_need
from raysim.training.memory.peaks import RankMemory
from raysim.training.plan import TrainingPlan
from raysim.training.program import COMPUTE
from raysim.training.tower import StepOutcome, simulate
from raysim.units import to_seconds


@dataclass(frozen=True)
class Figures:
    """Of a step that was not played, from others' (``shapes.sizes``)."""

    step_ns: int
    forward_ns: int
    backward_ns: int
    busy_ns: int
    peak_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One optimizer step under one plan."""

    outcome: StepOutcome
    plan: TrainingPlan
    """As asked."""
    beside_bytes: int = 0
    """Weights of models that are not trained (``shapes.beside``)."""
    script_bytes: int = 0
    """Other tensors that the script has on the GPU (``shapes.alive``)."""
    gpus: tuple[str, ...] = ()
    """Those of one process that the model lies on, by rank."""
    copied_to: tuple[str, ...] = ()
    """Those that have copies of it, beside the first."""
    instead: Figures | None = None
    """Of batches of other sizes than what was played."""

    @property
    def _others_bytes(self) -> int:
        return self.beside_bytes + self.script_bytes

    def counted_in(self, steps: dict[int, tuple[Prediction, int]]) -> None:
        """One more, by its identity."""
        _, count = steps.get(id(self), (self, 0))
        steps[id(self)] = self, count + 1

    @property
    def step_ns(self) -> int:
        """Of all ranks."""
        return self.instead.step_ns if self.instead else self.outcome.steady_step_ns

    @cached_property
    def passes_ns(self) -> tuple[int, int]:
        """Forward and backward of one micro-batch, as the slowest rank's kernels run them."""
        if self.instead:
            return self.instead.forward_ns, self.instead.backward_ns
        lines = self.outcome.timelines if self.gpus else (self.outcome.slowest,)  # in turn: all
        passes = [_passes(line, len(self.outcome.step_ns) - 1) for line in lines]
        batches = self.outcome.plan.gradient_accumulation_steps
        return sum(f for f, _ in passes) // batches, sum(b for _, b in passes) // batches

    @cached_property
    def busy_ns(self) -> int:
        """Of a step, what the slowest rank's kernels take, waits for their host apart."""
        if self.instead:
            return self.instead.busy_ns
        program, step = self.outcome.slowest.program, len(self.outcome.step_ns) - 1
        ops = program.ops[program.step_ends[step - 1] if step else 0 : program.step_ends[step]]
        return sum(op.duration_ns for op in ops if op.stream == COMPUTE)

    @cached_property
    def fits(self) -> bool:
        """Whether GPU and host have memory enough."""
        return self.peak_bytes <= self.capacity_bytes and self.host.fits

    @cached_property
    def host(self) -> HostMemory:
        """Main memory of the fullest node."""
        return host_need(self.plan, self.outcome.stages, self.outcome.comms)

    @property
    def peak_bytes(self) -> int:
        """Of the fullest GPU."""
        if self.instead:
            return self.instead.peak_bytes
        return self.outcome.fullest.peak_bytes + self._others_bytes

    @property
    def allocated_bytes(self) -> int:
        """Of it, what torch calls allocated."""
        if self.instead:
            return self.instead.allocated_bytes
        return self.outcome.fullest.allocated_bytes + self._others_bytes

    @property
    def kept_bytes(self) -> int:
        """Of it, what is left between steps."""
        return self.outcome.fullest.kept_bytes + self._others_bytes

    @property
    def reserved_bytes(self) -> int:
        """And what it has reserved."""
        if self.instead:
            return self.instead.reserved_bytes
        return self.outcome.fullest.reserved_bytes + self._others_bytes

    def on_gpu(self, name: str) -> RankMemory | None:
        """Of several GPUs of one process, what one holds of the model; None: nothing."""
        if name in self.copied_to:
            return self._copy
        return self.outcome.memory[self.gpus.index(name)] if name in self.gpus else None

    @cached_property
    def _copy(self) -> RankMemory:
        gpu = self.outcome.cluster.gpu
        assert gpu is not None, "copies are on GPUs"
        gathers = is_of_outputs(self.plan.model)
        return held_by_copies(self.outcome.slowest.program, gpu, gathers=gathers)

    @property
    def fullest_gpu(self) -> str:
        """Its name, where the model lies on several of one process."""
        ranks = zip(self.outcome.memory, self.gpus, strict=False)
        return next((gpu for found, gpu in ranks if found is self.outcome.fullest), "")

    @property
    def capacity_bytes(self) -> int:
        """Of a GPU."""
        gpu = self.outcome.cluster.gpu
        assert gpu is not None, "a prediction is of GPUs"
        return int(gpu.memory_bytes)


@dataclass(slots=True, kw_only=True)
class Peaks:
    """Of the steps taken, as torch's allocator counts: a GPU's largest bytes since a reset."""

    allocated_bytes: int = 0
    reserved_bytes: int = 0
    cached_bytes: int = 0
    """Reserved since the cache was emptied."""

    def taken(self, found: Prediction) -> Prediction:
        """A step has been."""
        self.allocated_bytes = max(self.allocated_bytes, found.allocated_bytes)
        self.reserved_bytes = max(self.reserved_bytes, found.reserved_bytes)
        self.cached_bytes = max(self.cached_bytes, found.reserved_bytes)
        return found

    def reset(self) -> None:
        """``reset_peak_memory_stats()``: what is cached stays reserved."""
        self.allocated_bytes, self.reserved_bytes = 0, self.cached_bytes


def predict(plan: TrainingPlan, cluster: ClusterSpec, feed: Feed, seed: int) -> Prediction:
    """Compile the plan and play some steps of it, apart from the run's own clock.

    Raises
    ------
    ScenarioError
        The model cannot be cut as asked.
    """
    outcome = simulate(plan, cluster, simulation=Simulation(seed=seed), feed=feed)
    return Prediction(outcome=outcome, plan=plan)


@dataclass(frozen=True, kw_only=True)
class Forward:
    """One without gradients."""

    ns: int
    """From one to the next."""
    parts: tuple[tuple[float, float], ...]
    """As ``Own.beside`` has them."""
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    """At its peak beside weights, as torch counts them."""

    def times(self, share: float) -> Forward:
        """Of so many times as large a batch; the host has no more to do."""
        parts = tuple((host_s, seconds * share) for host_s, seconds in self.parts)
        return Forward(
            ns=round(self.ns * share), parts=parts,
            allocated_bytes=round(self.allocated_bytes * share),
            reserved_bytes=round(self.reserved_bytes * share),
        )  # fmt: skip


def forward(plan: TrainingPlan, cluster: ClusterSpec, feed: Feed, seed: int) -> Forward:
    """Evaluation: one forward pass without gradients."""
    alone = replace(plan, activation_checkpointing="none", gradient_accumulation_steps=1)
    in_turn = bool(plan.pipeline.homes)
    outcome = simulate(
        alone, cluster, simulation=Simulation(seed=seed), feed=feed,
        steps=1 if in_turn else 2, forward_only=True,
    )  # fmt: skip
    parts, host_ns = list[tuple[float, float]](), 0
    for line in outcome.timelines if in_turn else (outcome.slowest,):
        ends = [0, *line.program.step_ends]
        for op in line.program.ops[ends[-2] : ends[-1]]:
            host_ns += op.before_ns + op.host_ns
            if op.stream == COMPUTE:
                parts.append((to_seconds(host_ns), to_seconds(op.duration_ns)))
                host_ns = 0
    fullest = outcome.fullest
    return Forward(
        ns=outcome.steady_step_ns, parts=tuple(parts),
        allocated_bytes=max(0, fullest.allocated_bytes - fullest.states_bytes),
        reserved_bytes=max(0, fullest.reserved_bytes - fullest.states_bytes),
    )  # fmt: skip


def pipeline_forward(plan: TrainingPlan, cluster: ClusterSpec, feed: Feed, seed: int) -> Forward:
    """Evaluation of a step's micro-batches by a pipeline, from its filling to its end."""
    outcome = simulate(
        plan, cluster, simulation=Simulation(seed=seed), feed=feed,
        steps=plan.gradient_accumulation_steps, forward_only=True, memory=False,
    )  # fmt: skip
    return Forward(ns=sum(outcome.step_ns), parts=())


def cluster_of(env: Surroundings, fabric: Any, gang: Gang, *, alone: int) -> ClusterSpec:
    """The GPUs that a worker group holds, or ``alone`` of one rank, as a cluster of its own."""
    nodes = dict(list(gang.nodes.items())[:1]) if alone else gang.nodes
    most = alone or max(len(ranks) for ranks in nodes.values())
    spec = env.nodes[next(iter(nodes))].spec
    if most < spec.gpu_count:
        spec = replace(spec, gpu_count=most)
    group = NodeGroup(name="workers", node=spec, count=len(nodes))
    return ClusterSpec(groups=(group,), fabric=fabric)


def _passes(line: Timeline, step: int) -> tuple[int, int]:
    """Busy nanoseconds of forward and of backward (with what it runs again) in one step."""
    program = line.program
    ends = program.step_ends
    spent = {"forward": 0, "backward": 0, "recompute": 0}
    for i in range(ends[step - 1] if step else 0, ends[step]):
        op = program.ops[i]
        if op.stream == COMPUTE and op.category in spent:
            spent[op.category] += line.end_ns[i] - line.start_ns[i]
    return spent["forward"], spent["backward"] + spent["recompute"]


def out_of_memory(found: Prediction) -> Exception:
    """As torch says it; of main memory, which would end the process, in words."""
    gib = 2**30
    if found.peak_bytes <= found.capacity_bytes:
        return MemoryError(
            f"the step needs {found.host.peak_bytes / gib:.1f} GiB of a node's main memory, which "
            f"has {found.host.capacity_bytes / gib:.1f} GiB, and {found.host.disk_bytes / gib:.1f} "
            f"GiB of its disk, which has {found.host.disk_capacity_bytes / gib:.1f} GiB"
        )
    peak = found.outcome.fullest
    return torch.OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate more than is free. "
        f"GPU {found.fullest_gpu.partition(':')[2] or 0} has a total capacity of "
        f"{found.capacity_bytes / gib:.2f} GiB of which 0 bytes is free. The step needs "
        f"{found.peak_bytes / gib:.2f} GiB ({peak.when}: {peak.allocating}), of which "
        f"{found.allocated_bytes / gib:.2f} GiB is allocated by PyTorch."
    )


def sample_name(model: Model) -> str:
    """What its throughput counts."""
    return "tokens" if model.sample_unit == "tokens" else "samples"
