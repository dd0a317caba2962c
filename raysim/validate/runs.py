"""Published training runs, predicted: ``validation/data/published/training_runs.json``.

BigScience's logs (A100 and V100 of Jean Zay, up to 384 GPUs), Megatron's papers, DeepSpeed's
tutorials and its ZeRO-3 runs on Azure: step times, memory of the whole process, and runs that ended
out of memory; beside them the tables of torchtitan, fms-fsdp and Megatron-Bridge
(``runs_torchtitan.py``, ``runs_fms.py``, ``runs_megatron.py``). No row fixed a constant, but one of
torchtitan's that says so. Each row says its machine; of Jean Zay's Omni-Path the measured bandwidth
of an all-reduce is an input (``busbw_gbit_s``), as it is of any real cluster, with the NICs that
NCCL's log of it says it used.

Simplified: Megatron alone is DeepSpeed's engine without ZeRO, with the same schedule; its embedding
is not counted as a layer unless the row says so; a row's DeepSpeed is raysim's, of 2026.
Not modelled: LayerNorm after the embedding, scattered embeddings, two layers per checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec
from raysim.hardware.specs import NodeSpec
from raysim.kernel.simulation import Simulation
from raysim.models.huggingface import build
from raysim.models.table import Model
from raysim.perf.host import HostPool
from raysim.training.memory.need import memory_need
from raysim.training.plan import TrainingPlan
from raysim.training.settings.deepspeed import (
    OffloadOptimizer,
    OffloadParam,
    Optimizer,
    PipelineSettings,
    ZeroConfig,
)
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome, simulate
from raysim.units import GIB, to_seconds
from raysim.validate.job import job_of
from raysim.validate.points import Point
from raysim.validate.published import PUBLISHED, left_points, memory_point, nodes, ran_point, rows
from raysim.validate.runs_fms import fms_points
from raysim.validate.runs_fp8 import fp8_points
from raysim.validate.runs_megatron import bridge_points, paper_plan
from raysim.validate.runs_torchtitan import torchtitan_points

FILE = "training_runs.json"
PARTITION = {
    "": "type:ParallelTransformerLayer",
    "with_embeddings": "type:ParallelTransformerLayer|embedding|linear",
}
"""BigScience's ``type:transformer|embedding``: the tied output layer, here a Linear, is one too."""
STATES = ("parameter", "gradient", "optimizer_state")


def run_points(validation: Path) -> Iterator[Point]:
    """Every row that raysim can express, and every other one with why not."""
    held = json.loads((validation / PUBLISHED / FILE).read_text())
    for row in rows(validation, FILE):
        yield from points_of(row, held["machines"][row["machine"]])
    yield from fp8_points(validation)
    left_out = (left for left in held["left_out"] if not left["why"].startswith("case "))
    yield from left_points(left_out, "runs")
    yield from torchtitan_points(validation)
    yield from fms_points(validation)
    yield from bridge_points(validation)


def points_of(row: dict[str, Any], machine: dict[str, Any]) -> Iterator[Point]:
    """What was measured of one row beside what raysim says."""
    where, plan = cluster_of(row, machine), plan_of(row)
    family, name, role = f"runs/{row['family']}", row["id"], row["use"]
    if "out_of_memory" in row:
        peak_bytes = memory_need(plan, where)[0]
        assert where.gpu is not None, "training runs need GPUs"
        yield memory_point(row["family"], name, peak_bytes, where.gpu, ran_out=True)
        return
    if "forward_ms" in row:
        yield from _layer_points(row, where)
        return
    outcome = simulate(plan, where, simulation=Simulation())
    if "step_s" in row:
        yield Point(
            family=family, name=name, role=role, unit="s", measured=row["step_s"],
            predicted=to_seconds(outcome.steady_step_ns),
            job=job_of(outcome, sweeps=sweeps_of(row), samples=row["global_batch"]),
        )  # fmt: skip
    if "process_gib" in row:
        yield Point(
            family=f"runs_memory/{row['family']}", name=name, role=role, unit="GiB",
            measured=row["process_gib"], predicted=outcome.fullest.peak_bytes / GIB,
            job=job_of(outcome),
        )  # fmt: skip
    if "states_gib" in row:
        yield Point(
            family=f"runs_states/{row['family']}", name=name, role=role, unit="GiB",
            measured=row["states_gib"], predicted=_states_bytes(outcome) / GIB,
        )  # fmt: skip
    yield ran_point(outcome, row["family"], name)


