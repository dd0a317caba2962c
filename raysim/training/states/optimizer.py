"""Bytes of optimizer state where they depend on the tensors: 8-bit Adam, Adafactor, Muon.

Sources: bitsandbytes ``optim/optimizer.py`` (blocks of 256 elements; tensors below 4,096 stay in
fp32), torch 2.13 ``optim/_adafactor.py`` and transformers' ``Adafactor`` (sums over rows and over
columns of what has two dimensions), DeepSpeed 0.19 ``runtime/zero/muon`` and
``set_optimizer_flags`` (Muon on matrices, but for embeddings and the head, which get Adam).

What a wrapper has flattened has one dimension: Adafactor keeps a moment of every element then.
Muon's momentum has the gradients' type, and Adam's moments beside it are fp32.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from raysim.models.table import COMPUTE_DTYPE_BYTES, Parameter
from raysim.perf.optimizer import optimizer_key
from raysim.training.plan import TrainingPlan
from raysim.training.settings.deepspeed import Optimizer
from raysim.training.states.zero import optimizer_state_bytes

SMALL_8BIT_NUMEL = 4096
TEMPORARIES = {"sgd": 0, "sgd_momentum": 0, "adagrad": 2}
"""Tensors as large as each parameter that a step of torch's ``foreach`` has at once, by family, if
not one (Adam's square roots): Adagrad's are square roots and scaled gradients (``torch/optim``,
``_multi_tensor_*``)."""
ADAM_BYTES = 8.0


def state_bytes_per_element(plan: TrainingPlan) -> float:
    """Bytes per trainable element, fp32 master copy excluded, on average over the model."""
    o = plan.optimizer
    key = optimizer_key(o.type, momentum=o.momentum)
    if key == "adafactor" and not flattened(plan):
        return _mean(plan, lambda p: 4.0 * _factors(p))
    if key == "adafactor":
        return 4.0
    if key == "adam8bit" and not flattened(plan):
        each = optimizer_state_bytes(o)
        return _mean(
            plan, lambda p: p.numel * (each if p.numel >= SMALL_8BIT_NUMEL else ADAM_BYTES)
        )
    if key == "muon":
        share = muon_numel(plan) / max(1, plan.model.num_trainable)
        return share * _momentum_bytes(plan) + (1 - share) * ADAM_BYTES
    return optimizer_state_bytes(o)


def step_temporaries(o: Optimizer, tensors: Sequence[float]) -> list[float]:
    """Bytes of what an optimizer holds beside its states while it steps over tensors.

    ``foreach`` has something as large as all of them, a loop as one at a time; Adam's loop divides
    its square roots into a second tensor, and has the last one's until then
    (``_single_tensor_adam``). FusedAdam takes none, whatever DeepSpeed wraps it in.
    """
    if o.fused or o.type.lower().startswith("fused"):
        return []
    key = optimizer_key(o.type, momentum=o.momentum)
    count = TEMPORARIES.get(key, 1) if o.temporaries is None else o.temporaries
    if o.foreach:
        return [size for size in tensors for _ in range(count)]
    if key != "adam":
        return [max(tensors, default=0.0)] * count
    held = zip((0.0, *tensors), tensors, tensors, strict=False)
    return list(max(held, key=sum, default=()))


def flattened(plan: TrainingPlan) -> bool:
    """Whether the optimizer sees flat slices in place of the model's tensors."""
    if plan.engine == "deepspeed":
        return plan.zero.stage > 0 or plan.precision != "fp32"
    if plan.engine == "megatron":
        return plan.megatron.use_distributed_optimizer
    if plan.engine == "internevo":
        return True
    return plan.engine == "fsdp" and plan.fsdp.version == 1 and not plan.fsdp.use_orig_params


def muon_numel(plan: TrainingPlan) -> int:
    """Trainable elements that Muon updates."""
    return sum(rows * columns * n for (rows, columns), n in muon_shapes(plan).items())


def muon_shapes(plan: TrainingPlan) -> Counter[tuple[int, int]]:
    """How many matrices of each shape Muon updates, rows and columns; others are flattened."""
    if plan.optimizer.on_muon is not None:
        return Counter(plan.optimizer.on_muon)
    return Counter(
        (p.shape[0], math.prod(p.shape[1:])) for name, p in _trained(plan) if on_muon(name, p)
    )


def on_muon(name: str, parameter: Parameter) -> bool:
    """DeepSpeed's rule: two dimensions, and a name without ``embed`` and ``lm_head``."""
    plain = not any(word in name.lower() for word in ("embed", "lm_head"))
    return len(parameter.shape) >= 2 and plain


def _trained(plan: TrainingPlan) -> Iterator[tuple[str, Parameter]]:
    return ((n, p) for n, p in plan.model.parameters() if p.trainable and p.tied_to is None)


def _mean(plan: TrainingPlan, size_of: Callable[[Parameter], float]) -> float:
    return sum(size_of(p) for _, p in _trained(plan)) / max(1, plan.model.num_trainable)


def _factors(parameter: Parameter) -> int:
    """Elements that Adafactor keeps of a tensor."""
    shape = parameter.shape
    if len(shape) < 2:
        return parameter.numel
    return math.prod(shape[:-1]) + math.prod((*shape[:-2], shape[-1]))


def _momentum_bytes(plan: TrainingPlan) -> float:
    kept = plan.precision
    if plan.engine == "deepspeed":
        if plan.zero.stage == 0:
            return 4.0
        if plan.zero.stage == 1:
            kept = plan.grad_accum_dtype or plan.precision
        elif plan.zero.stage == 3:
            kept = plan.communication_data_type or plan.precision
        return float(COMPUTE_DTYPE_BYTES[kept])
    return 4.0
