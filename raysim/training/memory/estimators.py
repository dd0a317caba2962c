"""Closed-form model-state memory: the ZeRO paper's table and DeepSpeed's own estimators.

They count neither activations, buckets, gathered parameters nor CUDA and NCCL; the simulated ledger
does. Users know these numbers, so raysim reproduces them exactly and shows them beside its own.
"""

from __future__ import annotations

from typing import NamedTuple


class StateBytes(NamedTuple):
    """What an estimator returns."""

    cpu_bytes: float
    """Per node."""
    gpu_bytes: float
    """Per GPU."""


def zero_paper_bytes(
    num_params: float, data_parallel: int, stage: int, optimizer_bytes: float = 12.0
) -> float:
    """Model states per GPU of fp16 mixed-precision training (Rajbhandari et al. 2020, table 1).

    Stage 0: 4P + KP; 1: 4P + KP/N; 2: 2P + (2 + K)P/N; 3: (4 + K)P/N, with K = 12 for Adam.
    """
    p, n, k = num_params, data_parallel, optimizer_bytes
    return (4 * p + k * p, 4 * p + k * p / n, 2 * p + (2 + k) * p / n, (4 + k) * p / n)[stage]


def estimate_zero2_model_states_mem_needs(
    total_params: int,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    *,
    cpu_offload: bool = True,
    additional_buffer_factor: float = 1.5,
) -> StateBytes:
    """DeepSpeed's estimator for ZeRO-2 (``deepspeed/runtime/zero/stage_1_and_2.py``, 0.19)."""
    total_gpus = num_nodes * num_gpus_per_node
    if cpu_offload:
        gpu = 2.0 * total_params
        cpu = total_params * max(4 * total_gpus, 16) * additional_buffer_factor
    else:
        gpu = 2 * total_params + int(18 * total_params / total_gpus)
        cpu = total_params * 4 * num_gpus_per_node * additional_buffer_factor
    return StateBytes(cpu_bytes=int(cpu), gpu_bytes=int(gpu))


def estimate_zero3_model_states_mem_needs(
    total_params: int,
    largest_layer_params: int,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    *,
    cpu_offload: bool = True,
    cpu_offload_params: bool = True,
    zero_init: bool = True,
    additional_buffer_factor: float = 1.5,
) -> StateBytes:
    """DeepSpeed's estimator for ZeRO-3 (``deepspeed/runtime/zero/stage3.py``, 0.19).

    ``largest_layer_params``: largest sum of parameters one module owns directly.
    """
    total_gpus = num_nodes * num_gpus_per_node
    share = 1 / num_nodes
    largest = 4 * largest_layer_params
    if cpu_offload:
        per_param = 18 if cpu_offload_params else 16
        gpu = largest if cpu_offload_params else largest + int(2 * total_params / total_gpus)
        states = per_param * share if zero_init else max(4 * num_gpus_per_node, per_param * share)
        cpu = total_params * states * additional_buffer_factor
    else:
        gpu = largest + int(18 * total_params / total_gpus)
        built = largest_layer_params if zero_init else total_params
        cpu = built * 4 * num_gpus_per_node * additional_buffer_factor
    return StateBytes(cpu_bytes=int(cpu), gpu_bytes=int(gpu))
