"""Closed forms of pipeline schedules: bubbles, messages and memory of played plans."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from raysim.training import tower
from raysim.training.breakdown import step_breakdown
from raysim.training.memory.need import memory_need
from raysim.training.pipeline.pipelines import KINDS, Pipeline, misfits
from raysim.training.pipeline.schedule import Do
from raysim.training.plan import TrainingPlan
from raysim.training.program import Kind
from raysim.training.settings.deepspeed import Optimizer, PipelineSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.stages import pipeline_of
from raysim.training.tower import StepOutcome
from tests.training_parts import cluster, fast_wires, llama, plan, play, programs, wide_stack


def stack(schedule: str, ranks: int, micro_batches: int, **options: Any) -> TrainingPlan:
    """Equal stages of two equal layers, nothing but forward, backward and exchange."""
    in_a_v = schedule in ("zb_v", "dualpipe_v", "v_half", "v_min")
    chunks = options.get("virtual_stages", 2 if in_a_v else 1)
    settings: dict[str, Any] = {"schedule": schedule, "stages": ranks, **options}
    return plan(
        wide_stack(2 * ranks * chunks),
        engine="ddp",
        mesh=Mesh(pp=ranks),
        micro_batch=1 << 17,
        gradient_accumulation_steps=micro_batches,
        gradient_clipping=0.0,
        optimizer=Optimizer(type="SGD"),
        pipeline=PipelineSettings(partition_method="blocks", **settings),
    )


def stage_seconds(outcome: StepOutcome) -> tuple[float, float, float]:
    """Forward, whole backward and its weight part of one micro-batch through one stage."""
    units = outcome.stages[0].units
    return (
        sum(u.forward_s for u in units),
        sum(u.backward_s for u in units),
        sum(u.weights.seconds for u in units),
    )


def bubbles(outcome: StepOutcome) -> list[float]:
    """Seconds of each rank in which it neither computes nor steps."""
    lines = outcome.timelines
    return [step_breakdown(line, 0).parts_ns["bubble"] * 1e-9 for line in lines]


# Bubbles, with F, B and W of one stage (B has W in it), S ranks and v stages on each:
#   GPipe, 1F1B          (S - 1)(F + B)
#   interleaved 1F1B     (S - 1)(F + B), of stages that are 1/v as long
#   ZB-H1                (S - 1)(F + B - 2W)               (Qi et al. 2023, table 1)
#   DualPipe             (S/2 - 1)(F&B + B - 3W), F&B = F + B here     (its README)
#   DualPipeV            the same for S = stages of one micro-batch
#   ZB-V, ZB-H2          (S - 1)F: ranks begin one after the other, and then never wait
# Accumulating gradients and sends take the rest: 2 % of the bubble.

LAWS = [
    ("gpipe", 4, 8, {}, lambda s, f, b, _: (s - 1) * (f + b)),
    ("megatron_1f1b", 4, 8, {}, lambda s, f, b, _: (s - 1) * (f + b)),
    ("interleaved", 4, 8, {"virtual_stages": 2}, lambda s, f, b, _: (s - 1) * (f + b)),
    ("interleaved", 4, 12, {"virtual_stages": 3, "overlap_p2p_comm": False},
     lambda s, f, b, _: (s - 1) * (f + b)),
    ("interleaved", 4, 12, {"virtual_stages": 2, "microbatch_group_size_per_vp_stage": 6},
     lambda s, f, b, _: (s - 1) * (f + b)),
    ("zb_h1", 4, 8, {}, lambda s, f, b, w: (s - 1) * (f + b - 2 * w)),
    ("zb_h1", 8, 16, {}, lambda s, f, b, w: (s - 1) * (f + b - 2 * w)),
    ("zb_h1", 4, 8, {"virtual_stages": 2}, lambda s, f, b, w: (s - 1) * (f + b - 2 * w)),
    ("zb_v", 4, 12, {}, lambda s, f, _, __: (s - 1) * f),
    ("zb_h2", 4, 12, {}, lambda s, f, _, __: (s - 1) * f),
    ("zb_h2", 8, 24, {}, lambda s, f, _, __: (s - 1) * f),
    ("dualpipe_v", 4, 12, {}, lambda s, f, b, w: (s - 1) * (f + 2 * b - 3 * w)),
    ("dualpipe", 4, 12, {}, lambda s, f, b, w: (s / 2 - 1) * (f + 2 * b - 3 * w)),
    ("dualpipe", 8, 20, {}, lambda s, f, b, w: (s / 2 - 1) * (f + 2 * b - 3 * w)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "ranks", "micro_batches", "options", "law"), LAWS)
def test_bubble(name: str, ranks: int, micro_batches: int, options: Any, law: Any) -> None:
    outcome = play(stack(name, ranks, micro_batches, **options), fast_wires())
    assert not outcome.extrapolated
    f, b, w = stage_seconds(outcome)
    expected = law(ranks, f, b, w)
    found = bubbles(outcome)
    assert max(found) == pytest.approx(expected, rel=0.02)
    assert outcome.breakdown.parts_ns["bubble"] * 1e-9 == pytest.approx(expected, rel=0.02)


def test_interleaving_divides_the_bubble_and_zero_bubble_leaves_a_third() -> None:
    """Of the same twelve layers on four ranks."""

    def played(schedule: str, **options: Any) -> StepOutcome:
        p = stack("interleaved", 4, 8, virtual_stages=3)
        settings: dict[str, Any] = {"schedule": schedule, **options}
        cut = PipelineSettings(partition_method="blocks", stages=4, **settings)
        return play(replace(p, pipeline=cut), fast_wires())

    def bubble(schedule: str, **options: Any) -> float:
        return max(bubbles(played(schedule, **options)))

    one = bubble("megatron_1f1b")
    assert bubble("interleaved", virtual_stages=2) == pytest.approx(one / 2, rel=0.01)
    assert bubble("interleaved", virtual_stages=3) == pytest.approx(one / 3, rel=0.01)
    # A third where forward, input gradient and weight gradient take equally long.
    f, b, w = stage_seconds(played("zb_h1"))
    assert bubble("zb_h1") == pytest.approx(one * (f + b - 2 * w) / (f + b), rel=0.02)
    assert (f + b - 2 * w) / (f + b) == pytest.approx(1 / 3, rel=0.1)


def messages(p: TrainingPlan) -> int:
    return sum(op.kind == Kind.SEND for program in programs(p) for op in program.ops)


def test_every_boundary_between_stages_is_crossed_twice_per_micro_batch() -> None:
    m = 8
    assert messages(stack("megatron_1f1b", 4, m)) == 2 * m * 3
    assert messages(stack("interleaved", 4, m, virtual_stages=3)) == 2 * m * 11
    overlap = {"virtual_stages": 3, "overlap_p2p_comm": False}
    assert messages(stack("interleaved", 4, m, **overlap)) == 2 * m * 11
    # Up and down again: the two stages of the last rank are neighbours.
    assert messages(stack("zb_v", 4, m)) == 2 * m * 6
    assert messages(stack("dualpipe", 4, m)) == 2 * m * 3


def most(outcome: StepOutcome, rank: int, category: str) -> int:
    held = peak = 0
    for event in outcome.timelines[rank].program.memory:
        held += event.delta_bytes if event.category == category else 0
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize(
    ("name", "options", "stages_held"),
    [
        ("megatron_1f1b", {}, 4),
        ("gpipe", {}, 12),
        ("interleaved", {"virtual_stages": 2}, 11),
        ("interleaved", {"virtual_stages": 3}, 15),
        ("zb_v", {}, 8),
    ],
)
def test_memory_holds_the_activations_of_the_passes_in_flight(
    name: str, options: Any, stages_held: int
) -> None:
    """S, M, vS + S - 1 and 2S stages of activations on the first of four ranks."""
    outcome = play(stack(name, 4, 12, **options), fast_wires())
    saved = sum(u.saved_bytes for u in outcome.stages[0].units)
    # What a weight gradient keeps besides: of the micro-batch at work only.
    beyond = sum(u.weights.output_bytes for u in outcome.stages[0].units) if name == "zb_v" else 0
    assert stages_held * saved <= most(outcome, 0, "activation") <= stages_held * saved + beyond


@pytest.mark.parametrize("name", ["zb_h2", "v_half", "v_min"])
def test_memory_of_orders_that_defer_weights(name: str) -> None:
    """What each rank's order holds: whole activations, or what a weight gradient still needs."""
    p = stack(name, 4, 12)
    outcome = play(p, fast_wires())
    units = outcome.stages[0].units
    saved, kept = sum(u.saved_bytes for u in units), sum(u.weights.kept_bytes for u in units)
    for rank in range(4):
        whole = due = peak = 0
        for action in pipeline_of(p).order(rank, 12):
            whole += (action.do == Do.FORWARD_PASS) - (action.do == Do.BACKWARD_INPUT)
            due += (action.do == Do.BACKWARD_INPUT) - (action.do == Do.BACKWARD_WEIGHT)
            peak = max(peak, whole * saved + due * kept)
        # A pass lets go of its layers one by one: the last has made its share of `kept` by then.
        assert peak <= most(outcome, rank, "activation") <= peak + saved


