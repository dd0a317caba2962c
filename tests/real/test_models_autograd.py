"""Saved bytes, FLOPs, kernels and traffic against real models run by PyTorch on the CPU."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.models.activations import ACTIVATIONS
from raysim.models.huggingface import build
from raysim.models.table import COMPUTE_DTYPE_BYTES, FIXED_DTYPE_BYTES, Model, Operator

pytest.importorskip("transformers")

from tests.real.models_reference import Count, Measured, measure, torch, transformers

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]

TOKENS = 127
"""Odd, so that no parameter, mask or rotary table has whole rows of the batch."""

ROPE: dict[str, Any] = {
    "vocab_size": 500, "hidden_size": 256, "intermediate_size": 640, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 2,
}  # fmt: skip
GPT: dict[str, Any] = {
    "vocab_size": 500, "n_embd": 256, "n_head": 4, "n_layer": 2, "n_positions": 130,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
BERT: dict[str, Any] = {
    "vocab_size": 500, "hidden_size": 256, "intermediate_size": 640, "num_attention_heads": 4,
    "num_hidden_layers": 2, "max_position_embeddings": 130, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 192}
MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 32, "mamba_n_groups": 2, "mamba_chunk_size": 32}
NEXT = ROPE | {
    "head_dim": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 32, "linear_value_head_dim": 48, "full_attention_interval": 2,
}  # fmt: skip
LATENT = ROPE | {
    "q_lora_rank": 96, "kv_lora_rank": 80, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
    "v_head_dim": 64, "n_routed_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 4,
    "moe_intermediate_size": 192, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", ROPE),
    "mistral": ("MistralForCausalLM", ROPE),
    "mixtral": ("MixtralForCausalLM", ROPE | {"num_local_experts": 4}),
    "qwen2": ("Qwen2ForCausalLM", ROPE),
    "qwen3": ("Qwen3ForCausalLM", ROPE | {"head_dim": 64}),
    "granite": ("GraniteForCausalLM", ROPE),
    "seed_oss": ("SeedOssForCausalLM", ROPE | {
        "head_dim": 64, "attention_dropout": 0.0, "residual_dropout": 0.0,
    }),
    "smollm3": ("SmolLM3ForCausalLM", ROPE | {"no_rope_layer_interval": 2, "pad_token_id": 0}),
    "exaone4": ("Exaone4ForCausalLM", ROPE | {"sliding_window_pattern": 8}),
    "olmo2": ("Olmo2ForCausalLM", ROPE),
    "olmoe": ("OlmoeForCausalLM", ROPE | {"num_experts": 4, "num_experts_per_tok": 2}),
    "minimax_m2": ("MiniMaxM2ForCausalLM", ROPE | {
        "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 64, "rotary_dim": 32,
    }),
    "olmo3": ("Olmo3ForCausalLM", ROPE),
    "qwen2_moe": ("Qwen2MoeForCausalLM", ROPE | MOE | {"shared_expert_intermediate_size": 320}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", ROPE | MOE),
    "qwen3_next": (
        "Qwen3NextForCausalLM", NEXT | MOE | {"shared_expert_intermediate_size": 320}
    ),
    "qwen3_5_text": ("Qwen3_5ForCausalLM", NEXT),
    "qwen3_5_moe_text": (
        "Qwen3_5MoeForCausalLM", NEXT | MOE | {"shared_expert_intermediate_size": 320}
    ),
    "glm4_moe": ("Glm4MoeForCausalLM", ROPE | {
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 192,
        "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "use_qk_norm": True,
    }),
    "bamba": ("BambaForCausalLM", ROPE | MAMBA | {"attn_layer_indices": [1, 3]}),
    "granitemoehybrid": ("GraniteMoeHybridForCausalLM", ROPE | MAMBA | {
        "layer_types": ["linear_attention", "full_attention"], "num_local_experts": 4,
        "num_experts_per_tok": 2, "shared_intermediate_size": 320,
    }),
    "nemotron_h": ("NemotronHForCausalLM", ROPE | {
        "hybrid_override_pattern": "ME*-", "mamba_num_heads": 8, "mamba_head_dim": 64,
        "ssm_state_size": 32, "n_groups": 2, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 192, "moe_shared_expert_intermediate_size": 320, "head_dim": 64,
    }),
    "gemma": ("GemmaForCausalLM", ROPE | {"head_dim": 64}),
    "gemma2": ("Gemma2ForCausalLM", ROPE | {"head_dim": 64}),
    "gemma3_text": ("Gemma3ForCausalLM", ROPE | {"head_dim": 64}),
    "phi": ("PhiForCausalLM", ROPE | {"num_key_value_heads": 4, "qk_layernorm": True}),
    "phi3": ("Phi3ForCausalLM", ROPE | {"pad_token_id": 0}),
    "deepseek_v2": ("DeepseekV2ForCausalLM", LATENT),
    "deepseek_v3": ("DeepseekV3ForCausalLM", LATENT),
    "llama4_text": (
        "Llama4ForCausalLM",
        ROPE | {"head_dim": 64, "num_local_experts": 4, "intermediate_size_mlp": 1000},
    ),
    "gpt2": ("GPT2LMHeadModel", GPT),
    "gptj": ("GPTJForCausalLM", GPT | {"rotary_dim": 32}),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        {
            "vocab_size": 500, "hidden_size": 256, "num_layers": 2, "num_heads": 4,
            "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 130,
        },
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", {k: v for k, v in ROPE.items() if "value" not in k}),
    "opt": (
        "OPTForCausalLM",
        {
            "vocab_size": 500, "hidden_size": 256, "ffn_dim": 640, "num_attention_heads": 4,
            "num_hidden_layers": 2, "word_embed_proj_dim": 256, "max_position_embeddings": 130,
            "dropout": 0.0,
        },
    ),
    "bloom": (
        "BloomForCausalLM", {"vocab_size": 500, "hidden_size": 256, "n_layer": 2, "n_head": 4}
    ),
    "mpt": (
        "MptForCausalLM",
        {"vocab_size": 500, "d_model": 256, "n_layers": 2, "n_heads": 4, "max_seq_len": 130},
    ),
    "falcon": (
        "FalconForCausalLM",
        {
            "vocab_size": 500, "hidden_size": 256, "num_hidden_layers": 2,
            "num_attention_heads": 4,
        },
    ),
    "bert": ("BertForMaskedLM", BERT),
    "roberta": ("RobertaForMaskedLM", BERT),
    "distilbert": (
        "DistilBertForMaskedLM",
        {
            "vocab_size": 500, "dim": 256, "hidden_dim": 640, "n_layers": 2, "n_heads": 4,
            "max_position_embeddings": 130, "dropout": 0.0, "attention_dropout": 0.0,
        },
    ),
    "t5": (
        "T5ForConditionalGeneration",
        {
            "vocab_size": 500, "d_model": 256, "d_kv": 64, "d_ff": 640, "num_layers": 2,
            "num_heads": 4, "dropout_rate": 0.0, "decoder_start_token_id": 0,
        },
    ),
    "vit": (
        "ViTForImageClassification",
        {
            "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 2,
            "num_attention_heads": 4, "image_size": 64, "patch_size": 8,
        },
    ),
}  # fmt: skip
NO_SDPA = ("gemma2", "gptj", "gpt_neo", "bloom", "mpt")
NOT_FUSED_ON_CPU = ("deepseek_v2", "deepseek_v3", "t5")
"""CUDA's memory-efficient kernel takes key and value heads of different width, and biases; the
CPU's does not, and keeps scores."""
LAYERS = {"gpt2": "n_layer", "gptj": "n_layer", "bloom": "n_layer", "gpt_neo": "num_layers"}
LAYERS |= {"mpt": "n_layers", "distilbert": "n_layers", "t5": "num_layers"}


