"""A Hugging Face ``config.json``, unmodified, into the layer table; no network, no transformers.

``read_config`` reads the file, ``build`` makes the ``Model``. The family is ``model_type``; the
class name in ``architectures`` (or ``architecture=``) picks the head; keys that are absent take the
default of the family's configuration class in transformers 5, whose parameter names the table
carries.

Not modelled: quantised weights, adapters, key-value caches, multi-token-prediction layers, the
auxiliary loss of routers, ``trust_remote_code`` families.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

from raysim.errors import Location, Problem, ScenarioError
from raysim.models.config import HfConfig, Reader, called, read_config, reader_of
from raysim.models.families import (
    alibi,
    bert,
    deepseek,
    dense,
    gemma,
    gpt,
    llama,
    llama4,
    mamba,
    megatron,
    mixture,
    nemotron,
    opt,
    qwen_next,
    qwen_vl,
    t5,
    vit,
)
from raysim.models.request import OWN_CODE, TRACED, Head, Library, Request
from raysim.models.table import Implementation, Model

__all__ = ["HfConfig", "build", "known_model_types", "read_config"]

Family = tuple[Callable[[Request, Reader], Model], str, str]
"""Builder, class prefix, and the head taken when the config names none."""

_FAMILIES: dict[str, Family] = {
    "bert": (bert.bert, "Bert", "ForMaskedLM"),
    "roberta": (bert.roberta, "Roberta", "ForMaskedLM"),
    "distilbert": (bert.distilbert, "DistilBert", "ForMaskedLM"),
    "megatron_gpt": (megatron.megatron_gpt, "MegatronGPT", "ForCausalLM"),
    "gpt2": (gpt.gpt2, "GPT2", "LMHeadModel"),
    "gpt_neo": (gpt.gpt_neo, "GPTNeo", "ForCausalLM"),
    "gptj": (gpt.gptj, "GPTJ", "ForCausalLM"),
    "gpt_neox": (gpt.gpt_neox, "GPTNeoX", "ForCausalLM"),
    "phi": (gpt.phi, "Phi", "ForCausalLM"),
    "opt": (opt.opt, "OPT", "ForCausalLM"),
    "vit": (vit.vit, "ViT", "ForImageClassification"),
    "bloom": (alibi.bloom, "Bloom", "ForCausalLM"),
    "mpt": (alibi.mpt, "Mpt", "ForCausalLM"),
    "falcon": (alibi.falcon, "Falcon", "ForCausalLM"),
    "RefinedWeb": (alibi.falcon, "Falcon", "ForCausalLM"),
    "RefinedWebModel": (alibi.falcon, "Falcon", "ForCausalLM"),
    "t5": (t5.t5, "T5", "ForConditionalGeneration"),
    "deepseek_v2": (deepseek.deepseek_v2, "DeepseekV2", "ForCausalLM"),
    "deepseek_v3": (deepseek.deepseek_v3, "DeepseekV3", "ForCausalLM"),
    "kimi_k2": (deepseek.deepseek_v3, "DeepseekV3", "ForCausalLM"),
    "llama4_text": (llama4.llama4_text, "Llama4", "ForCausalLM"),
    "llama4": (llama4.llama4, "Llama4", "ForConditionalGeneration"),
    "llama": (llama.llama, "Llama", "ForCausalLM"),
    "mistral": (llama.mistral, "Mistral", "ForCausalLM"),
    "qwen2": (llama.qwen2, "Qwen2", "ForCausalLM"),
    "qwen3": (llama.qwen3, "Qwen3", "ForCausalLM"),
    "phi3": (llama.phi3, "Phi3", "ForCausalLM"),
    "granite": (dense.granite, "Granite", "ForCausalLM"),
    "seed_oss": (dense.seed_oss, "SeedOss", "ForCausalLM"),
    "smollm3": (dense.smollm3, "SmolLM3", "ForCausalLM"),
    "exaone4": (dense.exaone4, "Exaone4", "ForCausalLM"),
    "olmo2": (dense.olmo2, "Olmo2", "ForCausalLM"),
    "olmo3": (dense.olmo3, "Olmo3", "ForCausalLM"),
    "mixtral": (mixture.mixtral, "Mixtral", "ForCausalLM"),
    "olmoe": (mixture.olmoe, "Olmoe", "ForCausalLM"),
    "minimax_m2": (mixture.minimax_m2, "MiniMaxM2", "ForCausalLM"),
    "qwen2_moe": (mixture.qwen2_moe, "Qwen2Moe", "ForCausalLM"),
    "qwen3_moe": (mixture.qwen3_moe, "Qwen3Moe", "ForCausalLM"),
    "glm4_moe": (mixture.glm4_moe, "Glm4Moe", "ForCausalLM"),
    "qwen2_vl": (qwen_vl.qwen2_vl, "Qwen2VL", "ForConditionalGeneration"),
    "qwen2_5_vl": (qwen_vl.qwen2_5_vl, "Qwen2_5_VL", "ForConditionalGeneration"),
    "qwen3_vl": (qwen_vl.qwen3_vl, "Qwen3VL", "ForConditionalGeneration"),
    "qwen3_vl_moe": (qwen_vl.qwen3_vl_moe, "Qwen3VLMoe", "ForConditionalGeneration"),
    "qwen3_next": (qwen_next.qwen3_next, "Qwen3Next", "ForCausalLM"),
    "qwen3_5_text": (qwen_next.qwen3_5_text, "Qwen3_5", "ForCausalLM"),
    "qwen3_5": (qwen_next.qwen3_5, "Qwen3_5", "ForConditionalGeneration"),
    "qwen3_5_moe_text": (qwen_next.qwen3_5_moe_text, "Qwen3_5Moe", "ForCausalLM"),
    "qwen3_5_moe": (qwen_next.qwen3_5_moe, "Qwen3_5Moe", "ForConditionalGeneration"),
    "bamba": (mamba.bamba, "Bamba", "ForCausalLM"),
    "granitemoehybrid": (mamba.granitemoehybrid, "GraniteMoeHybrid", "ForCausalLM"),
    "nemotron_h": (mamba.nemotron_h, "NemotronH", "ForCausalLM"),
    "nemotron": (nemotron.nemotron, "Nemotron", "ForCausalLM"),
    "gpt_oss": (mixture.gpt_oss, "GptOss", "ForCausalLM"),
    "gemma": (gemma.gemma, "Gemma", "ForCausalLM"),
    "gemma2": (gemma.gemma2, "Gemma2", "ForCausalLM"),
    "gemma3_text": (gemma.gemma3_text, "Gemma3", "ForCausalLM"),
    "gemma3": (gemma.gemma3, "Gemma3", "ForConditionalGeneration"),
}
MEGATRON_FAMILIES = frozenset(
    {"llama", "mistral", "qwen2", "qwen3", "phi3", "mixtral", "qwen2_moe", "qwen3_moe"}
    | {"deepseek_v2", "deepseek_v3", "kimi_k2", "gpt_oss", "nemotron", "megatron_gpt"}
)
"""Families that Megatron-core's GPT model has the modules for."""
LIBRARIES: dict[Library, tuple[str, frozenset[str]]] = {
    "megatron_core": ("Megatron-core", MEGATRON_FAMILIES),
    "torchtitan": ("torchtitan", frozenset({"llama"})),
    "internevo": ("InternEvo", frozenset({"llama"})),
}
"""Whose modules run where they are not transformers': its name, and its families."""
ELSEWHERE = frozenset({"gpt_oss", "nemotron"})
"""Families of which only another library's modules are known."""
_HEAD = re.compile(rf"(?P<head>{'|'.join(get_args(Head))}|LMHeadModel|DoubleHeadsModel)$")


