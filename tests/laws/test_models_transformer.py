"""Closed forms of a transformer layer: activations (Korthikanti et al. 2022), Megatron's FLOPs."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from raysim.models.huggingface import build, read_config
from raysim.models.table import FIXED_DTYPE_BYTES, Body, Model

S, H, A, LAYERS, VOCAB = 128, 256, 8, 3, 1024


def gpt(**changes: Any) -> Model:
    arguments = {k: changes.pop(k) for k in ("attention", "seq_len") if k in changes}
    values = {
        "model_type": "gpt2", "n_embd": H, "n_head": A, "n_layer": LAYERS, "vocab_size": VOCAB,
        "activation_function": "gelu", "n_positions": 4096,
    }  # fmt: skip
    return build(values | changes, **{"seq_len": S, **arguments})


def saved_bytes(body: Body, tensor_parallel: int = 1, compute_bytes: int = 2) -> float:
    return sum(
        s.numel
        * FIXED_DTYPE_BYTES.get(s.dtype, compute_bytes)
        / (tensor_parallel if s.sharded else 1)
        for s in body.saved().values()
    )


def block(model: Model) -> Body:
    return next(x.body for x in model.layers if x.kind == "block")


STATISTICS = 2 * 2 * 4 * S  # mean and reciprocal deviation of two norms, fp32 per token
LOG_SUM_EXP = 4 * S * A


@pytest.mark.parametrize("tensor_parallel", [1, 2, 4, 8])
def test_flash_layer_keeps_34_bytes_per_hidden_element(tensor_parallel: int) -> None:
    """s h (10 + 24 / t), plus what the formula leaves out: norm statistics and log-sum-exp."""
    t = tensor_parallel
    expected = S * H * (10 + 24 / t) + STATISTICS + LOG_SUM_EXP / t
    assert saved_bytes(block(gpt()), t) == expected


@pytest.mark.parametrize("tensor_parallel", [1, 2, 8])
def test_eager_layer_adds_5_a_s_squared(tensor_parallel: int) -> None:
    t = tensor_parallel
    expected = S * H * (10 + 24 / t) + 5 * A * S * S / t + STATISTICS
    assert saved_bytes(block(gpt(attention="eager")), t) == expected


def test_without_dropout_two_masks_fall_away() -> None:
    model = gpt(resid_pdrop=0.0, attn_pdrop=0.0)
    assert saved_bytes(block(model)) == S * H * 32 + STATISTICS + LOG_SUM_EXP


@pytest.mark.parametrize("s", [64, 128, 512])
def test_flops_are_megatrons(s: int) -> None:
    """24 s h^2 + 4 s^2 h per layer, 2 s h v for the logits."""
    model = gpt(seq_len=s)
    assert block(model).flops == 24 * s * H * H + 4 * s * s * H
    assert model.flops == LAYERS * (24 * s * H * H + 4 * s * s * H) + 2 * s * H * VOCAB


def test_dense_flops_are_two_per_parameter_and_token() -> None:
    values = {
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "vocab_size": VOCAB,
        "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 3,
    }  # fmt: skip
    model = build(values, seq_len=S)
    matrices = sum(
        p.numel for name, p in model.parameters() if len(p.shape) == 2 and "embed" not in name
    )
    attention = 3 * 4 * S * S * 256
    assert model.flops == 2 * S * matrices + attention


def test_llama_layer_activations() -> None:
    """RMSNorm 4 + 2 + 2 (its output) each; q, out, k and v; four of the gated unit's width."""
    h, f, kv = 256, 512, 2 / 8
    values = {
        "model_type": "llama", "hidden_size": h, "intermediate_size": f, "vocab_size": VOCAB,
        "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 1,
    }  # fmt: skip
    per_token = 2 * (4 + 2 + 2) * h + 2 * 4 + (2 + 2 * 2 * kv + 2) * h + 4 * 8 + 8 * f
    assert saved_bytes(block(build(values, seq_len=S))) == S * per_token


def test_causal_lm_head_keeps_six_bytes_per_logit() -> None:
    """16-bit logits, held by the model's output, fp32 log-softmax; labels and input beside."""
    head = gpt().layers[-1].body
    assert saved_bytes(head) == S * VOCAB * (2 + 4) + S * H * 2 + S * 8


@pytest.mark.parametrize("experts", [4, 16])
def test_experts_add_parameters_and_no_expert_flops(experts: int) -> None:
    def mixtral(n: int) -> Model:
        values = {
            "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128,
            "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2,
            "vocab_size": 100, "num_local_experts": n,
        }  # fmt: skip
        return build(values, seq_len=S)

    few, many = mixtral(2), mixtral(experts)
    router = 2 * 2 * S * 64 * (experts - 2)
    assert many.flops - few.flops == router
    assert many.num_parameters - few.num_parameters == 2 * (experts - 2) * (3 * 64 * 128 + 64)


@pytest.mark.parametrize(("q", "kv"), list(product([16, 64], [8, 32])))
def test_cross_attention_is_a_rectangle(q: int, kv: int) -> None:
    values = {
        "model_type": "t5", "d_model": 64, "d_kv": 16, "num_heads": 4, "d_ff": 128,
        "num_layers": 1, "vocab_size": 100,
    }  # fmt: skip
    model = build(values, seq_len=kv, target_len=q)
    shapes = [
        (o.attention.q_len, o.attention.kv_len, o.attention.causal, o.flops)
        for x in model.layers
        for o in x.body.operators
        if o.attention
    ]
    assert shapes == [
        (kv, kv, False, 4 * kv * kv * 64),
        (q, q, True, 4 * q * q * 64),
        (q, kv, False, 4 * q * kv * 64),
    ]


# "bf16 [b, s, h] tensors live after one layer forward", Hugging Face eager with sdpa:
# github.com/stas00/ml-engineering, training/performance/README.md, commit 744d01e18b79.
LIVE_COPIES = {
    "smollm2-360m": 24.0,
    "llama-3.1-8b": 28.0,
    "mistral-7b": 28.0,
    "qwen3-8b": 29.8,
    "qwen3-4b": 38.0,
    "gemma-2b": 48.0,
}
CONFIGS = Path(__file__).parents[1] / "data" / "hf_configs"


@pytest.mark.parametrize("name", LIVE_COPIES)
def test_measured_working_set_of_one_layer(name: str) -> None:
    """What is kept, the layer's input and output, and the releases measured repeated k and v."""
    config = read_config(CONFIGS / f"{name}.json")
    tokens = 4096
    model = build(config, seq_len=tokens)
    body = block(model)
    core = next(o.attention for o in body.operators if o.attention)
    repeated = 2 * (core.heads - core.kv_heads) * core.head_dim / model.hidden_size
    kept = saved_bytes(body) / (2 * tokens * model.hidden_size)
    assert kept + repeated + 2 == pytest.approx(LIVE_COPIES[name], rel=0.03)
