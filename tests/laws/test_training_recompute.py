"""What checkpointed layers keep and run again; exchanges beside products; how tokens travel."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.errors import ScenarioError
from raysim.hardware import catalog
from raysim.kernel.simulation import Simulation
from raysim.models.huggingface import build
from raysim.models.table import Model
from raysim.perf.compute import ComputeModel
from raysim.training.layers.sharding import Sharding, distinct_ranks, exchanges
from raysim.training.plan import MegatronSettings, TrainingPlan
from raysim.training.settings.deepspeed import Optimizer
from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.stages import StageSpec, build_stages
from raysim.training.tower import simulate
from raysim.validate.published import nodes

H, KV, W, HEADS, SEQ, LAYERS = 512, 128, 1536, 8, 1024, 3
CONFIG = {
    "model_type": "llama", "hidden_size": H, "intermediate_size": W, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": 2, "vocab_size": 4096,
}  # fmt: skip


@cache
def titan() -> Model:
    return build(CONFIG, seq_len=SEQ, library="torchtitan")


def plan(**changes: object) -> TrainingPlan:
    given = TrainingPlan(
        model=titan(), mesh=Mesh(dp=8), engine="fsdp", micro_batch=1,
        gradient_accumulation_steps=1, precision="fp32", optimizer=Optimizer(fused=True),
        fsdp=FsdpSettings(param_dtype="bf16", reduce_dtype="fp32"),
    )  # fmt: skip
    return replace(given, **changes)  # type: ignore[arg-type]


def stage(**changes: object) -> StageSpec:
    given = plan(**changes)
    costs = ComputeModel(catalog.gpu("H100-SXM-80GB"), compiled=given.torch_compile)
    return build_stages(given, costs)[0]


def seconds(**changes: object) -> float:
    cluster = nodes(catalog.node("hgx-h100-8"), 1)
    found = simulate(plan(**changes), cluster, simulation=Simulation(), memory=False)
    return float(found.steady_step_ns)


def test_by_operator_cores_and_every_second_product_stay() -> None:
    sections = [s for s in stage(activation_checkpointing="op").sections if s.checkpointed]
    assert len(sections) == LAYERS
    held = sum(u.again.held_bytes for u in sections[0].units)
    query, value, core, gate, down = H, KV, H, W, H
    assert held == SEQ * (2 * (query + value + core + gate + down) + 4 * HEADS)
    skipped = {u.name.rpartition(".")[2] for u in sections[0].units if not u.again.seconds}
    assert {"wq", "wv", "w1", "w2"} <= skipped
    assert not {"wk", "wo", "w3"} & skipped


def test_a_compiled_layer_drops_what_no_backward_reads() -> None:
    eager, compiled = (
        sum(
            unit.again.held_bytes
            for section in stage(activation_checkpointing="op", torch_compile=c).sections
            for unit in section.units
            if section.checkpointed
        )
        for c in (False, True)
    )
    assert eager - compiled == LAYERS * SEQ * 2 * H


def test_recomputation_ends_before_the_last_product() -> None:
    whole, early = (
        stage(activation_checkpointing="full", reentrant_checkpoints=r) for r in (True, False)
    )
    assert sum(u.again.seconds for u in whole.units) == sum(u.forward_s for u in whole.units)
    saved = [w.name for w, e in zip(whole.units, early.units, strict=True)
             if e.again.seconds < w.again.seconds]  # fmt: skip
    blocks = [name for name in saved if name.startswith("layers.")]
    # The product, and the sum behind it.
    assert blocks == [
        name for i in range(LAYERS) for name in (f"layers.{i}.feed_forward.w2", f"layers.{i}")
    ]


def test_more_recomputation_takes_longer_and_less_memory() -> None:
    cluster = nodes(catalog.node("hgx-h100-8"), 1)
    kinds = ("none", "op", "full")
    found = [
        simulate(plan(activation_checkpointing=k), cluster, simulation=Simulation()) for k in kinds
    ]
    times = [f.steady_step_ns for f in found]
    peaks = [f.fullest.allocated_bytes for f in found]
    assert times == sorted(times)
    assert peaks == sorted(peaks, reverse=True)


def test_pieces_beside_products_are_as_many_bytes_and_no_slower() -> None:
    module = next(
        m for layer in titan().layers if layer.kind == "block" for m in layer.body.modules
        if m.name == "feed_forward.w2"
    )  # fmt: skip
    plain = Sharding(tp=8, sequence_parallel=True, keeps_gathered=True)
    whole, pieces = (
        exchanges(module, s, width=2.0) for s in (plain, replace(plain, pipelined=True))
    )
    total = sum(e.size_bytes for e in whole.after_forward)
    assert sum(e.size_bytes for e in (*pieces.after_forward, *pieces.beside_forward)) == total
    wide = {**CONFIG, "hidden_size": 4096, "intermediate_size": 14336, "num_key_value_heads": 8}
    model = build(wide, seq_len=SEQ, library="torchtitan")
    one, other = (
        seconds(model=model, mesh=Mesh(tp=8), micro_batch=16, fsdp=FsdpSettings(
            param_dtype="bf16", sequence_parallel=True, async_tensor_parallel=a,
        ))
        for a in (False, True)
    )  # fmt: skip
    assert 0.6 * one < other < one


@pytest.mark.parametrize("asynchronous", [False, True])
def test_dtensor_s_exchanges_copy_what_they_move(*, asynchronous: bool) -> None:
    """Whole where collectives cut another dimension; its own piece, or a sum, where pipelined."""
    model = titan()
    module = next(
        m for layer in model.layers if layer.kind == "block" for m in layer.body.modules
        if m.name == "feed_forward.w2"
    )  # fmt: skip
    cut = Sharding(
        tp=8, sequence_parallel=True, keeps_gathered=True, dtensor=True, pipelined=asynchronous
    )
    found = exchanges(module, cut, width=4.0, batch=2.0)
    (scatter,) = found.after_forward
    (gather,) = found.before_backward
    size = scatter.size_bytes * (8 if asynchronous else 1)
    assert scatter.moved_bytes == (size * 9 / 8 if asynchronous else 2 * size)
    assert gather.moved_bytes == (size / 4 if asynchronous else 2 * size)
    assert not [e for e in (*found.beside_forward, *found.beside_backward) if e.moved_bytes]
    (alone,) = exchanges(module, cut, width=2.0).before_backward
    assert bool(alone.moved_bytes) == asynchronous  # a single sample's pieces are in order


@given(st.integers(1, 64), st.integers(1, 256))
def test_a_token_goes_to_no_more_ranks_than_it_has_experts(experts: int, ranks: int) -> None:
    found = distinct_ranks(experts, ranks)
    assert 1 - 1e-9 <= found <= min(experts, ranks) + 1e-9
    assert distinct_ranks(experts, ranks + 1) >= found - 1e-9


def test_flex_dispatch_sends_and_copies_less() -> None:
    config = {
        "model_type": "qwen3_moe", "hidden_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
        "moe_intermediate_size": 256, "num_experts": 16, "num_experts_per_tok": 4,
        "vocab_size": 4096, "intermediate_size": 1024,
    }  # fmt: skip
    model = build(config, seq_len=SEQ, library="megatron_core", fused_loss=True)
    given = plan(model=model, engine="megatron", mesh=Mesh(dp=8, ep=8), precision="bf16")
    costs = ComputeModel(catalog.gpu("H100-SXM-80GB"))
    sent, copied = [], []
    for dispatcher in ("alltoall", "flex"):
        settings = MegatronSettings(moe_token_dispatcher=dispatcher)
        units = build_stages(replace(given, megatron=settings), costs)[0].units
        sent.append(sum(e.size_bytes for u in units for e in u.exchanges.after_forward))
        copied.append(sum(u.forward_s for u in units))
    copies = 2 * SEQ * 4 * 512 * 2
    assert sent[0] == copies
    assert sent[1] == pytest.approx(copies * distinct_ranks(4, 8) / 4, rel=1e-6)
    assert copied[1] < copied[0]


def test_modules_recomputed_selectively_are_neither_kept_nor_free() -> None:
    config = {
        "model_type": "gpt_oss", "hidden_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
        "intermediate_size": 256, "num_local_experts": 16, "num_experts_per_tok": 4,
        "vocab_size": 4096,
    }  # fmt: skip
    model = build(config, seq_len=SEQ, library="megatron_core", fused_loss=True)
    kept, backward = [], []
    for modules in ((), ("moe_act",), ("layernorm", "moe_act")):
        given = plan(
            model=model, engine="megatron", precision="bf16",
            megatron=MegatronSettings(recompute_modules=modules),
            activation_checkpointing="selective" if modules else "none",
        )  # fmt: skip
        units = build_stages(given, ComputeModel(catalog.gpu("B200")))[0].units
        kept.append(sum(u.saved_bytes for u in units))
        backward.append(sum(u.backward_s for u in units))
    assert kept[0] - kept[1] == 2 * SEQ * 4 * 256 * 2
    assert kept[1] - kept[2] == 2 * SEQ * 512 * 2
    assert backward == sorted(backward)
    assert backward[0] < backward[1]


def test_libraries_refuse_families_they_lack() -> None:
    with pytest.raises(ScenarioError, match="not modelled in torchtitan"):
        build({"model_type": "gpt2"}, seq_len=128, library="torchtitan")
    with pytest.raises(ScenarioError, match="Megatron-core's modules only"):
        build({"model_type": "gpt_oss"}, seq_len=128)
