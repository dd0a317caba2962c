"""What a script asked for, as a plan of the training tower.

Real counterparts: ``torch.nn.parallel.DistributedDataParallel``, ``torch.distributed.fsdp``,
``torch.optim``. A module that nothing wraps is trained by each rank for itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
from torch.distributed.fsdp import FSDPModule

from raysim.models.gathered import gathered
from raysim.models.table import Model
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.training.compiler.feed import Feed
from raysim.training.plan import DdpSettings, Tf32, TrainingPlan, plan_fields
from raysim.training.settings.deepspeed import (
    DeepSpeedConfig,
    Optimizer,
    PipelineSettings,
    Precision,
)
from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.settings.parallel import Mesh

RecomputedBlock = checkpoint_wrapper.ActivationWrapper
INSIDE: str = checkpoint_wrapper._CHECKPOINT_WRAPPED_MODULE  # noqa: SLF001  (in names, too)
"""The block itself."""
DTYPES: dict[Any, Precision] = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16",
}  # fmt: skip
ONE_BUCKET_MB = 2.0**30
"""More than any model has."""


@dataclass(frozen=True, kw_only=True)
class Wrapping:
    """How a model is trained."""

    module: Any
    """The model itself."""
    engine: Literal["ddp", "fsdp", "deepspeed"] = "ddp"
    meets: bool = False
    """Whether its ranks reduce gradients."""
    ddp: DdpSettings = field(default_factory=DdpSettings)
    fsdp: FsdpSettings = field(default_factory=FsdpSettings)
    deepspeed: DeepSpeedConfig | None = None
    autocasts: bool = False
    """DeepSpeed's engine enters autocast."""
    mesh: Mesh | None = None
    """None: all ranks are replicas, if they meet."""
    moe: bool = False
    """It has DeepSpeed's MoE layers."""
    pieces: int = 1
    """Ranks of ``mesh.dp`` that share each sample by the model's own exchanges (Ulysses)."""
    tp: int = 1
    """Ranks that share its parameters by ``DTensor``."""
    cp: int = 1
    """Ranks that share its sequences by ``context_parallel``."""
    among: int = 0
    """Ranks of the process group that was said; 0: all."""
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    copies: int = 1
    """GPUs of one process that each have a copy (``DataParallel``)."""
    copied_to: tuple[str, ...] = ()
    """Those but the first, by name."""
    gpus: tuple[str, ...] = ()
    """GPUs of one process that have parts of it (``shapes.apart``), by the pipeline's ranks."""
    optimizer: Optimizer | None = None
    """Of an engine that has its own."""

    @property
    def casts(self) -> bool:
        """Whether an engine computes in other types than its module's weights have."""
        return self.autocasts or self.fsdp.param_dtype is not None

    def cast_by(self, autocast: Any) -> torch.dtype | None:
        """The type its fp32 products run in under ``torch.autocast``, if the engine leaves it."""
        if self.engine != "ddp" or not autocast:
            return None
        return autocast if any(p.dtype == torch.float32 for p in self.module.parameters()) else None

    def plan(
        self,
        model: Model,
        *,
        world_size: int,
        micro_batch: int,
        accumulation: int,
        optimizer: Optimizer | None,
        autocast: Any,
        clipping: float,
        scales: bool = False,
        reduces_each: bool = False,
        casts: Any = None,
    ) -> TrainingPlan:
        """One optimizer step of it.

        ``scales``: the loss, by a ``GradScaler``; ``reduces_each``: gradients, in every
        micro-batch, for lack of ``no_sync``; ``casts``: a type that the module itself casts fp32
        weights to.
        """
        copies = min(self.copies, micro_batch)
        meet = max(1, world_size // self.tp) if self.meets else copies
        mesh = self.mesh or Mesh(dp=max(1, meet // self.cp), cp=self.cp, tp=self.tp)
        own = _of_sparse(self, model, optimizer or self.optimizer or Optimizer(), meet)
        if self.deepspeed is not None:
            return deepspeed_plan(self, model, mesh, micro_batch, accumulation, own)
        half: Any = DTYPES[autocast or casts] if autocast or casts else None
        ddp = DdpSettings(
            bucket_cap_mb=self.ddp.bucket_cap_mb if copies == 1 else ONE_BUCKET_MB,
            gradient_as_bucket_view=self.ddp.gradient_as_bucket_view,
            autocast=half,
            casts_itself=casts is not None and not autocast,
            grad_scaler=scales,
            sync_every_micro_batch=reduces_each or copies > 1,
        )
        return TrainingPlan(
            model=gathered(model, copies),
            mesh=mesh,
            engine=self.engine,
            micro_batch=-(-micro_batch // copies),
            gradient_accumulation_steps=accumulation,
            precision=_precision(self.module),
            optimizer=own,
            ddp=ddp,
            fsdp=replace(self.fsdp, sync_every_micro_batch=reduces_each),
            pipeline=self.pipeline,
            gradient_clipping=clipping,
            tf32=asked_tf32(),
            ring_attention=self.cp > 1,
        )

    def fed(self, feed: Feed, model: Model) -> Feed:
        """Of copies: forwards are issued in turns, by threads that share Python's lock."""
        if self.copies == 1:
            return feed
        operators = (o for layer in model.layers for o in layer.body.operators)
        more = (self.copies - 1) * sum(o.dispatched for o in operators)
        return replace(feed, own=replace(feed.own, operators=feed.own.operators + more))


def _of_sparse(wrapping: Wrapping, model: Model, own: Optimizer, meet: int) -> Optimizer:
    """The optimizer of a model whose look-ups make sparse gradients.

    Raises
    ------
    RuntimeError
        Ranks reduce gradients, which NCCL does not.
    NotEmulatedError
        An engine shards them.
    """
    if not any(p.sparse_rows for _, p in model.parameters()):
        return own
    if wrapping.engine != "ddp":
        raise NotEmulatedError(
            "a sparse gradient under an engine that shards", "an embedding with sparse=False"
        )
    if meet > 1 and all(p.is_meta for p in wrapping.module.parameters()):  # gloo does
        raise RuntimeError(
            "NCCL does not support all_reduce with sparse tensors. "
            "Please use dense tensors instead."
        )
    # torch's foreach takes none of a list with one sparse gradient (``_multi_tensor_sgd``).
    return own if own.sparse else replace(own, foreach=False)


def own_name(name: str) -> str:
    """A parameter's name without what checkpoints put around its block."""
    return name.replace(f"{INSIDE}.", "")


def deepspeed_plan(
    wrapping: Wrapping, model: Model, mesh: Mesh, micro_batch: int, accumulation: int,
    optimizer: Optimizer,
) -> TrainingPlan:  # fmt: skip
    """One optimizer step of DeepSpeed's engine."""
    config = wrapping.deepspeed
    assert config is not None, "a plan of DeepSpeed without its settings"
    piped = wrapping.module if mesh.pp > 1 else None
    pipeline = PipelineSettings() if piped is None else replace(
        config.pipeline, stages=mesh.pp, partition_method=piped.partition_method,
        activation_checkpoint_interval=piped.activation_checkpoint_interval,
    )  # fmt: skip
    return TrainingPlan(
        model=model,
        mesh=mesh,
        engine="deepspeed",
        micro_batch=micro_batch,
        gradient_accumulation_steps=accumulation,
        precision=config.precision,
        optimizer=optimizer,
        pipeline=pipeline,
        gradient_clipping=config.gradient_clipping,
        loss_scale=config.loss_scale,
        moe_groups=wrapping.moe,
        pieces=wrapping.pieces,
        tf32=asked_tf32(),
        **plan_fields(config),
    )


def asked_tf32() -> Tf32:
    """What the script has set of torch's flags by now, under their new names or their old."""
    backends: Any = torch.backends  # whose new names (torch 2.9) are not typed
    cudnn = backends.cudnn
    return Tf32(
        products=_is_tf32(backends.cuda.matmul),
        convolutions=_is_tf32(getattr(cudnn, "conv", cudnn)),
    )


def _is_tf32(backend: Any) -> bool:
    precision = getattr(backend, "fp32_precision", None)
    return bool(backend.allow_tf32 if precision is None else precision == "tf32")


def describe(module: Any) -> Wrapping:
    """How a model is trained, by the wrapper it is in."""
    wrapped = getattr(module, "raysim_wrapping", None)
    if isinstance(wrapped, Wrapping):
        return wrapped
    own = vars(module)
    if "raysim_around" not in own:
        inner = (getattr(m, "raysim_wrapping", None) for m in module.modules())
        own["raysim_around"] = next((w for w in inner if isinstance(w, Wrapping)), None)
    found: Wrapping | None = own["raysim_around"]
    if found is None or found.engine != "ddp":
        return Wrapping(module=module)
    return replace(found, module=module)  # a loss, a task around DistributedDataParallel


def wrapping_in(module: Any, within: Any) -> Wrapping:
    """Its own, or that of what a library calls it ``within`` (None: nothing)."""
    own = describe(module)
    return own if within is None else replace(describe(within), module=own.module)


def class_of(module: Any) -> type:
    """Its own, without what ``fully_shard`` has put before it and ``checkpoint_wrapper`` around."""
    if isinstance(module, RecomputedBlock):
        return class_of(getattr(module, INSIDE))
    kind = type(module)
    return kind.__mro__[2] if issubclass(kind, FSDPModule) else kind


def _precision(module: Any) -> Precision:
    """Of most elements: adapters may be fp32 beside 16-bit weights, or 8-bit ones."""
    sizes: Counter[Precision] = Counter()
    for p in module.parameters():
        if p.dtype in DTYPES or p.dtype == torch.int8:
            sizes[DTYPES.get(p.dtype, "bf16")] += p.numel()
    return max(sizes, key=lambda kind: sizes[kind], default="fp32")
