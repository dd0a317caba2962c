"""What one training step is, before it is compiled: model, mesh, precision, ZeRO, schedule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from raysim.models.table import Model
from raysim.perf.constants import TrainingConstants
from raysim.training.allocator_config import AllocatorConfig
from raysim.training.deepspeed import Optimizer, PipelineSettings, Precision, ZeroConfig
from raysim.training.parallel import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpSettings:
    """``torch.nn.parallel.DistributedDataParallel`` arguments that matter."""

    bucket_cap_mb: float = 25.0
    gradient_as_bucket_view: bool = False
    autocast: Literal["fp16", "bf16"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """One optimizer step, fully decided."""

    model: Model
    mesh: Mesh
    engine: Literal["ddp", "deepspeed"]
    micro_batch: int
    """Samples per GPU and micro-step."""
    gradient_accumulation_steps: int
    precision: Precision
    optimizer: Optimizer
    zero: ZeroConfig = field(default_factory=ZeroConfig)
    ddp: DdpSettings = field(default_factory=DdpSettings)
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    activation_checkpointing: Literal["none", "full"] = "none"
    """``full``: every block is recomputed (Hugging Face's gradient checkpointing)."""
    gradient_clipping: float = 1.0
    communication_data_type: Precision | None = None
    grad_accum_dtype: Precision | None = None
    bf16_master_weights_and_grads: bool = False
    bf16_optimizer_states: bool = False
    check_grad_overflow: bool = True
    partition_activations: bool = False
    cpu_checkpointing: bool = False
    allocator: AllocatorConfig = field(default_factory=AllocatorConfig)
    """``PYTORCH_CUDA_ALLOC_CONF``."""
    constants: TrainingConstants = field(default_factory=TrainingConstants)
    """What a profile says of host and GPU."""

    @property
    def compute_dtype(self) -> Precision:
        """What kernels run in: autocast's type over fp32 parameters, else the parameters' own."""
        if self.engine == "ddp" and self.ddp.autocast is not None:
            return self.ddp.autocast
        return self.precision

    @property
    def samples_per_step(self) -> int:
        """Samples all replicas consume per optimizer step."""
        return self.micro_batch * self.gradient_accumulation_steps * self.mesh.dp
