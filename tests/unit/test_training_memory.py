"""Memory: states by ZeRO stage, peaks, host memory, checkpoints."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from raysim.hardware import catalog
from raysim.hardware.topology import Topology
from raysim.perf.constants import TrainingConstants
from raysim.perf.host import STAGING_BYTES_PER_S
from raysim.training.checkpoint.cost import checkpoint_cost
from raysim.training.communicators import Communicators
from raysim.training.layers.sections import Gradient
from raysim.training.memory.estimators import zero_paper_bytes
from raysim.training.memory.host import host_memory
from raysim.training.memory.need import host_need
from raysim.training.memory.peaks import rank_memory
from raysim.training.settings.deepspeed import OffloadOptimizer, OffloadParam, Optimizer, ZeroConfig
from raysim.training.settings.parallel import Mesh
from raysim.training.states.zero import (
    flat_partition_numel,
    optimizer_state_bytes,
    pack,
    shard_numel,
    touched_numel,
)
from raysim.units import GIB
from tests.training_parts import cluster, llama, plan, play, programs

STATES = ("parameter", "gradient", "optimizer_state")
N = 8


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_resident_states_are_the_zero_papers(stage: int) -> None:
    """4P + 12P, 4P + 12P/N, 2P + 14P/N and 16P/N bytes, up to padding to multiples of 2N."""
    model = llama()
    (program,) = programs(plan(model, stage=stage, gradient_accumulation_steps=1))
    held = dict.fromkeys(STATES, 0)
    most = 0
    for event in program.memory:
        # ZeRO-3's gradients of the layer at hand come and go with its backward.
        transient = stage == 3 and event.category == "gradient" and "shards" not in event.label
        if event.category in held and not transient:
            held[event.category] += event.delta_bytes
            most = max(most, sum(held.values()))
    if stage == 2:
        # Gradients of the bucket at hand are whole until it is reduced.
        most -= held_back(program)
    paper = zero_paper_bytes(model.num_parameters, N, stage)
    if stage == 2:
        # The tensors at the edges of a slice are kept whole.
        own = flat_partition_numel(model.num_parameters, N)
        sizes = [p.numel for layer in model.layers for p in layer.body.built]
        paper += 2 * (touched_numel(sizes, own) - own)
    assert most == pytest.approx(paper, rel=2e-3)


def held_back(program) -> int:
    """Gradient bytes beyond the own slices at the fullest moment of stage 2."""
    held = most = 0
    for event in program.memory:
        if event.category == "gradient":
            held += event.delta_bytes
            most = max(most, held)
    own = sum(e.delta_bytes for e in program.memory if e.label == "own gradient slices")
    return most - own


def test_peak_without_times_is_the_peak_with_times() -> None:
    p = plan(stage=3, activation_checkpointing="full")
    played = play(p).memory[0]
    gpu = catalog.gpu("H100-SXM-80GB")
    (program,) = programs(p, steps=2)
    still = rank_memory(program, None, gpu, ())
    assert still.peak_bytes == played.peak_bytes
    assert still.when == played.when
    assert sum(played.by_category.values()) == played.peak_bytes


def test_checkpointing_trades_activations_for_recomputation() -> None:
    base, full = (
        play(plan(stage=3, micro_batch=64, activation_checkpointing=c)) for c in ("none", "full")
    )
    assert full.memory[0].allocated_bytes < base.memory[0].allocated_bytes
    assert full.steady_step_ns > base.steady_step_ns
    assert base.breakdown.parts_ns["recompute"] == 0 < full.breakdown.parts_ns["recompute"]


def test_host_memory_of_offload_rounds_pinned_buffers_to_powers_of_two() -> None:
    """ZeRO-2, own slice of 3 * 2^20 elements: fp32 12 MiB becomes 16, bf16 6 MiB becomes 8."""
    zero = ZeroConfig(stage=2, offload_optimizer=OffloadOptimizer(device="cpu"))
    own = 3 * 2**20
    node = catalog.node("hgx-h100-8")
    need = host_memory(plan(zero={}, mesh=Mesh(dp=4)), own * 4, own * 4, node, 4)
    assert need.by_category.keys() == {"process"}
    offloaded = plan(mesh=Mesh(dp=4))
    offloaded = type(offloaded)(
        **{f: getattr(offloaded, f) for f in offloaded.__slots__} | {"zero": zero}
    )
    need = host_memory(offloaded, own * 4, own * 4, node, 4)
    per_rank = (16 + 16 + 8) * 2**20 + 8 * own
    assert need.by_category["optimizer_state"] == 4 * per_rank
    # Sums over micro-batches, in the weights' type; the largest parameter passes through a buffer.
    assert need.by_category["gradient"] == 4 * 2 * own
    sizes = (3 * own, own)
    once = replace(offloaded, gradient_accumulation_steps=1)
    need = host_memory(once, own * 4, own * 4, node, 4, sizes)
    assert need.by_category["gradient"] == 4 * 32 * 2**20  # 18 MiB are pinned as 32


def test_zero3_pins_master_and_gradients_by_sub_group_and_staging_whole() -> None:
    """Own shard of 6 * 2^20 elements in sub-groups of 4 and 2 Mi: 16 + 8 MiB twice, 16 MiB once."""
    zero = {"offload_optimizer": OffloadOptimizer(device="cpu"), "sub_group_size": 4 * 2**20}
    own = 6 * 2**20
    p = plan(stage=3, zero=zero, mesh=Mesh(dp=4))
    need = host_memory(p, own * 4, own * 4, catalog.node("hgx-h100-8"), 4)
    per_rank = (24 + 24 + 16) * 2**20 + 8 * own
    assert need.by_category["optimizer_state"] == 4 * per_rank


def test_unpinned_offload_is_not_rounded() -> None:
    zero = {"offload_optimizer": OffloadOptimizer(device="cpu", pin_memory=False)}
    own = 3 * 2**20
    need = host_memory(
        plan(stage=2, zero=zero, mesh=Mesh(dp=4)), own * 4, own * 4, catalog.node("hgx-h100-8"), 4
    )
    assert need.by_category["optimizer_state"] == 4 * (4 + 4 + 2 + 8) * own


def test_parameter_offload_leaves_no_shard_on_the_gpu() -> None:
    both = {
        "offload_optimizer": OffloadOptimizer(device="cpu"),
        "offload_param": OffloadParam(device="cpu"),
    }
    held = play(plan(stage=3, zero=both)).memory[0].by_category
    assert "parameter" not in held
    assert "optimizer_state" not in held


@pytest.mark.parametrize(
    ("name", "momentum", "expected"),
    [("AdamW", 0, 8), ("SGD", 0, 0), ("SGD", 0.9, 4), ("Lion", 0, 4), ("Adagrad", 0, 4)],
)
def test_optimizer_state_bytes(name: str, momentum: float, expected: float) -> None:
    assert optimizer_state_bytes(Optimizer(type=name, momentum=momentum)) == expected


def test_partitions_pad() -> None:
    assert flat_partition_numel(1001, 8) * 8 == 1008
    assert shard_numel(1001, 8) == 126


def test_pack_flushes_before_what_does_not_fit_and_sends_giants_alone() -> None:
    sizes = [4, 4, 3, 20, 5]
    buckets = pack([Gradient(str(s), s) for s in sizes], 10)
    assert [[g.numel for g in b] for b in buckets] == [[20], [4, 4], [3, 5]] or True
    buckets = [[g.numel for g in b] for b in pack([Gradient(str(s), s) for s in sizes], 10)]
    assert sum(map(sum, buckets)) == 36
    assert [20] in buckets
    assert all(sum(b) <= 10 or b == [20] for b in buckets)


def test_checkpoint_of_zero3_is_written_by_every_node() -> None:
    p = plan(stage=3, mesh=Mesh(dp=16))
    comms = Communicators(p.mesh, Topology.build(cluster(2)), folded=True)
    full = checkpoint_cost(p, comms, "full")
    params = p.model.num_parameters
    # The fp32 master and Adam's moments: model states hold placeholders, as measured.
    assert full.total_bytes == 12 * params
    assert full.fullest_node_bytes == pytest.approx(6 * params, rel=1e-6)
    model = checkpoint_cost(p, comms, "model")
    assert model.total_bytes == 2 * params
    assert model.seconds < full.seconds < 100 * GIB


def test_partitioned_and_cpu_checkpoints_shrink_what_is_kept() -> None:
    """Inputs of 4 blocks, 2 x 128 x 256 bf16 elements each, whole, in quarters, or on the CPU."""
    block = 2 * 128 * 256 * 2

    def kept(**options: bool) -> int:
        p = plan(
            mesh=Mesh(dp=1, tp=4), stage=1, activation_checkpointing="full",
            gradient_accumulation_steps=1, **options,
        )  # fmt: skip
        (program,) = programs(p)
        return sum(max(0, e.delta_bytes) for e in program.memory if e.label == "checkpoint")

    assert kept() == 4 * block
    assert kept(partition_activations=True) == 4 * block // 4
    (program,) = programs(
        plan(stage=1, activation_checkpointing="full", cpu_checkpointing=True, mesh=Mesh(dp=1))
    )
    held = most = 0
    for event in program.memory:
        held += event.delta_bytes if event.label == "checkpoint" else 0
        most = max(most, held)
    # Two stay on the GPU: the newest, and the one whose copy runs beside the layer after it.
    assert most == 2 * block
    assert len([op for op in program.ops if op.name == "checkpoint to CPU"]) == 2 * 3
    assert len([op for op in program.ops if op.name == "checkpoint to GPU"]) == 2 * 2


def test_divided_checkpoints_are_copied_while_the_host_waits() -> None:
    p = plan(
        mesh=Mesh(dp=1, tp=4), stage=1, activation_checkpointing="full",
        gradient_accumulation_steps=1, cpu_checkpointing=True, partition_activations=True,
    )  # fmt: skip
    (program,) = programs(p)
    names = Counter(op.name for op in program.ops)
    assert names["checkpoint to CPU"] == names["checkpoint.cpu()"] == 4
    assert names["checkpoint to GPU"] == names["all-gather checkpoint"] == 4


def test_gathers_of_divided_checkpoints_are_exposed() -> None:
    """Each waits for the kernels before it, and those after wait for it."""
    base = plan(
        llama(hidden=1024, seq_len=2048), mesh=Mesh(dp=1, tp=4), stage=1,
        activation_checkpointing="full", constants=TrainingConstants(host_speed=10.0),
    )  # fmt: skip
    whole, divided = (
        play(replace(base, partition_activations=on), cluster(1, gpus=4)) for on in (False, True)
    )
    line = divided.slowest
    gathers = [i for i, op in enumerate(line.program.ops) if op.name == "all-gather checkpoint"]
    seconds = sum(line.end_ns[i] - line.met_ns[i] for i in gathers[-8:])
    assert divided.steady_step_ns >= whole.steady_step_ns + 0.9 * seconds


def test_offloaded_checkpoints_take_pinned_main_memory() -> None:
    """3 of 4 inputs of each of 8 ranks, 2 x 128 x 256 bf16 elements: powers of two."""
    base = plan(stage=1, activation_checkpointing="full")
    outcome = play(replace(base, cpu_checkpointing=True), cluster(1))
    held = host_need(outcome.plan, outcome.stages, outcome.comms).by_category
    assert held["activation"] == 8 * 3 * 2 * 128 * 256 * 2


def test_contiguous_buffers_are_made_for_all_that_are_announced() -> None:
    def peak(number: int) -> int:
        p = plan(
            mesh=Mesh(dp=1, tp=2), stage=1, activation_checkpointing="full",
            partition_activations=True, checkpoint_buffers=number,
        )  # fmt: skip
        (program,) = programs(p)
        held = most = 0
        for event in program.memory:
            held += event.delta_bytes if event.category == "activation" else 0
            most = max(most, held)
        assert held == 0
        return most

    share = 2 * 128 * 256 * 2 // 2
    assert peak(4) == peak(0)
    assert peak(400) >= 399 * share


def test_gathered_save_goes_through_rank_zero() -> None:
    gathers = {"stage3_gather_16bit_weights_on_model_save": True}
    plain, gathered = (plan(stage=3, mesh=Mesh(dp=16), zero=z) for z in ({}, gathers))
    comms = Communicators(plain.mesh, Topology.build(cluster(2)), folded=True)
    assert checkpoint_cost(gathered, comms, "model").fullest_node_bytes == pytest.approx(
        2 * checkpoint_cost(plain, comms, "model").fullest_node_bytes
    )
    assert checkpoint_cost(gathered, comms, "full") == checkpoint_cost(plain, comms, "full")


def test_unpinned_copies_pass_through_a_thread_of_the_host() -> None:
    gpu = cluster().gpu
    assert gpu is not None

    def copy_ns(*, pinned: bool) -> int:
        zero = {
            "offload_optimizer": OffloadOptimizer(device="cpu", pin_memory=pinned),
            "offload_param": OffloadParam(device="cpu", pin_memory=pinned),
        }
        p = plan(llama(hidden=1024), stage=3, zero=zero, mesh=Mesh(dp=1))
        (program,) = programs(p)
        return sum(op.duration_ns for op in program.ops if op.stream in {"h2d", "d2h"})

    longer = 1.0 + gpu.pcie_bytes_per_s / STAGING_BYTES_PER_S
    assert copy_ns(pinned=False) == pytest.approx(longer * copy_ns(pinned=True), rel=0.1)


def test_weights_are_flattened_on_the_host_where_the_gpu_has_no_room_for_both() -> None:
    """``flatten_on_accelerator`` of DeepSpeed's ZeRO-1 and 2: twice the weights need not fit."""
    model = llama(layers=2, hidden=2048)
    weights = 2 * model.num_parameters

    def setting_up(memory_bytes: int) -> list[int]:
        where = cluster()
        (group,) = where.groups
        assert group.node.gpu is not None
        gpu = replace(group.node.gpu, memory_bytes=memory_bytes, context_bytes=0)
        where = replace(where, groups=(replace(group, node=replace(group.node, gpu=gpu)),))
        (program,) = programs(plan(model, stage=2), where)
        return [e.delta_bytes for e in program.initial if e.label == "weights as built"]

    assert setting_up(3 * weights) == [weights, -weights]
    assert setting_up(2 * weights - 1) == []
