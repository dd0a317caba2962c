"""Saving a checkpoint: who writes how many bytes, and how long training stands still.

Sources: ``deepspeed/runtime/engine.py`` (``save_checkpoint``): model states by data-parallel rank 0
of each model-parallel rank, optimizer states by every rank; under ZeRO-3 every rank writes its
shard. Training waits for the slowest node: bytes over PCIe, then to the node's first disk.

Not modelled: serialisation by pickle on the CPU, asynchronous writers, a shared file system's
limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raysim.hardware.specs import NodeSpec
from raysim.models.table import COMPUTE_DTYPE_BYTES
from raysim.training.communicators import Communicators
from raysim.training.plan import TrainingPlan
from raysim.training.zero import optimizer_state_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCost:
    """One save."""

    total_bytes: int
    fullest_node_bytes: int
    seconds: float


def checkpoint_cost(
    plan: TrainingPlan, comms: Communicators, kind: Literal["model", "full"]
) -> CheckpointCost:
    """Bytes and pause of one save: ``model`` keeps weights only, ``full`` optimizer state too."""
    model = plan.model.num_parameters * COMPUTE_DTYPE_BYTES[plan.precision]
    master = 0.0 if plan.precision == "fp32" else 4.0
    per_element = master + optimizer_state_bytes(plan.optimizer)
    optimizer = round(plan.model.num_trainable * per_element) if kind == "full" else 0
    used = {n for n, _ in comms.placement[: plan.mesh.world]}
    node = comms.topology.specs[comms.placement[0][0]]
    fsdp = plan.engine == "fsdp" and plan.fsdp.shards
    sharded = fsdp or (plan.engine == "deepspeed" and plan.zero.stage > 0)
    stage3 = plan.engine == "deepspeed" and plan.zero.stage == 3
    if stage3 and kind == "model" and plan.zero.stage3_gather_16bit_weights_on_model_save:
        # save_16bit_model: module by module to rank 0, which alone copies and writes.
        return CheckpointCost(
            total_bytes=model, fullest_node_bytes=model, seconds=_seconds(model, node, 1)
        )
    if stage3 or fsdp:
        model_share = model / len(used)
    else:
        # Data-parallel rank 0 of each stage and tensor-parallel rank writes its part.
        writers = {comms.placement[r][0] for r in _first_replica(plan)}
        model_share = model / len(writers)
    optimizer_share = optimizer / len(used) if sharded else float(optimizer)
    fullest = round(model_share + optimizer_share)
    return CheckpointCost(
        total_bytes=model + optimizer,
        fullest_node_bytes=fullest,
        seconds=_seconds(fullest, node, comms.ranks_per_node),
    )


def _first_replica(plan: TrainingPlan) -> list[int]:
    mesh = plan.mesh
    return [r for r in range(mesh.world) if mesh.coordinate(r).dp == 0]


def _seconds(size_bytes: int, node: NodeSpec, ranks: int) -> float:
    """Copies leave every GPU at once; the disks of a node write side by side."""
    assert node.gpu is not None, f"{node.name} has no GPU"
    copy_s = size_bytes / (node.gpu.pcie_bytes_per_s * ranks)
    rates = [disk.write_bytes_per_s for disk, _ in node.disks[:1]]
    write_bytes_per_s = rates[0] if rates else node.nic.bytes_per_s * node.nic.efficiency
    return copy_s + size_bytes / write_bytes_per_s
