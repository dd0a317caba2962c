"""Times on the host side: what eager PyTorch costs its thread, PCIe copies, passes over memory.

An eager layer costs its host by what Python and the dispatcher do, not by what the GPU runs: every
module call, every ATen operator (a view as much as a product), every autograd node, and on top of
that every kernel's launch. Constants are those of one reference host and scale with the speed of a
thread (``CpuSpec.single_thread``).

Passes over main memory (CPU Adam, norms, casts) are those of a rank's OpenMP threads: as fast as so
many cores stream, until the ranks of the node together reach what its memory gives.

Real counterparts: ``torch.nn.Module.__call__``, the torch dispatcher, autograd's engine, c10d,
``torch.utils.checkpoint``, ``deepspeed/runtime/zero/parameter_offload.py`` (hooks),
``csrc/adam/cpu_adam_impl.cpp``. Not modelled: NUMA distances, the Python interpreter's own jitter
and version, what ``no_grad`` saves.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import inf
from typing import Literal

from raysim.hardware.specs import CpuSpec, GpuSpec, Provenance

CopyKind = Literal["h2d", "d2h", "d2d"]

REFERENCE_SINGLE_THREAD = 1.84
"""Of the host that the constants below were measured on; see ``PROVENANCE["host_speed"]``."""
OPERATOR_S = 2.2e-6
MODULE_S = 13e-6
NODE_S = 4.75e-6
LAUNCH_S = 4.13e-6
BACKWARD_S = 90e-6
CLIP_S, CLIP_TENSOR_S = 70e-6, 2e-6
COLLECTIVE_S = 30e-6
CHECKPOINT_S = 150e-6
SAVED_S = 3e-6
HOOK_S = 190e-6
HOOK_BACKWARD = 0.53
FETCH_SHARE = 0.29
GRADIENT_SHARE = 0.25
STEP_SHARE = 0.43
"""Of ``HOOK_S``: see ``PROVENANCE["hook_s"]``."""
SLICE_S = 1.25e-6
FSDP_HOOK_S = 380e-6
INSTRUCTION_S = 400e-6
ENGINE_PASS_S = 400e-6
ENGINE_STEP_S = 800e-6
COPY_FIXED_S = 10e-6
STAGING_BYTES_PER_S = 13e9
STAGED_BYTES = 64 * 1024
"""Pageable memory of more than this is copied when its stream has nothing left to do, and the host
goes on when it lies in a pinned buffer, which is as good as copied ("API synchronization behavior"
in NVIDIA's CUDA driver API); less may go by itself."""
FRESH_BYTES_PER_S = 7.24e9
FRESH_THREAD_BYTES_PER_S = 2.2e9
CUDA_CONTEXT_S = 0.4
"""Of a process: 0.33 and 0.50 s of two beside an H100 (driver 580, 2026-11-27)."""
CPU_ADAM_BYTES = 28.0
CPU_COPY_BYTES = 6.0
CPU_STREAM_SHARE = 0.5
UNBOUND_SHARE = 0.5
CPU_ADAM_FLOPS = 20.0

LOOPS = {
    "transformers.trainer": 0.7e-3,
    "lightning.pytorch.loops.training_epoch_loop": 0.3e-3,
    "accelerate.optimizer": 0.3e-3,
}
"""Seconds of the reference host that a library's loop takes per micro-batch (measured with one a
step) beside what it calls, by the module whose code is on the stack: 1.8 ms of transformers'
Trainer, 1.4 of Lightning's and of Accelerate's wrappers, around a layer of two parameters beside
an H100 at 0.59 of the reference (host_training.csv, 2026-11-26), less 0.4 ms of the reference for
model, optimizer and loader."""
UNSCALE_S, UNSCALE_TENSOR_S = 70e-6, 0.54e-6
"""``torch.amp.GradScaler``'s ``unscale_``, ``step`` and ``update``; and for each gradient."""

_LAYERS = (
    "least squares over CPU time of eager Hugging Face layers on tiny tensors, five families, "
    "forward and backward, 6 % mean error: 7.6 us per ATen operator, 45 us per module, 16.4 us "
    "per autograd node on a 2-core Xeon (host_dispatch.csv), over the 3.45 by which an AMD EPYC "
    "took less for Llama, GPT-2 and BERT layers; torch 2.13, Python 3.11, 2026-11"
)
PROVENANCE = {
    "host_speed": Provenance(
        basis="measured",
        source="a thread's speed from the host's processor (single_thread), over that of the AMD "
        "EPYC the host's constants were measured on, whose model was not recorded: so that eager "
        "Llama-2 7B on an A100's EPYC 7742 dispatches its published 25.5 tokens/s (gpt_fast.json; "
        "that the host was one is assumed). The same from another side: an Emerald Rapids Xeon "
        "of 1.65 ran eager layers at 0.90 of it, which makes it 1.83",
    ),
    "operator_s": Provenance(basis="measured", source=_LAYERS),
    "module_s": Provenance(basis="measured", source=_LAYERS),
    "node_s": Provenance(basis="measured", source=_LAYERS),
    "launch_s": Provenance(
        basis="measured",
        source="an add_ on one element of an H100, in a loop, less the operator: 7.04 us and 2.44 "
        "us on an Emerald Rapids Xeon at 0.90 of the reference (launch.csv, host_dispatch.csv, "
        "2026-11-26); a product's takes 8 us. cudaLaunchKernel alone is 2.3 us on an EPYC 7313 "
        "(arXiv 2504.11750)",
    ),
    "backward_s": Provenance(
        basis="measured",
        source="a backward of one linear layer less its nodes: 0.07 and 0.12 ms on two hosts of "
        "H100 (launch.csv, 2026-11-26): the engine's thread is woken, streams meet",
    ),
    "clip_s": Provenance(
        basis="measured",
        source="clip_grad_norm_ over 1 to 512 tiny tensors beside an H100 (host_training.csv)",
    ),
    "collective_s": Provenance(
        basis="assumed",
        source="Python and c10d's dispatch measured with a process group that does nothing, 2-3 "
        "us; NCCL's enqueue, events and stream waits 20-50 us in traces",
    ),
    "checkpoint_s": Provenance(
        basis="measured",
        source="CPU time a reentrant torch.utils.checkpoint or deepspeed.checkpointing adds to "
        "recomputing, 300-600 us on the 2-core Xeon of host_dispatch.csv, over 3.45; generators "
        "of the GPU not included",
    ),
    "saved_s": Provenance(
        basis="measured",
        source="what a non-reentrant torch.utils.checkpoint adds to running layers twice, less "
        "checkpoint_s: 1.7 to 2.1 times their backward in three passes, a third of it in forward "
        "(Llama, Qwen3, BERT, GPT-2, OPT on tiny tensors; torch 2.13, transformers 5.24, Python "
        "3.11, AMD EPYC; host_dispatch.csv, 2026-11-28)",
    ),
    "hook_s": Provenance(
        basis="measured",
        source="what DeepSpeed 0.19.8 adds to steps of GPT-2 and Llama, tiny tensors, from 6 to "
        "18 layers, torch 2.13, one rank on an AMD EPYC at 1.78 of the reference, 2026-11-26: "
        "per module called 106 us in forward and 57 in backward; per parameter 31 us to gather "
        "and release it, 29 for the hook that buckets its gradient, 46 to 55 in ZeRO-3's step. "
        "CUDA's streams and events are not in it",
    ),
    "slice_s": Provenance(
        basis="measured",
        source="CPU time of reduce_scatter_coalesced per gradient and rank: Python cuts each "
        "gradient for every rank: 1.20-1.37 us for 1 to 12 gradients over 64 to 1024 ranks; "
        "DeepSpeed 0.19.8, torch 2.13, AMD EPYC, one thread, 2026-11-26",
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
    "staging_bytes_per_s": Provenance(
        basis="measured",
        source="pageable copies pass through a pinned buffer by way of a thread of the host: 8.9 "
        "GB/s to an H100 and 12.8 from it where pinned memory makes 54 leave 10.7 and 16.8 "
        "(copies.csv, 16 MiB, 2026-11-26)",
    ),
    "fresh_bytes_per_s": Provenance(
        basis="assumed",
        source="pages the kernel provides to several threads: what Ray's copies into new pages "
        "reach (ray_core, first_touch_bytes_per_s). One thread gets 2.2 GB/s, two 3.6: casts to "
        "bf16 into new pages, less casts into old ones, on an AMD EPYC (host_memory.csv, "
        "2026-11-26)",
    ),
    "cpu_adam": Provenance(
        basis="assumed",
        source="28 bytes per element (p, m, v read and written, g read) and 6 for the bf16 copy at "
        "half of STREAM, halved again without core binding; DeepSpeed's ZeRO-Offload log on "
        "DGX-2 hosts: 1e10 parameters in 6.2-6.5 s. A thread does what its core streams: on an AMD "
        "EPYC of 2 cores DeepSpeedCPUAdam reached 58 GB/s by one thread, a product in place 68; by "
        "two 66 and 73 (host_memory.csv, 2026-11-26)",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Seconds of one thread of the host that a training process spends per thing it does."""

    operator_s: float = OPERATOR_S
    """An ATen operator called in forward, a view included."""
    module_s: float = MODULE_S
    """``torch.nn.Module.__call__`` with the body of its ``forward``."""
    node_s: float = NODE_S
    """An autograd node run in backward, with the operators it calls."""
    launch_s: float = LAUNCH_S
    """The CUDA launch of one kernel, on top."""
    engine_s: float = BACKWARD_S
    """``backward()`` itself, until autograd's thread runs the first node."""
    clip_s: float = CLIP_S
    clip_tensor_s: float = CLIP_TENSOR_S
    """``clip_grad_norm_``, and each of its gradients."""
    collective_s: float = COLLECTIVE_S
    """One call of ``torch.distributed``, until it is enqueued."""
    checkpoint_s: float = CHECKPOINT_S
    """One activation checkpoint, beyond its recomputation."""
    saved_s: float = SAVED_S
    """What an autograd node saves goes through a non-reentrant checkpoint's hooks once: packed in
    forward, packed again as it is recomputed, unpacked in backward."""
    hook_s: float = HOOK_S
    """ZeRO-3's hooks around one module's forward. What else DeepSpeed's Python does per module
    or parameter keeps its measured share of it."""
    slice_s: float = SLICE_S
    """A gradient cut for one rank before ZeRO-3 reduces it."""
    instruction_s: float = INSTRUCTION_S
    """One instruction of DeepSpeed's PipelineEngine."""
    engine_pass_s: float = ENGINE_PASS_S
    engine_step_s: float = ENGINE_STEP_S
    """One forward or backward, and one step, of DeepSpeedEngine."""

    @property
    def hook_backward_s(self) -> float:
        """ZeRO-3's hooks around one module's backward."""
        return self.hook_s * HOOK_BACKWARD

    @property
    def fetch_s(self) -> float:
        """ZeRO-3 makes one parameter whole, and later gives it back."""
        return self.hook_s * FETCH_SHARE

    @property
    def gradient_s(self) -> float:
        """The hook of a ZeRO stage that puts one gradient into the bucket, beside its copy."""
        return self.hook_s * GRADIENT_SHARE

    @property
    def stepped_s(self) -> float:
        """ZeRO-3's step looks after one parameter: partitions it, views its shard."""
        return self.hook_s * STEP_SHARE

    @property
    def eager_s(self) -> float:
        """One operator that an optimizer or a hook calls, with its kernel."""
        return self.operator_s + self.launch_s

    def at_speed(self, speed: float) -> HostCosts:
        """All of them on a host whose threads are ``speed`` times as fast."""
        return replace(self, **{f.name: getattr(self, f.name) / speed for f in fields(self)})

    def captured(self) -> HostCosts:
        """Of layers replayed from CUDA graphs: nothing is dispatched, no module is called."""
        layers = ("operator_s", "module_s", "node_s", "launch_s", "checkpoint_s", "saved_s")
        return replace(self, **dict.fromkeys(layers, 0.0))

    def compiled(self) -> HostCosts:
        """Of layers that ``torch.compile`` made one call of: only kernels are launched."""
        return replace(self, **dict.fromkeys(("operator_s", "module_s", "node_s", "saved_s"), 0.0))

    def clipping_s(self, tensors: int) -> float:
        """``clip_grad_norm_`` over so many gradients."""
        return self.clip_s + tensors * self.clip_tensor_s

    def forward_s(self, operators: int, kernels: int) -> float:
        """A forward of so many ATen operators that launch so many kernels."""
        return operators * self.operator_s + kernels * self.launch_s

    def backward_s(self, nodes: int, kernels: int) -> float:
        """A backward through so many autograd nodes."""
        return nodes * self.node_s + kernels * self.launch_s


def copy_seconds(
    gpu: GpuSpec, size_bytes: float, kind: CopyKind, *, pinned: bool, d2d_bytes_per_s: float
) -> float:
    """Seconds of one copy alone on its link; ``d2d`` reads and writes the GPU's own memory."""
    if size_bytes <= 0:
        return 0.0
    if kind == "d2d":
        return 2e-6 + 2.0 * size_bytes / d2d_bytes_per_s
    rate = gpu.pcie_bytes_per_s if pinned else pageable_bytes_per_s(gpu)
    return COPY_FIXED_S + size_bytes / rate


def pageable_bytes_per_s(gpu: GpuSpec) -> float:
    """Of copies that a thread of the host stages, part after part, through a pinned buffer."""
    return 1.0 / (1.0 / gpu.pcie_bytes_per_s + 1.0 / STAGING_BYTES_PER_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPool:
    """The OpenMP threads of one rank, by which torch and DeepSpeed work on main memory."""

    threads: int | None = None
    """``OMP_NUM_THREADS``; None: as many as the host has, whoever else takes all of them too."""
    bound: bool = False
    """``deepspeed --bind_cores_to_rank``: each rank has cores, and their memory, of its own."""

    def cores(self, cpu: CpuSpec, ranks_per_node: int) -> float:
        """That its threads have while all ranks of a node work."""
        share = max(1.0, cpu.cores / ranks_per_node)
        return share if self.threads is None else min(float(self.threads), share)


def threads_said(variable: str) -> int | None:
    """What OpenMP reads of ``OMP_NUM_THREADS``: the first level's number; None: it says nothing."""
    first = variable.partition(",")[0].strip()
    return int(first) or None if first.isascii() and first.isdecimal() else None


def fresh_pages_seconds(size_bytes: float, cores: float = inf) -> float:
    """Seconds of the kernel to provide threads on so many cores with new memory; and to take it."""
    return size_bytes / min(FRESH_BYTES_PER_S, cores * FRESH_THREAD_BYTES_PER_S)


def cpu_adam_seconds(
    numel: float,
    cpu: CpuSpec,
    ranks_per_node: int,
    pool: HostPool,
    *,
    low_precision_copy: bool,
    stream_share: float = CPU_STREAM_SHARE,
) -> float:
    """Seconds of ``DeepSpeedCPUAdam`` when every rank of a node updates ``numel`` elements at once.

    All ranks share the host's memory bandwidth, of which they get less where their threads are not
    bound to cores.
    """
    size_bytes = numel * (CPU_ADAM_BYTES + (CPU_COPY_BYTES if low_precision_copy else 0.0))
    share = stream_share * (1.0 if pool.bound else UNBOUND_SHARE)
    flops_per_s = cpu.flops_per_s * stream_share * pool.cores(cpu, ranks_per_node) / cpu.cores
    return max(
        host_pass_seconds(size_bytes, cpu, ranks_per_node, pool, stream_share=share),
        numel * CPU_ADAM_FLOPS / flops_per_s,
    )


def host_pass_seconds(
    size_bytes: float,
    cpu: CpuSpec,
    ranks_per_node: int,
    pool: HostPool,
    *,
    stream_share: float = CPU_STREAM_SHARE,
) -> float:
    """Seconds of one plain pass (norm, unscale, cast) over ``size_bytes`` of host memory a rank."""
    shared = cpu.memory_bytes_per_s * stream_share / ranks_per_node
    own = cpu.core_memory_bytes_per_s * pool.cores(cpu, ranks_per_node)
    return size_bytes / min(shared, own)
