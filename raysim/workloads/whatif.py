"""What one change would do: the same job with one input moved, simulated again.

For a job that fits, the changes that might make it faster; for one that does not, the smallest
changes that make it fit. Global batch and model stay as they are.

Simplification: a step with many micro-batches is extrapolated from two shorter ones, since the
steady state adds the same time per micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from raysim.errors import ScenarioError
from raysim.hardware.cluster import ClusterSpec, NodeGroup
from raysim.kernel.progress import Progress
from raysim.kernel.simulation import Simulation
from raysim.raylibs.train.host_threads import with_all_cores
from raysim.training.memory.need import memory_need
from raysim.training.plan import TrainingPlan
from raysim.training.settings.deepspeed import OffloadOptimizer, OffloadParam, ZeroConfig
from raysim.training.stages import pipeline_of
from raysim.training.tower import simulate
from raysim.units import format_bytes, to_seconds
from raysim.workloads.whatif_fsdp import FsdpChange, exchanging_less, holding_less

MOST_FITTING = 6
"""Changes that fit, listed for a job that does not."""
SMALL_BUCKET = 50_000_000
"""Elements; DeepSpeed's own default of ZeRO-3's prefetch."""
NOISE = 0.001
"""A change below this share of the step is not worth a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One input moved."""

    change: str
    """In the scenario's words."""
    text: str
    plan: TrainingPlan
    cluster: ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a change does."""

    change: Change
    fits: bool
    peak_bytes: int
    step_delta_frac: float | None
    """Relative change of the time per sample; None where it was not simulated."""

    @property
    def text(self) -> str:
        """The change, and whether it fits."""
        verdict = "fits" if self.fits else "does not fit"
        return f"{self.change.text} ({verdict}, {format_bytes(self.peak_bytes)})"


def quick_step_s(plan: TrainingPlan, cluster: ClusterSpec) -> float:
    """Seconds of an optimizer step, extrapolated over gradient accumulation."""
    short = plan.mesh.pp + 1
    wanted = plan.gradient_accumulation_steps
    if wanted <= short or not pipeline_of(plan).plain:
        return _play_s(plan, cluster, wanted)
    first, second = (_play_s(plan, cluster, m) for m in (short - 1, short))
    return second + (wanted - short) * (second - first)


def _play_s(plan: TrainingPlan, cluster: ClusterSpec, micro_batches: int) -> float:
    few = replace(plan, gradient_accumulation_steps=micro_batches)
    outcome = simulate(few, cluster, simulation=Simulation(), steps=1, memory=False)
    return to_seconds(outcome.steady_step_ns)


def faster(
    plan: TrainingPlan, cluster: ClusterSpec, limit_bytes: int, *, step_s: float, peak_bytes: int,
    progress: Progress | None = None,
) -> list[Effect]:  # fmt: skip
    """Changes worth trying on a job that fits, best first, useless ones left out.

    ``step_s`` and ``peak_bytes`` are its own.
    """
    effects = []
    changes = list(_speed_changes(plan, cluster))
    for number, change in enumerate(changes, 1):
        if progress is not None:
            progress.part(number, len(changes), f": {change.text}")
        try:
            effect = Effect(change=change, fits=True, peak_bytes=peak_bytes, step_delta_frac=None)
            if change.plan is not plan:  # other hardware between nodes leaves memory as it is
                # One that has to give its cache back is no faster: the pauses are not simulated.
                effect = _effect(change, limit_bytes, release=False)
            if not effect.fits:
                continue
            step = quick_step_s(change.plan, change.cluster)
        except ScenarioError:
            continue  # the change makes a job that DeepSpeed would refuse
        delta = step / step_s - 1
        if abs(delta) >= NOISE:
            effects.append(replace(effect, step_delta_frac=delta))
    return sorted(effects, key=lambda e: e.step_delta_frac or 0.0)


def _speed_changes(plan: TrainingPlan, cluster: ClusterSpec) -> Iterator[Change]:
    micro, ga = plan.micro_batch, plan.gradient_accumulation_steps
    if ga % 2 == 0:
        yield Change(
            change=f"micro_batch: {2 * micro}, gradient_accumulation_steps: {ga // 2}",
            text=f"micro {2 * micro} x ga {ga // 2}",
            plan=replace(plan, micro_batch=2 * micro, gradient_accumulation_steps=ga // 2),
            cluster=cluster,
        )
    if plan.activation_checkpointing == "full":
        without = replace(plan, activation_checkpointing="none")
        yield Change(
            change="activation_checkpointing: none",
            text="no activation checkpointing",
            plan=without,
            cluster=cluster,
        )
    yield from _zero_changes(plan, cluster)
    pool = with_all_cores(plan, cluster)
    if pool is not None:
        yield Change(
            change=f"omp_num_threads: {pool.threads}",
            text=f"{pool.threads} threads per rank",
            plan=replace(plan, host_pool=pool),
            cluster=cluster,
        )
    if plan.engine == "fsdp":
        yield from (_fsdp_change(plan, cluster, said) for said in exchanging_less(plan))
    sharding, megatron = plan.sharding, plan.megatron
    if plan.engine == "megatron" and sharding.sequence_parallel and not sharding.user_buffers:
        yield Change(
            change="megatron.tp_comm_overlap: true",
            text="tp_comm_overlap",
            plan=replace(plan, megatron=replace(megatron, tp_comm_overlap=True)),
            cluster=cluster,
        )
    if len(cluster.gpu_nodes) > 1 and plan.mesh.world > cluster.gpu_nodes[0].gpu_count:
        yield Change(
            change="cluster.hardware nics +10 %",
            text="+10 % inter-node bandwidth",
            plan=plan,
            cluster=_faster_nics(cluster, 1.1),
        )


def _zero_changes(plan: TrainingPlan, cluster: ClusterSpec) -> Iterator[Change]:
    zero = plan.zero
    if plan.engine != "deepspeed":
        return
    if zero.stage in {1, 2} and not zero.overlaps and plan.mesh.pp == 1 and plan.mesh.dp > 1:
        yield Change(
            change="zero_optimization.overlap_comm: true",
            text="overlap_comm true",
            plan=replace(plan, zero=replace(zero, overlap_comm=True)),
            cluster=cluster,
        )
    if zero.offload_optimizer.device != "none" or zero.offload_param.device != "none":
        on_gpu = replace(zero, offload_optimizer=OffloadOptimizer(), offload_param=OffloadParam())
        yield Change(
            change="zero_optimization without offload",
            text="no offload",
            plan=replace(plan, zero=on_gpu),
            cluster=cluster,
        )
    elif zero.stage == 3:
        yield Change(
            change="zero_optimization.stage: 2",
            text="ZeRO-2",
            plan=replace(plan, zero=replace(zero, stage=2)),
            cluster=cluster,
        )


def _fsdp_change(plan: TrainingPlan, cluster: ClusterSpec, said: FsdpChange) -> Change:
    return Change(
        change=said.change, text=said.text, plan=replace(plan, fsdp=said.fsdp), cluster=cluster
    )


def _faster_nics(cluster: ClusterSpec, factor: float) -> ClusterSpec:
    def faster_group(group: NodeGroup) -> NodeGroup:
        nic = replace(group.node.nic, bytes_per_s=group.node.nic.bytes_per_s * factor)
        return replace(group, node=replace(group.node, nic=nic))

    return replace(cluster, groups=tuple(faster_group(g) for g in cluster.groups))


def smallest_fit(plan: TrainingPlan, cluster: ClusterSpec, limit_bytes: int) -> list[Effect]:
    """Changes that make a job fit: single ones, else the first combination that does.

    When nothing fits, the combination that comes closest.
    """
    fitting = _fitting(plan, cluster, limit_bytes)
    if fitting:
        return fitting
    combined, names = plan, list[Change]()
    lowest = memory_need(plan, cluster, limit_bytes)[0]
    for name in [c.change for c in _memory_changes(plan, cluster, single=False)]:
        again = [c for c in _memory_changes(combined, cluster, single=False) if c.change == name]
        if not again:
            continue  # an earlier change made it pointless
        effect = _effect(_joined([*names, *again], again[0].plan, cluster), limit_bytes)
        if effect.fits:
            return [effect]
        if 0 < effect.peak_bytes < lowest:
            combined, lowest = again[0].plan, effect.peak_bytes
            names += again
    for more in _more_nodes(combined, cluster):
        effect = _effect(_joined([*names, more], more.plan, more.cluster), limit_bytes)
        if effect.fits:
            return [effect]
    return []


def _fitting(plan: TrainingPlan, cluster: ClusterSpec, limit_bytes: int) -> list[Effect]:
    """Single changes that make it fit, of each kind the smallest, from least to most intrusive."""
    kinds: list[Iterable[Change]] = [
        *([change] for change in _free_changes(plan, cluster)),
        *([change] for change in _memory_changes(plan, cluster)),
        _smaller_micro_batches(plan, cluster),
        _more_tensor_parallel(plan, cluster),
        _more_nodes(plan, cluster),
    ]
    found: list[Effect] = []
    for kind in kinds:
        effects = (_effect(change, limit_bytes) for change in kind)
        fits = next((effect for effect in effects if effect.fits), None)
        if fits is not None:
            found.append(fits)
    return found[:MOST_FITTING]


def _free_changes(plan: TrainingPlan, cluster: ClusterSpec) -> Iterator[Change]:
    """What costs little or no time: another way to keep segments, smaller buckets."""
    if not plan.allocator.expandable_segments:
        allocator = replace(plan.allocator, expandable_segments=True)
        yield Change(
            change="allocator: expandable_segments:True",
            text="expandable_segments:True",
            plan=replace(plan, allocator=allocator),
            cluster=cluster,
        )
    zero = plan.zero
    if plan.engine == "deepspeed" and zero.stage and zero.reduce_bucket_size > SMALL_BUCKET:
        small = replace(zero, reduce_bucket_size=SMALL_BUCKET)
        yield Change(
            change=f"zero_optimization.reduce_bucket_size: {SMALL_BUCKET:.0e}",
            text=f"reduce_bucket_size {SMALL_BUCKET:.0e}",
            plan=replace(plan, zero=small),
            cluster=cluster,
        )


def _smaller_micro_batches(plan: TrainingPlan, cluster: ClusterSpec) -> Iterator[Change]:
    """Half, a quarter ... of the micro-batch, with as much more accumulation."""
    factor = 2
    while plan.micro_batch % factor == 0:
        micro, ga = plan.micro_batch // factor, plan.gradient_accumulation_steps * factor
        yield Change(
            change=f"micro_batch: {micro}, gradient_accumulation_steps: {ga}",
            text=f"micro {micro} x ga {ga}",
            plan=replace(plan, micro_batch=micro, gradient_accumulation_steps=ga),
            cluster=cluster,
        )
        factor *= 2


def _more_tensor_parallel(plan: TrainingPlan, cluster: ClusterSpec) -> Iterator[Change]:
    """Twice, four times ... the tensor parallelism within a node, the global batch as it is."""
    mesh, factor = plan.mesh, 2
    in_node = cluster.gpu_nodes[0].gpu_count
    while mesh.dp % factor == 0 and mesh.tp * factor <= in_node:
        wider = replace(mesh, tp=mesh.tp * factor, dp=mesh.dp // factor)
        ga = plan.gradient_accumulation_steps * factor
        yield Change(
            change=f"tensor_parallel: {wider.tp}, gradient_accumulation_steps: {ga}",
            text=f"tp {wider.tp} x ga {ga}",
            plan=replace(plan, mesh=wider, gradient_accumulation_steps=ga),
            cluster=cluster,
        )
        factor *= 2


def _joined(changes: list[Change], plan: TrainingPlan, cluster: ClusterSpec) -> Change:
    """Several changes as one."""
    return Change(
        change=", ".join(c.change for c in changes),
        text=" + ".join(c.text for c in changes),
        plan=plan,
        cluster=cluster,
    )


def _effect(change: Change, limit_bytes: int, *, release: bool = True) -> Effect:
    """Peak memory after a change; what cannot run at all does not fit."""
    try:
        peak, host = memory_need(change.plan, change.cluster, limit_bytes, release=release)
    except ScenarioError:
        return Effect(change=change, fits=False, peak_bytes=0, step_delta_frac=None)
    fits = peak <= limit_bytes and host.fits
    return Effect(change=change, fits=fits, peak_bytes=peak, step_delta_frac=None)


def _memory_changes(
    plan: TrainingPlan, cluster: ClusterSpec, *, single: bool = True
) -> Iterator[Change]:
    """From least to most intrusive."""

    def change(name: str, text: str, new: TrainingPlan) -> Change:
        return Change(change=name, text=text, plan=new, cluster=cluster)

    zero = plan.zero
    if plan.engine == "megatron" and not plan.megatron.use_distributed_optimizer:
        sharded_states = replace(plan.megatron, use_distributed_optimizer=True)
        new = replace(plan, megatron=sharded_states)
        yield change("use_distributed_optimizer", "distributed optimizer", new)
    replicated = plan.engine == "ddp" or (plan.engine == "deepspeed" and zero.stage < 3)
    if plan.mesh.pp == 1 and replicated:
        stages: tuple[Literal[1, 2, 3], ...] = (1, 2, 3) if single else (3,)
        for stage in stages:
            if plan.engine == "ddp" or stage > zero.stage:
                sharded = replace(zero if plan.engine == "deepspeed" else ZeroConfig(), stage=stage)
                new = replace(plan, engine="deepspeed", zero=sharded)
                yield change(f"zero_optimization.stage: {stage}", f"ZeRO-{stage}", new)
    if plan.engine == "fsdp":
        yield from (_fsdp_change(plan, cluster, said) for said in holding_less(plan))
    if plan.activation_checkpointing == "none":
        new = replace(plan, activation_checkpointing="full")
        yield change("activation_checkpointing: full", "activation checkpointing", new)
    if plan.micro_batch > 1 and not single:
        ga = plan.gradient_accumulation_steps * plan.micro_batch
        new = replace(plan, micro_batch=1, gradient_accumulation_steps=ga)
        yield change(
            f"micro_batch: 1, gradient_accumulation_steps: {ga}", f"micro 1 x ga {ga}", new
        )
    if plan.engine == "fsdp" and not plan.fsdp.cpu_offload:
        new = replace(plan, fsdp=replace(plan.fsdp, cpu_offload=True))
        yield change("fsdp.cpu_offload: true", "shards on CPU", new)
    if plan.engine == "deepspeed" and zero.stage and zero.offload_optimizer.device == "none":
        new = replace(plan, zero=replace(zero, offload_optimizer=OffloadOptimizer(device="cpu")))
        yield change("offload_optimizer.device: cpu", "optimizer on CPU", new)
    if plan.engine == "deepspeed" and zero.stage == 3 and zero.offload_param.device == "none":
        new = replace(plan, zero=replace(zero, offload_param=OffloadParam(device="cpu")))
        yield change("offload_param.device: cpu", "parameters on CPU", new)


def _more_nodes(plan: TrainingPlan, cluster: ClusterSpec) -> Iterator[Change]:
    """The same job on 2, 4, ... 64 times the nodes, with as many more replicas."""
    for factor in (2, 4, 8, 16, 32, 64):
        groups = tuple(
            replace(g, count=g.count * factor) if g.node.gpu_count else g for g in cluster.groups
        )
        yield Change(
            change=f"{factor}x nodes",
            text=f"{factor}x nodes",
            plan=replace(plan, mesh=replace(plan.mesh, dp=plan.mesh.dp * factor)),
            cluster=replace(cluster, groups=groups),
        )
