"""Programs: what each engine emits, and that memory taken is given back."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.errors import ScenarioError
from raysim.training.pipeline.schedule import num_pipe_buffers
from raysim.training.plan import DdpSettings, InternEvoSettings
from raysim.training.program import COMPUTE, Call, Kind, Program, ProgramBuilder
from raysim.training.settings.deepspeed import OffloadOptimizer, OffloadParam, PipelineSettings
from raysim.training.settings.parallel import Coordinate, Mesh
from tests.training_parts import cluster, llama, plan, play, programs

ENGINES = {
    "ddp": {"engine": "ddp"},
    "ddp autocast": {
        "engine": "ddp",
        "precision": "fp32",
        "ddp": DdpSettings(autocast="fp16"),
        "activation_checkpointing": "full",
    },
    "zero0": {"stage": 0},
    "zero0 fp16": {"stage": 0, "precision": "fp16"},
    "zero1": {"stage": 1},
    "zero1 overlap": {"stage": 1, "zero": {"overlap_comm": True}},
    "zero1 bf16 optimizer": {"stage": 1, "grad_accum_dtype": "fp32"},
    "zero2": {"stage": 2},
    "zero2 overlap": {"stage": 2, "zero": {"overlap_comm": True}},
    "zero2 offload": {"stage": 2, "zero": {"offload_optimizer": OffloadOptimizer(device="cpu")}},
    "zero3": {"stage": 3},
    "zero3 no overlap": {"stage": 3, "zero": {"overlap_comm": False}},
    "zero3 offload": {
        "stage": 3,
        "zero": {
            "offload_optimizer": OffloadOptimizer(device="cpu"),
            "offload_param": OffloadParam(device="cpu"),
        },
    },
    "zero3 checkpointing": {"stage": 3, "activation_checkpointing": "full"},
    "zero3 gathers apart": {"stage": 3, "separate_gathers": True},
    "internevo": {"engine": "internevo"},
    "internevo over all ranks": {"engine": "internevo", "internevo": InternEvoSettings(zero1=-1)},
    "zero1 synchronized checkpoints": {
        "stage": 1,
        "activation_checkpointing": "full",
        "synchronize_checkpoint_boundary": True,
    },
}


@pytest.mark.parametrize("name", ENGINES)
def test_second_step_ends_holding_what_the_first_held(name: str) -> None:
    options = dict(ENGINES[name])
    (program,) = programs(plan(**options), steps=3)
    _, second, third = program.step_held
    assert second == third
    assert not {"activation", "logits", "temporary", "communication"} & set(second)


@pytest.mark.parametrize("name", ENGINES)
def test_every_wait_is_for_something_earlier(name: str) -> None:
    for program in programs(plan(**dict(ENGINES[name])), steps=2):
        for i, op in enumerate(program.ops):
            assert all(0 < back <= i for back in op.back)


@pytest.mark.parametrize("name", ENGINES)
def test_the_step_begins_when_all_gradients_are_reduced(name: str) -> None:
    model = llama(layers=4, hidden=1024)
    (line,) = play(plan(model, **dict(ENGINES[name])), cluster(2)).timelines
    ops, begin = line.program.ops, line.program.step_ends[0]
    stepping = {"optimizer", "offload"}
    first = next(i for i in range(begin, len(ops)) if ops[i].category in stepping)
    reduced = [
        line.end_ns[i]
        for i in range(begin, first)
        if (call := ops[i].call) and call.op != "all_gather" and call.size_bytes > 8
    ]
    assert reduced
    assert line.start_ns[first] >= max(reduced)


def test_zero2_reduces_every_micro_batch_and_zero1_only_the_last() -> None:
    def reduced(stage: int) -> int:
        (program,) = programs(plan(stage=stage, gradient_accumulation_steps=4))
        return sum(
            c.size_bytes for c in program.calls() if c.op == "all_reduce" and c.size_bytes > 8
        )

    params = llama().num_parameters
    assert reduced(1) == 2 * params
    assert reduced(2) == 4 * 2 * params


def test_zero1_with_grad_accum_fp32_runs_bf16_optimizer() -> None:
    """An unsharded fp32 accumulation buffer, and one all-reduce of the flat group in bf16."""
    (program,) = programs(plan(stage=1, grad_accum_dtype="fp32"))
    params = llama().num_parameters
    buffer = next(e for e in program.memory if e.label == "accumulation buffer")
    assert buffer.delta_bytes == 4 * params
    big = [c for c in program.calls() if c.op == "all_reduce" and c.size_bytes > 8]
    assert big == [Call("all_reduce", "dp", 2 * params)]


def test_reduce_bucket_is_allocated_at_its_configured_size() -> None:
    """A bucket larger than the model is not clamped (DeepSpeed issue 4875)."""
    (program,) = programs(plan(stage=2, zero={"reduce_bucket_size": 10**9}))
    bucket = next(e for e in program.memory if e.category == "bucket" and e.delta_bytes > 0)
    assert bucket.delta_bytes == 2 * 10**9


def test_overlap_doubles_the_buckets_of_stage_2() -> None:
    def bucket_bytes(*, overlap: bool) -> int:
        (program,) = programs(plan(stage=2, zero={"overlap_comm": overlap}))
        return max(e.delta_bytes for e in program.memory if e.category == "bucket")

    assert bucket_bytes(overlap=True) == 2 * bucket_bytes(overlap=False)


def test_ddp_buckets_first_one_mib_then_25() -> None:
    model = llama(layers=8, hidden=1024)
    (program,) = programs(plan(model, engine="ddp", precision="fp32"))
    sizes = [c.size_bytes for c in program.calls()]
    assert sum(sizes) == 4 * model.num_parameters
    assert sizes[0] >= 2**20
    # A bucket closes with the gradient that fills it, so it is between 25 MiB and one tensor more.
    assert all(s >= 25 * 2**20 for s in sizes[1:-1])


def test_ddp_accumulates_without_communication() -> None:
    (program,) = programs(plan(engine="ddp", gradient_accumulation_steps=4))
    boundary = program.backward_ends[2]
    assert not [op for op in program.ops[:boundary] if op.kind == Kind.COLLECTIVE]


def test_pipeline_turns_overlap_off_and_keeps_micro_batches_in_flight() -> None:
    mesh = Mesh(pp=4, dp=2)
    p = plan(
        llama(layers=6),
        stage=1,
        mesh=mesh,
        gradient_accumulation_steps=8,
        zero={"overlap_comm": True},
        pipeline=PipelineSettings(stages=4, partition_method="uniform"),
    )
    for stage, program in enumerate(programs(p)):
        assert program.rank == mesh.rank(Coordinate(pp=stage, dp=0, tp=0))
        in_flight, most = 0, 0
        for op in program.ops:
            first = op.name.endswith(program.ops[_first_forward(program)].name)
            if op.category == "forward" and first:
                in_flight += 1
            elif op.category == "backward" and first:
                in_flight -= 1
            most = max(most, in_flight)
        assert most == min(4 - stage, 8) <= num_pipe_buffers(stage, 4, 8)
        assert not [op for op in program.ops if op.kind == Kind.SYNC and op.name == "synchronize"]


def _first_forward(program: Program) -> int:
    return next(i for i, op in enumerate(program.ops) if op.category == "forward")


def test_tensor_parallel_all_reduces_four_times_a_layer() -> None:
    """Megatron's f and g: two in forward, two in backward, of b * s * h elements each."""
    model = llama(layers=3)
    p = plan(model, mesh=Mesh(dp=2, tp=4), stage=1, gradient_accumulation_steps=1)
    (program,) = programs(p)
    hidden = 2 * 128 * 256 * 2
    calls = [c for c in program.calls() if c.group == "tp"]
    blocks = [c for c in calls if c.size_bytes == hidden]
    assert len(blocks) >= 3 * 4
    assert len(blocks) - 3 * 4 <= 2  # the vocabulary-parallel embedding and head


