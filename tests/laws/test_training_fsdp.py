"""Closed forms of FSDP: volumes, states, how much is whole at a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest

from raysim.errors import ScenarioError
from raysim.hardware import catalog
from raysim.models.four_bit import in_four_bits
from raysim.models.huggingface import build
from raysim.models.lora import LoraConfig, adapted
from raysim.perf.compute import ComputeModel
from raysim.training.engines.fsdp import REDUCE
from raysim.training.plan import TrainingPlan
from raysim.training.program import COMPUTE, Program
from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.stages import build_stages
from raysim.training.states.wrapping import make_groups, padded_numel
from tests.training_parts import cluster, llama, plan, play, programs

MIXED: dict[str, Any] = {"param_dtype": "bf16", "reduce_dtype": "bf16"}
RANKS = 8
MODEL = llama()
PSI = MODEL.num_parameters


def fsdp(version: int = 2, *, ranks: int = RANKS, ga: int = 1, **settings: Any) -> TrainingPlan:
    """FSDP in mixed precision over fp32 shards; the model's rows all divide by eight."""
    given = FsdpSettings(version=version, **MIXED | settings)  # type: ignore[arg-type]
    return plan(
        MODEL, engine="fsdp", fsdp=given, precision="fp32", mesh=Mesh(dp=ranks),
        gradient_accumulation_steps=ga, gradient_clipping=0.0,
    )  # fmt: skip


def moved(p: TrainingPlan) -> dict[tuple[str, str], int]:
    """Bytes of whole buffers by operation and communicator in the second step."""
    (program,) = programs(p, steps=2)
    found: Counter[tuple[str, str]] = Counter()
    for op in program.ops[program.step_ends[0] :]:
        if op.call is not None:
            found[op.call.op, op.call.group] += op.call.size_bytes
    return dict(found)


def blocks() -> int:
    """Elements of all decoder layers; the rest is the root's."""
    return sum(layer.body.numel for layer in MODEL.layers if layer.kind == "block")


@pytest.mark.parametrize("version", [1, 2])
def test_a_step_gathers_twice_and_scatters_once(version: int) -> None:
    """2 bytes each; only the root is not gathered a second time: 2 psi + 2 psi + 2 psi."""
    assert moved(fsdp(version)) == {
        ("all_gather", "dp"): 2 * PSI + 2 * blocks(),
        ("reduce_scatter", "dp"): 2 * PSI,
    }


def test_the_volume_is_zero_3s_once_the_root_frees_too() -> None:
    """ZeRO-3 without reuse, persistence or a prefetch that skips: everything twice."""
    zero = {
        "stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 0,
        "stage3_prefetch_bucket_size": 0,
    }  # fmt: skip
    p = plan(MODEL, stage=3, zero=zero, gradient_accumulation_steps=1)
    theirs = moved(p)
    ours = moved(fsdp(root_reshard_after_forward=True))
    assert ours["reduce_scatter", "dp"] == theirs["reduce_scatter", "dp"]
    assert ours["all_gather", "dp"] == theirs["all_gather", "dp"]


@pytest.mark.parametrize(
    ("version", "stay"),
    [(1, {"sharding_strategy": "SHARD_GRAD_OP"}), (2, {"reshard_after_forward": False})],
)
def test_parameters_that_stay_are_gathered_once(version: int, stay: dict[str, Any]) -> None:
    assert moved(fsdp(version, **stay)) == {
        ("all_gather", "dp"): 2 * PSI, ("reduce_scatter", "dp"): 2 * PSI,
    }  # fmt: skip


DOWN = frozenset(n for n, _ in MODEL.parameters() if n.endswith("down_proj.weight"))
K = sum(p.numel for n, p in MODEL.parameters() if n in DOWN)


