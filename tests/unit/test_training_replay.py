"""Programs on the emulated allocator: tensors matched, peaks kept, running out explained."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest

from raysim.hardware import catalog
from raysim.training.allocator.caching import Allocator
from raysim.training.allocator.config import AllocatorConfig
from raysim.training.memory import peaks
from raysim.training.memory.need import memory_need
from raysim.training.memory.peaks import rank_memory
from raysim.training.memory.replay import TOUCHED, Player, replay, resolve
from raysim.training.program import Op, Program, ProgramBuilder
from raysim.training.settings.deepspeed import Optimizer, PipelineSettings, ZeroConfig
from raysim.training.settings.parallel import Mesh
from raysim.units import GIB, MIB
from raysim.workloads.whatif import smallest_fit
from tests.training_parts import cluster, llama, plan, programs

GPU = catalog.gpu("H100-SXM-80GB")
ALL = [
    {"engine": "ddp", "precision": "fp32"},
    {"engine": "ddp", "precision": "bf16", "optimizer": Optimizer(fused=False)},
    {"stage": 0, "precision": "fp16"},
    {"stage": 0, "precision": "fp16", "optimizer": Optimizer(fused=False)},
    {"stage": 0, "precision": "fp32"},
    {"stage": 1},
    {"stage": 1, "grad_accum_dtype": "fp32"},
    {"stage": 2},
    {"stage": 2, "zero": {"overlap_comm": True}},
    {"stage": 3},
    {"stage": 3, "activation_checkpointing": "full"},
    {"stage": 1, "mesh": Mesh(pp=2, dp=2, tp=2),
     "pipeline": PipelineSettings(stages=2, partition_method="uniform")},
]  # fmt: skip


def most_requested(program: Program) -> int:
    """In the last step: those before lack the states that it makes."""
    held = most = 0
    for i, event in enumerate(program.memory):
        held += event.delta_bytes
        if i >= program.step_changes[-2]:
            most = max(most, held)
    return most


@pytest.mark.parametrize("options", ALL)
def test_tensors_make_up_the_changes(options: dict[str, Any]) -> None:
    """Played once, live tensors are never less than the changes say, nor much more."""
    for program in programs(plan(**options), steps=2):
        trace = resolve(program)
        allocator = Allocator()
        played = replay(trace, allocator)
        assert played.failure is None
        most = most_requested(program)
        assert most <= allocator.peak_allocated_bytes <= allocator.peak_reserved_bytes
        blocks = sum(len(e.tensors) or 1 for e in program.memory if e.delta_bytes > 0)
        assert allocator.peak_allocated_bytes <= most * 1.02 + 512 * blocks + 4 * MIB
        moves = (*trace.initial, *trace.steps, *trace.last)
        taken = [m.tensor for m in moves if m.size_bytes and m.tensor != TOUCHED]
        assert len(set(taken)) == len(taken)
        given = [m.tensor for m in moves if not m.size_bytes]
        assert set(given) <= set(taken)
        assert len(set(given)) == len(given)


def test_playing_again_changes_nothing() -> None:
    (program,) = programs(plan(stage=2))
    trace = resolve(program)
    first, second = (replay(trace, Allocator()) for _ in range(2))
    assert first.allocator.peak_reserved_bytes == second.allocator.peak_reserved_bytes
    assert first.allocator.driver_calls == second.allocator.driver_calls


def test_states_that_the_first_step_makes_come_after_its_activations() -> None:
    """Before them, cached activations are all there is; a step later both are."""
    b = ProgramBuilder(0, launch_s=0.0)
    b.alloc("parameter", 40 * MIB, "weights")
    b.alloc("optimizer_state", 30 * MIB, "states", tensors=(10 * MIB, 20 * MIB), lazy=1)
    b.end_setup()
    b.alloc("activation", 50 * MIB, "layer")
    b.compute("layer", "forward", 1.0)
    b.free("activation", 50 * MIB, "layer")
    b.make_states()
    b.compute("AdamW", "optimizer", 1.0)
    b.end_step()
    played = replay(resolve(b.program), Allocator())
    # The states take 20 of the 50 MiB that the activation left; the next one needs its own 50.
    assert played.allocator.peak_reserved_bytes == (40 + 10 + 50 + 50) * MIB
    assert played.allocator.peak_allocated_bytes == (40 + 30 + 50) * MIB


def test_what_a_step_leaves_is_what_the_next_one_frees() -> None:
    """An output that is held until the next one is there needs two blocks, in every step."""
    b = ProgramBuilder(0, launch_s=0.0)
    b.end_setup()
    for step in range(2):
        b.alloc("logits", 30 * MIB, f"output of {step}")
        if step:
            b.free("logits", 30 * MIB, f"output of {step - 1}")
        b.compute("loss", "forward", 1.0)
        b.alloc("temporary", 60 * MIB, "loss")
        b.compute("loss", "backward", 1.0)
        b.free("temporary", 60 * MIB, "loss")
        b.end_step()
    trace = resolve(b.program)
    ((kept, freed),) = trace.carried
    assert kept != freed
    allocator = Allocator()
    player = Player(trace, allocator)
    player.play(trace.steps)
    for _ in range(3):
        player.play(trace.last)
        assert allocator.allocated_bytes == 30 * MIB
        player.carry()
    assert allocator.peak_allocated_bytes == (30 + 60) * MIB
    # The second step's output is the half of what the temporary left, which then needs its own.
    assert allocator.peak_reserved_bytes == (30 + 60 + 60) * MIB


def test_setting_up_leaves_its_copies_in_the_cache() -> None:
    """ZeRO flattens the weights: the scattered ones are cached, and serve gradients of their size.

    FP16_UnfusedOptimizer's master weights are one tensor each, FP16_Optimizer's one in all.
    """
    (program,) = programs(plan(llama(hidden=1024), stage=1))
    weights = [e for e in program.initial if e.label == "weights as built"]
    assert [e.delta_bytes > 0 for e in weights] == [True, False]
    assert weights[0].delta_bytes == 2 * llama(hidden=1024).num_parameters
    player = Player(resolve(program), Allocator())
    player.play(player.trace.initial)
    cached = player.allocator.reserved_bytes - player.allocator.allocated_bytes
    assert cached >= weights[0].delta_bytes
    kept = {}
    for fused in (True, False):
        (program,) = programs(plan(stage=0, precision="fp16", optimizer=Optimizer(fused=fused)))
        kept[fused] = next(e for e in program.initial if e.category == "optimizer_state")
    tensors = sum(1 for layer in llama().layers for _ in layer.body.parameters)
    assert (len(kept[True].tensors), len(kept[False].tensors)) == (3, 3 * tensors)
    assert kept[True].delta_bytes == kept[False].delta_bytes


def test_reserved_is_what_must_fit() -> None:
    (program,) = programs(plan(llama(hidden=1024), stage=3))
    memory = rank_memory(program, None, GPU, ())
    assert memory.requested_bytes <= memory.allocated_bytes <= memory.reserved_bytes
    assert memory.peak_bytes == memory.reserved_bytes + memory.outside_bytes
    assert sum(memory.by_category.values()) == memory.peak_bytes
    assert memory.out_of_memory is None
    assert memory.largest[0][2] == max(size for _, _, size in memory.largest)


def test_a_profile_may_say_the_share_instead() -> None:
    (program,) = programs(plan(stage=1))
    memory = rank_memory(program, None, GPU, (), slack_frac=0.5)
    assert memory.allocated_bytes == memory.requested_bytes
    assert memory.reserved_bytes == pytest.approx(1.5 * memory.requested_bytes, rel=1e-6)


def fits_in(program: Program, limit: int, config: AllocatorConfig | None = None) -> bool:
    return rank_memory(program, None, GPU, (), config=config, limit_bytes=limit).peak_bytes <= limit


def test_within_a_limit_cached_memory_is_given_back() -> None:
    """A little less than it would reserve is enough; less than its tensors is not."""
    (program,) = programs(plan(llama(hidden=1024), stage=1, micro_batch=8))
    free = rank_memory(program, None, GPU, ())
    least = free.allocated_bytes + free.outside_bytes
    assert least < free.peak_bytes
    tight = rank_memory(program, None, GPU, (), limit_bytes=free.peak_bytes - 1)
    assert tight.out_of_memory is None
    assert tight.retries > 0
    assert tight.peak_bytes < free.peak_bytes
    short = rank_memory(program, None, GPU, (), limit_bytes=least - 2 * MIB)
    assert short.out_of_memory is not None
    assert short.peak_bytes == free.peak_bytes


def test_what_tensors_alone_forbid_is_not_played_again_where_nobody_asks_why(monkeypatch) -> None:
    (program,) = programs(plan(llama(hidden=1024), stage=1, micro_batch=8))
    free = rank_memory(program, None, GPU, ())
    played = []
    monkeypatch.setattr(peaks, "replay", lambda *a, **k: played.append(a) or replay(*a, **k))
    tensors = free.requested_bytes + free.outside_bytes
    for limit, times in ((tensors - MIB, 1), (free.peak_bytes - 1, 2)):
        played.clear()
        quick = rank_memory(program, None, GPU, (), limit_bytes=limit, explain=False)
        assert len(played) == times
        assert quick.peak_bytes == rank_memory(program, None, GPU, (), limit_bytes=limit).peak_bytes


def test_a_compiled_program_is_no_cycle() -> None:
    """It goes when its last user does: thousands of operations are nothing for the collector."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        (program,) = programs(plan(llama(hidden=1024), stage=1))
        del program
        gc.collect()
        assert not [found for found in gc.garbage if isinstance(found, Op | Program)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_running_out_names_the_tensor_and_what_is_held() -> None:
    """A batch that fits nowhere: which allocation, during what, with what beside it."""
    model = llama(hidden=1024, seq_len=1024)
    (program,) = programs(plan(model, engine="ddp", precision="fp32", micro_batch=64))
    limit = 6 * GIB
    found = rank_memory(program, None, GPU, (), limit_bytes=limit).out_of_memory
    assert found is not None
    assert found.when.startswith("forward of")
    assert found.size_bytes <= found.asked_bytes
    assert found.free_bytes < found.asked_bytes
    held = sum(found.held.values())
    assert held <= found.allocated_bytes <= found.reserved_bytes
    assert found.reserved_bytes + found.outside_bytes + found.free_bytes == limit
    assert max(found.held, key=found.held.__getitem__) == "activation"
    asked = f"CUDA out of memory. Tried to allocate {found.asked_bytes / GIB:.2f} GiB."
    assert asked in found.message
    assert "total capacity of 6.00 GiB" in found.message
    assert "is reserved by PyTorch but unallocated" in found.message


def test_expandable_segments_are_tried_where_fragmentation_is_the_matter() -> None:
    """Between its tensors and its segments, the setting alone makes a job fit."""
    p = plan(llama(hidden=1024, seq_len=512), stage=1, micro_batch=8)
    where = cluster()
    (program,) = programs(p, where)
    free = rank_memory(program, None, GPU, ())
    expanding = AllocatorConfig(expandable_segments=True)
    less = rank_memory(program, None, GPU, (), config=expanding)
    assert less.peak_bytes < free.peak_bytes
    limits = (less.peak_bytes - part * 16 * MIB for part in range(16))
    tight = next(n for n in limits if not fits_in(program, n) and fits_in(program, n, expanding))
    first = smallest_fit(p, where, tight)[0]
    assert first.change.text == "expandable_segments:True"
    assert memory_need(first.change.plan, where, tight)[0] == first.peak_bytes <= tight


def test_changes_that_fit_come_with_their_peak() -> None:
    p = plan(engine="ddp", precision="fp32", micro_batch=64, gradient_accumulation_steps=1)
    limit = memory_need(p, cluster())[0] * 3 // 4
    effects = {e.change.text: e for e in smallest_fit(p, cluster(), limit)}
    assert any(text.startswith("micro ") for text in effects)
    assert "activation checkpointing" in effects
    assert all(e.fits and 0 < e.peak_bytes <= limit for e in effects.values())
    assert all(
        e.change.plan.samples_per_step == p.samples_per_step
        for text, e in effects.items() if "nodes" not in text
    )  # fmt: skip


def test_a_large_bucket_is_worth_shrinking() -> None:
    zero = {"reduce_bucket_size": 500_000_000}
    p = plan(stage=2, zero=zero)
    limit = memory_need(p, cluster())[0] - 500 * MIB
    texts = [e.change.text for e in smallest_fit(p, cluster(), limit)]
    assert "reduce_bucket_size 5e+07" in texts
    assert replace(p.zero, reduce_bucket_size=50_000_000) == ZeroConfig(
        stage=2, reduce_bucket_size=50_000_000
    )


def test_low_precision_gradients_go_and_the_accumulation_buffer_stays() -> None:
    """BF16_Optimizer clears what it folded in: more micro-batches take no more memory."""

    def peaks(micro_batches: int) -> list[int]:
        found = []
        for program in programs(
            plan(
                stage=1, grad_accum_dtype="fp32", mesh=Mesh(dp=4, pp=2),
                gradient_accumulation_steps=micro_batches,
            )
        ):  # fmt: skip
            trace = resolve(program)
            player = Player(trace, Allocator())
            player.play(trace.initial)
            buffer = player.held()["gradient"]
            for _ in range(2):
                player.play(trace.last)
                assert player.held()["gradient"] == buffer
            found.append(player.allocator.peak_allocated_bytes)
        return found

    assert peaks(2) == peaks(3) == peaks(8)
