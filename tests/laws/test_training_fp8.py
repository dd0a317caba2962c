"""fp8 training: what is kept, moved and exchanged, in closed form."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.hardware import catalog
from raysim.models.huggingface import build
from raysim.models.table import Gemm, Model, Operator
from raysim.perf.compute import ComputeModel
from raysim.training.plan import MegatronSettings, TrainingPlan
from raysim.training.program import Program
from raysim.training.settings.deepspeed import PipelineSettings
from raysim.training.settings.fp8 import Fp8Settings, Recipe, quantized_model
from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.stages import build_stages
from raysim.validate.job import job_of
from tests.training_parts import cluster, plan, play, programs
from tests.training_parts import llama as huggingface_llama

TOKENS, HIDDEN, WIDTH, HEADS, KV, LAYERS = 512, 512, 1024, 8, 4, 3
LINEARS = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * HIDDEN * KV // HEADS + 3 * HIDDEN * WIDTH
"""Elements of one block's weights that products read."""
BLOCK_SCALES = 1 + 1 / 32


SHAPE = {
    "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": WIDTH,
    "num_attention_heads": HEADS, "num_key_value_heads": KV, "num_hidden_layers": LAYERS,
    "vocab_size": 4096, "max_position_embeddings": 4096,
}  # fmt: skip


def model() -> Model:
    return build(SHAPE, seq_len=TOKENS, library="megatron_core", fused_loss=True)


def megatron(recipe: Recipe = "delayed", **options: Any) -> Fp8Settings:
    """As ``--fp8-format`` gives."""
    given_options = {"classes": (), "caches_weights": True, "keeps_core_output": True} | options
    return Fp8Settings(recipe=recipe, **given_options)


def job(fp8: Fp8Settings | None, **options: Any) -> TrainingPlan:
    pipeline = PipelineSettings(
        stages=1, partition_method="blocks", schedule="megatron_1f1b", pipe_partitioned=False,
        grad_partitioned=False,
    )  # fmt: skip
    settings = MegatronSettings(sequence_parallel=True, use_distributed_optimizer=True)
    given_options: dict[str, Any] = {
        "engine": "megatron", "megatron": settings, "micro_batch": 1, "mesh": Mesh(dp=4),
    }  # fmt: skip
    return plan(model(), pipeline=pipeline, fp8=fp8, **given_options | options)


def fsdp(fp8: Fp8Settings | None, version: int = 2, **options: Any) -> TrainingPlan:
    settings = FsdpSettings(version=version, param_dtype="bf16", reduce_dtype="bf16")
    return plan(
        huggingface_llama(), engine="fsdp", precision="fp32", fsdp=settings, fp8=fp8,
        torch_compile=True, **{"micro_batch": 1, "mesh": Mesh(dp=4)} | options,
    )  # fmt: skip


def kept(p: TrainingPlan, gpu: str) -> int:
    """What a micro-batch keeps for backward."""
    (stage,) = build_stages(p, ComputeModel(catalog.gpu(gpu)))
    return sum(unit.saved_bytes for unit in stage.units)


def calls(program: Program, op: str, group: str) -> list[int]:
    return [round(c.size_bytes) for c in program.calls() if (c.op, c.group) == (op, group)]


def held(program: Program, category: str, label: str) -> float:
    return sum(e.delta_bytes for e in program.memory if (e.category, e.label) == (category, label))


def test_without_fp8_a_model_is_the_same_object() -> None:
    own = model()
    assert quantized_model(own, None, "hopper") is own


