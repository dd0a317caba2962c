"""``BitsAndBytesConfig(load_in_8bit=True)`` in workers.

Real counterparts: ``transformers/integrations/bitsandbytes.py``, ``bitsandbytes/nn/modules.py``
(``Linear8bitLt``), neither of which need be installed. A linear layer's weight is one byte an
element; its product is of 16 bits here, and told to its layer table (``models/eight_bit.py``).

Not modelled: ``llm_int8_has_fp16_weight``, modules on the CPU (refused).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from raysim.models.eight_bit import in_eight_bits
from raysim.models.table import Model
from raysim.rayapi.shapes.plans import own_name
from raysim.rayapi.unsupported import NotEmulatedError

THRESHOLD = "raysim_int8_threshold"
"""Attribute of a converted module."""
SAID = (
    "weights of 8 bits: their products take what those of 16 bits do (assumed), beside passes that "
    "quantize; outliers are looked for, and are no columns"
)
_REFUSED = ("llm_int8_has_fp16_weight", "llm_int8_enable_fp32_cpu_offload")


class _Keeping(torch.autograd.Function):
    """Its input stays until backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """The same tensor."""
        ctx.save_for_backward(x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:  # noqa: ARG004
        """The same gradient."""
        return grads[0]


def check(config: Any) -> Any:
    """A config that asks for 8 bits.

    Raises
    ------
    NotEmulatedError
        It asks for more.
    """
    for name in _REFUSED:
        if getattr(config, name, False):
            raise NotEmulatedError(f"BitsAndBytesConfig({name}=True)", "it at its default")
    return config


def convert(module: Any, config: Any) -> None:
    """One linear layer."""
    kind: Any = type(module)
    module.__class__ = _eight_bit(kind)
    whole = module.weight.data
    module.weight = torch.nn.Parameter(
        torch.empty(whole.shape, dtype=torch.int8, device=whole.device), requires_grad=False
    )
    setattr(module, THRESHOLD, config.llm_int8_threshold)


@cache
def _eight_bit(kind: Any) -> type:
    """``bnb.nn.Linear8bitLt`` of a linear class."""
    turned = kind.__name__ == "Conv1D"

    def forward(self: Any, x: Any) -> Any:
        whole = torch.empty(self.weight.shape, dtype=x.dtype, device=x.device)
        kept = _Keeping.apply(x)  # type: ignore[no-untyped-call]
        return torch.nn.functional.linear(kept, whole.T if turned else whole, self.bias)

    return type("Linear8bitLt", (kind,), {"forward": forward})


def stored_so(table: Model, module: Any) -> Model:
    """The table of a model, some of whose modules were converted."""
    found = marked(module, THRESHOLD)
    if not found:
        return table
    return in_eight_bits(table, found.keys(), threshold=next(iter(found.values())))


def marked(module: Any, mark: str) -> dict[str, Any]:
    """What converted modules say by an attribute, by the name of their weight."""
    return {
        own_name(f"{name}.weight"): getattr(m, mark)
        for name, m in module.named_modules() if hasattr(m, mark)
    }  # fmt: skip
