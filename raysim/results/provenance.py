"""How far to trust a prediction: the numbers it really used, each with its basis and source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from raysim.hardware.catalog import ProvenanceRow, left_to
from raysim.hardware.specs import Provenance
from raysim.perf import nvme
from raysim.results import goodput
from raysim.training.checkpoint import traffic as checkpoint_traffic
from raysim.training.memory import host as host_memory
from raysim.training.memory import peaks as memory
from raysim.training.settings import loss_scale
from raysim.workloads import startup
from raysim.workloads.train_run import JobOutcome

PAST_ERROR = {"ampere": 0.040, "hopper": 0.060}
"""Median over the MPT runs on A100 and H100 that nothing was fitted on: fully sharded, bf16, one
axis (``tests/laws/test_training_published.py``, ``validation/README.md``)."""
_ALWAYS = {"memory_bytes", "memory_bytes_per_s", "context_bytes", "pcie_bytes_per_s"}
_BETWEEN_GPUS = {"scale_up_bytes_per_s"}
_BETWEEN_NODES = {"bytes_per_s", "latency_s", "efficiency"}
_OFFLOAD = {"memory_bytes_per_s", "cores"}


def trust(outcome: JobOutcome, rows: Iterable[ProvenanceRow]) -> dict[str, Any]:
    """The ``trust`` part of the summary: counts by basis, and every input."""
    inputs = [
        {
            "name": f"{row.spec} {row.field}",
            "value": row.value,
            "basis": row.basis,
            "source": row.source,
        }
        for row in rows
        if _used(outcome, row)
    ]
    inputs += [
        {"name": name, "value": None, "basis": origin.basis, "source": origin.source}
        for name, origin in _model_constants(outcome).items()
    ]
    return counted(inputs, _past_error(outcome))


def counted(inputs: list[dict[str, Any]], past_error: float | None) -> dict[str, Any]:
    """Inputs, and how many there are of each basis."""
    counts = Counter(item["basis"] for item in inputs)
    return {
        "measured": counts["measured"],
        "datasheet": counts["datasheet"],
        "assumed": counts["assumed"],
        "past_error": past_error,
        "inputs": inputs,
    }


def _past_error(outcome: JobOutcome) -> float | None:
    """Median error of step time on published runs of this kind; None where there are none."""
    plan, gpu = outcome.job.plan, outcome.step.cluster.gpu
    assert gpu is not None, "a training job needs GPUs"
    zero3 = plan.engine == "deepspeed" and plan.zero.stage == 3
    fsdp = plan.engine == "fsdp" and plan.fsdp.frees and plan.fsdp.replicas == 1
    on_host = (
        plan.zero.offload_optimizer.device != "none"
        or plan.zero.offload_param.device != "none"
        or plan.fsdp.cpu_offload
    )
    sharded = (zero3 or fsdp) and not on_host
    alike = sharded and not left_to(gpu) and plan.compute_dtype == "bf16" and plan.mesh.tp == 1
    return PAST_ERROR.get(gpu.architecture) if alike else None


def _used(outcome: JobOutcome, row: ProvenanceRow) -> bool:
    """Whether a catalog number can have influenced this outcome."""
    plan, step = outcome.job.plan, outcome.step
    gpu = step.cluster.gpu
    node = step.comms.topology.specs[0]
    assert gpu is not None, "a training job needs GPUs"
    if row.spec == gpu.name:
        return row.field in _ALWAYS | {f"flops_per_s.{plan.compute_dtype}"} or (
            plan.mesh.world > 1 and row.field in _BETWEEN_GPUS
        )
    if row.spec == node.nic.name:
        return plan.mesh.world > node.gpu_count and row.field in _BETWEEN_NODES
    if row.spec == node.cpu.name:
        if row.field == "single_thread":
            return plan.constants.host_speed is None and not outcome.step.costs.serial
        return plan.zero.offload_optimizer.device != "none" and row.field in _OFFLOAD
    if row.spec == node.name:
        return row.field == "usd_per_hour" and outcome.steps is not None
    return False


def _run_constants(outcome: JobOutcome) -> dict[str, Provenance]:
    """What goes on around the steps."""
    plan = outcome.job.plan
    known = dict(goodput.provenance(outcome))
    for applies, constants in (
        (plan.engine == "deepspeed" and plan.zero.swaps, nvme.PROVENANCE),
        (outcome.steps is not None, startup.PROVENANCE),
        (outcome.skipped_steps, loss_scale.PROVENANCE),
        (outcome.checkpoints or outcome.job.resume, checkpoint_traffic.PROVENANCE),
    ):
        if applies:
            known |= constants
    return known


def _model_constants(outcome: JobOutcome) -> dict[str, Provenance]:
    """Constants of the cost models, the memory model and the start-up."""
    known: dict[str, Provenance] = {
        **outcome.step.costs.provenance, **memory.PROVENANCE, **host_memory.PROVENANCE,
    }  # fmt: skip
    known |= _run_constants(outcome)
    plan = outcome.job.plan
    if plan.zero.offload_optimizer.device == "none":
        for name in ("cpu_adam", "fresh_bytes_per_s"):
            known.pop(name, None)
    if plan.zero.stage == 0 or plan.engine != "deepspeed":
        known.pop("hook_s", None)
    if plan.zero.stage != 3 or plan.engine != "deepspeed":
        known.pop("slice_s", None)
    if plan.engine != "fsdp":
        known.pop("fsdp_hook_s", None)
    if plan.engine != "deepspeed":
        for name in ("engine_s", "deepspeed.initialize"):
            known.pop(name, None)
    for line in outcome.step.timelines:
        distinct = {(call.op, call.group): call for call in line.program.calls()}
        for call in distinct.values():
            if call.op != "send_recv":
                cost = outcome.step.comms.traffic(call, line.program.rank).cost
                known[f"NCCL {cost.op} over {cost.ranks} ranks"] = cost.provenance
    return known
