"""From ``trainer.fit()`` to the first step: what a Ray Train job pays before it computes.

Phases run one after another on every worker at once. The constants are few and physical; what a
user's own script does besides (download weights, tokenize) is not known here and is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from raysim.hardware.specs import NodeSpec, Provenance
from raysim.perf.host import CUDA_CONTEXT_S
from raysim.training.plan import TrainingPlan

WORKER_PROCESS_S = 0.7
IMPORT_S = {"ddp": 2.3, "fsdp": 2.3, "deepspeed": 4.1, "megatron": 4.1}
PROCESS_GROUP_S = 1.0
ENGINE_S = 0.3
MODEL_BUILD_BYTES_PER_S = 1.0e9

PROVENANCE = {
    "Ray worker process start": Provenance(
        basis="measured", source="median 0.7 s of CPU per worker process, Ray 2.60"
    ),
    "imports": Provenance(
        basis="measured",
        source="torch 1.2 s, ray.train 1.1 s, deepspeed 1.8 s warm on 2 cores, 2026-11; "
        "Megatron-core taken as DeepSpeed",
    ),
    "CUDA context": Provenance(basis="assumed", source="a fraction of a second on current drivers"),
    "process group": Provenance(
        basis="assumed", source="rendezvous and NCCL's first communicator: about a second"
    ),
    "deepspeed.initialize": Provenance(
        basis="assumed",
        source="0.14 s at stage 0, 2.3-2.7 s under ZeRO on two CPU ranks that share two cores "
        "(DeepSpeed 0.19.8); near the low end for a real host",
    ),
    "model build": Provenance(
        basis="assumed", source="random initialisation on one core, about 1 GB/s"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One stretch of a job."""

    name: str
    seconds: float


def startup_phases(plan: TrainingPlan, node: NodeSpec, ranks_per_node: int) -> tuple[Phase, ...]:
    """Phases of the start on the slowest node.

    Processes of one node share its cores when they start and import.
    """
    cores = max(1, node.cpu.cores)
    waves = -(-ranks_per_node // cores)
    weights = plan.model.num_parameters * 4.0 / plan.mesh.tp / plan.mesh.pp
    if plan.engine == "deepspeed" and plan.zero.stage == 3:
        weights /= plan.mesh.weight_ranks  # zero.Init: every rank fills and keeps its shard only
    gpu = node.gpu
    assert gpu is not None, f"{node.name} has no GPU"
    return (
        Phase(name="Ray worker processes", seconds=WORKER_PROCESS_S * waves),
        Phase(name="imports", seconds=IMPORT_S[plan.engine] * waves),
        Phase(name="CUDA context", seconds=CUDA_CONTEXT_S),
        Phase(name="process group", seconds=PROCESS_GROUP_S),
        Phase(
            name="model build and copy",
            seconds=weights / MODEL_BUILD_BYTES_PER_S * waves + weights / gpu.pcie_bytes_per_s,
        ),
        Phase(name="engine", seconds=ENGINE_S if plan.engine == "deepspeed" else 0.0),
    )