def predict(values: dict[str, Any], architecture: str, attention: Any) -> Model:
    tokens = None if values["model_type"] == "vit" else TOKENS
    return build(values, architecture=architecture, attention=attention, seq_len=tokens)


def saved_bytes(model: Model, dtype: str = "bf16", mask_bytes: int = 1) -> float:
    sizes = FIXED_DTYPE_BYTES | {"bool": mask_bytes}
    wide = COMPUTE_DTYPE_BYTES[dtype]
    tensors = [s for x in model.layers for s in x.body.saved().values()]
    return sum(s.numel * sizes.get(s.dtype, wide) for s in tensors)


def operators(model: Model) -> list[Operator]:
    return [o for x in model.layers for o in x.body.operators]


def stood_in(o: Operator) -> bool:
    """Whether a stand-in that computes nothing ran in its place (``models_reference.KERNELS``)."""
    return o.gemm is None and o.kind in ("scan", "conv")


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", MODELS)
def test_saved_bytes_are_what_autograd_keeps(model_type: str, attention: str) -> None:
    if attention == "sdpa" and model_type in (*NO_SDPA, *NOT_FUSED_ON_CPU):
        pytest.skip("no fused attention for it here")
    architecture, values = MODELS[model_type]
    values = {"model_type": model_type, **values}
    real = measure(values, architecture, attention=attention, tokens=TOKENS)
    predicted = saved_bytes(predict(values, architecture, attention))
    # What is left out does not grow with the batch: rotary tables, masks, position biases.
    assert predicted == pytest.approx(real.saved_bytes, rel=0.02)


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "bert", "opt", "vit"])
def test_saved_bytes_in_fp32(model_type: str) -> None:
    architecture, values = MODELS[model_type]
    values = {"model_type": model_type, **values}
    real = measure(values, architecture, attention="sdpa", tokens=TOKENS, bf16=False)
    predicted = saved_bytes(predict(values, architecture, "sdpa"), "fp32")
    assert predicted == pytest.approx(real.saved_bytes, rel=0.02)


