"""What real models do, measured: parameters, FLOPs, tensors kept, kernels, bytes moved."""

from __future__ import annotations

import functools
import json
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

VIEWS = frozenset(
    {
        "view",
        "_unsafe_view",
        "t",
        "transpose",
        "permute",
        "expand",
        "slice",
        "select",
        "unsqueeze",
        "squeeze",
        "as_strided",
        "detach",
        "split",
        "chunk",
        "unbind",
        "alias",
        "reshape",
        "unfold",
        "split_with_sizes",
        "_reshape_alias",
        "lift_fresh",
        "view_as_real",
        "view_as_complex",
        "empty_like",
        "new_empty",
        "new_empty_strided",
        "empty",
    }
)
ATTENTION = ("_scaled_dot_product", "flash_attention")


def config(values: dict[str, Any], attention: str = "sdpa") -> Any:
    values = dict(values)
    made = transformers.CONFIG_MAPPING[values.pop("model_type")](**values)
    made._attn_implementation = attention
    return made


def on_meta(values: dict[str, Any], architecture: str) -> Any:
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        return getattr(transformers, architecture)(config(values, "eager"))


@dataclass
class Measured:
    """One training step of a real model."""

    saved_bytes: int = 0
    flops: int = 0
    kernels: dict[str, int] = field(default_factory=dict)
    """Forward and backward, outside fused attention and without views."""
    moved: dict[str, float] = field(default_factory=dict)
    """16-bit elements read and written by those, tensors of two rows or more of the batch only."""


