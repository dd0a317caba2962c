"""Made-up results of every shape a report must show; the numbers only need to look alive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raysim.kernel.record import ColumnRecorder
from raysim.units import GIB, MIB

MS = 1_000_000
Track = tuple[str, ...]


class Recorded(ColumnRecorder):
    """Records, and two short pens to write them with."""

    def slice(
        self, track: Track, name: str, category: str, start: int, end: int, **args: Any
    ) -> int:
        self.span(track, name, category, start, end, args)
        return end

    def memory(self, track: Track, category: str, t: int, value: float) -> None:
        self.counter(track[:2], f"memory/{category}", t, value)


@dataclass
class Case:
    """What `raysim.report.html.render` reads of a result."""

    summary: dict[str, Any]
    records: Recorded | None = None
    scenario_yaml: str = "raysim: 1\nname: case\n"


def _standing(to: Recorded, track: Track, parameters: float, states: float) -> None:
    to.memory(track, "context", 0, 1.6 * GIB)
    to.memory(track, "parameter", 2 * MS, parameters)
    to.memory(track, "optimizer_state", 3 * MS, states)
    to.memory(track, "input", 4 * MS, 24 * MIB)


def ddp_records(steps: int = 3, layers: int = 32, micro_batches: int = 2) -> Recorded:
    """One GPU: forward, backward with overlapped all-reduces of buckets, optimizer."""
    to, gpu, t = Recorded(), ("node-0", "gpu-0"), 5 * MS
    _standing(to, gpu, 15 * GIB, 30 * GIB)
    compute, comm, host = (*gpu, "compute"), (*gpu, "comm:dp"), (*gpu, "host")
    for step in range(1, steps + 1):
        to.slice(host, "next(dataloader)", "data", t, t + 6 * MS, step=step)
        t += 6 * MS
        for micro in range(micro_batches):
            args = {"step": step, "micro_batch": micro}
            for i in range(layers):
                t = to.slice(compute, f"model.layers.{i} forward", "forward", t, t + 9 * MS,
                            flops=4.1e12, **args)  # fmt: skip
                to.memory(gpu, "activation", t, (i + 1) * 0.25 * GIB)
            t = to.slice(compute, "lm_head forward", "forward", t, t + 5 * MS, **args)
            to.memory(gpu, "logits", t, 5.1 * GIB)
            t = to.slice(compute, "lm_head backward", "backward", t, t + 11 * MS, **args)
            to.memory(gpu, "logits", t, 0)
            free = t
            for i in reversed(range(layers)):
                t = to.slice(compute, f"model.layers.{i} backward", "backward", t, t + 19 * MS,
                            flops=8.2e12, **args)  # fmt: skip
                to.memory(gpu, "activation", t, i * 0.25 * GIB)
                to.memory(gpu, "gradient", t, (layers - i) * 0.47 * GIB)
                if micro == micro_batches - 1:
                    free = to.slice(comm, "all_reduce gradients", "collective", max(t, free),
                                   max(t, free) + 16 * MS, op="all_reduce", bytes=436 * MIB,
                                   bus_bytes_per_s=341e9, **args)  # fmt: skip
        t = to.slice(compute, "AdamW step", "optimizer", free, free + 42 * MS, step=step)
        to.memory(gpu, "gradient", t, 0)
    return to


def pipeline_records(stages: int = 4, micro_batches: int = 8) -> Recorded:
    """One GPU per stage, 1F1B."""
    to = Recorded()
    ready: dict[tuple[str, int, int], int] = {}
    free = [0] * stages
    orders: list[list[tuple[str, int]]] = []
    for s in range(stages):
        warm = min(stages - s, micro_batches)
        order = [("forward", m) for m in range(warm)]
        for m in range(micro_batches):
            order.append(("backward", m))
            order += [("forward", m + warm)] if m + warm < micro_batches else []
        orders.append(order)
        gpu = (f"node-{s}", "gpu-0")
        _standing(to, gpu, 4 * GIB, 12 * GIB)
    took = {"forward": 30 * MS, "backward": 62 * MS}
    while any(orders):
        for s in range(stages):
            if not orders[s]:
                continue
            kind, m = orders[s][0]
            before = (kind, s - 1 if kind == "forward" else s + 1, m)
            needs = 0 <= before[1] < stages
            if needs and before not in ready:
                continue
            orders[s].pop(0)
            start = max(free[s], ready.get(before, 0))
            free[s] = start + took[kind]
            gpu, args = (f"node-{s}", "gpu-0"), {"step": 1, "micro_batch": m}
            to.slice((*gpu, "compute"), f"stage {s} {kind} {m}", kind, start, free[s], **args)
            ready[kind, s, m] = free[s] + 4 * MS
            last = s == (stages - 1 if kind == "forward" else 0)
            if not last:
                to.slice((*gpu, "comm:pp"), "send_recv", "p2p", free[s], free[s] + 4 * MS,
                        bytes=64 * MIB, op="send_recv", bus_bytes_per_s=21e9, **args)  # fmt: skip
            held = sum(k[0] == "forward" and k[1] == s for k in ready) - sum(
                k[0] == "backward" and k[1] == s for k in ready
            )
            to.memory(gpu, "activation", free[s], held * 3.1 * GIB)
    for s in range(stages):
        gpu = (f"node-{s}", "gpu-0")
        end = to.slice((*gpu, "comm:dp"), "reduce_scatter gradients", "collective", free[s],
                      free[s] + 18 * MS, step=1, bytes=4 * GIB, bus_bytes_per_s=48e9)  # fmt: skip
        to.slice((*gpu, "compute"), "AdamW step", "optimizer", end, end + 12 * MS, step=1)
    return to


def _breakdown(**seconds: float) -> list[dict[str, Any]]:
    names = {
        "compute": "forward + backward kernels", "exposed_collectives": "exposed collectives",
        "bubble": "pipeline bubble", "offload": "copies and CPU optimizer",
        "launch": "launch gaps", "data_wait": "data wait", "optimizer": "optimizer step",
    }  # fmt: skip
    whole = sum(seconds.values())
    return [
        {"name": n, "key": k, "seconds": seconds.get(k, 0.0), "frac": seconds.get(k, 0.0) / whole}
        for k, n in names.items()
    ]


def _categories(**sizes: float) -> list[dict[str, Any]]:
    names = {
        "logits": "logits + loss (temporary)", "optimizer_state": "optimizer states",
        "activation": "activation checkpoints", "context": "CUDA context + NCCL",
        "slack": "allocator slack", "parameter": "parameters", "gradient": "gradients",
        "bucket": "reduce buckets", "gathered_parameter": "gathered parameters (live)",
        "temporary": "working set", "input": "input batch",
    }  # fmt: skip
    return [{"category": k, "name": names[k], "bytes": v * GIB} for k, v in sizes.items()]


def _trust() -> dict[str, Any]:
    inputs = [
        ("H100-SXM-80GB memory_bytes_per_s", 3.35e12, "datasheet", "NVIDIA H100 datasheet"),
        ("H100-SXM-80GB memory_bytes", 85520809984, "measured", "nvidia-smi on a p5.48xlarge"),
        ("bf16 gemm efficiency_frac", 0.71, "measured", "matmul sweep on one H200, 2026-10"),
        ("kernel launch_s", 4.5e-6, "measured", "empty-kernel loop on one H200, 2026-10"),
        ("NVLink latency_s", 0.6e-6, "assumed", "NCCL's tuning table, hardware not at hand"),
    ]
    keys = ("name", "value", "basis", "source")
    return {"measured": 3, "datasheet": 1, "assumed": 1, "past_error": 0.06,
            "inputs": [dict(zip(keys, row, strict=True)) for row in inputs]}  # fmt: skip


def _compared() -> dict[str, Any]:
    """A target met, one missed, a measurement of each of two values, and what is left out."""
    return {
        "warnings": ["ds_config.json:7:3   comms_logger: not modelled yet"],
        "simplifications": ["Data loading is priced from cpu_seconds_per_sample."],
        "targets": [
            {"name": "days", "condition": "<= 14", "value": 9.9, "value_text": "9.9",
             "limit": 14.0, "op": "<=", "passed": True, "text": "days <= 14"},
            {"name": "gpu_mem_peak", "condition": "<= 80%", "value": 0.962,
             "value_text": "96.2 %", "limit": 0.8, "op": "<=", "passed": False,
             "text": "gpu_mem_peak <= 80 %"}],
        "reference": {"source": "two HGX H100 nodes, 200 steps, torch 2.6", "values": [
            {"name": "step_seconds", "measured": 9.21, "predicted": 8.93,
             "error_frac": -0.0304},
            {"name": "memory_peak", "measured": 78.0 * GIB, "predicted": 76.6 * GIB,
             "error_frac": -0.0179}]},
    }  # fmt: skip


def ddp() -> Case:
    """It fits, everything is known, and there is a measurement to compare with."""
    return Case(
        {
            "raysim": "0.1.0", "scenario": "llama3-8b-ddp", "seed": 0, "run_id": "7f3a9c",
            "verdict": {"fits": True, "text": "Fits: 76.6 of 79.6 GiB on the fullest GPU (96 %); "
                        "117,400 tokens/s on 16 GPUs."},
            "cluster": {"gpu_nodes": 2, "gpus": 16, "gpus_per_node": 8, "gpu": "H100-SXM-80GB",
                        "node": "hgx-h100-8", "network": "NVSwitch gen 4 + 8 x 400 Gb/s InfiniBand",
                        "fabric": "rail_fat_tree", "usd_per_hour": 48.24, "groups": [
                            {"name": "gpu-worker", "node": "hgx-h100-8", "count": 2,
                             "usd_per_hour": 23.92},
                            {"name": "head", "node": "cpu-32", "count": 1, "usd_per_hour": 0.4}]},
            "job": {"name": "train", "model": "llama", "architecture": "LlamaForCausalLM",
                    "parameters": 8030261248, "engine": "PyTorch DDP",
                    "strategy": "DDP, dp 16, bf16, seq 8192, micro 1 x ga 8", "precision": "bf16",
                    "dp": 16, "tp": 1, "pp": 1, "seq_len": 8192, "micro_batch": 1,
                    "gradient_accumulation_steps": 8, "global_batch_samples": 128,
                    "activation_checkpointing": "full", "optimizer": "AdamW",
                    "sample_unit": "tokens", "simulated_ranks": 1, "folded": True},
            "step": {"seconds": 8.93, "p95_seconds": 8.97, "slowest_rank": 0,
                     "breakdown": _breakdown(compute=8.2, exposed_collectives=0.51, launch=0.155,
                                             data_wait=0.023, optimizer=0.042),
                     "hidden_collectives_frac": 0.84},
            "memory": {"peak_bytes": 76.6 * GIB, "allocated_peak_bytes": 74.7 * GIB,
                       "capacity_bytes": 85520809984, "frac": 0.962, "fits": True, "rank": 0,
                       "node": "node-0", "gpu": 0, "when": "backward of lm_head", "peak_t_s": 0.3,
                       "by_category": _categories(optimizer_state=30, activation=8, parameter=15,
                                                  gradient=15, logits=5.1, context=1.6, slack=1.9),
                       "per_stage": [], "host": {
                           "peak_bytes_per_node": 39 * GIB, "capacity_bytes": 2048 * GIB,
                           "fits": True, "by_category": [
                               {"category": "process", "name": "Python and CUDA per process",
                                "bytes": 32 * GIB}]}},
            "throughput": {"samples_per_s": 14.3, "tokens_per_s": 117400.0,
                           "tokens_per_s_per_gpu": 7340.0, "mfu": 0.453, "hfu": 0.604,
                           "model_flops_per_s_per_gpu": 448e12, "peak_flops_per_s": 989.4e12},
            "collectives": [
                {"op": "all_reduce", "phase": "backward", "what": "gradients", "count": 32,
                 "bytes": 14.6e9, "seconds": 0.52, "exposed_seconds": 0.5, "bus_bytes_per_s": 341e9,
                 "group_ranks": 16, "algorithm": "ring", "protocol": "simple"},
                {"op": "all_reduce", "phase": "step", "what": "gradient norm", "count": 1,
                 "bytes": 8, "seconds": 31e-6, "exposed_seconds": 31e-6, "bus_bytes_per_s": 4.8e5,
                 "group_ranks": 16, "algorithm": "tree", "protocol": "ll"}],
            "run": {"seconds": 855360.0, "steps": 95367, "epochs": None, "startup_seconds": 41.0,
                    "first_step_seconds": 11.2, "evaluation_seconds": 0.0,
                    "checkpoint_seconds": 120.0, "tokens": 100e9, "days": 9.9,
                    "phases": [{"name": "start-up", "seconds": 41.0},
                               {"name": "training", "seconds": 855199.0},
                               {"name": "checkpoints", "seconds": 120.0}]},
            "cost": {"gpu_hours": 3801.6, "usd": 11366.8, "usd_per_gpu_hour": 2.99,
                     "usd_per_million_tokens": 0.1137},
            "bound_by": {"what": "GPU kernels", "frac": 0.974, "text":
                         "GPU kernels, 92 % of the step; collectives are 84 % hidden behind them."},
            "would_help": [
                {"change": "train.micro_batch: 2, gradient_accumulation_steps: 4",
                 "text": "micro 2 x ga 4", "step_delta_frac": -0.041, "fits": False},
                {"change": "inter-node bandwidth +10 %", "text": "+10 % inter-node bandwidth",
                 "step_delta_frac": -0.006, "fits": True},
                {"change": "memory bandwidth +10 %", "text": "+10 % HBM bandwidth",
                 "step_delta_frac": -0.021, "fits": True},
                {"change": "train.activation_checkpointing: none", "fits": True,
                 "text": "bucket_cap_mb 100 instead of 25", "step_delta_frac": 0.008}],
            "trust": _trust(),
            **_compared(),
            "simulation": {"virtual_seconds": 26.8, "simulated_steps": 3, "events": 21034,
                           "ops": 40211, "digest": "9a31c0de"},
        },
        ddp_records(),
    )  # fmt: skip


def full() -> Case:
    """``ddp`` and what simulated jobs have: links, elasticities, intervals, energy, goodput."""
    case = ddp()
    links = [
        {"link": f"node-0/{name}", "bytes_per_s": 50e9, "bytes": 14.6e9, "mean_frac": 0.03,
         "peak_frac": 0.9}
        for name in ("nic-0/out", "nic-0/in", "gpu-0/nvlink-out")
    ]  # fmt: skip
    interval = {"low": 8.0, "high": 11.0, "kind": "GPUs with measured kernels", "rows": 226,
                "key": ["time", "measured", "any", "any"]}  # fmt: skip
    memory = interval | {"low": 70 * GIB, "high": 90 * GIB, "rows": 93,
                         "key": ["memory", "measured", "any", "any"]}  # fmt: skip
    case.summary |= {
        "links": links,
        "sensitivity": [{"input": "GPU products, FLOP/s", "elasticity": -0.81},
                        {"input": "network latency", "elasticity": 0.02}],
        "certainty": {"standing": "interpolated", "reasons": [], "covers": 0.9,
                      "step_seconds": interval, "memory_peak_bytes": memory,
                      "tokens_per_s": None, "samples_per_s": None},
        "energy": {"kwh": 8261.5, "pue": 1.56, "gco2e_per_kwh": 100.0, "kg_co2e": 826.0},
        "goodput": {"frac": 0.9, "healthy_step_seconds": 8.93, "step_seconds": 9.2,
                    "step_inflation_frac": 0.03, "runs": 10, "finished": True,
                    "wall_seconds": 950000.0, "failures": 3.0, "mtbf_seconds": 3e5, "parts": [
                        {"key": "kept", "name": "kept steps", "seconds": 855000.0, "frac": 0.9},
                        {"key": "lost", "name": "work lost", "seconds": 95000.0, "frac": 0.1}]},
    }  # fmt: skip
    case.summary["memory"] |= {"allocating": "lm_head", "largest": [
        {"category": "optimizer_state", "label": "states", "bytes": 30 * GIB}]}  # fmt: skip
    assert case.records is not None
    for t, rate in ((6 * MS, 45e9), (30 * MS, 0.0), (200 * MS, 20e9), (220 * MS, 0.0)):
        for row in links[:2]:
            case.records.counter(("node-0",), f"link/{row['link']}", t, rate)
    return case


def pipeline(stages: int = 4) -> Case:
    """Four pipeline stages, one GPU simulated for each; no price, no targets."""
    case = ddp()
    summary = case.summary
    summary |= {
        "scenario": "opt-30b-pipeline", "reference": None, "targets": [], "warnings": [],
        "cost": {"gpu_hours": 3801.6, "usd": None, "usd_per_gpu_hour": None}, "would_help": [],
        "verdict": {"fits": True, "text": "Fits: 32.4 of 79.6 GiB on the fullest GPU (41 %)."},
    }  # fmt: skip
    summary["job"] |= {"pp": stages, "dp": 4, "engine": "DeepSpeed pipeline, ZeRO-1",
                       "simulated_ranks": stages}  # fmt: skip
    summary["step"] |= {"seconds": 1.08, "slowest_rank": 0, "p95_seconds": None,
                        "breakdown": _breakdown(
                            compute=0.736, bubble=0.29, launch=0.02,
                            exposed_collectives=0.022, optimizer=0.012)}  # fmt: skip
    per_stage = []
    for s in range(stages):
        held = {
            "activation": (stages - s) * 3.1,
            "optimizer_state": 12,
            "parameter": 4,
            "context": 1.6,
        }
        sizes = {k: v * GIB for k, v in held.items()}
        per_stage.append({"pp": s, "rank": s * 4, "peak_bytes": sum(sizes.values()) + 0.4 * GIB,
                          "by_category": sizes})  # fmt: skip
    summary["memory"] |= {
        "peak_bytes": per_stage[0]["peak_bytes"], "per_stage": per_stage, "frac": 0.38,
        "host": None, "when": "stage 0 forward 3", "allocated_peak_bytes": None,
        "by_category": _categories(activation=12.4, optimizer_state=12, parameter=4, context=1.6),
    }  # fmt: skip
    case.records = pipeline_records(stages)
    return case


def too_big() -> Case:
    """A job that does not fit: no step, no throughput, no cost."""
    case = ddp()
    to, gpu = Recorded(), ("node-0", "gpu-0")
    _standing(to, gpu, 29.9 * GIB, 0)
    t = 10 * MS
    for i in range(32):
        t = to.slice(
            (*gpu, "compute"), f"model.layers.{i} forward", "forward", t, t + 9 * MS, step=1
        )
        to.memory(gpu, "activation", t, (i + 1) * 0.9 * GIB)
    for i in range(32):
        t = to.slice(
            (*gpu, "compute"), f"model.layers.{31 - i} backward", "backward", t, t + 18 * MS, step=1
        )
        to.memory(gpu, "gradient", t, (i + 1) * 0.93 * GIB)
        to.memory(gpu, "activation", t, (31 - i) * 0.9 * GIB)
    to.memory(gpu, "optimizer_state", t, 59.8 * GIB)
    to.slice((*gpu, "compute"), "AdamW step", "optimizer", t, t + 40 * MS, step=1)
    case.summary |= {
        "scenario": "llama31-8b-sft", "reference": None, "step": None, "throughput": None,
        "run": None, "cost": None, "collectives": [], "would_help": [],
        "verdict": {"fits": False, "text": "Does not fit: 121.4 of 79.6 GiB on the fullest GPU "
                    "(152 %), at the first AdamW step. fp32 optimizer states alone take 59.8 GiB; "
                    "ZeRO-1 over 4 GPUs would need 76.5 GiB."},
        "bound_by": {"what": "GPU memory", "text": "GPU memory: 41.8 GiB too little.", "frac": 1.5},
    }  # fmt: skip
    case.summary["targets"] = [
        {"name": "days", "condition": "<= 2", "value": None, "value_text": "not reached",
         "limit": 2.0, "op": "<=", "passed": False, "text": "days <= 2"}]  # fmt: skip
    case.summary["memory"] |= {
        "peak_bytes": 121.4 * GIB, "frac": 1.52, "fits": False, "when": "AdamW step",
        "allocated_peak_bytes": 118 * GIB, "host": None,
        "by_category": _categories(
            optimizer_state=59.8, parameter=29.9, gradient=29.9, context=1.6),
    }  # fmt: skip
    case.records = to
    return case
