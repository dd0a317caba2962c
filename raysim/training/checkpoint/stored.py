"""A file of a checkpoint, and what a rank has to store in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raysim.models.table import COMPUTE_DTYPE_BYTES, Parameter
from raysim.training.plan import TrainingPlan
from raysim.training.states.optimizer import state_bytes_per_element

Kind = Literal["model", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFile:
    """One file of a checkpoint."""

    name: str
    rank: int
    """Who writes it."""
    size_bytes: int
    """Of its tensors."""
    staged_bytes: int
    """Main memory the writer needs besides: one tensor at a time as ``torch.save`` copies them, or
    all of them where they are collected first."""
    gathered: bool = False
    """Collected from all ranks before it is written."""
    on_host: bool = False
    """Its tensors live in main memory: offloaded."""
    among: int = 0
    """Of experts: from ``rank`` on every so many ranks hold them, and read it; 0: of no experts."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What one model-parallel rank stores: elements of each parameter, layer by layer."""

    layers: tuple[tuple[int, tuple[tuple[Parameter, int], ...]], ...]
    """(number of the layer in the model, its parameters)."""

    def sizes(self, *, trainable: bool) -> list[int]:
        """Elements of each trainable, or frozen, parameter."""
        return [n for _, ps in self.layers for p, n in ps if p.trainable == trainable]

    @property
    def numel(self) -> int:
        """All elements."""
        return sum(n for _, ps in self.layers for _, n in ps)

    @property
    def largest(self) -> int:
        """Elements of the largest parameter."""
        return max((n for _, ps in self.layers for _, n in ps), default=0)


def master_and_states(plan: TrainingPlan) -> tuple[float, float]:
    """Bytes per element of the master copy and of the optimizer's states in a checkpoint."""
    states = state_bytes_per_element(plan)
    low = COMPUTE_DTYPE_BYTES[plan.precision]
    if plan.engine in {"ddp", "fsdp"}:
        return 0.0, states * low / 4  # torch.optim keeps states in the parameters' type
    sharded = plan.engine == "deepspeed" and plan.zero.stage > 0
    master = 4.0 if sharded or plan.precision != "fp32" else 0.0
    if plan.bf16_master_weights_and_grads:
        master = 2.0
    return master, states / 2 if plan.bf16_optimizer_states else states
