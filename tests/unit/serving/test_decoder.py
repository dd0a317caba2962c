"""Models as engines see them: parameters, memory, refusals; and how times grow."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysim.errors import ScenarioError
from raysim.hardware import catalog
from raysim.models.huggingface import build
from raysim.serving.capacity import capacity_of
from raysim.serving.decoder import FAMILIES, read_decoder
from raysim.serving.kv_cache import BlockPool
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


CONFIGS = [
    config
    for path in sorted((Path(__file__).parents[2] / "data" / "hf_configs").glob("*.json"))
    if (config := json.loads(path.read_text()))["model_type"] in FAMILIES
]


SILENT = (
    "granite", "seed_oss", "smollm3", "exaone4", "olmo2", "olmo3", "olmoe", "minimax_m2",
    "qwen2_vl", "qwen2_5_vl",
)  # fmt: skip
BY_DEFAULT = [{"model_type": family} for family in SILENT]


@pytest.mark.parametrize(
    "config", [LLAMA_8B, MIXTRAL, DEEPSEEK_LITE, *CONFIGS, *BY_DEFAULT],
    ids=lambda c: f"{c['model_type']}-{c.get('hidden_size')}",
)  # fmt: skip
def test_parameters_are_those_of_the_layer_table(config: dict[str, Any]) -> None:
    table = build(config, seq_len=64).num_parameters
    assert read_decoder(config).parameters == pytest.approx(table, rel=2e-4)


def test_windows_and_head_widths_are_the_family_s_where_the_config_is_silent() -> None:
    (block,) = read_decoder({"model_type": "phi3", "sliding_window": 2047}).blocks
    assert block.window == 2047
    (block,) = read_decoder({"model_type": "qwen3", "hidden_size": 1024}).blocks
    assert (block.head_dim, block.kv_heads) == (128, 32)
    dense, sparse = read_decoder({"model_type": "deepseek_v3"}).blocks
    assert (dense.count, sparse.count, sparse.experts) == (3, 58, 256)


QWEN: dict[str, Any] = {
    "model_type": "qwen3_5_text", "num_hidden_layers": 4, "mamba_ssm_dtype": "float32",
}  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "logged"),
    [
        # vLLM, "Setting attention block size to ... tokens to ensure that attention page size is >=
        # mamba page size": Qwen3.5-0.8B, Qwen3.5-9B and, one GPU each, Qwen3.6-27B.
        ({"hidden_size": 1024, "num_key_value_heads": 2, "linear_num_value_heads": 16}, 544),
        ({"hidden_size": 4096}, 528),
        ({"hidden_size": 5120, "num_attention_heads": 24, "linear_num_value_heads": 48}, 784),
    ],
)
def test_a_block_is_as_long_as_vllm_logs_it_where_layers_keep_states(
    keys: dict[str, Any], logged: int
) -> None:
    assert NODE.gpu is not None
    capacity = capacity_of(read_decoder(QWEN | keys), NODE.gpu, EngineSettings().for_gpu(NODE.gpu))
    assert (capacity.block_size, capacity.state_blocks) == (logged, 3)
    assert capacity.tokens == (capacity.blocks - 3) * logged


def test_weights_of_a_hybrid_with_its_vision_tower() -> None:
    """Qwen3.6-27B: vLLM logs that loading the model took 51.1 GiB."""
    config = next(c for c in CONFIGS if c["model_type"] == "qwen3_5")
    assert read_decoder(config).total_bytes / 2**30 == pytest.approx(51.1, rel=0.005)


def test_a_state_is_read_and_written_by_each_sequence_whatever_its_length() -> None:
    t = times(QWEN | {"layer_types": ["linear_attention"] * 3 + ["full_attention"]})
    short, long = (t.contexts_ahead_s(np.array([n, n]), 1)[0] for n in (1_000, 2_000))
    keys_s = long - short  # of 2,000 tokens in the one layer that attends
    state = 3 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    keys = 2_000 * 2 * 4 * 256 * 2
    assert (short - keys_s) / keys_s == pytest.approx(2 * 2 * state / keys, rel=1e-6)
    assert t.prompt_s(4096, 8192) - times(LLAMA_8B).prompt_s(4096, 8192) < 0  # three do not attend


def test_sequences_take_blocks_for_their_states_once() -> None:
    pool = BlockPool(100, 528, state_blocks=3)
    assert [pool.needed(n) for n in (0, 1, 528, 529)] == [0, 4, 4, 5]


@pytest.mark.parametrize("pattern", ["M*", "ME*-", "M-M*"])
def test_layers_of_one_thing_each_are_served(pattern: str) -> None:
    nemotron = {"model_type": "nemotron_h", "moe_latent_size": 1024, "hidden_size": 2688}
    t = times(nemotron | {"hybrid_override_pattern": pattern})
    assert sum(b.branches * b.count for b in t.decoder.blocks) == len(pattern)
    by_tokens = [t.tokens_s(n) + t.prompt_s(n, 0) for n in (64, 512, 4096)]
    assert by_tokens == sorted(by_tokens)


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
    with pytest.raises(ScenarioError, match="'bamba' without a layer of attention"):
        read_decoder({"model_type": "bamba"})
    with pytest.raises(ScenarioError, match=r"'hqq' is not modelled; known: fp8"):
        read_decoder(LLAMA_8B | {"quantization_config": {"quant_method": "hqq"}})


@pytest.mark.parametrize(
    ("said", "bits"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4 + 8 / 16),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}}, 8),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {
            "weights": {"num_bits": 4, "type": "int", "group_size": 32}}}}, 4 + 16 / 32),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {
            "weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}, 4 + 8 / 16),
        (None, 16),
    ],
)  # fmt: skip
def test_narrow_weights_take_their_bits_and_their_scales(
    said: dict[str, Any] | None, bits: float
) -> None:
    decoder = read_decoder(LLAMA_8B | {"quantization_config": said})
    vocabulary = 2 * 128256 * 4096
    expected = (decoder.parameters - vocabulary) * bits / 8 + 2 * vocabulary
    assert decoder.total_bytes == pytest.approx(expected)


def test_engine_kwargs_are_vllms() -> None:
    settings, ignored = engine_settings(
        {"tensor_parallel_size": 2, "max_num_seqs": 128, "trust_remote_code": True}
    )
    assert (settings.tensor_parallel_size, settings.max_num_seqs) == (2, 128)
    assert ignored == ("trust_remote_code",)
    with pytest.raises(ScenarioError, match="did you mean 'max_num_seqs'"):
        engine_settings({"max_num_seq": 1})
    with pytest.raises(ScenarioError, match="cpu_offload_gb: not modelled; leave it out"):
        engine_settings({"cpu_offload_gb": 4})
    with pytest.raises(ScenarioError, match="gpu_memory_utilization: expected a share"):
        engine_settings({"gpu_memory_utilization": 92})


def test_quantization_makes_fp8_or_says_what_the_checkpoint_says() -> None:
    online = read_decoder(LLAMA_8B, quantization="fp8")
    assert online == read_decoder(LLAMA_8B | {"quantization_config": {"quant_method": "fp8"}})
    awq = LLAMA_8B | {"quantization_config": {"quant_method": "awq"}}
    assert read_decoder(awq, quantization="awq_marlin") == read_decoder(awq)
    for config, asked in ((LLAMA_8B, "awq"), (awq, "gptq"), (awq, "fp8")):
        with pytest.raises(ScenarioError, match=f"engine_kwargs.quantization, '{asked}'"):
            read_decoder(config, quantization=asked)
    with pytest.raises(ScenarioError, match="quantization: expected one of fp8"):
        engine_settings({"quantization": "int3"})


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


@pytest.mark.parametrize(
    ("name", "share", "logged"),
    [("gpt-oss-20b", 0.65, 36.56)],  # vLLM 0.19 on one A100: "Available KV cache memory"
)
def test_the_cache_is_as_large_as_vllm_logs_it(name: str, share: float, logged: float) -> None:
    gpu = catalog.node("dgx-a100-80-8").gpu
    assert gpu is not None
    settings = EngineSettings(gpu_memory_utilization=share).for_gpu(gpu)
    capacity = capacity_of(read_decoder(MODELS[name]), gpu, settings)
    kept = capacity.blocks * capacity.block_size * capacity.kv_bytes_per_token
    assert kept / 2**30 == pytest.approx(logged, rel=0.03)


@pytest.mark.parametrize("node", ["dgx-a100-80-8", "hgx-h100-8"])
def test_32_billion_parameters_leave_one_gpu_32768_tokens(node: str) -> None:
    """As they were served (``vllm_bench.json``), with vLLM's share of 2025."""
    gpu = catalog.node(node).gpu
    assert gpu is not None
    settings = EngineSettings(gpu_memory_utilization=0.9, max_model_len=32_768).for_gpu(gpu)
    qwen = {
        "model_type": "qwen3", "hidden_size": 5120, "num_hidden_layers": 64, "head_dim": 128,
        "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 25600,
        "vocab_size": 151936,
    }  # fmt: skip
    assert capacity_of(read_decoder(qwen), gpu, settings).refusal(32_768) == ""


