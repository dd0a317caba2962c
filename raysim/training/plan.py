"""What one training step is, before it is compiled: model, mesh, precision, ZeRO, schedule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from raysim.hardware.specs import SharedStorageSpec
from raysim.models.table import COMPUTE_DTYPE_BYTES, Model
from raysim.perf.constants import TrainingConstants
from raysim.perf.host import HostPool
from raysim.training.allocator.config import AllocatorConfig
from raysim.training.layers.recompute import Checkpointing
from raysim.training.layers.sharding import ContextExchange, Sharding, TokenDispatcher
from raysim.training.settings.deepspeed import (
    DeepSpeedConfig,
    Optimizer,
    PipelineSettings,
    Precision,
    ZeroConfig,
)
from raysim.training.settings.fp8 import Fp8Settings
from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.settings.loss_scale import LossScale
from raysim.training.settings.parallel import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpSettings:
    """``torch.nn.parallel.DistributedDataParallel`` arguments that matter."""

    bucket_cap_mb: float = 25.0
    gradient_as_bucket_view: bool = False
    autocast: Literal["fp16", "bf16"] | None = None
    casts_itself: bool = False
    """The module casts fp32 weights to that type, in operators of its own."""
    grad_scaler: bool = False
    """``torch.amp.GradScaler`` unscales the gradients, and waits for whether all are finite."""
    sync_every_micro_batch: bool = False
    """Reduce gradients in every micro-batch: no ``no_sync`` while they accumulate."""


@dataclass(frozen=True, slots=True)
class Tf32:
    """What runs on tensor cores though it is fp32, rounded to 10 bits; torch's defaults."""

    products: bool = False
    """``torch.backends.cuda.matmul.allow_tf32``."""
    convolutions: bool = True
    """``torch.backends.cudnn.allow_tf32``, of recurrent layers too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronSettings:
    """Megatron-LM's arguments that matter; defaults of ``megatron/training/arguments.py``."""

    sequence_parallel: bool = False
    tp_comm_overlap: bool = False
    """Tensor-parallel exchanges through Transformer Engine's user buffers."""
    cp_comm_type: ContextExchange = "p2p"
    use_distributed_optimizer: bool = False
    num_distributed_optimizer_instances: int = 1
    """Groups of data-parallel ranks that each hold all of the optimizer's states."""
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    accumulate_allreduce_grads_in_fp32: bool = True
    """bf16 turns it on, unless ``grad_reduce_in_bf16``."""
    ddp_average_in_collective: bool = False
    """The collective averages; else a pass over the gradients before it does."""
    gradient_accumulation_fusion: bool = True
    defer_embedding_wgrad_compute: bool = False
    """The output layer's weight gradients wait until the last stage has no other work."""
    wgrad_deferral_limit: int = 0
    """Micro-batches of a step whose gradients wait, from its first; 0: all."""
    moe_token_dispatcher: TokenDispatcher = "alltoall"  # noqa: S105  (no secret)
    recompute_modules: tuple[str, ...] = ("core_attn",)
    """What ``--recompute-granularity selective`` runs again."""
    ddp_bucket_size: int | None = None
    """Elements; None: max(40 M, 1 M x data-parallel ranks) where reduction overlaps, else all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InternEvoSettings:
    """InternEvo's ``parallel`` and ``hybrid_zero_optimizer`` that matter, as in its 7B_sft.py."""

    zero1: int = 8
    """Ranks that share the optimizer's states; 0 and less: all data-parallel ones."""
    reduce_bucket_size: int = 512 * 2**20
    """Elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingSettings:
    """How checkpoints are written and read: the scenario's, and DeepSpeed's ``checkpoint``."""

    asynchronous: bool = False
    """Training goes on once the state is in main memory."""
    storage: SharedStorageSpec | None = None
    """None: the first disk of each node."""
    ckpt_format: Literal["torch_dist", "torch"] = "torch_dist"
    """Of Megatron, which has it as ``--ckpt-format``."""
    pipeline_stage: bool = False
    """``checkpoint.parallel_write.pipeline_stage``."""
    use_node_local_storage: bool = False
    load_universal: bool = False
    exclude_frozen: bool = False
    """Frozen weights are not written: of adapters, as transformers' Trainer saves them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """One optimizer step, fully decided."""

    model: Model
    mesh: Mesh
    engine: Literal["ddp", "fsdp", "deepspeed", "megatron", "internevo"]
    """``internevo``: for published runs; no scenario asks for it."""
    micro_batch: int
    """Samples per GPU and micro-step."""
    gradient_accumulation_steps: int
    precision: Precision
    optimizer: Optimizer
    zero: ZeroConfig = field(default_factory=ZeroConfig)
    ddp: DdpSettings = field(default_factory=DdpSettings)
    fsdp: FsdpSettings = field(default_factory=FsdpSettings)
    megatron: MegatronSettings = field(default_factory=MegatronSettings)
    internevo: InternEvoSettings = field(default_factory=InternEvoSettings)
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    fp8: Fp8Settings | None = None
    """What runs in fp8; ``precision`` is that of everything else."""
    activation_checkpointing: Checkpointing = "none"
    keeps_output: bool = False
    """Whether the training loop holds the model's output object, and with it the logits, until
    backward is over. Hugging Face's Trainer and torchtitan do not."""
    output_lasts: bool = False
    """Whether it holds that object until the next forward has made another."""
    zeroes_late: bool = False
    """Of DDP: whether ``zero_grad`` comes between forward and backward, so that the last step's
    gradients are there during forward."""
    torch_compile: bool = False
    """Whether the model goes through ``torch.compile``."""
    moe_groups: bool = False
    """Experts are of DeepSpeed's own MoE layers: their parameters, which only every ``mesh.ep``-th
    rank holds, are flattened, reduced and partitioned apart from the others."""
    pieces: int = 1
    """Of ``mesh.dp``, ranks whose samples are pieces of the same ones, by the model's own code."""
    expert_imbalance: float = 1.0
    """Rows of the most loaded routed expert over the mean."""
    reentrant_checkpoints: bool | None = None
    """torch's reentrant ones, which recompute whole layers. The others end with the last tensor
    that backward needs (from torch 2.1 on), by hooks around all that is saved. None: the others
    under FSDP, with which reentrant ones do not go together."""
    recompute_layers: int | None = None
    """Of each stage's blocks, how many are recomputed, from its first; None: all."""
    gradient_clipping: float = 1.0
    torch_autocast: Precision | None = None
    """DeepSpeed's, of that type."""
    communication_data_type: Precision | None = None
    grad_accum_dtype: Precision | None = None
    bf16_master_weights_and_grads: bool = False
    bf16_optimizer_states: bool = False
    check_grad_overflow: bool = True
    partition_activations: bool = False
    cpu_checkpointing: bool = False
    checkpoint_buffers: int = 0
    """``number_checkpoints`` under ``contiguous_memory_optimization``; 0: without it."""
    synchronize_checkpoint_boundary: bool = False
    """The host waits for the GPU wherever a checkpointed layer begins or ends."""
    separate_gathers: bool = False
    """ZeRO-3 as DeepSpeed had it before 0.6: each parameter is gathered by itself, behind a
    synchronisation of the GPU, and the host waits for what a module needs."""
    throughput_timer: bool = True
    """DeepSpeed's ``timers.throughput``, enabled and synchronized: likewise."""
    wall_clock_breakdown: bool = False
    """DeepSpeed's timers: the host waits for the GPU behind every micro-batch."""
    tf32: Tf32 = Tf32()
    ring_attention: bool = False
    """Under DDP and FSDP context-parallel ranks pass on keys and values, as torch's do
    (``torch.distributed.tensor.experimental.context_parallel``), and no heads."""
    loss_scale: LossScale | None = None
    """Dynamic scaling of fp16; None: none, or a constant."""
    saving: SavingSettings = field(default_factory=SavingSettings)
    cuda_graphs: bool = False
    """Forward and backward are replayed from CUDA graphs: no Python and no dispatch in them."""
    launch_blocking: bool = False
    """``CUDA_LAUNCH_BLOCKING=1``: the host waits for every kernel it launches."""
    host_pool: HostPool = field(default_factory=HostPool)
    """Threads of each rank that an optimizer in main memory has, by who launched it."""
    allocator: AllocatorConfig = field(default_factory=AllocatorConfig)
    """``PYTORCH_CUDA_ALLOC_CONF``."""
    constants: TrainingConstants = field(default_factory=TrainingConstants)
    """What a profile says of host and GPU."""

    @property
    def compute_dtype(self) -> Precision:
        """What kernels run in: autocast's or FSDP's ``param_dtype``, else the parameters' own."""
        if self.engine == "ddp" and self.ddp.autocast is not None:
            return self.ddp.autocast
        if self.engine == "fsdp" and self.fsdp.param_dtype is not None:
            return self.fsdp.param_dtype
        return self.precision if self.torch_autocast is None else self.torch_autocast

    @property
    def autocasts(self) -> bool:
        """Whether weights are fp32 and ``torch.autocast`` casts per operator."""
        ddp = None if self.ddp.casts_itself else self.ddp.autocast
        said = ddp if self.engine == "ddp" else self.torch_autocast
        return said is not None and self.precision == "fp32"

    @property
    def holds_logits(self) -> bool:
        """Whether logits live until backward is over.

        DeepSpeed's pipeline engine has them in its buffers (``_exec_forward_pass``).
        """
        return self.keeps_output or (self.engine == "deepspeed" and self.mesh.pp > 1)

    @property
    def reentrant(self) -> bool:
        """Whether checkpoints are torch's reentrant ones, or recompute whole layers as those do."""
        said = self.reentrant_checkpoints
        return self.engine != "fsdp" if said is None else said

    @property
    def product_dtype(self) -> str:
        """The narrowest type of products: whose peak a utilisation is a share of."""
        return self.compute_dtype if self.fp8 is None else "fp8"

    @property
    def engine_label(self) -> str:
        """What reports call it: ``DDP``, ``FSDP2``, ``ZeRO-3``, ``Megatron-core``, ``in turn``."""
        if self.pipeline.homes:
            return "DDP in turn" if self.mesh.dp > 1 else "in turn"
        if self.engine == "fsdp":
            return self.fsdp.label
        names = {"ddp": "DDP", "megatron": "Megatron-core", "internevo": "InternEvo"}
        return names.get(self.engine, f"ZeRO-{self.zero.stage}")

    @property
    def sharding(self) -> Sharding:
        """How each layer is cut over the ranks of a replica."""
        mesh, m, f = self.mesh, self.megatron, self.fsdp
        ring = self.ring_attention
        exchange: ContextExchange = "p2p" if ring else "a2a"
        if self.engine == "fsdp":
            return Sharding(
                tp=mesh.tp, sequence_parallel=f.sequence_parallel and mesh.tp > 1, cp=mesh.cp,
                cp_exchange=exchange, cp_returns_fp32=ring, keeps_gathered=True,
                pipelined=f.async_tensor_parallel, dtensor=True,
            )  # fmt: skip
        if self.engine == "internevo":  # flash-attn's linears sum beside the weight gradient
            return Sharding(tp=mesh.tp, overlaps=True)
        if self.engine != "megatron":
            ulysses = self.engine == "deepspeed" and mesh.cp > 1
            return Sharding(
                tp=mesh.tp, cp=mesh.cp, cp_exchange=exchange, cp_returns_fp32=ring, ulysses=ulysses
            )
        return Sharding(
            tp=mesh.tp,
            sequence_parallel=m.sequence_parallel and mesh.tp > 1,
            cp=mesh.cp,
            cp_exchange=m.cp_comm_type,
            ep=mesh.ep,
            dispatcher=m.moe_token_dispatcher,
            overlaps=True,
            user_buffers=m.tp_comm_overlap and mesh.tp > 1,
        )

    @property
    def sums_flat(self) -> bool:
        """Whether ZeRO-1 and 2 sum a slice's gradients in a flat fp32 buffer on the GPU.

        Under 16-bit weights (``_use_compact_grad_partition_buffer``).
        """
        return self.grad_accum_dtype == "fp32" and self.precision != "fp32"

    @property
    def sums_on_host(self) -> bool:
        """Whether ZeRO-2's offload keeps sums over micro-batches in main memory."""
        several = self.gradient_accumulation_steps > 1
        return self.zero.stage == 2 and several and not self.sums_flat

    @property
    def gradient_buffer_bytes(self) -> int:
        """Of Megatron: bytes of an element of the buffers that gradients are summed in."""
        wide = self.megatron.accumulate_allreduce_grads_in_fp32
        return 4 if wide else COMPUTE_DTYPE_BYTES[self.precision]

    @property
    def samples_per_step(self) -> int:
        """Samples all replicas consume per optimizer step."""
        return self.micro_batch * self.gradient_accumulation_steps * self.mesh.dp // self.pieces


def plan_fields(config: DeepSpeedConfig) -> dict[str, Any]:
    """What a plan takes from DeepSpeed's settings as it is, by the plan's names."""
    names = (
        "zero", "torch_autocast", "communication_data_type", "grad_accum_dtype",
        "bf16_master_weights_and_grads", "bf16_optimizer_states", "check_grad_overflow",
        "partition_activations", "cpu_checkpointing", "checkpoint_buffers",
        "synchronize_checkpoint_boundary", "separate_gathers", "wall_clock_breakdown",
        "throughput_timer",
    )  # fmt: skip
    return {name: getattr(config, name) for name in names}
