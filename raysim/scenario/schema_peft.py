"""Sections of ``train.peft`` and ``train.quantization``: PEFT's and bitsandbytes' own fields."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from raysim.scenario.section import Section


def _names(value: Any) -> Any:
    """A list of names, or a regular expression that is one."""
    if isinstance(value, str):
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return value
    if isinstance(value, list) and value and all(isinstance(v, str) and v for v in value):
        return tuple(value)
    raise ValueError("expected names of modules, or a regular expression")


Names = Annotated[Any, BeforeValidator(_names)]


def _off(value: Any) -> Any:
    """Of what changes the computation and is not simulated."""
    if value in (None, False, [], {}):
        return value
    raise ValueError("is not simulated; adapters are plain LoRA on linear layers")


Off = Annotated[Any, BeforeValidator(_off)]


class PeftSection(BaseModel):
    """``LoraConfig`` as ``adapter_config.json`` has it; keys without effect here are let be."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    peft_type: Literal["LORA"] = "LORA"
    r: int = Field(8, ge=1, le=65536)
    lora_dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: Names | None = None
    exclude_modules: Names | None = None
    modules_to_save: tuple[str, ...] | None = None
    layers_to_transform: int | tuple[int, ...] | None = None
    layers_pattern: str | tuple[str, ...] | None = None
    rank_pattern: dict[str, Annotated[int, Field(ge=1, le=65536)]] | None = None
    autocast_adapter_dtype: bool = True
    """Of ``get_peft_model``: adapters beside 16-bit weights are fp32."""
    bias: Literal["none"] = "none"
    use_dora: Off = None
    lora_bias: Off = None
    use_qalora: Off = None
    use_bdlora: Off = None
    layer_replication: Off = None
    target_parameters: Off = None
    trainable_token_indices: Off = None
    megatron_config: Off = None
    kasa_config: Off = None
    monteclora_config: Off = None
    velora_config: Off = None


class QuantizationSection(Section):
    """``BitsAndBytesConfig``: weights of linear layers in 4 bits, frozen."""

    load_in_4bit: Literal[True] = Field(
        True, description="4-bit weights, made 16-bit again for every product."
    )
    bnb_4bit_quant_type: Literal["nf4", "fp4"] = Field(
        "nf4", description="Of the 4 bits; no effect on the prediction."
    )
    bnb_4bit_use_double_quant: bool = Field(
        False, description="Scales of 64 weights are quantised too."
    )
    bnb_4bit_compute_dtype: Literal["float16", "bfloat16", "float32"] | None = Field(
        None, description="Type of products; by default precision."
    )
    bnb_4bit_quant_storage: Literal["uint8", "float16", "bfloat16", "float32"] = Field(
        "uint8",
        description="Type that holds the 4 bits; shards: that of the other weights.",
    )
    llm_int8_skip_modules: tuple[str, ...] = Field(
        (), description="Linear layers that stay as they are; by default the head."
    )
    quant_method: Literal["bitsandbytes"] = Field("bitsandbytes", description="The library.")
