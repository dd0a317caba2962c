"""``train.peft`` and ``train.quantization`` into what ``models`` rewrites tables with.

Sources: PEFT 0.18 (``tuners/lora/config.py``, ``mapping_func.py``); transformers 5
(``integrations/bitsandbytes.py``, ``integrations/peft.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from raysim.errors import Problem, ScenarioError
from raysim.models.lora import LoraConfig
from raysim.scenario.documents import Document, shorten
from raysim.scenario.problems import problems_of
from raysim.scenario.schema_peft import PeftSection
from raysim.scenario.schema_train import TrainSection

_QUANTIZED = "quantization_config"


def read_peft(document: Document, *, fp32: bool) -> LoraConfig:
    """Adapters of ``adapter_config.json``, or of the same fields in place.

    ``fp32``: the engine leaves adapters in the type that PEFT gave them.

    Raises
    ------
    ScenarioError
        A value is wrong, or of a kind of adapter that is not simulated.
    """
    if not isinstance(document.data, dict):
        message = f"expected PEFT's adapter_config.json, got {shorten(document.data)}"
        raise ScenarioError(document.problem((), message))
    try:
        said = PeftSection.model_validate(document.data)
    except ValidationError as error:
        raise ScenarioError(problems_of(error, document, PeftSection)) from None
    return LoraConfig(
        r=said.r,
        lora_dropout=said.lora_dropout,
        target_modules=said.target_modules,
        exclude_modules=said.exclude_modules or (),
        modules_to_save=said.modules_to_save or (),
        layers_to_transform=_several(said.layers_to_transform),
        layers_pattern=_several(said.layers_pattern),
        rank_pattern=said.rank_pattern or {},
        fp32=fp32 and said.autocast_adapter_dtype,
    )


def _several(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


def peft_misfits(
    train: TrainSection, document: Document, *, engine: str, stage: int, tensor_parallel: int
) -> Iterator[Problem]:
    """What does not go together with adapters or 4-bit weights."""
    if train.peft is not None and engine == "megatron":
        yield document.problem(("peft",), "Megatron-LM does not run PEFT's adapters")
    if train.peft is not None and tensor_parallel > 1:
        message = f"adapters over {tensor_parallel} tensor-parallel ranks are not simulated"
        yield document.problem(("peft",), message)
    if train.quantization is None:
        return
    if train.peft is None:
        message = "4-bit weights are frozen: what is trained beside them? add peft"
        yield document.problem(("quantization",), message)
    why = {
        "fsdp": "FSDP shards floating types alone",
        "zero3": "gathers of two types are not simulated",
    }
    sharded = "zero3" if stage == 3 else engine
    if sharded in why and train.quantization.bnb_4bit_quant_storage == "uint8":
        message = (
            f"{why[sharded]}: set bnb_4bit_quant_storage to the other weights' type, for example "
            "bfloat16"
        )
        yield document.problem(("quantization",), message)


def checkpoint_in_fewer_bits(config: Document | None, train: TrainSection) -> Iterator[Problem]:
    """A quantised checkpoint in a training job, which takes its weights in 16 or 32 bits.

    Real counterpart: ``validate_quantization_for_training`` of transformers' ``trainer_utils.py``.
    """
    if config is None or train.quantization is not None or not isinstance(config.data, dict):
        return
    text = config.data.get("text_config")
    for data, path in ((config.data, ()), (text, ("text_config",))):
        block = data.get(_QUANTIZED) if isinstance(data, dict) else None
        method = block.get("quant_method") if isinstance(block, dict) else None
        if not isinstance(method, str) or not isinstance(block, dict):
            continue
        way = "the Trainer trains adapters beside such weights alone"
        if block.get("load_in_4bit") is True:
            way = "say train.quantization, and train.peft, as for QLoRA"
        message = f"{method}: taken as dequantized, in the type of the other weights; {way}"
        yield config.problem((*path, _QUANTIZED), message, key=True)