def test_a_weight_gradient_that_waits_keeps_its_inputs_and_output_gradients() -> None:
    """ZB-H1's last rank defers S - 1 micro-batches, of which nothing else stays."""
    outcome = play(stack("zb_h1", 4, 12), fast_wires())
    (*_, last) = outcome.stages
    kept = sum(u.weights.kept_bytes for u in last.units)
    # One linear layer saves its input alone, so that each deferred one holds that and dy.
    assert kept == 2 * sum(u.saved_bytes for u in last.units)
    assert most(outcome, 3, "activation") == 4 * kept
    assert outcome.timelines[3].program.step_held[-1].get("activation", 0) == 0


def test_split_backward_is_the_whole_in_time_flops_and_launches() -> None:
    model = llama(layers=8, hidden=1024, seq_len=512)

    def totals(schedule: str) -> tuple[float, float]:
        cut = PipelineSettings(stages=4, partition_method="blocks", schedule=schedule)  # type: ignore[arg-type]
        p = plan(model, engine="ddp", mesh=Mesh(pp=4), gradient_accumulation_steps=8, pipeline=cut)
        ops = [op for x in programs(p) for op in x.ops if op.category == "backward"]
        return sum(op.duration_ns for op in ops), sum(op.flops for op in ops)

    (seconds, flops), (split_seconds, split_flops) = totals("megatron_1f1b"), totals("zb_h1")
    assert split_seconds == pytest.approx(seconds, rel=1e-4)  # nanoseconds are rounded per piece
    assert split_flops == pytest.approx(flops)


