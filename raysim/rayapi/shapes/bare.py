"""A module without what stands around its parts, while the tracer copies and runs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.fsdp import FSDPModule

from raysim.rayapi.shapes.plans import INSIDE, RecomputedBlock, class_of


@contextmanager
def bare(module: Any) -> Iterator[None]:
    """No checkpoints, which the plan has, and no FSDP2, whose modules cannot be copied."""
    said = [m for m in module.modules() if getattr(m, "gradient_checkpointing", False)]
    wrapped = [
        (m, name, inner) for m in module.modules() for name, inner in m.named_children()
        if isinstance(inner, RecomputedBlock)
    ]  # fmt: skip
    for m, name, inner in wrapped:
        m._modules[name] = getattr(inner, INSIDE)  # noqa: SLF001  (FSDP's would shard it)
    sharded = {m: type(m) for m in module.modules() if isinstance(m, FSDPModule)}
    for m in said:
        m.gradient_checkpointing = False
    for m in sharded:
        m.__class__ = class_of(m)
    try:
        yield
    finally:
        for m in said:
            m.gradient_checkpointing = True
        for m, kind in sharded.items():
            m.__class__ = kind
        for m, name, inner in wrapped:
            m._modules[name] = inner  # noqa: SLF001  (as above)
