"""What real models do, measured: parameters, FLOPs, tensors kept, kernels, bytes moved."""

from __future__ import annotations

import functools
import json
import warnings
from dataclasses import dataclass, field
from typing import Any

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
            self.kernels += 1
            self.moved += moved
        return out


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
) -> Measured:
    """Forward and backward of the real model on the CPU, per sample; equal calls run once."""
    if "moe" not in values["model_type"] and not {"num_local_experts", "n_group"} & set(values):
        experts = None
    key = json.dumps(values, sort_keys=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the models are tiny
    try:
        return _measure(
            key, architecture, attention, batch, tokens, bf16, experts, rows or batch * tokens
        )
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
) -> Measured:
    values = json.loads(key)
    transformers.logging.set_verbosity_error()
    dtype = torch.bfloat16 if bf16 else torch.float32
    made = config(values, attention)
    if experts:
        made._experts_implementation = experts
    model = getattr(transformers, architecture)(made).to(dtype).train()
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
        return t

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