def test_tied_weights_are_summed_between_ranks_that_both_hold_them() -> None:
    """Between the first and the last rank of a loop; a V and DualPipe have both on one rank."""
    tied = llama(layers=8, tied=True)

    def calls(schedule: str, chunks: int | None = None) -> list[int]:
        cut = PipelineSettings(
            stages=4, partition_method="blocks", schedule=schedule, virtual_stages=chunks  # type: ignore[arg-type]
        )  # fmt: skip
        p = plan(tied, engine="ddp", mesh=Mesh(pp=4), gradient_accumulation_steps=8, pipeline=cut)
        made = programs(p)
        assert not any("activation" in program.step_held[-1] for program in made)
        return [sum(c.group == "tied" for c in program.calls()) for program in made]

    assert calls("megatron_1f1b") == calls("interleaved", 2) == [1, 0, 0, 1]
    assert calls("zb_v") == calls("dualpipe") == [0, 0, 0, 0]


def test_dualpipe_keeps_two_copies_and_sums_them() -> None:
    model = llama(layers=8)

    def held(schedule: str) -> list[int]:
        cut = PipelineSettings(stages=4, partition_method="blocks", schedule=schedule)  # type: ignore[arg-type]
        p = plan(model, engine="ddp", mesh=Mesh(pp=4), gradient_accumulation_steps=8, pipeline=cut)
        made = programs(p)
        copies = [c.size_bytes for program in made for c in program.calls() if c.group == "copies"]
        assert sum(copies) == (2 * 2 * model.num_parameters if schedule == "dualpipe" else 0)
        return [program.step_held[-1]["parameter"] for program in made]

    one, two = held("megatron_1f1b"), held("dualpipe")
    assert two == [a + b for a, b in zip(one, reversed(one), strict=True)]


