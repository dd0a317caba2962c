"""Engines with attention apart that share experts: what ranks hold, compute and exchange."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
from raysim.hardware.topology import Topology
from raysim.kernel.simulation import Simulation
from raysim.rayapi.llm.known import config_of
from raysim.serving.build import engine_on
from raysim.serving.decoder import Decoder, read_decoder
from raysim.serving.engine import LLMEngine
from raysim.serving.settings import engine_settings

NODE = catalog.node("hgx-h200-8")
QWEN = read_decoder(config_of("Qwen/Qwen3-30B-A3B"))
DEEPSEEK = read_decoder(config_of("deepseek-ai/DeepSeek-V3"))


def engine(decoder: Decoder, *, nodes: int = 1, **kwargs: Any) -> LLMEngine:
    group = NodeGroup(name="all", node=NODE, count=nodes, head=True)
    topology = Topology(ClusterSpec(groups=(group,), fabric=FabricSpec(kind="star")))
    settings, _ = engine_settings({"max_model_len": 4096} | kwargs)
    return engine_on(Simulation(), decoder, NODE, settings, around=(topology, 0))


def test_experts_are_split_among_all_engines_and_the_rest_among_one_s_ranks() -> None:
    made = engine(
        DEEPSEEK, nodes=2, tensor_parallel_size=2, data_parallel_size=8, enable_expert_parallel=True
    )
    others = DEEPSEEK.total_bytes - DEEPSEEK.routed_bytes
    expected = others / 2 + DEEPSEEK.routed_bytes / 16
    assert made.capacity.weights_bytes == pytest.approx(expected)
    assert 0.9 < DEEPSEEK.routed_bytes / DEEPSEEK.total_bytes < 1.0
    staged = engine(
        DEEPSEEK, nodes=2, tensor_parallel_size=1, data_parallel_size=8, pipeline_parallel_size=2
    )
    assert staged.capacity.weights_bytes < DEEPSEEK.total_bytes / 8


def test_latents_are_kept_once_where_attention_is_apart() -> None:
    """Why one has attention apart: tensor-parallel ranks each keep all of every token's latent."""
    apart = engine(DEEPSEEK, data_parallel_size=8, enable_expert_parallel=True)
    split = engine(DEEPSEEK, tensor_parallel_size=8)
    assert apart.capacity.kv_bytes_per_token == split.capacity.kv_bytes_per_token
    assert 8 * apart.capacity.tokens > 4 * split.capacity.tokens


def test_whole_experts_are_as_many_weights_and_wider_products() -> None:
    whole, sliced = (
        engine(QWEN, tensor_parallel_size=8, enable_expert_parallel=how).times
        for how in (True, False)
    )
    [block] = QWEN.blocks
    for tokens in (1, 64):  # bound by reading weights
        same = pytest.approx(sliced._experts_s(block, tokens), rel=0.35)
        assert whole._experts_s(block, tokens) == same
    assert whole._experts_s(block, 4096) < 0.8 * sliced._experts_s(block, 4096)


def test_every_engine_s_tokens_pass_and_are_exchanged() -> None:
    [block] = QWEN.blocks
    alone = engine(QWEN).times
    two, eight = (engine(QWEN, data_parallel_size=n).times for n in (2, 8))
    far = engine(QWEN, data_parallel_size=16, nodes=2).times
    assert alone.experts is None
    # Eight times the tokens, an eighth of every expert: the same products, each narrower.
    assert eight._experts_s(block, 4096) > 0.9 * alone._experts_s(block, 4096)
    size_bytes = 64 * QWEN.hidden * 2
    took = [times._exchange_s(size_bytes) for times in (two, eight, far)]
    assert 0 < took[0] < took[1] < took[2]
    assert eight.tokens_s(64) > alone.tokens_s(64) - QWEN.layers * alone._experts_s(block, 64)


def test_a_dense_model_shares_nothing() -> None:
    dense = read_decoder(config_of("Qwen/Qwen3-8B"))
    alone, apart = engine(dense), engine(dense, data_parallel_size=4)
    assert alone.capacity == apart.capacity
    assert alone.times.tokens_s(100) == apart.times.tokens_s(100)


def test_alike_engines_of_one_node_work_out_their_times_once_and_others_their_own() -> None:
    split = engine(QWEN, tensor_parallel_size=2)
    assert engine(QWEN, tensor_parallel_size=2).times is split.times
    assert engine(QWEN, tensor_parallel_size=4).times is not split.times
    apart = {"tensor_parallel_size": 2, "data_parallel_size": 8}
    across = [engine(DEEPSEEK, nodes=2, **apart).times for _ in range(2)]
    assert across[0] is not across[1], "ranks on several nodes depend on where they are"
