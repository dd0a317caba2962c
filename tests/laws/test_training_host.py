"""A step whose kernels are short takes what its host takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.models.huggingface import build
from raysim.models.table import Body, Model, Module, Operator
from raysim.perf.compute import ComputeModel
from raysim.perf.constants import TrainingConstants
from raysim.perf.host import GRADIENT_SHARE, HOOK_BACKWARD, STEP_SHARE
from raysim.training.breakdown import step_breakdown
from raysim.training.layers.pricing import Pricer, module_calls
from raysim.training.layers.sharding import Sharding
from raysim.training.program import COMPUTE, Kind
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome
from tests.training_parts import cluster, llama, plan, play

SHORT = llama(layers=8, hidden=64, vocab=128, seq_len=8)
"""Kernels of a few microseconds at most."""


def short_step(speed: float = 1.0, **options: Any) -> StepOutcome:
    p = plan(
        SHORT, mesh=Mesh(), engine="ddp", micro_batch=1, gradient_accumulation_steps=1,
        constants=TrainingConstants(host_speed=speed), **options,
    )  # fmt: skip
    return play(p, cluster(nodes=1))


def host_ns(outcome: StepOutcome) -> int:
    """Of the last step: all that the host thread does in it."""
    program = outcome.timelines[0].program
    first, stop = (program.step_ends[-2] if len(program.step_ends) > 1 else 0), len(program.ops)
    return sum(op.before_ns + op.host_ns for op in program.ops[first:stop])


def test_a_launch_bound_step_is_the_host_s_time() -> None:
    outcome = short_step(speed=0.25)
    assert outcome.steady_step_ns == pytest.approx(host_ns(outcome), rel=0.02)


def test_a_host_twice_as_fast_halves_it() -> None:
    slow, fast = (short_step(speed=s).steady_step_ns for s in (0.125, 0.25))
    assert slow == pytest.approx(2 * fast, rel=0.02)


def test_the_breakdown_calls_it_launch() -> None:
    line = short_step(speed=0.25).timelines[0]
    parts = step_breakdown(line, len(line.program.step_ends) - 1)
    assert parts.parts_ns["launch"] > 0.8 * parts.step_ns


def test_cuda_graphs_leave_the_optimizer_to_the_host() -> None:
    eager, replayed = short_step(speed=0.25), short_step(speed=0.25, cuda_graphs=True)
    assert replayed.steady_step_ns < 0.5 * eager.steady_step_ns
    for op in replayed.timelines[0].program.ops:
        if op.category in ("forward", "backward"):
            assert op.host_ns == 0


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "fsdp"},
        {"stage": 3},
        {"stage": 1, "mesh": Mesh(dp=4, pp=2)},
    ],
)
def test_blocking_launches_leave_nothing_beside_anything(options: dict[str, Any]) -> None:
    """The step is what host, kernels and communication take, one after the other."""
    p = plan(llama(layers=4, hidden=1024, seq_len=512), launch_blocking=True, **options)
    outcome = play(p, cluster(nodes=1))
    line = outcome.slowest
    for step, step_ns in enumerate(outcome.step_ns):
        first = line.program.step_ends[step - 1] if step else 0
        alone = sum(
            op.before_ns + (0 if op.kind == Kind.SYNC else line.end_ns[i] - line.start_ns[i])
            for i, op in enumerate(line.program.ops[first : line.program.step_ends[step]], first)
        )
        assert alone == pytest.approx(step_ns, rel=1e-3)
    later = play(replace(p, launch_blocking=False), cluster(nodes=1))
    assert later.steady_step_ns < outcome.steady_step_ns


def test_a_checkpoint_costs_its_recomputation_and_its_own_python() -> None:
    speed = 0.25
    plain, kept = (
        host_ns(short_step(speed=speed, activation_checkpointing=how)) for how in ("none", "full")
    )
    constants = TrainingConstants()
    recomputed = sum(
        u.forward_host_s
        for layer in SHORT.layers
        if layer.kind == "block"
        for u in units(ComputeModel(cluster().gpu, given=constants), SHORT, layer.body)  # type: ignore[arg-type]
    )
    more = (recomputed + 8 * constants.checkpoint_s) / speed
    assert kept - plain == pytest.approx(more * 1e9, rel=1e-3)


def test_a_non_reentrant_checkpoint_hooks_what_is_saved_three_times() -> None:
    hooked, whole = (
        host_ns(short_step(activation_checkpointing="full", reentrant_checkpoints=r))
        for r in (False, True)
    )
    costs = ComputeModel(cluster().gpu, given=TrainingConstants())  # type: ignore[arg-type]
    blocks = [layer.body for layer in SHORT.layers if layer.kind == "block"]
    nodes = sum(o.dispatched for body in blocks for o in body.operators)
    # Less what comes after the last tensor that backward needs, which is not run again.
    less_s = sum(
        u.forward_host_s - u.again.host_s
        for body in blocks
        for u in units(costs, SHORT, body, reentrant=False)
    )
    more_s = 3 * nodes * TrainingConstants().saved_s
    assert hooked - whole == pytest.approx((more_s - less_s) * 1e9, rel=1e-3)


def units(
    costs: ComputeModel, model: Model, body: Body, cut: Any = "module", **options: Any
) -> Any:
    layer = next(layer for layer in model.layers if layer.body is body)
    return Pricer(costs, batch=1, dtype="bf16", sharding=Sharding(), cut=cut, **options).layer(
        layer
    )


def test_cutting_a_layer_finer_costs_the_host_the_same() -> None:
    """Each module is called once, however many pieces its layer is priced in."""
    costs = ComputeModel(cluster().gpu)  # type: ignore[arg-type]
    body = SHORT.layers[1].body
    fine, coarse = (units(costs, SHORT, body, cut) for cut in ("module", "collective"))
    assert len(fine) > len(coarse)
    assert sum(u.forward_host_s for u in fine) == pytest.approx(
        sum(u.forward_host_s for u in coarse)
    )
    called = {name for m in body.modules for name in module_calls(m.name)}
    operators = sum(costs.host_s(o) for o in body.operators)
    assert coarse[0].forward_host_s == pytest.approx(operators + len(called) * costs.host.module_s)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_more_operators_never_take_the_host_less(counts: list[tuple[int, int]]) -> None:
    costs = ComputeModel(cluster().gpu)  # type: ignore[arg-type]
    operators = tuple(
        Operator(name=f"o{i}", kind="other", kernels=kernels, dispatches=kernels + views)
        for i, (kernels, views) in enumerate(counts)
    )
    body = Body(modules=(Module(name="", cls="Block", operators=operators),))
    fewer = replace(body, modules=(replace(body.modules[0], operators=operators[:-1]),))
    layer = replace(SHORT.layers[1], body=body)
    pricer = Pricer(costs, batch=1, dtype="bf16", sharding=Sharding(), cut="module")
    (all_of_them,) = pricer.layer(layer)
    (without_last,) = pricer.layer(replace(layer, body=fewer))
    assert all_of_them.forward_host_s >= without_last.forward_host_s
    assert all_of_them.backward_host_s >= without_last.backward_host_s


def test_megatron_waits_for_two_zeros_in_every_layer() -> None:
    """``moe_loss`` and ``mlp_bias``: at the second, the host has run no further than the GPU."""
    config = {
        "model_type": "megatron_gpt", "hidden_size": 256, "num_attention_heads": 8,
        "num_layers": 3, "max_position_embeddings": 128, "padded_vocab_size": 512,
    }  # fmt: skip
    p = plan(build(config), mesh=Mesh(), micro_batch=1, gradient_accumulation_steps=1)
    line = play(replace(p, activation_checkpointing="full"), cluster(nodes=1)).timelines[0]
    ops = line.program.ops
    zeros = [i for i, op in enumerate(ops) if op.kind == Kind.SYNC and "scalars" in op.name]
    passes = len(line.program.step_ends) * 2  # forward, recomputation
    assert len(zeros) == 3 * passes
    for i in zeros:
        before = [j for j in range(i) if ops[j].stream == COMPUTE]
        assert line.end_ns[i] >= max(line.end_ns[j] for j in before)


def deepspeed_host_ns(stage: int, constants: TrainingConstants) -> int:
    """Of a step of one rank in which nothing but these constants takes the host."""
    p = plan(
        SHORT, mesh=Mesh(), stage=stage, micro_batch=1, gradient_accumulation_steps=1,
        constants=constants,
    )  # fmt: skip
    return host_ns(play(p, cluster(nodes=1)))


ONLY_HOOKS = TrainingConstants(
    operator_s=0.0, module_s=0.0, node_s=0.0, launch_s=0.0, collective_s=0.0, slice_s=0.0,
    engine_pass_s=0.0, engine_step_s=0.0, hook_s=1e-3, host_speed=1.0,
)  # fmt: skip


def test_zero_2_pays_a_hook_for_every_gradient() -> None:
    tensors = len(list(SHORT.parameters()))
    hooks_ms = deepspeed_host_ns(2, ONLY_HOOKS) * 1e-6
    assert hooks_ms == pytest.approx(tensors * GRADIENT_SHARE)


def test_zero_3_pays_hooks_around_every_module_both_ways() -> None:
    """All parameters are small, and stay gathered: none is fetched."""
    tensors = len(list(SHORT.parameters()))
    around = sum(
        len({call for m in layer.body.modules for call in module_calls(m.name)})
        for layer in SHORT.layers
    )
    both_ways = (around + 1) * (1.0 + HOOK_BACKWARD)  # and the root's
    hooks_ms = deepspeed_host_ns(3, ONLY_HOOKS) * 1e-6
    assert hooks_ms == pytest.approx(both_ways + tensors * (GRADIENT_SHARE + STEP_SHARE))


def test_zero_2_s_overflow_check_launches_thirteen_kernels_per_gradient() -> None:
    """And its norm two: what a step launches more than without them."""
    launches = replace(ONLY_HOOKS, hook_s=0.0, launch_s=1e-3)
    p = plan(
        SHORT, mesh=Mesh(), stage=2, micro_batch=1, gradient_accumulation_steps=1,
        constants=launches,
    )  # fmt: skip
    checked, unchecked = (
        host_ns(play(replace(p, check_grad_overflow=on), cluster(nodes=1))) for on in (True, False)
    )
    assert (checked - unchecked) * 1e-6 == pytest.approx(13 * len(list(SHORT.parameters())))