@pytest.mark.parametrize("version", [1, 2])
def test_ignored_parameters_are_whole_and_not_reduced(version: int) -> None:
    """Of torch's on a fake group of four: neither gathered nor scattered, gradients as they are."""
    p = fsdp(version, ignored=DOWN, ga=2)
    sharded, in_blocks = PSI - K, blocks() - K
    assert moved(p) == {
        ("all_gather", "dp"): 2 * (2 * sharded + 2 * in_blocks),
        ("reduce_scatter", "dp"): 2 * sharded,
    }
    (program,) = programs(p, steps=2)
    held = 4 * (sharded // RANKS + K)
    assert program.step_held[-1] == {"parameter": held, "optimizer_state": 2 * held}


def test_another_dimension_than_the_first_takes_a_pass_more_each_way() -> None:
    """``torch.cat`` behind each copy out and before each copy in, of those parameters."""
    p, (plain,) = fsdp(shard_dims=tuple((n, 1) for n in DOWN)), programs(fsdp(), steps=2)
    assert moved(p) == moved(fsdp())
    (program,) = programs(p, steps=2)
    second = program.ops[program.step_ends[0] :]
    more = [op for op in second if op.name in ("join parts", "cut gradients")]
    assert len(second) - len(more) == len(plain.ops) - plain.step_ends[0]
    count = len(DOWN)
    assert Counter(op.name for op in more) == {"join parts": 2 * count, "cut gradients": count}
    assert program.step_held == plain.step_held


@pytest.mark.parametrize("version", [1, 2])
def test_hybrid_sharding_reduces_shards_over_replicas(version: int) -> None:
    """Gathers and scatters within four ranks; a quarter of the gradients crosses."""
    hybrid: dict[str, Any] = {"replicas": 2}
    if version == 1:
        hybrid["sharding_strategy"] = "HYBRID_SHARD"
    assert moved(fsdp(version, **hybrid)) == {
        ("all_gather", "dp_shard:4"): 2 * PSI + 2 * blocks(),
        ("reduce_scatter", "dp_shard:4"): 2 * PSI,
        ("all_reduce", "dp_replicate:4"): 2 * PSI // 4,
    }


def test_resharding_to_fewer_ranks_gathers_backward_within_them() -> None:
    assert moved(fsdp(reshard_after_forward=2)) == {
        ("all_gather", "dp"): 2 * PSI,
        ("all_gather", "dp_shard:2"): 2 * blocks(),
        ("reduce_scatter", "dp"): 2 * PSI,
    }


@pytest.mark.parametrize("version", [1, 2])
def test_without_sync_only_the_last_micro_batch_scatters(version: int) -> None:
    assert moved(fsdp(version, ga=4)) == {
        ("all_gather", "dp"): 4 * (2 * PSI + 2 * blocks()), ("reduce_scatter", "dp"): 2 * PSI,
    }  # fmt: skip
    every = moved(fsdp(version, ga=4, sync_every_micro_batch=True))
    assert every["reduce_scatter", "dp"] == 4 * 2 * PSI


def held(program: Program) -> list[dict[str, int]]:
    """Bytes by category after every change."""
    now: dict[str, int] = defaultdict(int)
    found = []
    for event in program.memory:
        now[event.category] += event.delta_bytes
        found.append(dict(now))
    return found


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("ranks", [2, 8])
def test_states_are_16_bytes_per_parameter_and_rank(version: int, ranks: int) -> None:
    """fp32 shards and gradients and two moments: no separate master copy."""
    (program,) = programs(fsdp(version, ranks=ranks), steps=2)
    assert program.step_held[-1] == {
        "parameter": 4 * PSI // ranks, "optimizer_state": 8 * PSI // ranks,
    }  # fmt: skip
    begins = next(i for i in range(program.step_ends[0], len(program.ops))
                  if program.ops[i].category == "optimizer")  # fmt: skip
    gradients = sum(
        e.delta_bytes
        for e, at in zip(program.memory, program.memory_at, strict=True)
        if e.category == "gradient" and at <= begins
    )
    assert gradients == 4 * PSI // ranks


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_never_more_than_three_groups_are_whole(version: int, checkpointing: Any) -> None:
    """The root, the block that runs, the block fetched ahead; FSDP2's is still a flat buffer."""
    p = replace(fsdp(version), activation_checkpointing=checkpointing)
    groups = make_groups(MODEL, units(p), p.fsdp)
    root, block = (2 * padded_numel(g.tensors, RANKS) for g in groups[:2])
    (program,) = programs(p, steps=2)
    whole = max(h.get("gathered_parameter", 0) for h in held(program))
    assert whole == root + (1 if version == 2 else 2) * block
    # All-gather outputs of two groups, one of them read; or an input and an output to reduce.
    assert max(h.get("communication", 0) for h in held(program)) <= 2 * max(root, block) + block


def units(p: TrainingPlan) -> Any:
    from raysim.perf.compute import ComputeModel
    from raysim.training.stages import build_stages
    from tests.training_parts import cluster

    gpu = cluster().gpu
    assert gpu is not None
    return build_stages(p, ComputeModel(gpu))[0].units


@pytest.mark.parametrize("version", [1, 2])
def test_more_replicas_hold_more_and_offload_holds_nothing(version: int) -> None:
    strategy: dict[str, Any] = {"sharding_strategy": "HYBRID_SHARD"} if version == 1 else {}
    (hybrid,) = programs(fsdp(version, replicas=4, **strategy), steps=2)
    assert hybrid.step_held[-1]["parameter"] == 4 * PSI // 2
    (offloaded,) = programs(fsdp(version, cpu_offload=True), steps=2)
    assert offloaded.step_held[-1] == {}


@pytest.mark.parametrize("version", [1, 2])
def test_one_rank_stands_for_all_in_hybrid_sharding(version: int) -> None:
    strategy: dict[str, Any] = {"sharding_strategy": "HYBRID_SHARD"} if version == 1 else {}
    p = fsdp(version, ranks=16, ga=2, replicas=2, **strategy)
    folded, exact = play(p), play(p, exact=True)
    assert folded.steady_step_ns == pytest.approx(exact.steady_step_ns, rel=1e-9)


def test_backward_prefetch_hides_gathers_and_the_rate_limiter_holds_the_host() -> None:
    ahead, late = (
        play(fsdp(1, backward_prefetch=when)).steady_step_ns for when in ("BACKWARD_PRE", None)
    )
    assert ahead <= late
    (limited,) = programs(fsdp(1), steps=2)
    (free,) = programs(fsdp(1, limit_all_gathers=False), steps=2)
    assert any(op.name == "rate limiter" for op in limited.ops)
    assert not any(op.name == "rate limiter" for op in free.ops)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"replicas": 3}, "do not divide 8"), ({"reshard_after_forward": 3}, "not a factor of 8")],
)
def test_impossible_layouts_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        programs(fsdp(**settings))