def _states_bytes(outcome: StepOutcome) -> int:
    held = outcome.slowest.program.step_held[-1]
    return sum(held.get(category, 0) for category in STATES)


def _layer_points(row: dict[str, Any], where: ClusterSpec) -> Iterator[Point]:
    """Forward and backward of one layer: what five layers take more than one, by four.

    Backward is what a step takes more than its forward; the optimizer's part of a layer, which the
    rows do not have, is below 1 % of it.
    """
    few, many = 1, 5
    plans = [plan_of({**row, "layers": layers}) for layers in (few, many)]

    def each_ms(*, forward_only: bool) -> float:
        ends = [
            simulate(p, where, simulation=Simulation(), forward_only=forward_only, memory=False)
            for p in plans
        ]
        one, five = (to_seconds(e.step_ns[-1]) * 1e3 for e in ends)
        return (five - one) / (many - few)

    forward_ms = each_ms(forward_only=True)
    backward_ms = each_ms(forward_only=False) - forward_ms
    for what, said in (("forward", forward_ms), ("backward", backward_ms)):
        yield Point(
            family=f"runs/{row['family']}", name=f"{row['id']} {what}", role=row["use"], unit="ms",
            measured=row[f"{what}_ms"], predicted=said,
        )  # fmt: skip


def sweeps_of(row: dict[str, Any]) -> tuple[str, ...]:
    """Names of the sweeps a row is in: same model, GPUs and time; or same mesh, other heads.

    Rows of one sweep differ in mesh, micro-batch and global batch (or ZeRO's settings).
    """
    model = f"h{row['hidden']} L{row['layers']}"
    run = f"{row['seq_len']} tokens, {row['gpus']} GPUs, {row['precision']}"
    when = row.get("period", "")
    mesh = f"tp{row['tp']} pp{row['pp']} dp{row['dp']} mbs{row['micro_batch']}"
    recompute = "" if row["recompute"] == "full" else " without recompute"
    return (
        f"{row['family']}: {model} a{row['heads']}, {run}{recompute} {when}".strip(),
        f"{row['family']}: heads of {model}, {mesh}, {run} {when}".strip(),
    )


