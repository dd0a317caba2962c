"""Megatron-core: what sequence, context and expert parallelism divide, exchange and cost."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.errors import ScenarioError
from raysim.hardware import catalog
from raysim.kernel.simulation import Simulation
from raysim.models.huggingface import build
from raysim.models.table import Model
from raysim.perf.compute import ComputeModel
from raysim.training.plan import MegatronSettings, TrainingPlan
from raysim.training.prepared import prepare
from raysim.training.program import Program
from raysim.training.settings.deepspeed import PipelineSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.stages import build_stages
from raysim.training.tower import simulate
from raysim.units import MIB
from raysim.validate.b200 import play
from tests.training_parts import cluster, plan, programs

TOKENS, HIDDEN, WIDTH, HEADS, KV = 512, 512, 1024, 8, 4
LAYERS, VOCAB = 3, 4096
SHARDED = MegatronSettings(sequence_parallel=True, use_distributed_optimizer=True)
H100 = catalog.gpu("H100-SXM-80GB")
B200 = Path(__file__).parents[2] / "validation" / "data" / "published" / "b200_megatron.json"


def llama(**keys: Any) -> Model:
    config = {
        "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": WIDTH,
        "num_attention_heads": HEADS, "num_key_value_heads": KV, "num_hidden_layers": LAYERS,
        "vocab_size": VOCAB, "max_position_embeddings": 4096, **keys,
    }  # fmt: skip
    return build(config, seq_len=TOKENS, library="megatron_core", fused_loss=True)


def mixture(**keys: Any) -> Model:
    return llama(model_type="mixtral", num_local_experts=8, num_experts_per_tok=2, **keys)


def job(model: Model | None = None, **options: Any) -> TrainingPlan:
    pipeline = PipelineSettings(
        stages=options.get("mesh", Mesh()).pp, partition_method="blocks",
        schedule="megatron_1f1b", pipe_partitioned=False, grad_partitioned=False,
    )  # fmt: skip
    given_options: dict[str, Any] = {"engine": "megatron", "megatron": SHARDED, "micro_batch": 1}
    return plan(model or llama(), pipeline=pipeline, **given_options | options)


def volumes(program: Program, group: str) -> Counter[str]:
    """Bytes of full buffers by kind of collective over one group."""
    found: Counter[str] = Counter()
    for call in program.calls():
        if call.group == group:
            found[call.op] += call.size_bytes
    return found


def kept(p: TrainingPlan) -> int:
    """Activations that one micro-batch's forward leaves behind."""
    return sum(
        section.input_bytes
        if section.checkpointed
        else sum(unit.saved_bytes + unit.loss_bytes for unit in section.units)
        for stage in build_stages(p, ComputeModel(catalog.gpu("H100-SXM-80GB")))
        for section in stage.sections
    )


def test_a_layer_keeps_what_transformer_engine_saves() -> None:
    """Two norms keep input and output, the core q, k, v and its output, SwiGLU both halves, fc2 its
    input; and fp32 numbers per row and per head.
    """
    block = llama().layers[1].body
    size = sum(s.numel * {"compute": 2, "fp32": 4}[s.dtype] for s in block.saved().values())
    wide = 4 * HIDDEN + 2 * HIDDEN + 2 * HIDDEN * KV / HEADS + 3 * WIDTH
    assert size == TOKENS * (2 * wide + 2 * 4 + 4 * HEADS)


@pytest.mark.parametrize("tp", [2, 4])
def test_sequence_parallelism_divides_every_activation(tp: int) -> None:
    """Korthikanti et al., equation 4: nothing is kept twice."""
    alone = kept(job(mesh=Mesh()))
    assert kept(job(mesh=Mesh(tp=tp))) == pytest.approx(alone / tp, rel=1e-6)
    without = MegatronSettings(use_distributed_optimizer=True)
    assert kept(job(mesh=Mesh(tp=tp), megatron=without)) > 1.2 * alone / tp


