"""What a script asked for, as a plan of the training tower.

Real counterparts: ``torch.nn.parallel.DistributedDataParallel``, ``torch.distributed.fsdp``,
``torch.optim``. A module that nothing wraps is trained by each rank for itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from raysim.models.table import Model
from raysim.training.plan import DdpSettings, TrainingPlan
from raysim.training.settings.deepspeed import Optimizer, Precision
from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.settings.parallel import Mesh

DTYPES: dict[Any, Precision] = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Wrapping:
    """How a model is trained."""

    module: Any
    """The model itself."""
    engine: Literal["ddp", "fsdp"] = "ddp"
    meets: bool = False
    """Whether its ranks reduce gradients."""
    ddp: DdpSettings = field(default_factory=DdpSettings)
    fsdp: FsdpSettings = field(default_factory=FsdpSettings)

    def plan(
        self,
        model: Model,
        *,
        world_size: int,
        micro_batch: int,
        accumulation: int,
        optimizer: Optimizer,
        autocast: Any,
        clipping: float,
    ) -> TrainingPlan:
        """One optimizer step of it."""
        half: Any = DTYPES[autocast] if autocast else None
        ddp = DdpSettings(
            bucket_cap_mb=self.ddp.bucket_cap_mb,
            gradient_as_bucket_view=self.ddp.gradient_as_bucket_view,
            autocast=half,
        )
        return TrainingPlan(
            model=model,
            mesh=Mesh(dp=world_size if self.meets else 1),
            engine=self.engine,
            micro_batch=micro_batch,
            gradient_accumulation_steps=accumulation,
            precision=_precision(self.module),
            optimizer=optimizer,
            ddp=ddp,
            fsdp=self.fsdp,
            gradient_clipping=clipping,
        )


def describe(module: Any) -> Wrapping:
    """How a model is trained, by the wrapper it is in."""
    wrapped = getattr(module, "raysim_wrapping", None)
    return wrapped if isinstance(wrapped, Wrapping) else Wrapping(module=module)


def _precision(module: Any) -> Precision:
    kinds = [DTYPES[p.dtype] for p in module.parameters() if p.dtype in DTYPES]
    return max(kinds or ["fp32"], key=kinds.count)


def optimizer_of(optimizer: Any) -> Optimizer:
    """Its kind, and whether one kernel updates all."""
    optimizer = getattr(optimizer, "optimizer", optimizer)  # AcceleratedOptimizer and its like
    defaults = optimizer.defaults
    kind = type(optimizer)
    name = next((c.__name__ for c in kind.__mro__ if c.__module__.startswith("torch.optim")), "")
    return Optimizer(
        type=name if name and name != "Optimizer" else kind.__name__,
        lr=float(defaults.get("lr", 1e-3)),
        fused=bool(defaults.get("fused")),
        momentum=float(defaults.get("momentum", 0.0) or 0.0),
    )