@pytest.mark.parametrize("model_type", ["gpt2", "bert", "opt"])
def test_saved_bytes_with_dropout(model_type: str) -> None:
    """The CPU's dropout keeps a mask of the compute type where CUDA's keeps bytes."""
    architecture, values = MODELS[model_type]
    values = {"model_type": model_type, **{k: 0.1 if v == 0.0 else v for k, v in values.items()}}
    real = measure(values, architecture, attention="eager", tokens=TOKENS)
    predicted = saved_bytes(predict(values, architecture, "eager"), mask_bytes=2)
    assert predicted == pytest.approx(real.saved_bytes, rel=0.02)


@pytest.mark.parametrize(
    ("architecture", "extra"),
    [("BertForSequenceClassification", {}), ("BertForSequenceClassification", {"num_labels": 7})],
)
def test_saved_bytes_of_a_classifier(architecture: str, extra: dict[str, Any]) -> None:
    values = {"model_type": "bert", **BERT, **extra}
    real = measure(values, architecture, attention="sdpa", tokens=TOKENS)
    assert saved_bytes(predict(values, architecture, "sdpa")) == pytest.approx(
        real.saved_bytes, rel=0.02
    )


@pytest.mark.parametrize("model_type", MODELS)
def test_flops_are_those_of_the_flop_counter(model_type: str) -> None:
    """Eager everywhere: the counter knows neither the CPU's fused attention nor grouped GEMMs."""
    architecture, values = MODELS[model_type]
    values = {"model_type": model_type, **values}
    real = measure(values, architecture, attention="eager", tokens=TOKENS, experts="eager")
    for attention in ("eager", "sdpa"):
        every = operators(predict(values, architecture, attention))
        assert sum(o.flops for o in every if not stood_in(o)) == real.flops