@pytest.mark.parametrize(
    ("recipe", "gpu", "each"),
    [
        ("delayed", "H100-SXM-80GB", 1), ("delayed", "B200", 1),
        ("tensorwise", "H100-SXM-80GB", 1), ("blockwise", "H100-SXM-80GB", BLOCK_SCALES),
        ("mxfp8", "B200", BLOCK_SCALES),
    ],
)  # fmt: skip
def test_a_layer_keeps_what_transformer_engine_saves(recipe: Recipe, gpu: str, each: float) -> None:
    """Norms' inputs, query, key, value, the core's output and SwiGLU's halves in 16 bits; inputs
    of products in fp8, once. Only delayed scaling copies the core's output.
    """
    wide = 2 * (2 * HIDDEN + 2 * HIDDEN + 2 * HIDDEN * KV // HEADS + 2 * WIDTH)
    narrow = 2 * HIDDEN + WIDTH + HIDDEN * (recipe == "delayed")
    rows = 2 * 4 + 4 * HEADS
    block = TOKENS * (wide + narrow * each + rows)
    plain = TOKENS * (wide + 2 * (2 * HIDDEN + WIDTH) + rows)
    saved = [kept(job(fp8), gpu) for fp8 in (None, megatron(recipe))]
    assert saved[0] - saved[1] == pytest.approx(LAYERS * (plain - block), abs=LAYERS)


@pytest.mark.parametrize(
    ("recipe", "node", "cached", "primary"),
    [
        ("delayed", "hgx-h100-8", 2 + 2, 2), ("tensorwise", "hgx-h100-8", 2 + 2, 2),
        ("delayed", "hgx-b200-8", 2 + 1, 1), ("mxfp8", "hgx-b200-8", 2 + 2 * BLOCK_SCALES,
         2 + 2 * BLOCK_SCALES),
    ],
)  # fmt: skip
def test_weights_are_held_in_as_many_layouts_as_products_read(
    recipe: Recipe, node: str, cached: float, primary: float
) -> None:
    """Before Blackwell both: products want their operands transposed; block scales always both."""
    for settings, each in (
        (None, 2.0), (megatron(recipe), cached), (megatron(recipe, primary_weights=True), primary),
    ):  # fmt: skip
        (program,) = programs(job(settings), cluster(nodes=1, node=node))
        size = held(program, "parameter", "weights") + held(program, "parameter", "fp8 weights")
        others = model().num_parameters - LAYERS * LINEARS
        assert size == pytest.approx(2 * others + each * LAYERS * LINEARS, rel=1e-6)


def test_weights_are_gathered_in_the_type_they_are_kept_in() -> None:
    (plain,), (narrow,) = (programs(job(s)) for s in (megatron(), megatron(primary_weights=True)))
    before, after = (sum(calls(p, "all_gather", "dp")) for p in (plain, narrow))
    steps = len(plain.step_ends)
    assert before - after == steps * LAYERS * LINEARS


def test_weights_are_cast_once_a_step() -> None:
    """In the first micro-batch; without a cache, and under FSDP, in every one."""
    (program,) = programs(job(megatron(), gradient_accumulation_steps=4))
    casts = [op for op in program.ops if op.name == "cast weights"]
    steps = len(program.step_ends)
    (stage,) = build_stages(job(megatron()), ComputeModel(catalog.gpu("H100-SXM-80GB")))
    units = sum(any(g.fp8 for g in u.uses) for u in stage.units)
    assert len(casts) == steps * units
    again = quantized_model(model(), megatron(caches_weights=False), "hopper")
    (o,) = {o for o in again.layers[1].body.operators if o.name == "mlp.linear_fc2.cast_weight"}
    # read in 16 bits, written twice in 8; kept until backward
    assert (o.moved_fixed, o.saves[0].numel) == (2.0 * HIDDEN * WIDTH, 2.0 * HIDDEN * WIDTH)


def test_sequence_parallel_peers_gather_fp8() -> None:
    """Inputs of the projections twice and gradients of the row products once, a byte each; sums
    and what is not fp8 (embedding, output layer) as before.
    """
    whole = TOKENS * HIDDEN
    volume: dict[str, Counter[str]] = {}
    for name, fp8 in {
        "bf16": None, "delayed": megatron(), "tensorwise": megatron("tensorwise"),
    }.items():  # fmt: skip
        (program,) = programs(job(fp8, mesh=Mesh(tp=4), gradient_accumulation_steps=1))
        volume[name] = Counter()
        for call in program.calls():
            if call.group == "tp":
                volume[name][call.op] += round(call.size_bytes)
    steps = volume["bf16"]["reduce_scatter"] // ((LAYERS * 4 + 2) * 2 * whole)
    narrow = volume["bf16"]["all_gather"] - steps * LAYERS * 6 * whole
    for name in ("delayed", "tensorwise"):
        assert volume[name]["reduce_scatter"] == volume["bf16"]["reduce_scatter"]
        assert volume[name]["all_gather"] == narrow
    # One number before each tensor that is quantised in parts: two inputs, two gradients a layer.
    assert volume["tensorwise"]["all_reduce"] == steps * LAYERS * 4 * 4
    amax = volume["delayed"]["all_reduce"]
    assert amax == steps * 4 * LAYERS * 4 * (3 + 2)  # four linears, fp32, forward and backward


def test_delayed_scaling_reduces_amax_once_a_pass() -> None:
    (program,) = programs(job(megatron(), gradient_accumulation_steps=4))
    passes = len(program.backward_ends)
    sums = [op for op in program.ops if op.name == "all-reduce amax"]
    assert len(sums) == 2 * passes
    assert {op.stream for op in sums} == {"comm:amax"}  # no weights or gradients before them
    (other,) = programs(job(megatron("tensorwise"), gradient_accumulation_steps=4))
    assert not any(op.name == "all-reduce amax" for op in other.ops)


TORCHAO = Fp8Settings(library="torchao", recipe="tensorwise")


def test_torchao_keeps_what_16_bits_keep() -> None:
    """``matmul_with_hp_or_float8_args`` saves its inputs as they came, as eager's products do.

    Compiled, less than compiled products in 16 bits: what casts read can be made again.
    """
    wide, narrow = (
        [kept(replace(fsdp(f), torch_compile=c), "H100-SXM-80GB") for c in (False, True)]
        for f in (None, TORCHAO)
    )
    assert wide[0] == narrow[0]
    assert narrow[1] < wide[1] < wide[0]


def test_transformer_engine_under_fsdp_keeps_quantised_weights_until_backward() -> None:
    """Version 1; version 2 casts what backward gathers anew."""
    first, second = (
        kept(fsdp(Fp8Settings(), version), "H100-SXM-80GB") for version in (1, 2)
    )  # fmt: skip
    shape = huggingface_llama().layers[1].body
    linears = sum(p.numel for p in shape.parameters if len(p.shape) > 1)
    assert first - second == 4 * linears * 2
    twice, both = (kept(fsdp(Fp8Settings(), 1, micro_batch=m), "H100-SXM-80GB") for m in (1, 2))
    ones, twos = (kept(fsdp(Fp8Settings(), 2, micro_batch=m), "H100-SXM-80GB") for m in (1, 2))
    assert both - twice == twos - ones == ones  # weights do not grow with the batch


def test_float8_all_gathers_carry_a_byte_per_weight() -> None:
    """Of the converted linears; scales are agreed on weight by weight, or all at once."""
    narrow = replace(TORCHAO, float8_all_gather=True)
    at_once = replace(narrow, precomputes_scales=True)
    made = [programs(fsdp(s))[0] for s in (TORCHAO, narrow, at_once)]
    plain, each, once = (sum(calls(p, "all_gather", "dp")) for p in made)
    shape = huggingface_llama().layers[1].body
    weights = [p for p in shape.parameters if len(p.shape) > 1]
    gathers = sum(op.name.startswith("all-gather model.layers.0") for op in made[0].ops)
    assert plain - each == plain - once == 4 * gathers * sum(p.numel for p in weights)
    amax = [sum(op.name == "all-reduce amax" for op in p.ops) for p in made]
    assert amax == [0, 4 * gathers * len(weights), len(made[2].step_ends)]


@given(
    rows=st.integers(16, 65536), n=st.integers(1, 128), k=st.integers(1, 128),
    gpu=st.sampled_from(["H100-SXM-80GB", "H200-SXM-141GB", "B200", "GB200", "L40S"]),
)  # fmt: skip
def test_a_product_is_never_slower_in_fp8(rows: int, n: int, k: int, gpu: str) -> None:
    """Nor faster than the tensor cores' peak."""
    costs = _COSTS.setdefault(gpu, ComputeModel(catalog.gpu(gpu)))
    n, k = 256 * n, 256 * k
    plain = costs.gemm_s(rows, n, k, "bf16")
    narrow = costs.fp8_gemm_s(rows, n, k, "bf16")
    assert 2.0 * rows * n * k / catalog.gpu(gpu).flops_per_s["fp8"] <= narrow <= plain


_COSTS: dict[str, ComputeModel] = {}


@pytest.mark.parametrize("recipe", ["delayed", "tensorwise", "blockwise"])
def test_casts_cost_less_than_products_gain_on_large_layers(recipe: Recipe) -> None:
    """On H100, of a block of Llama 3 8B with 8192 tokens, forward and backward."""
    config = SHAPE | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_key_value_heads": 8, "num_hidden_layers": 1,
    }  # fmt: skip
    large = build(config, seq_len=8192, library="megatron_core")
    gpu = ComputeModel(catalog.gpu("H100-SXM-80GB"), sustained_share=None)
    both = []
    for settings in (None, megatron(recipe)):
        (stage,) = build_stages(replace(job(settings), model=large), gpu)
        both.append(sum(u.forward_s + u.backward_s for u in stage.units))
    assert both[1] < both[0]


