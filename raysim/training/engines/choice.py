"""Which engine wraps the model: torch's own, Megatron-core's, or what DeepSpeed would choose."""

from __future__ import annotations

from raysim.training.engines.bf16 import Bf16Optimizer
from raysim.training.engines.context import Engine, EngineContext
from raysim.training.engines.ddp import Ddp
from raysim.training.engines.fp8 import Quantizing
from raysim.training.engines.fsdp1 import Fsdp1
from raysim.training.engines.fsdp2 import Fsdp2
from raysim.training.engines.fsdp2_piped import PipedFsdp2
from raysim.training.engines.internevo import HybridZero
from raysim.training.engines.megatron import Megatron
from raysim.training.engines.replicated import Replicated
from raysim.training.engines.zero3 import ZeroThree
from raysim.training.engines.zero12 import ZeroOneTwo
from raysim.training.plan import TrainingPlan
from raysim.training.settings.deepspeed import ZeroConfig
from raysim.training.stages import StageSpec


def choose_engine(
    context: EngineContext, stage: StageSpec, *, forward_only: bool = False
) -> Engine:
    """Torch's wrapper, or the one DeepSpeed would choose (``engine.py``, _configure_optimizer).

    Around it, under fp8, what that adds.
    """
    engine = _engine(context, stage, forward_only=forward_only)
    fp8 = context.plan.fp8
    return engine if fp8 is None else Quantizing(engine, context, fp8)


def _engine(context: EngineContext, stage: StageSpec, *, forward_only: bool) -> Engine:
    plan, zero = context.plan, context.plan.zero
    if plan.engine == "ddp":
        return Ddp(context)
    if plan.engine == "fsdp":
        second = PipedFsdp2 if plan.mesh.pp > 1 else Fsdp2
        return (Fsdp1 if plan.fsdp.version == 1 else second)(context, stage.sections)
    if plan.engine == "megatron":
        return Megatron(context)
    if plan.engine == "internevo":
        return HybridZero(context)
    if zero.stage == 3:
        visits = stage.units if forward_only else tuple(stage.visits())
        return ZeroThree(context, visits)
    if uses_bf16_optimizer(plan, zero):
        return Bf16Optimizer(context)
    return ZeroOneTwo(context) if zero.stage else Replicated(context)


def gather_ahead(engine: Engine) -> None:
    """Begin to bring the weights of a chunk of the model whose turn comes soon.

    Others than Megatron's have them, or bring them unit by unit.
    """
    inner = engine.inner if isinstance(engine, Quantizing) else engine
    if isinstance(inner, Megatron):
        inner.gather_ahead()


def piped(engine: Engine) -> PipedFsdp2 | None:
    """What FSDP2 is around a pipeline's stage, if anything."""
    inner = engine.inner if isinstance(engine, Quantizing) else engine
    return inner if isinstance(inner, PipedFsdp2) else None


def uses_bf16_optimizer(plan: TrainingPlan, zero: ZeroConfig) -> bool:
    """Whether DeepSpeed takes ``BF16_Optimizer``, which shards its states whatever the stage."""
    if plan.precision != "bf16" or zero.offload_optimizer.device != "none":
        return False
    if zero.stage == 1:
        return plan.grad_accum_dtype == "fp32"
    return zero.stage == 0 and plan.mesh.pp > 1
