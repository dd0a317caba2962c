"""Models of a training step on real ranks, from a Hugging Face config: whole, or as a pipeline.

Needs torch and transformers; nothing is downloaded, weights are random.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional

HEADS = {
    "bert": "AutoModelForMaskedLM",
    "roberta": "AutoModelForMaskedLM",
    "vit": "AutoModelForImageClassification",
}
"""Families that are not trained on next tokens."""


def transformer(config: Mapping[str, Any], attention: str | None = None) -> nn.Module:
    """The model with the head it is trained with: masked tokens, classes of images, next tokens.

    ``model_type`` names the family, ``attention`` is transformers' ``attn_implementation``; None
    leaves its choice. Caches are off, as in training. Seeded, so that every rank builds the same
    weights.
    """
    torch.manual_seed(0)
    keys = dict(config)
    read = transformers.AutoConfig.for_model(keys.pop("model_type"), **keys)
    read.use_cache = False
    head = HEADS.get(config["model_type"], "AutoModelForCausalLM")
    chosen = {"attn_implementation": attention} if attention else {}
    model: nn.Module = getattr(transformers, head).from_config(read, **chosen)
    return model.train()


def inputs(config: Mapping[str, Any], shape: tuple[int, int], device: Any) -> dict[str, Any]:
    """A random micro-batch: ``shape`` is samples and tokens, of which images are not asked."""
    if config["model_type"] == "vit":
        side = config.get("image_size", 224)
        pixels = torch.randn(shape[0], config.get("num_channels", 3), side, side, device=device)
        classes = torch.zeros(shape[0], dtype=torch.long, device=device)
        return {"pixel_values": pixels, "labels": classes}
    ids = torch.randint(config["vocab_size"], shape, device=device)
    return {"input_ids": ids, "labels": ids}


def next_token_loss(logits: Any, labels: Any) -> Any:
    """Cross-entropy in fp32 against the following token, as transformers' ``ForCausalLMLoss``."""
    shifted = functional.pad(labels, (0, 1), value=-100)[..., 1:]
    return functional.cross_entropy(
        logits.float().view(-1, logits.size(-1)), shifted.reshape(-1), ignore_index=-100
    )


class _Embedding(nn.Module):
    """Llama's token embedding under its own name."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.embed_tokens = inner

    def forward(self, ids: Any) -> Any:
        return self.embed_tokens(ids)


class _Embeddings(nn.Module):
    """GPT-2's token and position embeddings and the dropout after them."""

    def __init__(self, transformer: Any) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = transformer.wte, transformer.wpe, transformer.drop

    def forward(self, ids: Any) -> Any:
        positions = torch.arange(ids.size(1), device=ids.device)
        return self.drop(self.wte(ids) + self.wpe(positions))


class _Block(nn.Module):
    """A decoder layer that takes and gives hidden states alone."""

    def __init__(self, inner: Any, rotary: Any) -> None:
        super().__init__()
        self.inner = inner
        self.rotary = [rotary]  # in a list: its tables are no part of this stage's state

    def forward(self, x: Any) -> Any:
        keys: dict[str, Any] = {}
        if self.rotary[0] is not None:
            positions = torch.arange(x.size(1), device=x.device)[None]
            keys["position_embeddings"] = self.rotary[0].to(x.device)(x, positions)
        found = self.inner(x, **keys)
        return found[0] if isinstance(found, tuple) else found


def pipeline_layers(config: Mapping[str, Any]) -> list[nn.Module]:
    """Embedding, decoder layers, final norm and head, for DeepSpeed's ``PipelineModule``.

    Raises
    ------
    ValueError
        The family's layers are not known here, or the head is tied to the embedding.
    """
    model: Any = transformer(config)
    if model.config.tie_word_embeddings:
        raise ValueError("a pipeline of tied embeddings needs TiedLayerSpec: untie them")
    if hasattr(model, "transformer"):
        t = model.transformer
        return [
            _Embeddings(t),
            *(_Block(block, None) for block in t.h),
            t.ln_f,
            model.lm_head,
        ]
    if hasattr(model, "model") and hasattr(model.model, "rotary_emb"):
        m = model.model
        return [
            _Embedding(m.embed_tokens),
            *(_Block(layer, m.rotary_emb) for layer in m.layers),
            m.norm,
            model.lm_head,
        ]
    raise ValueError(f"no pipeline layers known for {type(model).__name__}")