def recomputed_flops(p: TrainingPlan) -> float:
    """Of the second step."""
    (program,) = programs(p, steps=2)
    ops = program.ops[program.step_ends[0] :]
    return sum(op.flops for op in ops if op.category == "recompute")


def test_recomputing_stops_before_each_blocks_last_product() -> None:
    """Its input is what it keeps, so torch's non-reentrant checkpoints do not run it again."""
    full = replace(fsdp(), activation_checkpointing="full")
    older = replace(full, reentrant_checkpoints=True)
    layers = [layer for layer in MODEL.layers if layer.kind == "block"]
    whole = sum(o.flops for layer in layers for o in layer.body.operators)
    products = [o for layer in layers for o in layer.body.operators if o.gemm]
    last = sum(o.flops for o in products if o.name == "mlp.down_proj")
    assert recomputed_flops(older) == pytest.approx(whole * full.micro_batch)
    assert recomputed_flops(full) == pytest.approx((whole - last) * full.micro_batch)


def test_a_mask_that_is_kept_must_be_made_again() -> None:
    """GPT-2's block ends with a dropout: the last product makes what it masks."""
    config = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_head": 4,
        "n_layer": 2, "n_positions": 32,
    }  # fmt: skip
    found = {}
    for dropout in (0.0, 0.1):
        model = build({**config, "resid_pdrop": dropout}, seq_len=32)
        sections = build_stages(
            replace(fsdp(), model=model, activation_checkpointing="full"),
            ComputeModel(catalog.gpu("H100-SXM-80GB")),
        )[0].sections
        units = [u for s in sections if s.checkpointed for u in s.units]
        found[dropout] = [u.name.rpartition(".")[2] for u in units if u.again.seconds < u.forward_s]
    assert found == {0.0: ["c_proj", "0", "c_proj", "1"], 0.1: ["0", "1"]}


def test_collectives_take_their_sms_from_compute() -> None:
    """As much of the compute stream as blocks of all SMs, one by one."""
    (program,) = programs(fsdp(), steps=2)
    held = [op for op in program.ops if op.name == "SMs held by NCCL"]
    calls = [op for op in program.ops if op.call is not None and op.call.size_bytes > 64]
    assert len(held) == len(calls)
    assert all(op.duration_ns > 0 and not op.host_ns for op in held)
    (alone,) = programs(fsdp(ranks=1), steps=2)
    assert not [op for op in alone.ops if op.name == "SMs held by NCCL"]


