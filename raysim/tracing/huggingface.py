"""A ``config.json`` whose family ``raysim.models`` does not have: transformers' own class, traced.

The class is built on the meta device, without weights, and run once on shapes, as transformers
would train it in bf16 or under autocast. A family without sdpa runs eager, as ``from_pretrained``
does. Needs transformers, and a ``model_type`` that it has itself: code from a repository is never
run.

Not modelled: tensor parallelism (nothing is marked as divisible), fused losses, FlashAttention,
SpecAugment's masks over sound.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeVar
from unittest.mock import patch

from raysim.errors import Location, Problem, ScenarioError
from raysim.models.config import called, reader_of
from raysim.models.request import config_dtype
from raysim.models.table import Implementation, Model
from raysim.tracing.heads import inputs_of

Made = TypeVar("Made")
Half = Literal["fp16", "bf16"]
HALVES: dict[Half, str] = {"fp16": "float16", "bf16": "bfloat16"}
"""torch's names."""
_SELECTIVE = "mamba-ssm's first scan"
_LOOPS = {
    "mamba": _SELECTIVE, "falcon_mamba": _SELECTIVE, "jamba": _SELECTIVE, "zamba": _SELECTIVE,
    "rwkv": "RWKV's own kernel", "recurrent_gemma": "a scan of Griffin's own",
    "xlstm": "kernels of mlstm_kernels",
}  # fmt: skip
"""Families that transformers runs token by token where a kernel that is not modelled is missing."""
LOOKS = "warn_if_padding_and_no_attention_mask"


@dataclass(frozen=True, slots=True)
class _Question:
    """What a trace depends on, to be looked up again; ``values`` are the config's, as JSON."""

    values: str
    architecture: str | None
    seq_len: int | None
    target_len: int | None
    attention: Implementation
    autocast: Half | None


def known(model_type: object) -> bool:
    """Whether the installed transformers has this family."""
    from transformers import CONFIG_MAPPING

    return isinstance(model_type, str) and model_type in CONFIG_MAPPING


def refuse_loops(config: Mapping[str, Any], file: str = "config.json") -> None:
    """Say at once of which families a trace would take minutes and be of no use.

    Raises
    ------
    ScenarioError
        It is one of them.
    """
    family = config.get("model_type")
    if family in _LOOPS:
        reader = reader_of(config, file)
        reader.refuse(
            "model_type",
            f"there is no prediction for {family!r}: what runs is {_LOOPS[family]}, which is not "
            "modelled, and without it a loop over tokens",
        )
        reader.check()


def build(
    config: Mapping[str, Any],
    *,
    seq_len: int | None = None,
    attention: Implementation = "sdpa",
    architecture: str | None = None,
    fused_loss: bool = False,
    target_len: int | None = None,
    name: str | None = None,
    file: str = "config.json",
    autocast: Half | None = None,
) -> Model:
    """The layer table of a configuration; parameters as of ``raysim.models.huggingface.build``.

    ``autocast``: with fp32 weights, under ``torch.autocast`` to that type.

    Raises
    ------
    ScenarioError
        transformers refuses the configuration, the class has no head that is known here, or its
        forward cannot be run on shapes.
    """
    reader = reader_of(config, file)
    dtype = config_dtype(reader)
    if fused_loss:
        reader.refuse("model_type", "a traced model computes whole logits; set fused_loss to false")
    if attention not in {"sdpa", "eager"}:
        reader.refuse("model_type", f"a traced model runs sdpa or eager attention, not {attention}")
    refuse_loops(config, file)
    reader.check()
    question = _Question(
        json.dumps(dict(config), sort_keys=True), architecture, seq_len, target_len, attention,
        autocast,
    )  # fmt: skip
    try:
        model = _traced(question)
    except ScenarioError as error:
        where = Location(file=reader.file)
        raise ScenarioError(
            problem if problem.where else replace(problem, where=where)
            for problem in error.problems
        ) from None
    return replace(model, name=name or called(config), config_dtype=dtype)


@lru_cache(maxsize=8)  # a plan asks for the same table at every point
def _traced(asked: _Question) -> Model:
    import torch
    import transformers

    from raysim.tracing.module import trace

    values = json.loads(asked.values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers.logging.set_verbosity_error()
        config = _config(values, transformers)
        cls = _class(values, asked.architecture, transformers)
        if not isinstance(config, cls.config_class):  # the language model of several
            config = config.get_text_config()
        length = asked.seq_len or getattr(config.get_text_config(), "max_position_embeddings", None)
        if asked.attention == "eager":
            config._attn_implementation = "eager"  # noqa: SLF001 (transformers' own way to ask)
        half = None if asked.autocast is None else getattr(torch, HALVES[asked.autocast])
        dtype = torch.bfloat16 if half is None else torch.float32
        with torch.device("meta"):
            module = _refusing(cls, lambda: cls._from_config(config, dtype=dtype))
        given = inputs_of(cls, config, length, asked.target_len)
        # Looks at token ids, and only to warn.
        with patch.object(transformers.PreTrainedModel, LOOKS, lambda *_: None):
            return _refusing(cls, lambda: trace(module, given, dtype=dtype, autocast=half))


def _config(values: Mapping[str, Any], transformers: Any) -> Any:
    cls = transformers.CONFIG_MAPPING[values["model_type"]]
    config = _refusing(cls, lambda: cls.from_dict(dict(values)))
    if getattr(config, "pad_token_id", None) is None:  # heads that look for a sample's last token
        config.pad_token_id = 0
    if hasattr(config, "use_cache"):
        config.use_cache = False
    if hasattr(config, "apply_spec_augment"):  # drawn masks: a trace has shapes only
        config.apply_spec_augment = False
    return config


def _class(values: Mapping[str, Any], architecture: str | None, transformers: Any) -> Any:
    """The class that was asked for, the config's, or the family's language model.

    A repository with code of its own (``auto_map``) names classes as that code does; transformers'
    own class of the family is what ``from_pretrained`` makes when such code is not trusted.
    """
    from transformers.models.auto import modeling_auto as auto

    said = values.get("architectures") or [None]
    family = values["model_type"]
    own = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(
        family, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(family)
    )
    full = architecture or said[0] or own
    if architecture is None and "auto_map" in values and not hasattr(transformers, str(full)):
        full = own
    if full is None:
        message = "missing, and the family has no causal language model; name the class to train"
        raise ScenarioError(Problem(message=message, key="architectures"))
    found = getattr(transformers, str(full), None)
    if found is None:
        message = f"transformers {transformers.__version__} has no class {full}"
        raise ScenarioError(Problem(message=message, key="architectures"))
    return found


def _refusing(cls: Any, do: Callable[[], Made]) -> Made:
    """What ``do`` makes; whatever the user's values make a class raise is the user's to read."""
    try:
        return do()
    except ScenarioError:
        raise
    except Exception as error:
        first, *more = (str(error).strip() or type(error).__name__).splitlines()
        said = f"{first} {more[0].strip()}" if first.endswith(":") and more else first
        raise ScenarioError(Problem(message=f"{cls.__name__} refuses it: {said}")) from error