def test_tensor_parallelism_must_divide_heads() -> None:
    with pytest.raises(ScenarioError, match=r"does not divide num_attention_heads 8"):
        programs(plan(mesh=Mesh(dp=1, tp=16)))


def test_freeing_more_than_is_held_is_our_bug() -> None:
    b = ProgramBuilder(0, launch_s=1e-6)
    b.alloc("activation", 10)
    with pytest.raises(AssertionError, match="frees 5 bytes of activation it lacks"):
        b.free("activation", 15)


def test_last_on_finds_the_latest_of_a_stream() -> None:
    b = ProgramBuilder(0, launch_s=1e-6)
    assert b.last_on(COMPUTE) == ()
    first = b.compute("a", "forward", 1e-3)
    b.copy("c", "h2d", 1e-3)
    assert b.last_on(COMPUTE) == (first,)


def test_autocast_computes_in_bf16_over_fp32_states() -> None:
    """fp32 weights, gradients and states; bf16 products and activations; copies until backward."""
    fp32 = plan(engine="ddp", precision="fp32")
    cast = plan(engine="ddp", precision="fp32", ddp=DdpSettings(autocast="bf16"))
    (a,), (b,) = programs(fp32, steps=2), programs(cast, steps=2)
    assert a.step_held == b.step_held
    assert [c.size_bytes for c in a.calls()] == [c.size_bytes for c in b.calls()]

    def most(program: Program, category: str) -> int:
        held = peak = 0
        for event in program.memory:
            held += event.delta_bytes if event.category == category else 0
            peak = max(peak, held)
        return peak

    parameters = [(name, p) for name, p in llama().parameters() if p.tied_to is None]
    products = [p for name, p in parameters if len(p.shape) > 1 and "embed" not in name]
    assert most(b, "parameter") == most(a, "parameter") + 2 * sum(p.numel for p in products)
    assert most(b, "activation") < 0.75 * most(a, "activation")
    assert sum(op.duration_ns for op in b.ops) < sum(op.duration_ns for op in a.ops)


