"""Models of transformers whose layer table a scenario would read from their ``config.json``.

Real counterpart: the classes of ``transformers.models``. A module of one of these classes, with
the class's own parameters and given labels, is that table: what it takes is then what the same job
said as a scenario takes. Parameters that it freezes are frozen there; what else it
trains (adapters, heads of its own) is traced.

Not modelled: padding, which the tables have not either; outputs that Accelerate copies to fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from raysim.errors import ScenarioError
from raysim.models import huggingface
from raysim.models.frozen import only_trained
from raysim.models.table import Model
from raysim.rayapi.huggingface.flash import attention_of
from raysim.rayapi.shapes.plans import class_of, own_name

_INPUTS = {"input_ids", "labels", "attention_mask", "token_type_ids", "position_ids"}
_IMAGES = {"pixel_values", "labels"}


def table_of(module: Any, example: Any) -> Model | None:
    """The table of a module that is run on these arguments; None: it is to be traced."""
    kind = class_of(module)
    if not kind.__module__.startswith("transformers.models.") or not isinstance(example, Mapping):
        return None
    given = {name: value for name, value in example.items() if getattr(value, "ndim", 0)}
    if "labels" not in given or not (given.keys() <= _INPUTS or given.keys() <= _IMAGES):
        return None
    if attention_of(module) == "flex_attention":  # which takes what its block mask leaves
        return None
    values = module.config.to_dict()
    if not huggingface.reads(values.get("model_type")):
        return None
    length = int(given["input_ids"].shape[-1]) if "input_ids" in given else None
    target = int(given["labels"].shape[-1]) if values.get("is_encoder_decoder") else None
    try:
        table = huggingface.build(
            values, seq_len=length, target_len=target, attention=attention_of(module),
            architecture=kind.__name__, name=kind.__name__,
        )  # fmt: skip
    except ScenarioError:
        return None
    if not _same_parameters(module, table) or _loops(module, table):
        return None
    frozen = {own_name(name) for name, p in module.named_parameters() if not p.requires_grad}
    return only_trained(table, lambda name: name not in frozen) if frozen else table


def _loops(module: Any, table: Model) -> bool:
    """Whether CUDA takes its experts one after the other, where the tables have one kernel."""
    banks = (o.gemm for layer in table.layers for o in layer.body.operators if o.gemm)
    return any(shape.groups > 1 for shape in banks) and any(
        p.dtype != torch.bfloat16 for p in module.parameters() if p.dim() == 3
    )


def _same_parameters(module: Any, table: Model) -> bool:
    own = {own_name(name): p for name, p in module.named_parameters()}
    known = {name: p for name, p in table.parameters() if p.tied_to is None}
    return own.keys() == known.keys() and all(
        tuple(p.shape) == tuple(known[name].shape) for name, p in own.items()
    )
