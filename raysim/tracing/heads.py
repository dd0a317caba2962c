"""Batches as transformers' heads take them: zeros of the shapes that training gives.

A head is known by the end of its class's name and by its main input. Sound is 16,000 numbers a
second; its text is taken to be a label for every tenth of a second.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from raysim.errors import Problem, ScenarioError

BATCH = 2
"""Samples of a trace: what grows with the batch is told from what does not."""
SAMPLES_PER_LABEL = 1600
"""Of sound, where the length of its text is not said: people speak 10 to 15 letters a second."""
CHOICES = 4
"""Answers to choose from, as SWAG and RACE have."""
Given = dict[str, Any]
Make = Callable[[Any, int | None, int | None], Given]


def inputs_of(cls: Any, config: Any, length: int | None, target: int | None) -> Given:
    """Of a class that takes images and text, text; of one that compares them, both.

    ``length``: tokens, or numbers of a sound; ``target``: tokens of the text to be made.

    Raises
    ------
    ScenarioError
        The head is not known, or the length that it needs.
    """
    called, takes = cls.__name__, cls.main_input_name
    heads = _HEADS.get(takes, {})
    make = next((make for ending, make in heads.items() if called.endswith(ending)), None)
    if "return_loss" in inspect.signature(cls.forward).parameters:
        make = _pairs
    if make is not None and all(hasattr(config, name) for name in _NEEDS.get(make, ())):
        return make(config, length, target)
    known = "; ".join(f"{name}: {', '.join(heads)}" for name, heads in _HEADS.items())
    message = f"{called} takes {takes}; heads that can be traced, by what they take: {known}"
    raise ScenarioError(Problem(message=message, key="architectures"))


def _whole(*shape: int | None) -> torch.Tensor:
    """Zeros of integers.

    Raises
    ------
    ScenarioError
        The length is not known.
    """
    if None in shape:
        raise ScenarioError(Problem(message="seq_len: the config has no length; give seq_len"))
    return torch.zeros(*[int(n) for n in shape if n is not None], dtype=torch.long)


def _real(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.bfloat16)


def _tokens(config: Any, length: int | None, target: int | None) -> Given:
    """Token ids, and a label for each; an encoder-decoder's labels are its target's."""
    decodes = getattr(config, "is_encoder_decoder", False)
    return {
        "input_ids": _whole(BATCH, length),
        "labels": _whole(BATCH, (target or length) if decodes else length),
    }


def _plain(_config: Any, length: int | None, _target: int | None) -> Given:
    """Token ids; backward starts from whatever comes out."""
    return {"input_ids": _whole(BATCH, length)}


def _pooled(_config: Any, length: int | None, _target: int | None) -> Given:
    """Token ids, and one label for all of them."""
    return {"input_ids": _whole(BATCH, length), "labels": _whole(BATCH)}


def _spans(_config: Any, length: int | None, _target: int | None) -> Given:
    ends = {"start_positions": _whole(BATCH), "end_positions": _whole(BATCH)}
    return {"input_ids": _whole(BATCH, length), **ends}


def _choices(_config: Any, length: int | None, _target: int | None) -> Given:
    return {"input_ids": _whole(BATCH, CHOICES, length), "labels": _whole(BATCH)}


def _image(config: Any) -> torch.Tensor:
    size = getattr(config, "image_size", 224)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return _real(BATCH, getattr(config, "num_channels", 3), height, width)


def _image_only(config: Any, _length: int | None, _target: int | None) -> Given:
    """Pixels, which are the target too."""
    return {"pixel_values": _image(config)}


def _pixels(config: Any, _length: int | None, _target: int | None) -> Given:
    """And one label for all of them."""
    return {"pixel_values": _image(config), "labels": _whole(BATCH)}


def _pixel_labels(config: Any, _length: int | None, _target: int | None) -> Given:
    """And a label for each."""
    pixels = _image(config)
    return {"pixel_values": pixels, "labels": _whole(BATCH, *pixels.shape[2:])}


def _pairs(config: Any, length: int | None, _target: int | None) -> Given:
    """Images and their texts, as CLIP compares them; its processor cuts longer ones."""
    longest = getattr(config.text_config, "max_position_embeddings", None)
    text = _whole(BATCH, min(length or longest, longest) if longest else length)
    return {"input_ids": text, "pixel_values": _image(config.vision_config), "return_loss": True}


def _spectrogram(config: Any, _length: int | None, target: int | None) -> Given:
    """Whisper's 30 seconds, which it always takes, and their text."""
    frames = 2 * config.max_source_positions
    return {
        "input_features": _real(BATCH, config.num_mel_bins, frames),
        "labels": _whole(BATCH, target or config.max_target_positions),
    }


def _sound(_config: Any, length: int | None, target: int | None) -> Given:
    """And its text, letter by letter."""
    labels = target or (None if length is None else max(1, length // SAMPLES_PER_LABEL))
    return {"input_values": _heard(length), "labels": _whole(BATCH, labels)}


def _sound_pooled(_config: Any, length: int | None, _target: int | None) -> Given:
    """And one label for all of it."""
    return {"input_values": _heard(length), "labels": _whole(BATCH)}


def _mel_pooled(config: Any, _length: int | None, _target: int | None) -> Given:
    """The same of a spectrogram, as AST takes it."""
    mel = _real(BATCH, config.max_length, config.num_mel_bins)
    return {"input_values": mel, "labels": _whole(BATCH)}


_NEEDS: dict[Make, tuple[str, ...]] = {
    _pairs: ("text_config", "vision_config"),
    _spectrogram: ("max_source_positions", "num_mel_bins"),
    _mel_pooled: ("max_length", "num_mel_bins"),
}
"""Of a config, for batches of this kind."""


def _heard(length: int | None) -> torch.Tensor:
    if length is None:
        message = "seq_len: numbers of a sound, 16,000 a second; the config does not say them"
        raise ScenarioError(Problem(message=message))
    return _real(BATCH, length)


_HEADS: dict[str, dict[str, Make]] = {
    "input_ids": {
        "ForCausalLM": _tokens, "LMHeadModel": _tokens, "ForMaskedLM": _tokens,
        "ForConditionalGeneration": _tokens, "ForTokenClassification": _tokens,
        "ForSequenceClassification": _pooled, "ForQuestionAnswering": _spans,
        "ForMultipleChoice": _choices, "ForPreTraining": _plain, "Model": _plain,
    },
    "pixel_values": {
        "ForImageClassification": _pixels, "ForSemanticSegmentation": _pixel_labels,
        "ForPreTraining": _image_only, "Model": _image_only,
    },
    "input_features": {"ForConditionalGeneration": _spectrogram},
    "input_values": {
        "ForCTC": _sound, "ForSequenceClassification": _sound_pooled,
        "ForAudioClassification": _mel_pooled,
    },
}  # fmt: skip