# Extrapolation: whole periods of the steady stretch stand for the micro-batches left out.


@pytest.mark.parametrize(
    ("name", "micro_batches", "options"),
    [
        ("megatron_1f1b", 40, {}),
        ("gpipe", 40, {}),
        ("interleaved", 40, {"virtual_stages": 2}),
        ("interleaved", 40, {"virtual_stages": 2, "overlap_p2p_comm": False}),
        ("interleaved", 52, {"virtual_stages": 2, "microbatch_group_size_per_vp_stage": 6}),
        ("zb_h1", 40, {}),
        ("zb_h1", 48, {"virtual_stages": 2, "layers_per_stage": (1, 2, 2, 3, 2, 2, 3, 1)}),
        ("zb_v", 41, {}),
        ("zb_h2", 41, {}),
        ("v_half", 41, {}),
        ("v_min", 41, {}),
        ("dualpipe_v", 60, {}),
        ("dualpipe", 62, {}),
    ],
)
def test_extrapolated_equals_full(
    name: str, micro_batches: int, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = PipelineSettings(stages=4, partition_method="blocks", schedule=name, **options)  # type: ignore[arg-type]
    p = plan(
        llama(layers=16, hidden=1024, seq_len=1024),
        engine="ddp",
        mesh=Mesh(pp=4, dp=2),
        gradient_accumulation_steps=micro_batches,
        pipeline=cut,
    )
    few = play(p)
    assert memory_need(p, cluster())[0] == few.fullest.peak_bytes
    monkeypatch.setattr(tower, "enough", lambda plan: plan.gradient_accumulation_steps)
    full = play(p)
    assert bool(few.extrapolated) == (name != "gpipe")
    assert few.steady_step_ns == pytest.approx(full.steady_step_ns, rel=0.005)
    assert few.fullest.peak_bytes == full.fullest.peak_bytes
    few_parts, full_parts = few.breakdown.parts_ns, full.breakdown.parts_ns
    for part, spent in full_parts.items():
        assert few_parts[part] == pytest.approx(spent, abs=0.005 * full.steady_step_ns), part


def schedules() -> Iterator[tuple[str, int, int]]:
    """Every schedule on 2 and 4 ranks that takes these micro-batches."""
    for name, ranks, rounds in itertools.product(sorted(KINDS), (2, 4), (1, 2)):
        cut = cut_by(name, ranks)
        if not list(misfits(cut, ranks, ranks * rounds)):
            yield name, ranks, ranks * rounds


def cut_by(name: str, ranks: int) -> PipelineSettings:
    options: dict[str, Any] = {} if KINDS[name].chunks is not None else {"virtual_stages": 2}
    return PipelineSettings(stages=ranks, schedule=name, partition_method="blocks", **options)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(("name", "ranks", "micro_batches"), list(schedules()))
def test_the_parts_of_a_step_are_all_of_it_where_ranks_do_not_meet(
    name: str, ranks: int, micro_batches: int, steps: int
) -> None:
    """Without replicas and clipping a rank ends its step when it is done; the step is everyone's.

    What the slowest has left when the last of the others is still busy is bubble, and kernels count
    in full.
    """
    depth = Pipeline.of(cut_by(name, ranks), ranks, micro_batches).layout.depth
    outcome = play(
        plan(
            llama(layers=depth, hidden=1024, vocab=8192, seq_len=512),
            engine="deepspeed" if name == "1f1b" else "ddp", mesh=Mesh(pp=ranks), micro_batch=1,
            gradient_accumulation_steps=micro_batches, pipeline=cut_by(name, ranks),
        ),
        steps=steps,
    )  # fmt: skip
    whole, own = outcome.breakdown, step_breakdown(outcome.slowest, steps - 1)
    assert sum(whole.parts_ns.values()) == whole.step_ns == outcome.steady_step_ns
    assert min(whole.parts_ns.values()) >= 0
    if not outcome.extrapolated:
        assert whole.parts_ns["compute"] == own.parts_ns["compute"]
        later = whole.parts_ns["bubble"] - own.parts_ns["bubble"]
        assert later == max(0, outcome.step_ns[-1] - own.step_ns) or own.step_ns > whole.step_ns
