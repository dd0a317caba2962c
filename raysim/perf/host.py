"""Times on the host side: kernel launches, ZeRO-3 hooks, PCIe copies, DeepSpeed's CPU Adam.

Real counterparts: the torch dispatcher, ``deepspeed/runtime/zero/parameter_offload.py`` (hooks),
``csrc/adam/cpu_adam_impl.cpp``. Not modelled: NUMA distances, the Python interpreter's own jitter.
"""

from __future__ import annotations

from typing import Literal

from raysim.hardware.specs import CpuSpec, GpuSpec, Provenance

CopyKind = Literal["h2d", "d2h", "d2d"]

LAUNCH_S = 8e-6
HOOK_S = 190e-6
FSDP_HOOK_S = 380e-6
INSTRUCTION_S = 400e-6
ENGINE_PASS_S = 400e-6
ENGINE_STEP_S = 800e-6
COPY_FIXED_S = 10e-6
UNPINNED_SHARE = 0.5
CPU_ADAM_BYTES = 28.0
CPU_COPY_BYTES = 6.0
CPU_STREAM_SHARE = 0.5
UNBOUND_SHARE = 0.5
CPU_ADAM_FLOPS = 20.0

PROVENANCE = {
    "launch_s": Provenance(
        basis="measured",
        source="CPU time of eager Hugging Face layers on tiny tensors per kernel launched: Llama "
        "8.2 us forward, 5.0 us backward; GPT-2 20 and 9, BERT 23 and 11; torch 2.13, AMD EPYC, "
        "one thread, 2026-11-21",
    ),
    "hook_s": Provenance(
        basis="measured",
        source="CPU time per module and pass under ZeRO-3 beyond the plain module: 0.22 ms "
        "forward, 0.17 ms backward; DeepSpeed 0.19.8, AMD EPYC, one thread, 2026-11-21",
    ),
    "fsdp_hook_s": Provenance(
        basis="measured",
        source="CPU time that a group of nine parameters adds to a Llama layer per pass, hooks "
        "before and after: 2.3 times the plain layer's under FSDP2, 2.3 under FSDP1, which is "
        "0.31 ms on the host of launch_s; torch 2.13, fake process group, one thread, 2026-11-22",
    ),
    "engine_s": Provenance(
        basis="measured",
        source="CPU time of PipelineEngine per instruction (1.2 ms per micro-batch of three), of "
        "DeepSpeedEngine per pass 0.4 ms and per step 0.8 ms; DeepSpeed 0.19.8, AMD EPYC, one "
        "thread, 2026-11-21",
    ),
    "copy_fixed_s": Provenance(basis="assumed", source="cudaMemcpyAsync latency seen by a stream"),
    "unpinned_share": Provenance(
        basis="assumed", source="pageable copies are staged through a pinned buffer: about half"
    ),
    "cpu_adam": Provenance(
        basis="assumed",
        source="28 bytes per element (p, m, v read and written, g read) and 6 for the bf16 copy at "
        "half of STREAM, halved again without core binding; DeepSpeed's ZeRO-Offload log on "
        "DGX-2 hosts: 1e10 parameters in 6.2-6.5 s",
    ),
}


def copy_seconds(
    gpu: GpuSpec, size_bytes: float, kind: CopyKind, *, pinned: bool, d2d_bytes_per_s: float
) -> float:
    """Seconds of one copy alone on its link; ``d2d`` reads and writes the GPU's own memory."""
    if size_bytes <= 0:
        return 0.0
    if kind == "d2d":
        return 2e-6 + 2.0 * size_bytes / d2d_bytes_per_s
    rate = gpu.pcie_bytes_per_s * (1.0 if pinned else UNPINNED_SHARE)
    return COPY_FIXED_S + size_bytes / rate


def cpu_adam_seconds(
    numel: float,
    cpu: CpuSpec,
    ranks_per_node: int,
    *,
    bound: bool,
    low_precision_copy: bool,
    stream_share: float = CPU_STREAM_SHARE,
) -> float:
    """Seconds of ``DeepSpeedCPUAdam`` when every rank of a node updates ``numel`` elements at once.

    All ranks share the host's memory bandwidth; ``bound`` is the launcher's
    ``--bind_cores_to_rank``.
    """
    bytes_each = CPU_ADAM_BYTES + (CPU_COPY_BYTES if low_precision_copy else 0.0)
    share = stream_share * (1.0 if bound else UNBOUND_SHARE)
    elements = numel * ranks_per_node
    return max(
        elements * bytes_each / (cpu.memory_bytes_per_s * share),
        elements * CPU_ADAM_FLOPS / (cpu.flops_per_s * share),
    )


def host_pass_seconds(
    size_bytes: float,
    cpu: CpuSpec,
    ranks_per_node: int,
    *,
    stream_share: float = CPU_STREAM_SHARE,
) -> float:
    """Seconds of one plain pass (norm, unscale, cast) over ``size_bytes`` of host memory a rank."""
    return size_bytes * ranks_per_node / (cpu.memory_bytes_per_s * stream_share)
