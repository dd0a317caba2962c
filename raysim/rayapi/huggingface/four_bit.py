"""``from_pretrained(quantization_config=BitsAndBytesConfig(load_in_4bit=True))`` in workers.

Real counterparts: ``transformers/integrations/bitsandbytes.py``, ``bitsandbytes/nn/modules.py``
(``Linear4bit``, ``Params4bit``), neither of which need be installed. A linear layer keeps its
shapes and computes in ``bnb_4bit_compute_dtype``; that its weight is stored in 4 bits and made
whole for every product is told to its layer table (``models/four_bit.py``).

8 bits are ``eight_bit``'s. Not modelled: other methods (refused; of a checkpoint that is saved so,
weights are taken for 16 bits); types that ``bnb_4bit_quant_storage`` names, taken for the other
weights'; products in fp32, whose weights are made 16 bits wide first.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from raysim.models.four_bit import in_four_bits
from raysim.models.table import Model
from raysim.rayapi.huggingface import eight_bit
from raysim.rayapi.unsupported import NotEmulatedError

DOUBLE = "raysim_double_quant"
"""Attribute of a converted module."""


class Params4bit(torch.nn.Parameter):
    """PEFT and others know it by its name, and count its bytes: two weights each."""

    def numel(self) -> int:
        """Of the bytes that hold it."""
        return super().numel() // 2

    def element_size(self) -> int:
        """Of one of them."""
        return 1


def asked_for(config: Any) -> Any | None:
    """The config where it says 4 or 8 bits of bitsandbytes; None: weights are not quantized.

    Raises
    ------
    NotEmulatedError
        Another method.
    """
    said = dict(config) if isinstance(config, Mapping) else getattr(config, "__dict__", {})
    if config is None or said.get("dequantize"):
        return None
    bits = next((b for b in (4, 8) for k in ("", "_") if said.get(f"{k}load_in_{b}bit")), None)
    if bits:
        if isinstance(config, Mapping):
            import transformers

            config = transformers.BitsAndBytesConfig(**said)
        return config if bits == 4 else eight_bit.check(config)
    raise NotEmulatedError(
        f"from_pretrained(quantization_config={type(config).__name__})",
        "BitsAndBytesConfig of 4 or 8 bits, or weights in 16 or 32 bits",
    )


def saved_so(config: Any) -> Any | None:
    """Of a model's config whose checkpoint is of 4 bits already; None: it is not."""
    said = getattr(config, "quantization_config", None)
    bits = isinstance(said, Mapping) and (said.get("load_in_4bit") or said.get("load_in_8bit"))
    return asked_for(said) if bits else None


def convert(model: Any, config: Any) -> None:
    """``replace_with_bnb_linear``: all linear layers but the head, or but those said."""
    dtype, left = config.bnb_4bit_compute_dtype, _left(model, config)
    four = bool(config.load_in_4bit)
    for name, module in list(model.named_modules()):
        kind: Any = type(module)
        if kind.__name__ not in {"Linear", "Conv1D"} or _within(name, left):
            continue
        if not four:
            eight_bit.convert(module, config)
            continue
        module.__class__ = _four_bit(kind)
        module.weight = Params4bit(module.weight.data.to(dtype), requires_grad=False)
        setattr(module, DOUBLE, config.bnb_4bit_use_double_quant)
    from transformers.quantizers.auto import AutoHfQuantizer

    model.is_loaded_in_4bit, model.is_loaded_in_8bit, model.is_quantized = four, not four, True
    model.hf_quantizer = AutoHfQuantizer.from_config(config)  # the Trainer asks what it allows
    model.config.quantization_config = config


@cache
def _four_bit(kind: Any) -> type:
    """``bnb.nn.Linear4bit`` of a linear class: input and result are cast."""

    def forward(self: Any, x: Any) -> Any:
        return kind.forward(self, x.to(self.weight.dtype)).to(x.dtype)

    return type("Linear4bit", (kind,), {"forward": forward})


def _left(model: Any, config: Any) -> tuple[str, ...]:
    """``get_modules_to_not_convert``: names of modules that stay as they are."""
    if config.llm_int8_skip_modules is not None:
        return tuple(config.llm_int8_skip_modules)
    head = model.get_output_embeddings()
    names = [name for name, module in model.named_modules() if module is head]
    last = [name for name, _ in model.named_parameters()][-1]
    return (*names, last.removesuffix(".weight"))


def _within(name: str, left: tuple[str, ...]) -> bool:
    return any(name == key or name.startswith(f"{key}.") or name.endswith(key) for key in left)


def stored_as_asked(table: Model, module: Any) -> Model:
    """The table of a model, some of whose modules were converted."""
    found = eight_bit.marked(module, DOUBLE)
    if not found:
        return eight_bit.stored_so(table, module)
    return in_four_bits(table, double=next(iter(found.values())), chosen=found.keys())