def cluster_of(row: dict[str, Any], machine: dict[str, Any]) -> ClusterSpec:
    """Nodes of a row's machine, as many as its GPUs need."""
    node = node_of(machine, -(-row["gpus"] // machine_gpus(machine)))
    return nodes(node, -(-row["gpus"] // node.gpu_count))


def machine_gpus(machine: dict[str, Any]) -> int:
    """GPUs per node."""
    return int(machine.get("gpu_count") or catalog.node(machine["node"]).gpu_count)


def node_of(machine: dict[str, Any], count: int) -> NodeSpec:
    """A node as the file describes it, in a job of so many.

    ``busbw_gbit_s`` lists (up to so many nodes, all-reduce's bus bandwidth); its share of the line
    rate of the ``busbw_nics`` that its rings left a node by (not said: all) becomes every NIC's
    efficiency: groups elsewhere on the node use the others.
    """
    node = catalog.node(machine["node"])
    more: dict[str, Any] = {"gpu_count": machine_gpus(machine)}
    if "nic_count" in machine:
        more["nic_count"] = machine["nic_count"]
    if "nic_gbit_s" in machine:
        lines = machine.get("busbw_nics", machine["nic_count"]) * machine["nic_gbit_s"]
        known = machine["busbw_gbit_s"]
        busbw = next((b for most, b in known if count <= most), known[-1][1])
        more["nic"] = replace(
            node.nic, name="omni-path-100", bytes_per_s=machine["nic_gbit_s"] / 8 * 1e9,
            efficiency=busbw / lines,
        )  # fmt: skip
    if "cpu" in machine:
        more["cpu"] = catalog.cpu(machine["cpu"])
    if "host_memory_gib" in machine:
        more["memory_bytes"] = machine["host_memory_gib"] * GIB
    return replace(node, **more)


def plan_of(row: dict[str, Any]) -> TrainingPlan:
    """The step that a row ran."""
    if row.get("engine") == "megatron_core":
        return paper_plan(row)
    mesh = Mesh(dp=row["dp"], tp=row["tp"], pp=row["pp"])
    recompute = row["recompute"] == "full"
    states = bool(row.get("bf16_states"))
    return TrainingPlan(
        model=_model(row),
        mesh=mesh,
        engine="deepspeed",
        micro_batch=row["micro_batch"],
        gradient_accumulation_steps=max(1, row["global_batch"] // (row["micro_batch"] * mesh.dp)),
        precision=row["precision"],
        optimizer=_optimizer(row),
        zero=_zero(row),
        activation_checkpointing="full" if recompute else "none",
        pipeline=PipelineSettings(
            stages=mesh.pp,
            partition_method=PARTITION[row.get("partition", "")],
            activation_checkpoint_interval=int(recompute),
        ),
        grad_accum_dtype="fp32" if row["precision"] == "bf16" and row["zero"] < 2 else None,
        bf16_master_weights_and_grads=states,
        bf16_optimizer_states=states,
        partition_activations=row.get("partition_activations", False),
        cpu_checkpointing=row.get("cpu_checkpointing", False),
        launch_blocking=row.get("launch_blocking", False),
        checkpoint_buffers=row["layers"] * bool(row.get("contiguous_memory_optimization")),
        synchronize_checkpoint_boundary=row.get("synchronize_checkpoint_boundary", False),
        separate_gathers=row.get("separate_gathers", False),
        host_pool=_host_pool(row),
    )


def _host_pool(row: dict[str, Any]) -> HostPool:
    """``torch.distributed.launch`` leaves each rank one thread; ``deepspeed`` sets nothing."""
    return HostPool(threads=1 if row["family"].startswith("bigscience") else None)


def _optimizer(row: dict[str, Any]) -> Optimizer:
    """Megatron keeps a master of each weight, and so did DeepSpeed 0.4 around apex's FusedAdam."""
    by_weight = row.get("engine") == "megatron" or row["family"] == "bigscience_v100"
    return Optimizer(type="FusedAdam", fused=False) if by_weight else Optimizer()


def _zero(row: dict[str, Any]) -> ZeroConfig:
    given: dict[str, Any] = dict(row.get("zero_settings", {}))
    if "offload_optimizer" in given:
        given["offload_optimizer"] = OffloadOptimizer(device=given["offload_optimizer"])
    if "offload_param" in given:
        given["offload_param"] = OffloadParam(device=given["offload_param"])
    return ZeroConfig(stage=row["zero"], **given)


def _model(row: dict[str, Any]) -> Model:
    shape = (row["hidden"], row["heads"], row["layers"], row["seq_len"], row["vocab"])
    if row.get("engine") == "hf":
        return _huggingface(*shape)
    return _megatron(*shape, moe_zeros=row["family"] == "zero3_azure")


@cache
def _megatron(
    hidden: int, heads: int, layers: int, seq_len: int, vocab: int, *, moe_zeros: bool
) -> Model:
    """Of these rows Azure's alone ran a Megatron-DeepSpeed that makes zeros for experts."""
    config = {
        "model_type": "megatron_gpt", "hidden_size": hidden, "num_attention_heads": heads,
        "num_layers": layers, "max_position_embeddings": seq_len, "padded_vocab_size": vocab,
        "moe_zeros": moe_zeros,
    }  # fmt: skip
    return build(config, seq_len=seq_len, attention="eager")


@cache
def _huggingface(hidden: int, heads: int, layers: int, seq_len: int, vocab: int) -> Model:
    """``bf16_master``'s own small transformer has an output layer of its own; GPT-2's is tied."""
    config = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": hidden,
        "n_head": heads, "n_layer": layers, "n_positions": seq_len, "vocab_size": vocab,
        "tie_word_embeddings": vocab != 50_000,
    }  # fmt: skip
    return build(config, seq_len=seq_len, attention="eager")
