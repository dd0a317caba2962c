"""A small summary and a small recording, every option defaulted, for tests of what is printed."""

from __future__ import annotations

import copy
from typing import Any

from raysim.kernel.record import ColumnRecorder
from raysim.units import GIB

_SUMMARY: dict[str, Any] = {
    "raysim": "0.1.0",
    "scenario": "small",
    "seed": 0,
    "run_id": "abc123",
    "verdict": {"fits": True, "text": "Fits: 30.0 of 80.0 GiB; 1,000 tokens/s on 16 GPUs."},
    "cluster": {
        "gpu_nodes": 2,
        "gpus": 16,
        "gpus_per_node": 8,
        "gpu": "H100",
        "network": "NVSwitch + 8 x 400 Gb/s",
    },
    "job": {
        "name": "train",
        "model": "llama",
        "architecture": "LlamaForCausalLM",
        "parameters": 8_030_261_248,
        "strategy": "ZeRO-3, dp 16, micro 1 x ga 8",
        "sample_unit": "tokens",
        "simulated_ranks": 1,
        "folded": True,
    },
    "step": {
        "seconds": 10.0,
        "p95_seconds": None,
        "slowest_rank": 0,
        "breakdown": [
            {"name": "kernels", "key": "compute", "seconds": 9.5, "frac": 0.95},
            {"name": "bubble", "key": "bubble", "seconds": 0.0, "frac": 0.0},
            {"name": "collectives", "key": "exposed_collectives", "seconds": 0.5, "frac": 0.05},
        ],
    },
    "memory": {
        "peak_bytes": 30 * GIB,
        "capacity_bytes": 80 * GIB,
        "frac": 0.375,
        "fits": True,
        "rank": 3,
        "node": "node-0",
        "gpu": 3,
        "when": "backward of lm_head",
        "by_category": [
            {"category": "activation", "name": "activations", "bytes": 10 * GIB},
            {"category": "optimizer_state", "name": "optimizer states", "bytes": 20 * GIB},
        ],
        "per_stage": [],
        "host": None,
    },
    "throughput": {
        "samples_per_s": 14.3,
        "tokens_per_s": 1000.0,
        "tokens_per_s_per_gpu": 62.5,
        "mfu": 0.45,
        "model_flops_per_s_per_gpu": 445e12,
        "peak_flops_per_s": 989e12,
    },
    "run": {"seconds": 864_000.0, "steps": 95_367, "tokens": 10**11, "phases": []},
    "cost": {"gpu_hours": 3840.0, "usd": 11_520.0, "usd_per_gpu_hour": 3.0},
    "bound_by": {"what": "GPU kernels", "text": "GPU kernels, 95 % of the step.", "frac": 0.95},
    "would_help": [],
    "trust": {"measured": 3, "datasheet": 2, "assumed": 1, "past_error": None, "inputs": []},
    "targets": [],
    "reference": None,
    "warnings": [],
    "simplifications": [],
    "simulation": {"virtual_seconds": 20.0, "simulated_steps": 2},
}


def summary(**changes: Any) -> dict[str, Any]:
    """The summary with some top-level parts replaced, or mappings in it updated."""
    made = copy.deepcopy(_SUMMARY)
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(made[key], dict):
            made[key] |= value
        else:
            made[key] = value
    return made


def recording(steps: int = 2) -> ColumnRecorder:
    """Two GPUs on two nodes; per step of 100 ns a forward, a backward, an all-reduce, a send."""
    record = ColumnRecorder()
    for step in range(steps):
        t = step * 100
        for node in range(2):
            device = (f"node-{node}", "gpu-1")
            args = {"step": step, "micro_batch": 0, "flops": 1e12}
            record.span((*device, "compute"), "layer forward", "forward", t, t + 30, args)
            record.span((*device, "compute"), "layer backward", "backward", t + 30, t + 90, args)
            reduce = {"step": step, "op": "all_reduce", "bytes": 4096, "bus_bytes_per_s": 1e9}
            record.span((*device, "comm:dp"), "gradients", "collective", t + 50, t + 80, reduce)
            record.counter(device, "memory/activation", t + 30, 2**30)
            record.counter(device, "memory/activation", t + 90, 0)
        flow = {"step": step, "flow": step + 7, "bytes": 64}
        record.span(("node-0", "gpu-1", "comm:pp"), "send", "p2p", t, t + 10, flow)
        record.span(("node-1", "gpu-1", "comm:pp"), "recv", "p2p", t + 5, t + 10, flow)
        record.counter(("network",), "link/node-0 nic 1 out", t, 5e9)
    record.instant(("node-0", "gpu-1"), "peak memory", "memory", 90, {"bytes": 2**30})
    return record
