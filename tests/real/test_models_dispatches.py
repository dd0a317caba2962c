"""What the host calls in one more layer of a real model, against the layer table."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.models.huggingface import build
from raysim.models.table import Body
from raysim.training.layers.pricing import module_calls

pytest.importorskip("transformers")

from raysim.measure.host import Counts, counts
from tests.real.models_reference import torch, transformers

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]

TOKENS = 8
ROPE: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = ROPE | {"num_key_value_heads": 2}
HEAD = {"head_dim": 16}
GPT = {"vocab_size": 100, "n_embd": 64, "n_head": 4}
MODELS: dict[str, tuple[dict[str, Any], float]] = {
    # keys, and by how much the operators may differ: of a layer's 40 to 135
    "llama": (ROPE, 0.0),
    "mistral": (GROUPED, 0.0),
    "qwen2": (GROUPED, 0.0),
    "qwen3": (GROUPED | HEAD, 0.0),
    "seed_oss": (GROUPED | HEAD, 0.0),
    "olmo2": (GROUPED, 0.02),
    "gemma": (GROUPED | HEAD, 0.0),
    "gemma2": (GROUPED | HEAD, 0.02),
    "phi3": (GROUPED, 0.05),
    "gpt2": (GPT, 0.02),
    "bert": (ROPE, 0.0),
    "gpt_neox": (ROPE, 0.08),
    "opt": ({"vocab_size": 100, "hidden_size": 64, "ffn_dim": 128, "num_attention_heads": 4,
             "word_embed_proj_dim": 64, "dropout": 0.0}, 0.06),
    "bloom": ({"vocab_size": 100, "hidden_size": 64, "n_head": 4}, 0.1),
}  # fmt: skip
NODES = {"gpt_neox": 0.1, "bloom": 0.22}
"""By how much nodes may differ from operators and parameters; BLOOM's nine-operator GELU is one
autograd function."""
DEPTH = {"gpt2": "n_layer", "bloom": "n_layer"}


def small(family: str, attention: str, layers: int) -> Any:
    """In bf16, as the table counts casts; without dropout, which a CPU has no kernel for."""
    keys = MODELS[family][0] | {DEPTH.get(family, "num_hidden_layers"): layers}
    config: Any = transformers.AutoConfig.for_model(family, **keys)
    for key in config.to_dict():
        if "dropout" in key or key.endswith("_pdrop"):
            setattr(config, key, 0.0)
    model = transformers.AutoModel.from_config(config, attn_implementation=attention)
    return model.train().to(torch.bfloat16)


def run(model: Any) -> Any:
    ids = torch.zeros(1, TOKENS, dtype=torch.long)
    return model(ids, use_cache=False).last_hidden_state


def measured(family: str, attention: str) -> tuple[Counts, Body]:
    """Of one layer, and that layer's table."""
    three, one = (small(family, attention, n) for n in (3, 1))
    more = [(a - b) / 2 for a, b in zip(counts(three, run), counts(one, run), strict=True)]
    table = build(three.config.to_dict(), seq_len=TOKENS, attention=attention)
    body = next(layer.body for layer in table.layers if layer.kind == "block")
    return Counts(*map(round, more)), body


EAGER_ONLY = ("gemma2", "bloom")
CASES = [(f, a) for f in MODELS for a in ("eager", "sdpa") if a == "eager" or f not in EAGER_ONLY]


@pytest.mark.parametrize(("family", "attention"), CASES)
def test_operators_modules_and_nodes_of_a_layer(family: str, attention: str) -> None:
    real, body = measured(family, attention)
    operators = sum(o.dispatched for o in body.operators)
    assert operators == pytest.approx(real.operators, rel=MODELS[family][1])
    # Modules that do nothing here (dropout of 0) or are called as functions there.
    called = {name for module in body.modules for name in module_calls(module.name)}
    assert abs(len(called) - real.modules) <= 2
    nodes = operators + sum(len(m.parameters) for m in body.modules)
    assert nodes == pytest.approx(real.nodes, rel=NODES.get(family, 0.08))