def test_utilisation_is_of_the_fp8_peak() -> None:
    assert (job(None).product_dtype, job(megatron()).product_dtype) == ("bf16", "fp8")
    outcome = play(job(megatron()), cluster(nodes=1))
    peak = catalog.gpu("H100-SXM-80GB").flops_per_s["fp8"]
    ideal = 3 * model().flops * outcome.plan.samples_per_step / (4 * peak)
    assert job_of(outcome).ideal_model_s == pytest.approx(ideal)


def test_backward_products_read_fp8_too() -> None:
    costs = ComputeModel(catalog.gpu("H100-SXM-80GB"))
    o = Operator(name="x", kind="gemm", gemm=Gemm(rows=4096.0, n=4096, k=4096))
    narrow = next(
        o for o in quantized_model(model(), megatron(), "hopper").layers[1].body.operators
        if o.fp8 is not None
    )  # fmt: skip
    narrow = replace(o, fp8=narrow.fp8)
    for backward in (False, True):
        times = 2 if backward else 1
        seconds = costs.operator_s(narrow, batch=1, dtype="bf16", backward=backward)
        assert seconds <= times * costs.fp8_gemm_s(4096, 4096, 4096, "bf16") * 1.01


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "ddp"},
        {"stage": 0}, {"stage": 1}, {"stage": 2}, {"stage": 3},
        {"engine": "fsdp", "fsdp": FsdpSettings(version=1)},
        {"engine": "fsdp", "fsdp": FsdpSettings(cpu_offload=True)},
        {"engine": "fsdp", "fsdp": FsdpSettings(replicas=2), "mesh": Mesh(dp=8)},
        {"engine": "fsdp", "fsdp": FsdpSettings(reshard_after_forward=2), "mesh": Mesh(dp=8)},
        {"engine": "ddp", "activation_checkpointing": "full"},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("settings", [Fp8Settings(), TORCHAO], ids=lambda s: s.library)
def test_every_engine_runs_it_and_ends_with_nothing_left(
    options: dict[str, Any], settings: Fp8Settings
) -> None:
    """Sums of gradients, weights and states are those of 16 bits; activations are all let go."""
    ends = []
    for fp8 in (None, replace(settings, float8_all_gather="fsdp" in options)):
        p = plan(huggingface_llama(), fp8=fp8, **{"mesh": Mesh(dp=4)} | options)
        if fp8 is not None and p.engine == "fsdp" and p.fsdp.version == 1:
            p = replace(p, fp8=settings)
        (program,) = programs(p)
        held_bytes = dict(program.step_held[-1])
        assert held_bytes.pop("activation", 0) == 0
        ends.append({k: held_bytes.get(k, 0) for k in ("parameter", "optimizer_state", "gradient")})
    assert ends[0] == ends[1]
