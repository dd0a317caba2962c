"""Families without a table of their own: transformers' class, built without weights and traced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import raysim  # noqa: E402
from raysim.errors import ScenarioError  # noqa: E402
from raysim.models import huggingface  # noqa: E402
from raysim.models.table import FIXED_DTYPE_BYTES, Model  # noqa: E402
from raysim.scenario import build as scenario_build  # noqa: E402
from raysim.tracing import huggingface as traced  # noqa: E402

DECODER = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = DECODER | {
    "num_local_experts": 8, "num_experts": 8, "num_experts_per_tok": 2, "head_dim": 16,
    "moe_intermediate_size": 96, "shared_expert_intermediate_size": 96,
}  # fmt: skip
KNOWN = [
    (DECODER | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "sdpa"),
    (DECODER | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, "eager"),
    (DECODER | {"model_type": "phi3", "architectures": ["Phi3ForSequenceClassification"]}, "sdpa"),
    (EXPERTS | {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}, "sdpa"),
    (EXPERTS | {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]}, "sdpa"),
]
HYBRID = DECODER | {
    "head_dim": 32, "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
    "linear_value_head_dim": 48,
}  # fmt: skip
MAMBA = DECODER | {
    "mamba_n_heads": 8, "mamba_d_state": 32, "mamba_chunk_size": 32, "pad_token_id": 0,
}  # fmt: skip
KNOWN += [
    (HYBRID | EXPERTS | {
        "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"],
        "shared_expert_intermediate_size": 96,
    }, "sdpa"),
    (HYBRID | {"model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"]}, "eager"),
    (MAMBA | {
        "model_type": "bamba", "architectures": ["BambaForCausalLM"], "attn_layer_indices": [1],
    }, "sdpa"),
    (MAMBA | EXPERTS | {
        "model_type": "granitemoehybrid", "architectures": ["GraniteMoeHybridForCausalLM"],
        "layer_types": ["mamba", "attention"], "shared_intermediate_size": 96,
    }, "sdpa"),
    (DECODER | {
        "model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"],
        "hybrid_override_pattern": "ME*-", "mamba_num_heads": 8, "mamba_head_dim": 16,
        "ssm_state_size": 32, "n_groups": 2, "chunk_size": 32, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 96, "moe_latent_size": 48,
        "moe_shared_expert_intermediate_size": 80, "head_dim": 32,
    }, "sdpa"),
]  # fmt: skip
SCANS = [
    HYBRID | {"model_type": "olmo_hybrid", "architectures": ["OlmoHybridForCausalLM"]},
    DECODER | {
        "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"],
        "layer_types": ["linear_attention", "full_attention"], "linear_head_dim": 32,
        "linear_num_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
        "v_head_dim": 16, "moe_intermediate_size": 64, "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    MAMBA | {"model_type": "falcon_h1", "architectures": ["FalconH1ForCausalLM"]},
    {
        "model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "hidden_size": 128,
        "num_heads": 8, "head_dim": 32, "state_size": 32, "n_groups": 2, "chunk_size": 32,
        "num_hidden_layers": 2, "vocab_size": 512,
    },
]  # fmt: skip
"""Families of fused recurrences that have no table of their own."""
OTHERS = [
    DECODER | {"model_type": "olmo", "architectures": ["OlmoForCausalLM"]},
    DECODER | {"model_type": "stablelm", "architectures": ["StableLmForSequenceClassification"]},
    DECODER | {"model_type": "cohere2", "architectures": ["Cohere2ForCausalLM"]},
    DECODER | {"model_type": "starcoder2", "architectures": ["Starcoder2ForCausalLM"]},
    DECODER | {"model_type": "nemotron", "architectures": ["NemotronForCausalLM"]},
    EXPERTS | {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"]},
    EXPERTS | {"model_type": "granitemoe", "architectures": ["GraniteMoeForCausalLM"]},
    {
        "model_type": "bart", "architectures": ["BartForConditionalGeneration"], "d_model": 64,
        "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
        "vocab_size": 512, "max_position_embeddings": 128,
    },
    {
        "model_type": "resnet", "architectures": ["ResNetForImageClassification"],
        "embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 2], "image_size": 32,
    },
]  # fmt: skip


def named(config: dict[str, Any]) -> str:
    return str(config["architectures"][0])


def saved_bytes(model: Model) -> float:
    width = {"compute": 2, **FIXED_DTYPE_BYTES}
    return sum(
        s.numel * width[s.dtype] for layer in model.layers for s in layer.body.saved().values()
    )


@pytest.mark.parametrize(("config", "attention"), KNOWN, ids=[named(c) for c, _ in KNOWN])
def test_a_traced_class_is_what_its_table_says(config: dict[str, Any], attention: Any) -> None:
    found = traced.build(config, seq_len=64, attention=attention)
    table = huggingface.build(config, seq_len=64, attention=attention)
    assert dict(found.parameters()).keys() == dict(table.parameters()).keys()
    assert found.flops == pytest.approx(table.flops, rel=1e-3)
    assert saved_bytes(found) == pytest.approx(saved_bytes(table), rel=0.05)
    assert (found.name, found.seq_len) == (table.name, table.seq_len)


@pytest.mark.parametrize("config", OTHERS, ids=named)
def test_other_families_have_transformers_parameters(config: dict[str, Any]) -> None:
    assert not huggingface.reads(config["model_type"])
    assert traced.known(config["model_type"])
    found = traced.build(config)
    with torch.device("meta"):
        made = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)
        module = getattr(transformers, named(config))(made)
    assert found.num_parameters == sum(p.numel() for p in module.parameters())
    assert found.flops > 0
    assert found.model_type == "traced"


def test_experts_multiply_only_the_tokens_they_are_sent() -> None:
    few, all_of_them = (
        traced.build(OTHERS[5] | {"num_experts_per_tok": n}, seq_len=64).flops for n in (2, 8)
    )
    expert = 3 * 2 * 64 * DECODER["hidden_size"] * EXPERTS["intermediate_size"]
    assert all_of_them - few == pytest.approx(2 * 6 * expert)  # in two layers, of six more experts


@pytest.mark.parametrize(
    ("config", "options", "said"),
    [
        (OTHERS[0] | {"architectures": ["Olmo9ForCausalLM"]}, {}, "has no class Olmo9ForCausalLM"),
        (OTHERS[0], {"fused_loss": True}, "whole logits"),
        (OTHERS[0], {"attention": "flash_attention_2"}, "not flash_attention_2"),
        (OTHERS[0] | {"num_key_value_heads": "x"}, {}, "OlmoConfig refuses it"),
        (OTHERS[0] | {"dtype": "int4"}, {}, "dtype"),
        ({"model_type": "speech_to_text",
          "architectures": ["Speech2TextForConditionalGeneration"]}, {}, "takes input_features"),
        ({"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"]}, {}, "16,000 a second"),
        ({"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"]}, {}, "give seq_len"),
        ({"model_type": "resnet"}, {}, "name the class to train"),
    ],
)  # fmt: skip
def test_what_cannot_be_traced_is_said(
    config: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ScenarioError, match=said) as refused:
        traced.build(config, file="own.json", **options)
    assert "own.json" in str(refused.value)


def test_what_a_class_refuses_with_is_said_to_its_end() -> None:
    def refuse() -> None:
        raise ImportError("needs timm. You can install it with pip:\n`pip install timm`.\nMore")

    with pytest.raises(ScenarioError, match=r"with pip: `pip install timm`\.$"):
        traced._refusing(dict, refuse)


def test_a_repository_s_own_class_name_is_the_family_s_class_here() -> None:
    """``auto_map``: code of the repository, which is never run; transformers' class is taken."""
    olmo = next(c for c in OTHERS if c["model_type"] == "olmo")
    theirs = olmo | {"architectures": ["OLMoForSomethingElse"]}
    with pytest.raises(ScenarioError, match="has no class OLMoForSomethingElse"):
        traced.build(theirs, seq_len=16)
    own = theirs | {"auto_map": {"AutoModelForCausalLM": "modeling.OLMoForSomethingElse"}}
    expected = traced.build(olmo, seq_len=16)
    assert traced.build(own, seq_len=16).num_parameters == expected.num_parameters