def known_model_types() -> tuple[str, ...]:
    """Every ``model_type`` that ``build`` reads, sorted."""
    return tuple(sorted(_FAMILIES))


def reads(model_type: object, library: Library = "transformers") -> bool:
    """Whether `build` has the family's own table in that library, or knows why there is none."""
    if library != "transformers" or not isinstance(model_type, str):
        return True  # `build` says what is wrong
    return model_type in _FAMILIES and model_type not in ELSEWHERE


def build(
    config: Mapping[str, Any],
    *,
    seq_len: int | None = None,
    attention: Implementation = "sdpa",
    architecture: str | None = None,
    fused_loss: bool = False,
    target_len: int | None = None,
    name: str | None = None,
    library: Library = "transformers",
    vocab_multiple: int = 1,
    file: str = "config.json",
) -> Model:
    """The layer table of a configuration.

    Parameters
    ----------
    config
        Keys of a ``config.json``; from ``read_config``, errors carry line and column.
    seq_len
        Tokens per sample; None: the model's own limit. Vision models take it from the image size.
    attention
        ``attn_implementation``; a family without sdpa runs eager, as ``from_pretrained`` does.
    architecture
        Class to build, for example ``BertForSequenceClassification``; None: ``architectures[0]``.
    fused_loss
        Loss fused with the vocabulary projection (Liger), so that logits are never whole.
    target_len
        Decoder tokens per sample of an encoder-decoder; None: as ``seq_len``.
    name
        Shown in reports; None: ``_name_or_path`` or the family.
    library
        ``megatron_core``: Megatron-core's modules on Transformer Engine; ``torchtitan``:
        torchtitan's; ``internevo``: InternEvo's; for families they have.
    vocab_multiple
        Of ``megatron_core``: the vocabulary is padded to a multiple of this.
    file
        Shown in errors when ``config`` does not know its own.

    Raises
    ------
    ScenarioError
        The family or head is unknown, or keys have impossible values; lists every problem found.
    """
    reader = reader_of(config, file)
    model_type = _model_type(reader)
    builder, cls, default_head = _FAMILIES[model_type]
    full = _full(reader, model_type, cls, default_head, architecture)
    request = Request(
        model_type=model_type,
        architecture=full,
        head=_head(reader, full, default_head),
        name=name or called(config),
        seq_len=seq_len,
        target_len=target_len,
        attention=attention,
        fused_loss=fused_loss,
        library=library,
        vocab_multiple=vocab_multiple,
    )
    if library != "transformers":
        _in_library(reader, model_type, library)
    return builder(request, reader)


