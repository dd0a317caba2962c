"""What a prediction rests on: how much a step changes with each input of the hardware.

An elasticity of -0.8 says that an input 10 % larger makes the step about 8 % shorter. Each input is
moved alone, by ten per cent up, and the step is played again.

Simplification: deep models are told from two shallow ones and long accumulations from two short
ones, which is within 3 % of the step (``training.folding``); loading data is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from raysim.hardware.cluster import ClusterSpec
from raysim.hardware.specs import CpuSpec, DiskSpec, GpuSpec, NicSpec, NodeSpec
from raysim.training.folding import fold_of
from raysim.training.plan import TrainingPlan
from raysim.workloads.whatif import quick_step_s

MORE = 1.1
NOTHING = 5e-4
"""Elasticities nearer to zero are none."""
CHEAP_OPS = 25_000
"""Operations of a simulated step up to which playing it seven times more is cheap."""


class Elasticity(NamedTuple):
    """Of the step's time, by one input."""

    input: str
    elasticity: float


def _gpu(change: Callable[[GpuSpec], GpuSpec]) -> Callable[[NodeSpec], NodeSpec]:
    return lambda node: node if node.gpu is None else replace(node, gpu=change(node.gpu))


def _nic(change: Callable[[NicSpec], NicSpec]) -> Callable[[NodeSpec], NodeSpec]:
    return lambda node: replace(
        node, nic=change(node.nic), host_nic=change(node.host_nic) if node.host_nic else None
    )


def _disk(disk: DiskSpec) -> DiskSpec:
    return replace(
        disk, read_bytes_per_s=disk.read_bytes_per_s * MORE, read_iops=disk.read_iops * MORE,
        write_bytes_per_s=disk.write_bytes_per_s * MORE, write_iops=disk.write_iops * MORE,
    )  # fmt: skip


def _cpu(change: Callable[[CpuSpec], CpuSpec]) -> Callable[[NodeSpec], NodeSpec]:
    return lambda node: replace(node, cpu=change(node.cpu))


INPUTS: Mapping[str, Callable[[NodeSpec], NodeSpec]] = {
    "GPU products, FLOP/s": _gpu(
        lambda g: replace(g, flops_per_s={k: v * MORE for k, v in g.flops_per_s.items()})
    ),
    "GPU memory bandwidth": _gpu(
        lambda g: replace(g, memory_bytes_per_s=g.memory_bytes_per_s * MORE)
    ),
    "links between GPUs of a node": _gpu(
        lambda g: replace(
            g, scale_up_bytes_per_s=g.scale_up_bytes_per_s * MORE,
            pcie_bytes_per_s=g.pcie_bytes_per_s * MORE,
        )
    ),
    "a host thread's speed": _cpu(lambda c: replace(c, single_thread=c.single_thread * MORE)),
    "host memory bandwidth": _cpu(
        lambda c: replace(c, memory_bytes_per_s=c.memory_bytes_per_s * MORE)
    ),
    "network between nodes": _nic(lambda n: replace(n, bytes_per_s=n.bytes_per_s * MORE)),
    "network latency": _nic(lambda n: replace(n, latency_s=n.latency_s * MORE)),
    "disks": lambda node: replace(node, disks=tuple((_disk(d), n) for d, n in node.disks)),
}  # fmt: skip
"""Input to the node that has ten per cent more of it."""


def by_input(
    seconds: Callable[[ClusterSpec], float],
    cluster: ClusterSpec,
    inputs: Iterable[str],
    *,
    usual: float | None = None,
) -> list[Elasticity]:
    """Of what ``seconds`` takes on a cluster, for every input that matters, the strongest first.

    ``usual``: what it takes with nothing changed, where that is known.
    """
    usual = seconds(cluster) if usual is None else usual
    found = []
    for name in inputs:
        elasticity = math.log(seconds(_changed(cluster, INPUTS[name])) / usual) / math.log(MORE)
        if abs(elasticity) > NOTHING:
            found.append(Elasticity(name, elasticity))
    return sorted(found, key=lambda e: -abs(e.elasticity))


def of_step(plan: TrainingPlan, cluster: ClusterSpec) -> list[Elasticity]:
    """Of an optimizer step."""
    return by_input(lambda changed: _step_s(plan, changed), cluster, _in_reach(plan, cluster))


def is_cheap(plan: TrainingPlan, ops: int) -> bool:
    """Whether ``of_step`` takes a small part of the time of a run that played so many ``ops``."""
    return ops <= CHEAP_OPS or fold_of(plan) is not None


def _step_s(plan: TrainingPlan, cluster: ClusterSpec) -> float:
    """Linear in the depth of the model where it can be folded, and in its micro-batches."""
    fold = fold_of(plan)
    if fold is None:
        return quick_step_s(plan, cluster)
    shallow, deep = (
        quick_step_s(fold.folded(plan, layers), cluster) for layers in (fold.shallow, fold.deep)
    )
    return deep + (fold.layers - fold.deep) * (deep - shallow) / (fold.deep - fold.shallow)


def _in_reach(plan: TrainingPlan, cluster: ClusterSpec) -> Iterator[str]:
    """Inputs that the step can depend on at all."""
    first = cluster.gpu_nodes[0]
    many = plan.mesh.world > first.gpu_count
    zero = plan.zero
    away = zero.offload_optimizer.device != "none" or zero.offload_param.device != "none"
    away = away or plan.fsdp.cpu_offload
    used = {
        "links between GPUs of a node": plan.mesh.world > 1 or away,
        "host memory bandwidth": away or (many and not first.nic.rdma) or first.gpu is None
        or first.gpu.architecture == "cpu",
        "network between nodes": many, "network latency": many, "disks": zero.swaps,
    }  # fmt: skip
    return (name for name in INPUTS if used.get(name, True))


def _changed(cluster: ClusterSpec, change: Callable[[NodeSpec], NodeSpec]) -> ClusterSpec:
    groups = tuple(replace(g, node=change(g.node)) for g in cluster.groups)
    return replace(cluster, groups=groups)
