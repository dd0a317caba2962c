"""Pipelines of engines: by hand, what they hold, and what they gain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raysim.errors import InfeasibleError
from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
from raysim.hardware.topology import Topology
from raysim.kernel.simulation import Simulation
from raysim.models.config import read_config
from raysim.serving.build import engine_on
from raysim.serving.capacity import capacity_of
from raysim.serving.decoder import Decoder, read_decoder
from raysim.serving.engine import LLMEngine, Request, Served
from raysim.serving.settings import EngineSettings
from raysim.serving.stages import HOP_S, Stages, stages_of
from tests.unit.serving.parts import Linear, engine

CONFIGS = Path(__file__).parents[2] / "data/hf_configs"
H100 = catalog.node("hgx-h100-8")


def decoder(name: str) -> Decoder:
    return read_decoder(read_config(CONFIGS / f"{name}.json"))


def outcomes(stages: Stages, *requests: Request) -> list[Served]:
    made = engine(Simulation(), times=Linear(context_s=0.0), stages=stages)
    done: list[Served] = []
    for request in requests:
        made.submit(request, done.append)
    made.simulation.run("10h")
    return done


def test_one_sequence_gains_nothing_and_hops() -> None:
    two = Stages(count=2, hop_s=1e-3, token_s=1e-6)
    request = Request(prompt_tokens=100, output_tokens=11)
    [alone], [piped] = outcomes(Stages(), request), outcomes(two, request)
    assert alone.tpot_s == pytest.approx(10e-3 + 10e-6)
    assert piped.tpot_s == pytest.approx(10e-3 + 10e-6 + 1e-3 + 1e-6)
    assert piped.ttft_s == pytest.approx(10e-3 + 100 * (10e-6 + 1e-6) + 1e-3)


def test_two_batches_are_under_way_together() -> None:
    requests = [Request(prompt_tokens=1, output_tokens=101) for _ in range(40)]
    alone, piped = (outcomes(Stages(count=n), *requests) for n in (1, 2))
    assert alone[0].tpot_s == pytest.approx(10e-3 + 40 * 10e-6)
    assert piped[0].tpot_s == pytest.approx(10e-3 + 20 * 10e-6)


def test_chunks_of_one_prompt_follow_each_other_through_the_stages() -> None:
    [piped] = outcomes(Stages(count=2), Request(prompt_tokens=4_096, output_tokens=1))
    assert piped.ttft_s == pytest.approx(10e-3 + 2_048 * 10e-6)


def test_405_billion_parameters_take_two_nodes() -> None:
    llama, settings = decoder("llama-3.1-405b"), EngineSettings(tensor_parallel_size=8)
    settings = replace(settings, max_model_len=8_192).for_gpu(H100.gpu) if H100.gpu else settings
    with pytest.raises(InfeasibleError, match="more tensor parallel ranks"):
        engine_on(Simulation(), llama, H100, settings)
    two = engine_on(Simulation(), llama, H100, replace(settings, pipeline_parallel_size=2))
    assert two.capacity.weights_bytes == pytest.approx(405.85e9 * 2 / 16, rel=0.02)
    assert two.stages.hop_s == HOP_S


def test_tensor_parallel_ranks_may_be_on_several_nodes() -> None:
    def made(ranks: int, nodes: int, node: str = "hgx-h100-8") -> LLMEngine:
        spec = catalog.node(node)
        group = NodeGroup(name="all", node=spec, count=nodes, head=True)
        topology = Topology(ClusterSpec(groups=(group,), fabric=FabricSpec(kind="star")))
        settings = EngineSettings(tensor_parallel_size=ranks, max_model_len=8_192)
        return engine_on(
            Simulation(), decoder("llama-3.1-405b"), spec, settings, around=(topology, 0)
        )

    two = made(16, 2)
    assert two.capacity.weights_bytes == pytest.approx(405.85e9 * 2 / 16, rel=0.02)
    group = two.times.group
    assert group is not None
    assert (group.ranks, group.nodes, group.ranks_per_node) == (16, 2, 8)
    # A token's 32 KiB between the ranks of one node pass peers' memory, of two NCCL and the NICs.
    assert two.times.reduce_s(32_768) > 3 * made(8, 1, "dgx-b200").times.reduce_s(32_768)
    assert made(8, 2, "dgx-b200").times.group.nodes == 1  # type: ignore[union-attr]
    with pytest.raises(InfeasibleError, match="need 2 nodes of 8 GPUs, there are 1"):
        made(16, 1)


def test_a_rank_holds_its_layers_keys_and_an_end_of_the_model() -> None:
    llama = decoder("llama-3.1-8b")
    assert H100.gpu is not None
    one, two = (
        capacity_of(llama, H100.gpu, EngineSettings(pipeline_parallel_size=n).for_gpu(H100.gpu))
        for n in (1, 2)
    )
    end = 128_256 * 4_096 * 2
    assert two.weights_bytes == pytest.approx((one.weights_bytes - 2 * end) / 2 + end)
    assert two.kv_bytes_per_token == one.kv_bytes_per_token / 2


def test_hops_go_over_nics_where_a_node_does_not_hold_the_engine() -> None:
    llama = decoder("llama-3.1-8b")
    inside, between = (
        stages_of(llama, H100, EngineSettings(tensor_parallel_size=tp, pipeline_parallel_size=2))
        for tp in (4, 8)
    )
    # Four ranks' slices over NVLink at 450 GB/s, eight ranks' over a NIC of 50 GB/s each.
    assert inside.token_s == pytest.approx(2 * 4_096 * 2 / 4 / 450e9)
    assert between.token_s == pytest.approx(2 * 4_096 * 2 / 8 / 50e9)


def test_what_cannot_be_split_is_refused() -> None:
    llama = decoder("llama-3.2-1b")
    with pytest.raises(InfeasibleError, match="32 attention heads do not divide among 3"):
        engine_on(Simulation(), llama, H100, EngineSettings(tensor_parallel_size=3))
    with pytest.raises(InfeasibleError, match="17 pipeline stages of 16 layers"):
        engine_on(Simulation(), llama, H100, EngineSettings(pipeline_parallel_size=17))
