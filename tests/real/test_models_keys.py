"""Each key of a family's configuration class, turned by itself: the table follows, or refuses it.

A key that changes what transformers builds and is passed over without a word would be a config read
wrong; names and shapes on the meta device tell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from raysim.errors import ScenarioError
from raysim.models.huggingface import build

pytest.importorskip("transformers")

from tests.real.models_reference import on_meta, transformers
from tests.real.test_models_parameters import FAMILIES

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]
SMALL: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40, "n_group": 1,
    "moe_shared_expert_intermediate_size": 40, "shared_intermediate_size": 40, "topk_group": 1,
    "kv_lora_rank": 24, "q_lora_rank": 32, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 12, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 12, "mamba_n_heads": 8,
    "mamba_d_state": 16, "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16,
    "n_groups": 2, "intermediate_size_mlp": 80, "n_embd": 64, "n_head": 4, "n_layer": 4,
    "d_model": 64, "n_heads": 4, "n_layers": 4, "num_layers": 4, "num_heads": 4, "ffn_dim": 48,
    "word_embed_proj_dim": 64, "d_ff": 48, "d_kv": 16, "dim": 64, "hidden_dim": 48,
    "rotary_dim": 8, "attention_types": [[["global", "local"], 2]], "attn_layer_indices": [1],
}  # fmt: skip
LAYERS = {
    "nemotron_h": {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "deepseek_v3": {"first_k_dense_replace": 1},
}
HEADS = {
    "bert": "ForMaskedLM", "roberta": "ForMaskedLM", "distilbert": "ForMaskedLM",
    "t5": "ForConditionalGeneration", "gpt2": "LMHeadModel",
}  # fmt: skip
NO_SHAPES = frozenset(
    {"dtype", "is_decoder", "is_encoder_decoder", "add_cross_attention", "model_type"}
)
"""Keys of every configuration class: which class is built, and how, is not asked here."""


def keys_of(model_type: str) -> dict[str, Any]:
    """Every key with a plain default."""
    fields = dataclasses.fields(transformers.CONFIG_MAPPING[model_type])
    return {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}


def turned(value: Any, key: str) -> Iterator[Any]:
    """Other values that a key of this kind may have."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value * 2, value // 2) if value > 1 else (1 - value, 2)
    elif value is None:
        yield from (2, 8, True, [0], [1, 2])
    elif isinstance(value, list) and key.endswith("layers"):
        yield from ([0], [1, 2])


@pytest.mark.parametrize("model_type", [f for f in FAMILIES if f != "vit"])
def test_no_key_that_changes_parameters_is_passed_over(model_type: str) -> None:
    keys = keys_of(model_type)
    architecture = FAMILIES[model_type][0] + HEADS.get(model_type, "ForCausalLM")
    base = {"model_type": model_type, **LAYERS.get(model_type, {})}
    base |= {k: v for k, v in SMALL.items() if k in keys and k not in base}

    def shapes(values: dict[str, Any]) -> dict[str, Any] | None:
        try:
            module = on_meta(values, architecture)
        except Exception:  # noqa: BLE001 (whatever the class itself refuses)
            return None
        return {n: tuple(p.shape) for n, p in module.named_parameters()}

    tried = 0
    for key, default in keys.items():
        if key in NO_SHAPES:
            continue
        for value in turned(base.get(key, default), key):
            values = {**base, key: value}
            real = shapes(values)
            if real is None:
                continue
            tried += 1
            try:
                table = build(values, architecture=architecture, seq_len=8)
            except ScenarioError:
                continue  # it is refused by name
            ours = {n: p.shape for n, p in table.parameters() if p.tied_to is None}
            assert ours == real, f"{key}: {value}"
    assert tried > 10