@pytest.mark.parametrize("config", SCANS, ids=named)
def test_fused_recurrences_are_kernels_and_not_loops(config: dict[str, Any]) -> None:
    short, long = (traced.build(config, seq_len=n) for n in (128, 512))
    scans = [o for x in long.layers for o in x.body.operators if o.kind == "scan"]
    assert scans
    assert len([o for x in long.layers for o in x.body.operators]) < 200
    assert saved_bytes(long) < 4.2 * saved_bytes(short)
    with torch.device("meta"):
        made = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)
        module = getattr(transformers, named(config))(made)
    assert long.num_parameters == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("family", ["mamba", "jamba", "rwkv"])
def test_families_of_loops_over_tokens_are_refused_at_once(family: str) -> None:
    assert traced.known(family)
    with pytest.raises(ScenarioError, match="without it a loop over tokens"):
        traced.build({"model_type": family}, seq_len=16)


def write(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    zero = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3}, "optimizer": {"type": "AdamW"}}  # fmt: skip
    (folder / "ds.json").write_text(json.dumps(zero), encoding="utf-8")
    (folder / "scenario.yaml").write_text(
        "raysim: 1\nname: other\ncluster: {node: hgx-h100-8, nodes: 2}\n"
        "model: {from: config.json}\njobs: [{train: {deepspeed: ds.json, seq_len: 64}}]\n",
        encoding="utf-8",
    )
    return folder


def test_a_scenario_of_such_a_family_runs_and_says_so(tmp_path: Path) -> None:
    folder = write(tmp_path, OTHERS[0])
    first, second = (raysim.run(raysim.load(folder)) for _ in range(2))
    assert first.summary["simulation"]["digest"] == second.summary["simulation"]["digest"]
    assert first.summary["memory"]["fits"]
    assert any("OlmoForCausalLM" in said for said in first.summary["simplifications"])


def test_without_transformers_the_family_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenario_build, "find_spec", lambda _: None)
    with pytest.raises(ScenarioError, match=r"unknown 'olmo'.*pip install 'raysim\[real\]'"):
        raysim.run(raysim.load(write(tmp_path, OTHERS[0])))
