"""Nemotron-4 and Minitron, on Megatron-core: LayerNorms, squared ReLU without a gate, no biases.

``transformers/models/nemotron/configuration_nemotron.py`` has the keys. Its Hugging Face modules
have no table here, and are traced where transformers is installed.
"""

from __future__ import annotations

from raysim.models.config import MOST_LAYERS, Reader
from raysim.models.families.megatron_core import Grouped, Plain, Style, megatron_model
from raysim.models.request import TRACED, Request
from raysim.models.table import Model


def nemotron(request: Request, r: Reader) -> Model:
    """``NemotronConfig``; half of each head is rotated, which costs what all of it does."""
    if request.library != "megatron_core":
        r.refuse("model_type", f"nemotron has a table of Megatron-core's modules only; {TRACED}")
    hidden = r.integer("hidden_size", default=6144)
    heads = r.integer("num_attention_heads", default=48)
    kv_heads = r.optional_integer("num_key_value_heads") or heads
    head_dim = r.optional_integer("head_dim")
    if head_dim is None:
        r.divides("num_attention_heads", heads, "hidden_size", hidden)
        head_dim = max(1, hidden // heads)
    r.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    width = r.integer("intermediate_size", default=24576)
    count = r.integer("num_hidden_layers", default=32, most=MOST_LAYERS)
    limit = r.integer("max_position_embeddings", default=4096, most=2**27)
    vocab = r.integer("vocab_size", default=256000)
    tied = r.flag("tie_word_embeddings", default=False)
    tokens = request.positions(r, limit)
    r.check()
    block = (Grouped(heads=heads, kv_heads=kv_heads, head_dim=head_dim), Plain(width=width))
    return megatron_model(
        request, r, [block] * count, tokens=tokens, hidden=hidden, vocab=vocab, tied=tied,
        style=Style(layer_norm=True), divisible=[
            ("num_attention_heads", heads), ("num_key_value_heads", kv_heads),
            ("intermediate_size", width),
        ],
    )  # fmt: skip