class Count(TorchDispatchMode):
    """Counts operators that launch kernels on tensors with whole rows of the batch.

    ``rows`` (batch times tokens) is odd enough to divide no parameter, mask or table.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.least, self.kernels, self.moved = rows, 0, 0.0

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = f(*args, **(kwargs or {}))
        name = f.overloadpacket.__name__
        if name in VIEWS or any(a in name for a in ATTENTION):
            return out
        flat = torch.utils._pytree.tree_leaves((args, kwargs, out))
        tensors = [
            t
            for t in flat
            if isinstance(t, torch.Tensor) and t.numel() % self.least == 0 and t.numel()
        ]
        if tensors:
            moved = sum(t.numel() * t.element_size() / 2 for t in tensors)
            # CUDA's softmax multiplies gradient and output first, in a kernel of its own.
            kernels = 2 if name == "_softmax_backward_data" else 1
            self.kernels += kernels
            self.moved += kernels * moved
        return out


class DeltaRule(torch.autograd.Function):
    """Keeps what ``ChunkGatedDeltaRuleFunction`` of flash-linear-attention keeps (``chunk.py``)."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
        tokens, heads = v.shape[1:3]
        lengths = [x.new_empty(x.shape[:3], dtype=torch.float32) for x in (q, k)]
        normed = [x.new_empty(x.shape) for x in (q, k)]
        inverse = v.new_empty(len(v), tokens, heads, 64)
        ctx.save_for_backward(
            *normed, *lengths, v.new_empty(v.shape), g.new_empty(g.shape), beta, inverse
        )
        ctx.shapes = [x.shape for x in (q, k, v, g, beta)]
        return v.new_empty(v.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        *rest, decay, beta = ctx.shapes
        return (
            *(gradient.new_empty(shape) for shape in rest),
            gradient.new_empty(decay, dtype=torch.float32), gradient.new_empty(beta),
        )  # fmt: skip


class CausalConv(torch.autograd.Function):
    """Keeps what causal-conv1d's ``CausalConv1dFn`` keeps, whose SiLU is computed again."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
        ctx.save_for_backward(x, weight, bias)
        return x.new_empty(x.mT.shape).mT

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight, bias = ctx.saved_tensors
        filters = [None if w is None else w.new_empty(w.shape) for w in (weight, bias)]
        return x.new_empty(x.mT.shape).mT, *filters


class StateSpace(torch.autograd.Function):
    """Keeps what mamba-ssm's ``MambaSplitConv1dScanCombinedFn`` keeps (``ssd_combined.py``)."""

    @staticmethod
    def forward(ctx: Any, x: Any, width: int, groups: int, *weights: Any) -> Any:
        scanned = x.new_empty(*x.shape[:2], width)
        rstd = x.new_empty(*x.shape[:2], groups, dtype=torch.float32)
        ctx.save_for_backward(x, scanned, rstd, *weights)
        return x.new_empty(*x.shape[:2], width)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, _, _, *weights = ctx.saved_tensors
        made = [None if w is None else w.new_empty(w.shape) for w in weights]
        return x.new_empty(x.shape), None, None, *made


def _state_space(x: Any, conv: Any, bias: Any, dt_bias: Any, a: Any, **given: Any) -> Any:
    """The last product is the function's own too: it computes what that reads again."""
    weights = (conv, bias, dt_bias, a, given["D"], given["rmsnorm_weight"])
    out = StateSpace.apply(x, a.shape[0] * given["headdim"], given["ngroups"], *weights)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        return torch.nn.functional.linear(out, given["outproj_weight"], given["outproj_bias"])


def _rule(query: Any, key: Any, value: Any, g: Any, beta: Any, **_: Any) -> Any:
    return DeltaRule.apply(query, key, value, g, beta), None


def _conv(hidden_states: Any, weight: Any, bias: Any = None, **_: Any) -> Any:
    return CausalConv.apply(hidden_states, weight, bias)


KERNELS = {
    "torch_chunk_gated_delta_rule": _rule, "causal_conv1d_fn": _conv,
    "mamba2_split_conv1d_scan_combined": _state_space,
}  # fmt: skip
"""Stand-ins for kernels that need a GPU: they keep what those do, and compute nothing."""


@contextmanager
def kernels(model: Any) -> Iterator[None]:
    """With the kernels of other packages that its family calls, as on a GPU."""
    module = sys.modules[type(model).__module__]
    with ExitStack() as stack:
        for name, stand_in in KERNELS.items():
            if hasattr(module, name):
                stack.enter_context(patch.object(module, name, stand_in))
        yield


def inputs(model: Any, batch: int, tokens: int, dtype: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    cfg = model.config
    if cfg.model_type == "vit":
        size = (batch, cfg.num_channels, cfg.image_size, cfg.image_size)
        return {
            "pixel_values": torch.randn(size, dtype=dtype),
            "labels": torch.zeros(batch, dtype=torch.long),
        }
    ids = torch.randint(3, cfg.get_text_config().vocab_size - 1, (batch, tokens))
    labels = torch.zeros(batch, dtype=torch.long) if "Sequence" in type(model).__name__ else ids
    return {"input_ids": ids, "labels": labels, "use_cache": False}


def measure(
    values: dict[str, Any],
    architecture: str,
    *,
    attention: str,
    batch: int = 2,
    tokens: int = 64,
    bf16: bool = True,
    experts: str | None = None,
    rows: int | None = None,
    adapter: dict[str, Any] | None = None,
) -> Measured:
    """Forward and backward of the real model on the CPU, per sample; equal calls run once.

    ``adapter``: fields of PEFT's ``LoraConfig``, or ``train``, a regular expression of names.
    """
    if not {"num_local_experts", "num_experts", "n_routed_experts"} & set(values):
        experts = None
    key = json.dumps(values, sort_keys=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the models are tiny
    try:
        return _measure(
            key, architecture, attention, batch, tokens, bf16, experts, rows or batch * tokens,
            json.dumps(adapter),
        )  # fmt: skip
    finally:
        torch.set_num_threads(threads)


@functools.cache
def _measure(
    key: str,
    architecture: str,
    attention: str,
    batch: int,
    tokens: int,
    bf16: bool,
    experts: str | None,
    rows: int,
    adapter: str,
) -> Measured:
    values = json.loads(key)
    transformers.logging.set_verbosity_error()
    dtype = torch.bfloat16 if bf16 else torch.float32
    made = config(values, attention)
    if experts:
        made._experts_implementation = experts
    model = getattr(transformers, architecture)(made).to(dtype).train()
    model = partly_trained(model, json.loads(adapter))
    given = inputs(model, batch, tokens, dtype)
    if model.config.model_type in ("bert", "roberta", "distilbert", "vit", "t5"):
        given.pop("use_cache", None)
    owned = {p.untyped_storage().data_ptr() for p in model.parameters()}
    owned |= {b.untyped_storage().data_ptr() for b in model.buffers()}
    storages: dict[int, int] = {}
    alive = []

    def pack(t: Any) -> Any:
        alive.append(t)
        storage = t.untyped_storage()
        if storage.data_ptr() not in owned:
            storages[storage.data_ptr()] = storage.nbytes()
        return t.detach()  # a node that keeps its own output would keep all for ever

    with kernels(model):
        return _counted(model, given, batch, rows, pack, storages, alive)


def partly_trained(model: Any, adapter: dict[str, Any] | None) -> Any:
    """Adapters on it, or all but some parameters frozen."""
    if adapter is None:
        return model
    if "train" in adapter:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(re.search(adapter["train"], name) is not None)
        return model
    import peft

    made = peft.LoraConfig(**adapter)
    return peft.get_peft_model(model, made, autocast_adapter_dtype=False)


def _counted(
    model: Any,
    given: dict[str, Any],
    batch: int,
    rows: int,
    pack: Any,
    storages: dict[int, int],
    alive: list[Any],
) -> Measured:
    result = Measured()
    counter = FlopCounterMode(display=False)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), counter:
        output = model(**given)
    held = output.logits.untyped_storage()
    storages[held.data_ptr()] = held.nbytes()
    result.saved_bytes = sum(storages.values()) // batch
    result.flops = counter.get_total_flops() // batch
    del output, alive[:]
    with Count(rows) as forward:
        loss = model(**given).loss
    with Count(rows) as backward:
        loss.backward()
    result.kernels = {"forward": forward.kernels, "backward": backward.kernels}
    result.moved = {"forward": forward.moved / batch, "backward": backward.moved / batch}
    return result