def _full(reader: Reader, model_type: str, cls: str, head: str, asked: str | None) -> str:
    """The class: the one asked for, the config's first, or the family's usual one."""
    full = asked or _architecture(reader) or f"{cls}{head}"
    if asked and not asked.lower().startswith(cls.lower()):
        reader.refuse("model_type", f"{asked} is not a class of {model_type!r} ({cls}...)")
    elif full.startswith(f"{cls}Text") and not model_type.endswith("_text"):
        reader.refuse(
            "architectures",
            f"{full} is the text of {model_type} alone; give its text_config as a config.json",
        )
    reader.check()
    return full


def _head(reader: Reader, full: str, default: str) -> Head:
    """What the class name asks for after the family's name."""
    match = _HEAD.search(full)
    if match is None:
        heads = ", ".join(get_args(Head))
        reader.refuse("architectures", f"{full!r} ends in no known head: {heads}")
        reader.check()
    head = match["head"] if match else default
    return "ForCausalLM" if head == "LMHeadModel" else head  # type: ignore[return-value]


def _in_library(reader: Reader, model_type: str, library: Library) -> None:
    """Refuse a family that another library has no modules for."""
    title, families = LIBRARIES[library]
    if model_type not in families:
        known = ", ".join(sorted(families))
        reader.refuse("model_type", f"{model_type} is not modelled in {title}; known: {known}")
        reader.check()


def _of_architecture(reader: Reader) -> str | None:
    """``llama`` of ``LlamaForCausalLM``: what a file without ``model_type`` is likely to mean."""
    classes = reader.values.get("architectures")
    first = str(classes[0]) if isinstance(classes, list) and classes else ""
    name = re.split(r"For[A-Z]|Model$", first)[0].lower()
    return next((known for known in _FAMILIES if known.replace("_", "").lower() == name), None)


def _model_type(reader: Reader) -> str:
    value = reader.values.get("model_type")
    if isinstance(value, str) and value in _FAMILIES:
        return value
    known = ", ".join(known_model_types())
    if value is None:
        where, meant = Location(file=reader.file), _of_architecture(reader)
        said = f'missing; by its architectures "model_type": "{meant}"' if meant else ""
        said = said or f"missing; known are {known}"
        raise ScenarioError(Problem(message=said, where=where, key="model_type"))
    near = difflib.get_close_matches(str(value), _FAMILIES, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    rest = OWN_CODE if "auto_map" in reader.values else TRACED
    reader.refuse("model_type", f"unknown {value!r}; {hint}known are {known}; {rest}")
    reader.check()
    raise AssertionError("check raises")


def _architecture(reader: Reader) -> str | None:
    value = reader.values.get("architectures")
    if value is None or value == []:
        return None
    if not isinstance(value, list) or not isinstance(value[0], str):
        reader.refuse("architectures", "expected a list of class names")
        reader.check()
    return str(value[0])