@pytest.mark.parametrize(
    ("version", "ranks", "settings", "passes"),
    [
        (1, 8, {"reduce_dtype": "fp32"}, {"cast and pad": 6, "divide gradients": 8 + 8 / 8}),
        (1, 8, {}, {"divide gradients": 4 + 4 / 8}),
        (1, 2, {}, {"divide gradients": 4}),  # by 2 before, by 1 after
        (2, 8, {"reduce_dtype": "fp32"}, {}),  # NCCL's average
        (2, 8, {"reduce_dtype": "fp16"}, {"divide gradients": 4 + 4 / 8}),
    ],
)
def test_passes_beside_compute_take_its_time(
    version: int, ranks: int, settings: dict[str, Any], passes: dict[str, float]
) -> None:
    """Bytes per parameter of ``_post_backward_hook`` and ``foreach_reduce`` of torch 2.13."""
    where = cluster()
    assert where.gpu is not None
    costs = ComputeModel(where.gpu)
    (program,) = programs(fsdp(version, ranks=ranks, **settings), where)
    for name in ("cast and pad", "divide gradients"):
        beside = [op for op in program.ops if op.name == name]
        taken = [op for op in program.ops if op.name == f"GPU taken to {name}"]
        assert [op.duration_ns for op in taken] == [op.duration_ns for op in beside]
        assert {op.stream for op in taken} <= {COMPUTE}
        assert {op.stream for op in beside} <= {REDUCE}
        kernels_s = costs.memory_s(0.0, kernels=len(beside))
        seconds = sum(op.duration_ns for op in beside) * 1e-9 - kernels_s
        expected = costs.memory_s(passes.get(name, 0) * PSI, kernels=0)
        assert seconds == pytest.approx(expected, rel=1e-3, abs=1e-9)


def adapters(
    version: int, *, four_bits: bool = False, ga: int = 1, **settings: Any
) -> TrainingPlan:
    """LoRA of rank 8 on queries, all in 16 bits, on two ranks."""
    model = in_four_bits(llama(), double=False) if four_bits else llama()
    given = FsdpSettings(version=version, **settings)  # type: ignore[arg-type]
    return plan(
        adapted(model, LoraConfig(r=8, target_modules=("q_proj",))), engine="fsdp", fsdp=given,
        mesh=Mesh(dp=2), gradient_accumulation_steps=ga, gradient_clipping=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("version", [1, 2])
def test_four_bit_weights_are_kept_and_gathered_as_four_bits(version: int) -> None:
    """Half a byte of each linear weight; a scale in fp32 for 64 weights whole on each rank."""
    wide, narrow = (programs(adapters(version, four_bits=four))[0] for four in (False, True))
    linear = sum(p.numel for n, p in MODEL.parameters() if "_proj" in n)
    spared = linear * 1.5
    stored = [p.step_held[-1]["parameter"] for p in (wide, narrow)]
    assert stored[0] - stored[1] == pytest.approx(spared / 2 - linear * 4 / 64, rel=1e-3)
    sent = [sum(c.size_bytes for c in p.calls() if c.op == "all_gather") for p in (wide, narrow)]
    assert sent[0] - sent[1] == pytest.approx(2 * spared, rel=1e-3)


def test_a_flat_parameter_of_frozen_and_trained_has_a_gradient_of_both() -> None:
    """Watched on two gloo ranks of torch 2.13: after no_sync as long as the whole flat parameter.

    The optimizer has states of trained elements alone either way.
    """
    together = {"use_orig_params": True, "trained_apart": False}
    apart, mixed = (programs(adapters(1, ga=2, **settings))[0] for settings in ({}, together))
    most = [max(state.get("gradient", 0) for state in held(p)) for p in (apart, mixed)]
    trained = 4 * 8 * 2 * 256
    assert most[0] < 4 * trained * 2
    assert blocks() * 2 < most[1] < 1.3 * blocks() * 2  # and one block's as it is made
    states = [p.step_held[-1]["optimizer_state"] for p in (apart, mixed)]
    assert states[1] == pytest.approx(states[0], rel=0.02)


def test_trained_and_frozen_do_not_flatten_without_original_parameters() -> None:
    with pytest.raises(ScenarioError, match="refuses without use_orig_params"):
        programs(adapters(1, trained_apart=False))