def on_weights(model_type: str, every: list[Operator]) -> int:
    """Forward kernels on weights alone, of which no tensor has whole rows: of norms that multiply
    in fp32 a cast and one plus it (OLMo's product does both), of a decay three on a number per
    head."""
    norms = [] if model_type in ("olmo2", "olmo3") else [o for o in every if o.kind == "norm"]
    wide = [o for o in norms for s in o.saves if s.name.endswith("normed") and s.dtype == "fp32"]
    return 2 * len(wide) + 3 * sum(o.name.endswith(".decay") for o in every)


def per_layer(model_type: str) -> tuple[list[float], list[float]]:
    """Kernels and traffic of one layer, forward and backward: two models, one deeper by two."""
    architecture, base = MODELS[model_type]
    predicted, real = [], []
    for count in (2, 4):
        values = {
            "model_type": model_type,
            **base,
            LAYERS.get(model_type, "num_hidden_layers"): count,
        }
        if model_type == "granitemoehybrid":
            values["layer_types"] = ["linear_attention", "full_attention"] * (count // 2)
        if model_type == "nemotron_h":
            values["hybrid_override_pattern"] = "ME*-" * count
        if model_type == "gpt_neo":
            values["attention_types"] = [[["global", "local"], count // 2]]
        if model_type == "llama4_text":  # all layers alike
            values["no_rope_layer_interval"] = 8
        rows = 2 * 65 if model_type == "vit" else None
        seen: Measured = measure(values, architecture, attention="eager", tokens=TOKENS, rows=rows)
        kinds = ("forward", "backward")
        real.append([*(seen.kernels[k] for k in kinds), *(seen.moved[k] for k in kinds)])
        every = [o for o in operators(predict(values, architecture, "eager")) if not stood_in(o)]
        predicted.append([
            sum(o.kernels for o in every) - on_weights(model_type, every),
            sum(o.kernels_backward or 0 for o in every),
            sum(o.moved for o in every),
            sum(o.moved_backward or 0.0 for o in every),
        ])  # fmt: skip
    return (
        [b - a for a, b in zip(*predicted, strict=True)],
        [b - a for a, b in zip(*real, strict=True)],
    )


ALIKE = [m for m in MODELS if m not in ("deepseek_v2", "deepseek_v3", "gemma2", "gemma3_text")]


@pytest.mark.parametrize("model_type", ALIKE)
def test_kernels_and_traffic_of_a_layer(model_type: str) -> None:
    predicted, real = per_layer(model_type)
    assert predicted[0] == pytest.approx(real[0], rel=0.09)
    assert predicted[1] == pytest.approx(real[1], rel=0.11)
    assert predicted[2] == pytest.approx(real[2], rel=0.07)
    assert predicted[3] == pytest.approx(real[3], rel=0.12)


@pytest.mark.parametrize("name", [a for a in ACTIVATIONS if a not in ("bloom_gelu", "linear")])
def test_activation_costs(name: str) -> None:
    """Kernels, passes and kept tensors of every function of ACT2FN that is modelled."""
    cost, size = ACTIVATIONS[name], 2**12 + 1
    x = torch.randn(size, dtype=torch.bfloat16, requires_grad=True)
    kept: dict[int, int] = {}

    def pack(t: Any) -> Any:
        if t.numel() == size:
            kept[t.data_ptr()] = 1
        return t

    function = transformers.activations.ACT2FN[name]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), Count(size) as forward:
        y = function(x)
    gradient = torch.ones_like(y)
    with Count(size) as backward:
        y.backward(gradient)
    assert type(function).__name__ == cost.cls
    assert len(kept) == cost.saves_input + cost.saves_output + cost.temporaries
    assert (forward.kernels, forward.moved / size) == (cost.kernels, cost.passes)
    assert (backward.kernels, backward.moved / size) == (
        cost.kernels_backward,
        cost.passes_backward,
    )