def test_sequence_parallelism_moves_as_much_as_tensor_parallelism() -> None:
    """An all-reduce is a reduce-scatter and an all-gather; backward gathers inputs once more."""
    hidden = TOKENS * HIDDEN * 2
    (divided,) = programs(job(mesh=Mesh(tp=4), gradient_accumulation_steps=1))
    # forward: attention and MLP; backward: the same mirrored, and inputs for weight gradients;
    # embedding (scattered, gradient gathered) and output layer (gathered twice, scattered)
    assert volumes(divided, "tp") == {
        "all_gather": (LAYERS * (2 + 2 + 2) + 1 + 2) * hidden,
        "reduce_scatter": (LAYERS * (2 + 2) + 1 + 1) * hidden,
    }
    (plain,) = programs(
        job(mesh=Mesh(tp=4), gradient_accumulation_steps=1, megatron=MegatronSettings())
    )
    assert volumes(plain, "tp") == {"all_reduce": (LAYERS * (2 + 2) + 1 + 1) * hidden}


def test_instances_of_the_optimizer_scatter_within_and_sum_across() -> None:
    """Four of eight ranks share the states: within them weights and gradients once each in 16 bits,
    a quarter of the gradients across; four times the states of one instance are two times eight.
    """
    plain = replace(SHARDED, sequence_parallel=False, accumulate_allreduce_grads_in_fp32=False)
    two = replace(plain, num_distributed_optimizer_instances=2)
    one, both = (programs(job(mesh=Mesh(dp=8), megatron=m))[0] for m in (plain, two))
    size = 2 * llama().num_parameters
    assert volumes(one, "dp")["reduce_scatter"] == size
    assert volumes(both, "dp_shard:4") == {"reduce_scatter": size, "all_gather": size}
    assert volumes(both, "dp_replicate:4") == {"all_reduce": size // 4}
    assert not volumes(both, "dp")["reduce_scatter"]
    states = [p.step_held[-1]["optimizer_state"] for p in (one, both)]
    assert states[1] == 2 * states[0]


def test_a_fused_weight_gradient_is_added_in_the_type_of_its_buffer() -> None:
    """Read and written there: 2 x 4 bytes an element in fp32, 2 x 2 in 16 bits."""
    half = replace(SHARDED, accumulate_allreduce_grads_in_fp32=False)
    priced = []
    for settings in (SHARDED, half):
        costs, (stage,), _ = prepare(job(mesh=Mesh(), megatron=settings), cluster(), folded=True)
        products = [
            o for u in stage.units for m in u.modules for o in m.operators if "linear_fc1" in o.name
        ]
        priced.append(sum(costs.weight_gradient_s(o, batch=1, dtype="bf16") for o in products))
    moved = (8 - 4) * LAYERS * 2 * WIDTH * HIDDEN
    assert priced[0] - priced[1] == pytest.approx(moved / costs.constants.memory_bytes_per_s)


def test_a_collective_that_averages_leaves_no_pass_over_the_gradients() -> None:
    averaging = replace(SHARDED, ddp_average_in_collective=True)
    plain, without = (programs(job(mesh=Mesh(dp=2), megatron=m))[0] for m in (SHARDED, averaging))
    assert volumes(plain, "dp") == volumes(without, "dp")
    passes = [sum(o.name == "scale gradients" for o in p.ops) for p in (plain, without)]
    assert passes[0] > 0 == passes[1]


@pytest.mark.parametrize(
    ("mesh", "message"),
    [(Mesh(dp=9), "does not divide 9"), (Mesh(dp=4, cp=2), "context or expert parallelism")],
)
def test_instances_that_cannot_be(mesh: Mesh, message: str) -> None:
    several = MegatronSettings(
        use_distributed_optimizer=True, num_distributed_optimizer_instances=2
    )
    with pytest.raises(ScenarioError, match=message):
        programs(job(mesh=mesh, megatron=several))


def test_user_buffers_move_as_much_and_hide_all_but_a_scatter_s_last_piece() -> None:
    """Transformer Engine's default methods: gathers on a ring, scatters in four pieces."""
    heads = {"num_attention_heads": 64, "num_key_value_heads": 8}
    wide = llama(hidden_size=8192, intermediate_size=28672, **heads)
    ring = replace(SHARDED, tp_comm_overlap=True)
    plain, hidden = (
        job(wide, mesh=Mesh(tp=8), megatron=m, gradient_accumulation_steps=1, micro_batch=8)
        for m in (SHARDED, ring)
    )
    moved = [volumes(programs(p)[0], "tp") for p in (plain, hidden)]
    assert moved[0] == moved[1]
    step_s = [simulate(p, cluster(1), simulation=Simulation()).step_ns[-1] for p in (plain, hidden)]
    assert 0.7 * step_s[0] < step_s[1] < 0.95 * step_s[0]
    blocks = [
        unit for p in (plain, hidden) for s in build_stages(p, ComputeModel(H100))[0].sections
        for unit in s.units if unit.modules[-1].name == "mlp.linear_fc2"
    ]  # fmt: skip
    before, after = blocks[0], blocks[-1]
    (whole,), (last,) = before.exchanges.after_forward, after.exchanges.after_forward
    assert last.size_bytes == whole.size_bytes // 4
    assert before.exchanges.before_backward
    assert not after.exchanges.before_backward


def test_user_buffers_are_one_per_exchange_of_a_layer() -> None:
    def buffers(p: TrainingPlan) -> int:
        (program,) = programs(p)
        return program.step_held[-1].get("communication", 0)

    ring = replace(SHARDED, tp_comm_overlap=True)
    assert buffers(job(mesh=Mesh(tp=4))) == 0
    # Gathered for two products and for their weight gradients, and two gradients of outputs;
    # scattered from two products and from two inputs' gradients.
    assert buffers(job(mesh=Mesh(tp=4), megatron=ring)) == 10 * TOKENS * HIDDEN * 2
    assert buffers(job(mesh=Mesh(), megatron=ring)) == 0


@pytest.mark.parametrize("exchange", ["a2a", "p2p", "all_gather"])
def test_context_parallelism_divides_the_sequence(exchange: str) -> None:
    settings = replace(SHARDED, cp_comm_type=exchange)
    alone, divided = (kept(job(mesh=Mesh(cp=cp, dp=4 // cp), megatron=settings)) for cp in (1, 4))
    # All-to-all keeps the core's output by heads and by positions.
    extra = LAYERS * TOKENS * HIDDEN * 2 / 4 if exchange == "a2a" else 0
    assert divided == pytest.approx(alone / 4 + extra, rel=1e-6)
    (program,) = programs(job(mesh=Mesh(cp=4), megatron=settings, gradient_accumulation_steps=1))
    q, kv = TOKENS * HIDDEN * 2 / 4, TOKENS * HIDDEN * KV // HEADS * 2 / 4
    expected = {
        "a2a": {"all_to_all": LAYERS * 2 * (2 * q + 2 * kv)},
        "p2p": {"all_gather": LAYERS * 2 * 8 * kv, "reduce_scatter": LAYERS * 8 * kv},
        "all_gather": {"all_gather": LAYERS * 2 * 8 * kv, "reduce_scatter": LAYERS * 8 * kv},
    }
    assert volumes(program, "cp") == expected[exchange]


def test_expert_parallelism_sends_each_token_to_its_experts_and_back() -> None:
    (program,) = programs(job(mixture(), mesh=Mesh(dp=8, ep=4), gradient_accumulation_steps=1))
    copies = 2 * TOKENS * HIDDEN * 2
    assert volumes(program, "ep") == {"all_to_all": LAYERS * 4 * copies}


def test_memory_of_the_distributed_optimizer() -> None:
    """Weights 2, gradient buffer 4, and 12 bytes of states shared by the ranks that hold it."""
    model = mixture()
    experts = sum(p.numel for _, p in model.parameters() if p.expert)
    dense = model.num_parameters - experts
    (program,) = programs(job(model, mesh=Mesh(dp=8, ep=4)))
    held = program.step_held[0]
    assert held["parameter"] == 2 * (dense + experts // 4)
    assert held["gradient"] == 4 * (dense + experts // 4)
    assert held["optimizer_state"] == pytest.approx(12 * (dense / 8 + experts / 4 / 2), rel=1e-6)


def step_ms(p: TrainingPlan, nodes: int = 1) -> float:
    """On hosts twice as fast as any, so that kernels and collectives decide."""
    where = cluster(nodes)
    (group,) = where.groups
    cpu = replace(group.node.cpu, single_thread=4.0)
    where = replace(where, groups=(replace(group, node=replace(group.node, cpu=cpu)),))
    return simulate(p, where, simulation=Simulation()).steady_step_ns / 1e6


def test_overlap_changes_when_not_what() -> None:
    options = {"overlap_grad_reduce": True, "ddp_bucket_size": 20_000_000}
    wide = llama(hidden_size=2048, intermediate_size=8192)
    late = job(wide, mesh=Mesh(dp=8), micro_batch=8, cuda_graphs=True)  # not bound by the host
    early = replace(late, megatron=replace(SHARDED, **options))
    ahead = replace(late, megatron=replace(SHARDED, **options, overlap_param_gather=True))
    times = [step_ms(p) for p in (late, early, ahead)]
    assert times[0] > times[1] > times[2]
    sums = [volumes(programs(p, steps=3)[0], "dp") for p in (late, early, ahead)]
    assert sums[0] == sums[1] == sums[2]


def test_interleaved_chunks_gather_their_weights_too() -> None:
    mesh = Mesh(pp=2, dp=4)
    p = job(llama(num_hidden_layers=4), mesh=mesh, gradient_accumulation_steps=4)
    cut = replace(p.pipeline, schedule="interleaved", virtual_stages=2)
    options = {"overlap_grad_reduce": True, "overlap_param_gather": True}
    late, ahead = (replace(p, pipeline=cut, megatron=replace(SHARDED, **m)) for m in ({}, options))
    sums = [
        [volumes(program, "dp")["all_gather"] for program in programs(q)] for q in (late, ahead)
    ]
    assert sums[0] == sums[1]
    assert min(sums[0]) > 0


def test_a_ranks_stages_are_gathered_one_ahead_and_on_all_ranks_at_once() -> None:
    """``param_sync_func``: two at the start, then a stage's when the one before it begins.

    On rank 1 a pass earlier: what it does then is a pass later than on rank 0.
    """
    p = job(llama(num_hidden_layers=8), mesh=Mesh(pp=2, dp=4), gradient_accumulation_steps=4)
    cut = replace(p.pipeline, schedule="interleaved", virtual_stages=4)
    ahead = replace(SHARDED, overlap_grad_reduce=True, overlap_param_gather=True)
    for rank, program in enumerate(programs(replace(p, pipeline=cut, megatron=ahead))):
        names = [op.name for op in program.ops]
        layers = [f"decoder.layers.{2 * chunk + rank}" for chunk in range(4)]
        first = [names.index(layer) for layer in layers]
        begun = [names[:at].count("all-gather weights") for at in first]
        assert begun == [2, 3, 4, 4]
        passes = [i for i, name in enumerate(names) if name in layers]
        third = [i for i, name in enumerate(names) if name == "all-gather weights"][2]
        assert sum(i < third for i in passes) == 2 - rank


@pytest.mark.parametrize(("limit", "late"), [(0, 4), (3, 3)])
def test_weight_gradients_of_the_output_layer_wait_for_the_end_of_a_step(
    limit: int, late: int
) -> None:
    """The same work and the same sums; the last stage does it while the first still goes back."""
    p = job(llama(num_hidden_layers=4), mesh=Mesh(pp=2, dp=4), gradient_accumulation_steps=4)
    options = {"overlap_grad_reduce": True, "overlap_param_gather": True}
    now = replace(p, megatron=replace(SHARDED, **options))
    m = replace(now.megatron, defer_embedding_wgrad_compute=True, wgrad_deferral_limit=limit)
    before, after = (programs(q) for q in (now, replace(now, megatron=m)))
    assert [volumes(q, "dp") for q in after] == [volumes(q, "dp") for q in before]
    assert [sum(op.flops for op in q.ops) for q in after] == pytest.approx(
        [sum(op.flops for op in q.ops) for q in before]
    )
    first, last = ([op.name for op in q.ops] for q in after)
    name = "output_layer weights"
    assert name not in first
    assert last.count(name) == late
    blocks = [i for i, n in enumerate(last) if n.startswith("decoder.layers")]
    assert last.index(name) > max(blocks)
    assert after[1].step_held == before[1].step_held


def test_a_long_head_is_hidden_in_the_pipelines_drain() -> None:
    """Its weight gradients are a third of what the last stage has more than the others."""
    wide = llama(num_hidden_layers=4, hidden_size=2048, vocab_size=128_000)
    p = job(wide, mesh=Mesh(pp=4), gradient_accumulation_steps=8, cuda_graphs=True)
    m = replace(SHARDED, defer_embedding_wgrad_compute=True)
    assert step_ms(replace(p, megatron=m)) < 0.95 * step_ms(p)


def test_recomputation_trades_memory_for_time() -> None:
    modes = [
        {"activation_checkpointing": "none"},
        {"activation_checkpointing": "selective"},
        {"activation_checkpointing": "full", "recompute_layers": 1},
        {"activation_checkpointing": "full", "recompute_layers": 2},
        {"activation_checkpointing": "full"},
    ]
    jobs = [job(mesh=Mesh(dp=8), **mode) for mode in modes]
    sizes = [kept(p) for p in jobs]
    assert sizes[0] > sizes[1] > sizes[2] > sizes[3] > sizes[4]
    # Of a fused core only the log-sum-exp goes: its output is the projection's input.
    assert sizes[0] - sizes[1] == LAYERS * TOKENS * HEADS * 4
    times = [step_ms(replace(p, micro_batch=16)) for p in jobs]
    assert times[0] < times[1]
    assert times[0] < times[2] < times[3] < times[4]


@given(
    pp=st.integers(1, 3), dp=st.integers(1, 4), cp=st.integers(1, 3), tp=st.integers(1, 3),
    data=st.data(),
)  # fmt: skip
def test_groups_partition_the_ranks(
    pp: int, dp: int, cp: int, tp: int, data: st.DataObject
) -> None:
    ep = data.draw(st.sampled_from([n for n in range(1, dp * cp + 1) if dp * cp % n == 0]))
    mesh = Mesh(pp=pp, dp=dp, cp=cp, tp=tp, ep=ep)
    everyone = range(mesh.world)
    assert [mesh.rank(mesh.coordinate(r)) for r in everyone] == list(everyone)
    sizes = {
        mesh.dp_group: dp * cp, mesh.tp_group: tp, mesh.cp_group: cp, mesh.pp_group: pp,
        mesh.ep_group: ep, mesh.expert_dp_group: dp * cp // ep, mesh.model_group: pp * tp,
    }  # fmt: skip
    for group, size in sizes.items():
        found = {group(mesh.coordinate(r)) for r in everyone}
        assert {len(g) for g in found} == {size}
        assert sorted(r for g in found for r in g) == list(everyone)
        assert all(r in group(mesh.coordinate(r)) for r in everyone)


@pytest.mark.parametrize(
    "mesh", [Mesh(dp=2, tp=2), Mesh(cp=2, tp=2), Mesh(dp=4, ep=2), Mesh(pp=2, dp=2)]
)
def test_one_rank_stands_for_its_equals(mesh: Mesh) -> None:
    p = job(mixture(num_hidden_layers=4), mesh=mesh, gradient_accumulation_steps=4)
    folded, exact = (
        simulate(p, cluster(1), simulation=Simulation(), exact=e).steady_step_ns
        for e in (False, True)
    )
    assert folded == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize(
    "case",
    [
        "llama3_70b_l12_tp8_pp1_dp1_mbc4_cef", "llama3_405b_l4_tp1_pp2_dp4_mbc8_cef",
        "deepseekv3_l4_tp1_ep8_pp1_dp8_mbc4_cef", "deepseekv2_tp1_ep4_pp2_dp4_l4_mbc8_cef",
        "llama3_405b_l4_tp2_cp4_pp1_dp1_seq32768_mbc4_cef",
    ],
)  # fmt: skip
def test_peaks_measured_on_b200(case: str) -> None:
    """SimuMax's own prediction is within 1.4 % on its rows; nothing here was fitted on them."""
    document = json.loads(B200.read_text(encoding="utf-8"))
    row = next(row for row in document["rows"] if row["case"] == case)
    for memory, measured in zip(play(document, row).memory, row["allocated_mib"], strict=True):
        assert memory.allocated_bytes / MIB == pytest.approx(measured, rel=0.011)