def test_states_of_a_pure_bf16_model_are_bf16() -> None:
    def states(precision: str) -> int:
        (program,) = programs(plan(engine="ddp", precision=precision))
        return next(e.delta_bytes for e in program.memory if e.category == "optimizer_state")

    assert states("fp32") == 8 * llama().num_parameters
    assert states("bf16") == 4 * llama().num_parameters


def test_synchronized_checkpoints_wait_at_both_ends_of_a_layer_in_both_directions() -> None:
    def of(*, synchronized: bool) -> list[str]:
        (program,) = programs(
            plan(
                stage=1, activation_checkpointing="full",
                synchronize_checkpoint_boundary=synchronized,
            )
        )  # fmt: skip
        return [op.name for op in program.ops if op.kind == Kind.SYNC]

    layers, micro_batches = 4, 2
    boundaries = of(synchronized=True).count("checkpoint boundary")
    assert boundaries == 4 * layers * micro_batches
    assert "checkpoint boundary" not in of(synchronized=False)


@pytest.mark.parametrize("timer", ["throughput_timer", "wall_clock_breakdown"])
def test_timers_let_no_host_run_ahead_of_a_micro_batch(timer: str) -> None:
    """Of pipelines they are read when steps are printed alone."""
    took_ns = {}
    for timed in (False, True):
        told: dict[str, Any] = {"throughput_timer": False} | {timer: timed}
        asked = plan(llama(hidden=4096), stage=2, **told)
        (program,) = programs(asked)
        names = [op.name for op in program.ops if op.kind == Kind.SYNC]
        assert names.count("timers") == timed * asked.gradient_accumulation_steps
        took_ns[timed] = play(asked, cluster()).steady_step_ns
    assert took_ns[True] > took_ns[False]
    piped = plan(mesh=Mesh(pp=2), wall_clock_breakdown=True)
    assert not [op for p in programs(piped) for op in p.ops if op.name == "timers"]


def test_a_synchronisation_waits_for_every_stream_of_the_gpu_and_nothing_else() -> None:
    b = ProgramBuilder(0, launch_s=1e-6)
    first = b.compute("early", "forward", 1e-3)
    computed = b.compute("late", "forward", 1e-3)
    copied = b.copy("in", "h2d", 1e-3)
    b.background("Adam", "cpu", "offload", 1.0)
    sync = b.synchronize("all")
    waited = {sync - back for back in b.program.ops[sync].back}
    assert waited == {computed, copied}
    assert first not in waited


def test_gathers_apart_are_one_for_each_weight_and_hide_only_the_last() -> None:
    """Before DeepSpeed 0.6: the GPU is waited for before each, and for what a module needs."""
    model = llama(hidden=4096)
    plain, apart = (
        play(plan(model, stage=3, separate_gathers=told), cluster(3)) for told in (False, True)
    )
    gathers, plain_gathers = (
        [op for op in found.slowest.program.ops if op.name.startswith("all-gather")]
        for found in (apart, plain)
    )
    assert len(gathers) > len(plain_gathers)
    total, plain_total = (
        sum(op.call.size_bytes for op in found if op.call) for found in (gathers, plain_gathers)
    )
    assert total == pytest.approx(plain_total, rel=0.01)
    assert apart.steady_step_ns > 1.1 * plain.steady_step_ns


@pytest.mark.parametrize(("precision", "scans"), [("bf16", True), ("fp16", True), ("fp32", False)])
def test_without_zero_16_bit_gradients_are_searched_for_inf(precision: str, scans: bool) -> None:
    """``CheckOverflow`` of DeepSpeed's FP16_Optimizer, which bf16 has too."""
    (program,) = programs(plan(stage=0, precision=precision))
    found = [op for op in program.ops if op.name == "check overflow"]
    assert bool(found) is scans
