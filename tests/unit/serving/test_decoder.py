"""Models as engines see them: parameters, memory, refusals; and how times grow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from raysim.errors import ScenarioError
from raysim.hardware import catalog
from raysim.models.huggingface import build
from raysim.serving.capacity import capacity_of
from raysim.serving.decoder import read_decoder
from raysim.serving.settings import EngineSettings, engine_settings
from raysim.serving.timing import IterationTimes, group_of
from raysim.validate.serving import MODELS

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL: dict[str, Any] = LLAMA_8B | {
    "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
DEEPSEEK_LITE: dict[str, Any] = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16,
    "num_key_value_heads": 16, "n_shared_experts": 2, "n_routed_experts": 64,
    "num_experts_per_tok": 6, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 1, "vocab_size": 102400,
    "tie_word_embeddings": False,
}  # fmt: skip
NODE = catalog.node("hgx-h100-8")


@pytest.mark.parametrize(
    "config", [LLAMA_8B, MIXTRAL, DEEPSEEK_LITE], ids=lambda c: c["model_type"]
)
def test_parameters_are_those_of_the_layer_table(config: dict[str, Any]) -> None:
    assert read_decoder(config).parameters == pytest.approx(build(config).num_parameters, rel=1e-4)


def test_gpt_oss_has_the_parameters_its_model_card_says() -> None:
    # openai/gpt-oss: 116.8 B and 20.9 B; checkpoints of 60.8 and 12.8 GiB.
    big, small = (read_decoder(MODELS[name]) for name in ("gpt-oss-120b", "gpt-oss-20b"))
    assert big.parameters / 1e9 == pytest.approx(116.8, rel=0.005)
    assert small.parameters / 1e9 == pytest.approx(20.9, rel=0.005)
    assert big.total_bytes / 2**30 == pytest.approx(60.8, rel=0.02)
    assert small.total_bytes / 2**30 == pytest.approx(12.8, rel=0.02)


def test_what_cannot_be_served_is_named() -> None:
    with pytest.raises(ScenarioError, match=r"'bert' cannot be served yet; known: llama"):
        read_decoder({"model_type": "bert"})
    with pytest.raises(ScenarioError, match=r"'hqq' is not modelled; known: fp8"):
        read_decoder(LLAMA_8B | {"quantization_config": {"quant_method": "hqq"}})


def test_engine_kwargs_are_vllms() -> None:
    settings, ignored = engine_settings(
        {"tensor_parallel_size": 2, "max_num_seqs": 128, "trust_remote_code": True}
    )
    assert (settings.tensor_parallel_size, settings.max_num_seqs) == (2, 128)
    assert ignored == ("trust_remote_code",)
    with pytest.raises(ScenarioError, match="did you mean 'max_num_seqs'"):
        engine_settings({"max_num_seq": 1})
    with pytest.raises(ScenarioError, match="gpu_memory_utilization: expected a share"):
        engine_settings({"gpu_memory_utilization": 92})


def test_memory_of_llama_on_one_gpu() -> None:
    assert NODE.gpu is not None
    capacity = capacity_of(read_decoder(LLAMA_8B), NODE.gpu, EngineSettings().for_gpu(NODE.gpu))
    assert capacity.weights_bytes == pytest.approx(16.06e9, rel=0.001)
    assert capacity.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2
    # vLLM logs about 440,000 tokens for this model on 80 GB at 0.92; working memory is assumed.
    assert 380_000 < capacity.tokens < 460_000
    narrow = capacity_of(
        read_decoder(LLAMA_8B), NODE.gpu,
        EngineSettings(kv_cache_dtype="fp8").for_gpu(NODE.gpu),
    )  # fmt: skip
    assert narrow.tokens == pytest.approx(2 * capacity.tokens, rel=1e-3)


def times(config: dict[str, Any], ranks: int = 1) -> IterationTimes:
    assert NODE.gpu is not None
    return IterationTimes(read_decoder(config), NODE.gpu, group_of(NODE, ranks))


@pytest.mark.parametrize("config", [LLAMA_8B, MIXTRAL, MODELS["gpt-oss-20b"]], ids=str)
def test_more_tokens_and_longer_contexts_take_longer(config: dict[str, Any]) -> None:
    t = times(config)
    by_tokens = [t.tokens_s(n) for n in (8, 64, 512, 4096)]
    assert by_tokens == sorted(by_tokens)
    ahead = t.contexts_ahead_s(np.array([100, 5_000]), 4)
    assert (np.diff(ahead) > 0).all()


def test_a_dense_decode_reads_its_weights_once() -> None:
    assert NODE.gpu is not None
    t = times(LLAMA_8B)
    weights_s = (8.03e9 - 128256 * 4096) * 2 / NODE.gpu.memory_bytes_per_s
    assert 1.0 < (t.tokens_s(1) + t.sampled_s(1)) / weights_s < 1.7


def test_two_ranks_are_faster_and_not_twice_as_fast() -> None:
    one, two = times(LLAMA_8B), times(LLAMA_8B, 2)
    for tokens in (1, 64, 4096):
        assert 1.1 < one.tokens_s(tokens) / two.tokens_s(tokens) < 2.0


def test_a_window_bounds_what_is_read() -> None:
    mistral = LLAMA_8B | {"model_type": "mistral", "sliding_window": 1024}
    t = times(mistral)
    long, longer = (float(t.contexts_ahead_s(np.array([n]), 1)[0]) for n in (2_000, 20_000))
    assert long == longer
    assert float(t.contexts_ahead_s(np.array([500]), 1)[0]) < long


def test_eager_engines_dispatch_every_kernel() -> None:
    t = times(LLAMA_8B)
    assert replace(t, eager=True).tokens_s(1) > 1.3 * t.tokens_s(1)