@pytest.mark.parametrize(
    ("config", "node", "times_over"),
    [
        (LLAMA_8B, "dgx-a100-80-8", 4), (LLAMA_8B, "hgx-h100-8", 1),
        (MODELS["gpt-oss-20b"], "dgx-a100-80-8", 1),
        ({"model_type": "deepseek_v3"}, "dgx-a100-80-8", 1),
    ],
    ids=str,
)  # fmt: skip
def test_beside_a_prompt_flash_attention_2_reads_keys_once_per_query_head(
    config: dict[str, Any], node: str, times_over: int
) -> None:
    gpu = catalog.node(node).gpu
    assert gpu is not None
    t = IterationTimes(read_decoder(config), gpu)
    lengths = np.array([1_000, 3_000])
    alone, beside = (
        float(t.contexts_ahead_s(lengths, 1, beside_prompts=mixed)[0]) for mixed in (False, True)
    )
    assert beside / alone == pytest.approx(times_over)


def test_a_kernel_is_launched_once_for_all_prompts_of_a_batch() -> None:
    t = times(LLAMA_8B)
    alone, together = 64 * t.prompt_s(128, 0), 64 * t.prompt_s(128, 0, 64)
    assert together < alone / 5
    # One that fills the GPU by itself gains nothing.
    assert t.prompt_s(8_192, 0, 2) == pytest.approx(t.prompt_s(8_192, 0), rel=0.02)


def test_sinks_make_long_prompts_slow_on_a100() -> None:
    """Triton's kernel in FlashAttention's place."""
    gpu = catalog.node("dgx-a100-80-8").gpu
    assert gpu is not None
    oss, llama = (IterationTimes(read_decoder(c), gpu) for c in (MODELS["gpt-oss-20b"], LLAMA_8B))
    per_flop = [
        t.prompt_s(2_048, 30_000) / sum(b.count * b.heads * b.head_dim for b in blocks)
        for t, blocks in (
            (oss, [b for b in oss.decoder.blocks if b.window is None]),
            (llama, llama.decoder.blocks),
        )
    ]
    assert per_flop[0] > 3 * per_flop[1]


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
