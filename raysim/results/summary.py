"""From a job's outcome to the summary dictionary: plain numbers, units in the names.

Everything printed, drawn or compared later is read from here. Keys are stable; formulas stand
beside the numbers they make.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raysim.hardware.catalog import provenance_rows
from raysim.hardware.cluster import ClusterSpec
from raysim.results.bottleneck import bound_by
from raysim.results.certainty import certainty
from raysim.results.collectives import collectives
from raysim.results.cost import cost
from raysim.results.credits import credits_part
from raysim.results.goodput import PART_NAMES as RUN_PART_NAMES
from raysim.results.goodput import goodput_part, spare_nodes
from raysim.results.provenance import trust
from raysim.training.breakdown import Breakdown
from raysim.training.memory.peaks import RankMemory
from raysim.training.tower import StepOutcome
from raysim.units import format_bytes, format_seconds, to_seconds
from raysim.workloads.train_run import JobOutcome
from raysim.workloads.whatif import Effect

PART_NAMES = {
    "compute": "forward + backward kernels",
    "recompute": "recomputed activations",
    "exposed_collectives": "exposed collectives",
    "pipeline_transfers": "pipeline sends and receives",
    "bubble": "pipeline bubble",
    "offload": "copies and CPU optimizer",
    "launch": "launches and Python on the host",
    "data_wait": "data wait",
    "optimizer": "optimizer step",
    "other": "other",
}
CATEGORY_NAMES = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer_state": "optimizer states",
    "activation": "activations",
    "temporary": "temporaries",
    "input": "pipeline buffers",
    "logits": "logits + loss",
    "gathered_parameter": "gathered parameters (live)",
    "bucket": "gradient buckets",
    "communication": "communication buffers",
    "context": "CUDA context + NCCL",
    "slack": "reserved, unallocated",
    "set-up": "copies while setting up",
    "process": "Python and CUDA per process",
}


def summarize(
    outcome: JobOutcome, effects: Sequence[Effect], simplifications: Sequence[str]
) -> dict[str, Any]:
    """All parts of the summary that follow from the simulation alone."""
    step, cluster = outcome.step, outcome.step.cluster
    breakdown = step.breakdown
    rows = _breakdown_rows(breakdown)
    memory = _memory(outcome)
    throughput = _throughput(outcome)
    plan, tokens = outcome.job.plan, None
    if plan.model.sample_unit == "tokens" and outcome.steps is not None:
        tokens = outcome.steps * plan.samples_per_step * plan.model.seq_len
    money = _cost(outcome, tokens)
    nodes = [g.node for g in cluster.groups if g.count and g.node.gpu_count]
    goodput = goodput_part(outcome, tokens)
    return {
        "verdict": _verdict(outcome, memory, throughput),
        "cluster": _cluster(cluster),
        "job": _job(outcome),
        "step": {
            "seconds": outcome.step_s,
            "p95_seconds": outcome.slow_step_s,
            **({"drawn_seconds": drawn} if (drawn := outcome.drawn_step_s) is not None else {}),
            "slowest_rank": step.slowest.program.rank,
            "breakdown": rows,
            "hidden_collectives_frac": breakdown.hidden_collectives_frac,
        },
        "memory": memory,
        "throughput": throughput,
        "collectives": collectives(step),
        "run": _run(outcome, tokens),
        **({} if goodput is None else {"goodput": goodput}),
        **credits_part(outcome),
        "cost": money,
        "bound_by": bound_by(rows, hidden_collectives_frac=breakdown.hidden_collectives_frac),
        "would_help": [
            {
                "change": e.change.change,
                "text": e.text,
                "step_delta_frac": e.step_delta_frac,
                "fits": e.fits,
                "peak_bytes": e.peak_bytes,
            }
            for e in effects
        ],
        "trust": trust(outcome, provenance_rows(nodes)),
        "certainty": certainty(
            step, {"step": {"seconds": outcome.step_s}, "throughput": throughput, "memory": memory}
        ),
        "simplifications": list(simplifications),
        "simulation": {
            "simulated_micro_batches": step.plan.gradient_accumulation_steps,
            "micro_batches": step.micro_batches,
            "virtual_seconds": to_seconds(sum(step.step_ns)),
            "simulated_steps": 1,
            "ops": sum(len(line.program.ops) for line in step.timelines),
            "events": step.simulation.log.events,
            "digest": step.simulation.digest,
        },
    }


def _cost(outcome: JobOutcome, tokens: float | None) -> dict[str, Any] | None:
    """Of the whole run, with the nodes that stand by; None of a run without an end."""
    cluster, spares = outcome.step.cluster, spare_nodes(outcome)
    if outcome.total_s is None:
        return None
    group = next(g for g in cluster.groups if g.count and g.node.gpu_count)
    per_hour, each = cluster.usd_per_hour, group.node_usd_per_hour
    return cost(
        gpus=cluster.num_gpus + spares * group.node.gpu_count,
        seconds=outcome.total_s,
        usd_per_hour=None if per_hour is None or each is None else per_hour + spares * each,
        tokens=tokens,
    )


def _breakdown_rows(breakdown: Breakdown) -> list[dict[str, Any]]:
    """Parts of the step, largest first; parts of no length are left out."""
    rows = [
        {
            "name": PART_NAMES[key],
            "key": key,
            "seconds": to_seconds(ns),
            "frac": ns / breakdown.step_ns,
        }
        for key, ns in breakdown.parts_ns.items()
        if ns
    ]
    return sorted(rows, key=lambda row: -row["frac"])


def _memory(outcome: JobOutcome) -> dict[str, Any]:
    step = outcome.step
    gpu = step.cluster.gpu
    assert gpu is not None, "a training job needs GPUs"
    fullest = step.fullest
    node, local = step.comms.placement[fullest.rank]
    host = outcome.host
    return {
        "peak_bytes": fullest.peak_bytes,
        "requested_peak_bytes": fullest.requested_bytes,
        "allocated_peak_bytes": fullest.allocated_bytes,
        "reserved_peak_bytes": fullest.reserved_bytes,
        "reserved_when": fullest.reserved_when,
        "outside_torch_bytes": fullest.outside_bytes,
        "inactive_split_bytes": fullest.inactive_split_bytes,
        "cuda_mallocs": fullest.driver_calls,
        "alloc_retries": max(m.retries for m in step.memory),
        "capacity_bytes": gpu.memory_bytes,
        "frac": fullest.peak_bytes / gpu.memory_bytes,
        "fits": fullest.peak_bytes <= gpu.memory_bytes,
        "rank": fullest.rank,
        "node": f"node-{node}",
        "gpu": local,
        "when": fullest.when,
        "allocating": fullest.allocating,
        "peak_t_s": to_seconds(fullest.at_ns),
        "by_category": _categories(fullest.by_category),
        "largest": [
            {"category": category, "label": label, "bytes": size}
            for category, label, size in fullest.largest
        ],
        "out_of_memory": _out_of_memory(step.memory, fullest),
        "per_stage": [
            {
                "pp": step.plan.mesh.coordinate(m.rank).pp,
                "rank": m.rank,
                "peak_bytes": m.peak_bytes,
                "allocated_peak_bytes": m.allocated_bytes,
                "reserved_peak_bytes": m.reserved_bytes,
                "by_category": m.by_category,
            }
            for m in step.memory
        ],
        "host": {
            "peak_bytes_per_node": host.peak_bytes,
            "capacity_bytes": host.capacity_bytes,
            "fits": host.in_memory,
            "by_category": _categories(host.by_category),
        },
        "disk": {
            "bytes_per_node": host.disk_bytes,
            "capacity_bytes": host.disk_capacity_bytes,
            "fits": host.on_disk,
        },
    }


def _out_of_memory(memory: Sequence[RankMemory], fullest: RankMemory) -> dict[str, Any] | None:
    """The allocation that fails first to be found: of the fullest rank, else of any."""
    failing = [m for m in (fullest, *memory) if m.out_of_memory is not None]
    if not failing:
        return None
    m = failing[0]
    oom = m.out_of_memory
    assert oom is not None
    return {
        "rank": m.rank,
        "tensor_bytes": oom.size_bytes,
        "asked_bytes": oom.asked_bytes,
        "category": oom.category,
        "name": CATEGORY_NAMES.get(oom.category, oom.category),
        "label": oom.label,
        "when": oom.when,
        "held": _categories(oom.held),
        "allocated_bytes": oom.allocated_bytes,
        "reserved_bytes": oom.reserved_bytes,
        "unallocated_bytes": oom.reserved_bytes - oom.allocated_bytes,
        "outside_torch_bytes": oom.outside_bytes,
        "free_bytes": oom.free_bytes,
        "message": oom.message,
    }


def _categories(by_category: dict[str, int]) -> list[dict[str, Any]]:
    return [
        {"category": key, "name": CATEGORY_NAMES.get(key, key), "bytes": size}
        for key, size in sorted(by_category.items(), key=lambda item: -item[1])
        if size
    ]


def _throughput(outcome: JobOutcome) -> dict[str, Any]:
    """MFU = 3 x forward FLOPs x samples / (step x GPUs x dense peak); HFU counts recomputation."""
    step, plan = outcome.step, outcome.job.plan
    gpu = step.cluster.gpu
    assert gpu is not None, "a training job needs GPUs"
    gpus = plan.mesh.world
    samples_per_s = plan.samples_per_step / outcome.step_s
    model_flops = plan.model.step_flops * plan.samples_per_step / outcome.step_s / gpus
    peak = gpu.flops_per_s.get(plan.product_dtype, gpu.flops_per_s["fp32"])
    is_tokens = plan.model.sample_unit == "tokens"
    tokens_per_s = samples_per_s * plan.model.seq_len if is_tokens else None
    return {
        "samples_per_s": samples_per_s,
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_gpu": None if tokens_per_s is None else tokens_per_s / gpus,
        "mfu": model_flops / peak,
        "hfu": _hardware_flops(step) / outcome.step_s / peak,
        "model_flops_per_s_per_gpu": model_flops,
        "peak_flops_per_s": peak,
    }


def _hardware_flops(step: StepOutcome) -> float:
    """FLOPs that one GPU really executes in the last step, averaged over simulated ranks."""
    total = 0.0
    for line in step.timelines:
        for ops, times in step.weighted_ops(line):
            total += times * sum(line.program.ops[i].flops for i in ops)
    return total / len(step.timelines)


def _verdict(
    outcome: JobOutcome, memory: dict[str, Any], throughput: dict[str, Any]
) -> dict[str, Any]:
    used = format_bytes(memory["peak_bytes"])
    limit = format_bytes(memory["capacity_bytes"])
    gpus = outcome.job.plan.mesh.world
    if not memory["fits"]:
        missing = format_bytes(memory["peak_bytes"] - memory["capacity_bytes"])
        text = f"Does not fit: needs {used} of {limit} per GPU, {missing} too much, "
        text += f"in {memory['when']}."
        return {"fits": False, "text": text}
    if not memory["host"]["fits"]:
        need = format_bytes(outcome.host.peak_bytes)
        have = format_bytes(outcome.host.capacity_bytes)
        return {
            "fits": False,
            "text": f"Does not fit: needs {need} of {have} of main memory per node.",
        }
    if not memory["disk"]["fits"]:
        need = format_bytes(outcome.host.disk_bytes)
        have = format_bytes(outcome.host.disk_capacity_bytes)
        return {
            "fits": False,
            "text": f"Does not fit: swaps {need} to a disk of {have} per node (offload to nvme).",
        }
    share = f"{used} of {limit} on the fullest GPU ({memory['frac'] * 100:.0f} %)"
    if throughput["tokens_per_s"] is not None:
        rate = f"{throughput['tokens_per_s']:,.0f} tokens/s"
    else:
        rate = f"{throughput['samples_per_s']:,.0f} {outcome.job.plan.model.sample_unit}/s"
    kept = "" if outcome.goodput is None else f", goodput {outcome.goodput.goodput * 100:.1f} %"
    return {"fits": True, "text": f"Fits: {share}; {rate} on {gpus} GPUs{kept}."}


def _cluster(cluster: ClusterSpec) -> dict[str, Any]:
    nodes = cluster.gpu_nodes
    node = nodes[0]
    assert node.gpu is not None, "GPU nodes have GPUs"
    inside = {"nvswitch": "NVSwitch", "nvlink_mesh": "NVLink mesh", "pcie": "PCIe"}
    fabric = inside.get(node.gpu_fabric or "", "single GPU")
    if node.gpu_fabric != "pcie" and node.gpu.scale_up_generation and node.gpu_count > 1:
        fabric += f", NVLink {node.gpu.scale_up_generation}"
    rate = f"{node.nic.bytes_per_s * 8 / 1e9:g} Gb/s"
    return {
        "gpu_nodes": len(nodes),
        "gpus": cluster.num_gpus,
        "gpus_per_node": node.gpu_count,
        "gpu": node.gpu.name,
        "node": node.name,
        "network": f"{fabric} + {node.nic_count} x {rate} {node.nic.kind}",
        "fabric": cluster.fabric.kind,
        "usd_per_hour": cluster.usd_per_hour,
        "groups": [
            {
                "name": g.name,
                "node": g.node.name,
                "count": g.count,
                "usd_per_hour": g.usd_per_hour
                if g.usd_per_hour is not None
                else g.node.usd_per_hour,
            }
            for g in cluster.groups
        ],
    }


def _job(outcome: JobOutcome) -> dict[str, Any]:
    plan, mesh = outcome.job.plan, outcome.job.plan.mesh
    layout = plan.engine_label
    engine = f"DeepSpeed {layout}" if plan.engine == "deepspeed" else layout
    for axis in ("pp", "tp", "cp", "ep"):
        if getattr(mesh, axis) > 1:
            layout += f", {axis} {getattr(mesh, axis)}"
        if axis == "pp" and mesh.pp > 1 and plan.pipeline.schedule != "1f1b":
            layout += f" {plan.pipeline.schedule}"
            layout += f" x {plan.pipeline.virtual_stages}" if plan.pipeline.virtual_stages else ""
    unit = "seq" if plan.model.sample_unit == "tokens" else "patches"
    dtype: str = plan.precision
    if plan.compute_dtype != plan.precision:
        means = "autocast" if plan.engine == "ddp" else "mixed precision"
        dtype = f"{plan.precision} under {plan.compute_dtype} {means}"
    if plan.fp8 is not None:
        dtype += f", {plan.fp8.recipe} fp8"
    length = f", {unit} {plan.model.seq_len}" if plan.model.seq_len > 1 else ""
    accumulation = plan.gradient_accumulation_steps
    return {
        "name": outcome.job.name,
        "model": plan.model.model_type,
        "architecture": plan.model.architecture,
        "parameters": plan.model.num_parameters,
        "engine": engine,
        "strategy": f"{layout}, dp {mesh.dp}, {dtype}{length}, "
        f"micro {plan.micro_batch} x ga {accumulation}",
        "precision": plan.precision,
        "dp": mesh.dp,
        "tp": mesh.tp,
        "pp": mesh.pp,
        "zero_stage": plan.zero.stage if plan.engine == "deepspeed" else 0,
        "seq_len": plan.model.seq_len,
        "micro_batch": plan.micro_batch,
        "gradient_accumulation_steps": accumulation,
        "global_batch_samples": plan.samples_per_step,
        "activation_checkpointing": plan.activation_checkpointing,
        "optimizer": plan.optimizer.type,
        "sample_unit": plan.model.sample_unit,
        "simulated_ranks": len(outcome.step.timelines),
        "folded": outcome.step.comms.folded,
    }


def _run(outcome: JobOutcome, tokens: int | None) -> dict[str, Any]:
    total = outcome.total_s
    checkpoint_s = outcome.checkpoint_s
    evaluation_s = outcome.evaluations * outcome.evaluation_s
    phases = [{"name": p.name, "seconds": p.seconds} for p in outcome.startup if p.seconds]
    if outcome.goodput is not None:
        parts = outcome.goodput.parts_s
        checkpoint_s, evaluation_s = parts["checkpoints"], parts["evaluation"]
        phases = [{"name": RUN_PART_NAMES[k], "seconds": s} for k, s in parts.items() if s]
    elif outcome.training_s is not None:
        phases.append({"name": "training steps", "seconds": outcome.training_s})
    if outcome.goodput is None:
        phases += [
            {"name": name, "seconds": seconds}
            for name, seconds in (("evaluation", evaluation_s), ("checkpoints", checkpoint_s))
            if seconds
        ]
    return {
        "seconds": total,
        "days": None if total is None else total / 86400,
        "text": None if total is None else format_seconds(total),
        "steps": outcome.steps,
        "skipped_steps": outcome.skipped_steps,
        "steps_per_epoch": outcome.steps_per_epoch,
        "epochs": outcome.job.epochs,
        "epoch_seconds": outcome.epoch_s,
        "startup_seconds": outcome.startup_s,
        "evaluation_seconds": evaluation_s,
        "checkpoint_seconds": checkpoint_s,
        "checkpoint_bytes": outcome.checkpoint.total_bytes if outcome.checkpoints else 0,
        "checkpoint": _checkpoint(outcome) if outcome.checkpoints or outcome.job.resume else None,
        "tokens": tokens,
        "phases": phases,
    }


def _checkpoint(outcome: JobOutcome) -> dict[str, Any]:
    """One save, and one load of it."""
    cost = outcome.checkpoint
    return {
        "saves": outcome.checkpoints,
        "bytes": cost.total_bytes,
        "files": len(cost.files),
        "largest_file_bytes": max((f.size_bytes for f in cost.files), default=0),
        "seconds": cost.seconds,
        "stall_seconds": outcome.save_s,
        "background_seconds": cost.background_seconds,
        "load_seconds": cost.load_seconds,
        "read_bytes": cost.read_bytes,
        "host_bytes": cost.host_bytes,
    }
