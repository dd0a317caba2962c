"""Orders of passes: published vectors, and what any order must keep."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.training.pipeline.layout import Layout
from raysim.training.pipeline.orders import turns
from raysim.training.pipeline.pipelines import KINDS, Pipeline, misfits
from raysim.training.pipeline.schedule import BACKWARDS, Do, Instruction
from raysim.training.settings.deepspeed import PipelineSettings, ScheduleName

ENDS = (Do.BACKWARD_PASS, Do.BACKWARD_WEIGHT)
PASSES = (Do.FORWARD_PASS, Do.BACKWARD_PASS, Do.BACKWARD_INPUT, Do.BACKWARD_WEIGHT)
LETTERS = dict(zip(PASSES, "FBIW", strict=True))
SENDS = {Do.SEND_ACTIVATION: Do.RECV_ACTIVATION, Do.SEND_GRAD: Do.RECV_GRAD}


def of(name: ScheduleName, ranks: int, micro_batches: int, **options: int) -> Pipeline:
    return Pipeline.of(PipelineSettings(schedule=name, **options), ranks, micro_batches)  # type: ignore[arg-type]


def instructions(p: Pipeline, rank: int, micro_batches: int) -> list[Instruction]:
    return [i for step in p.steps(rank, micro_batches) for i in step]


def written(p: Pipeline, rank: int, micro_batches: int) -> str:
    """``F0.1``: forward of micro-batch 1 through chunk 0."""
    todo = instructions(p, rank, micro_batches)
    return " ".join(f"{LETTERS[i.do]}{i.chunk}.{i.micro_batch}" for i in todo if i.do in LETTERS)


def test_megatrons_table_of_two_ranks_three_micro_batches_a_turn() -> None:
    """The example in ``schedules.py``: PP2 N3M5 with VP2."""
    chunks, micro_batches = zip(*turns(5, 2, 3), strict=True)
    assert micro_batches == (0, 1, 2, 0, 1, 2, 3, 4, 3, 4)
    assert chunks == (0, 0, 0, 1, 1, 1, 0, 0, 1, 1)


def test_interleaved_two_ranks_two_chunks() -> None:
    """Figure 4 of Narayanan et al. 2021, on two ranks: warm-up of 4 and 2 forwards."""
    p = of("interleaved", 2, 4, virtual_stages=2)
    assert written(p, 1, 4) == (
        "F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 F0.2 B0.0 F0.3 B0.1 F1.2 B1.2 F1.3 B1.3 B0.2 B0.3"
    )
    assert written(p, 0, 4).startswith("F0.0 F0.1 F1.0 F1.1 F0.2 B1.0")


def test_zero_bubble_h1_defers_weights_by_the_rank() -> None:
    """Figure 2 of Qi et al. 2023, on three ranks."""
    p = of("zb_h1", 3, 3)
    assert written(p, 0, 3) == "F0.0 F0.1 F0.2 I0.0 W0.0 I0.1 W0.1 I0.2 W0.2"
    assert written(p, 2, 3) == "F0.0 I0.0 F0.1 I0.1 F0.2 I0.2 W0.0 W0.1 W0.2"


def test_zero_bubble_h2_doubles_the_warm_up() -> None:
    """Figure 3 of Qi et al. 2023, on two ranks: 2 (S - r) - 1 forwards, weights 2 r passes late."""
    p = of("zb_h2", 2, 4)
    assert written(p, 0, 4) == ("F0.0 F0.1 F0.2 I0.0 W0.0 F0.3 I0.1 W0.1 I0.2 W0.2 I0.3 W0.3")
    assert written(p, 1, 4) == ("F0.0 I0.0 F0.1 I0.1 F0.2 I0.2 W0.0 F0.3 I0.3 W0.1 W0.2 W0.3")


def test_megatrons_1f1b_sends_and_receives_together() -> None:
    p = of("megatron_1f1b", 2, 3)
    steps = [[i.do.value for i in step] for step in p.steps(0, 3)]
    exchange = ["BackwardPass"]
    assert steps[0] == ["LoadMicroBatch", "ForwardPass", "SendActivation"]
    assert steps[2:4] == [["LoadMicroBatch", "ForwardPass", "SendActivation", "RecvGrad"], exchange]


def test_layouts() -> None:
    loop = Layout(ranks=2, chunks=2)
    both = Layout(ranks=4, chunks=2, shape="both")
    assert [loop.stages_of(r) for r in range(2)] == [(0, 2), (1, 3)]
    assert [both.stages_of(r) for r in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    assert (both.before(4), both.after(3), both.of_model(7)) == (None, None, 3)
    assert both.homes(0) == both.homes(3) == frozenset({0, 3})
    assert Layout(ranks=3, chunks=2, shape="v").homes(5) == frozenset({0})


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Pipeline, int]:
    """A schedule, and micro-batches that it takes."""
    name = draw(st.sampled_from(sorted(KINDS)))
    ranks, micro_batches = draw(st.integers(2, 8)), draw(st.integers(1, 24))
    options: dict[str, int | bool] = {}
    if KINDS[name].chunks is None:
        options["virtual_stages"] = draw(st.integers(1, 4))
    if name == "interleaved":
        options["virtual_stages"] = draw(st.integers(2, 4))
        options["overlap_p2p_comm"] = draw(st.booleans())
        options["microbatch_group_size_per_vp_stage"] = draw(st.integers(ranks, 12))
    if name.startswith("dualpipe"):
        ranks += ranks % 2
        micro_batches = 2 * ranks + micro_batches // 2 * 2
    asked = PipelineSettings(schedule=name, **options)  # type: ignore[arg-type]
    if list(misfits(asked, ranks, micro_batches)):  # rounds of the ranks always fit
        micro_batches = micro_batches // ranks * ranks or ranks
        asked = PipelineSettings(schedule=name, virtual_stages=asked.virtual_stages)
    assert not list(misfits(asked, ranks, micro_batches))
    return Pipeline.of(asked, ranks, micro_batches), micro_batches


@given(pipelines())
def test_every_micro_batch_passes_every_stage_once_in_order(case: tuple[Pipeline, int]) -> None:
    p, micro_batches = case
    layout, each = p.layout, p.micro_batches_of(case[1])
    for rank in range(layout.ranks):
        seen: Counter[tuple[Do, int, int | None]] = Counter()
        for i in instructions(p, rank, micro_batches):
            key = i.chunk, i.micro_batch
            seen[i.do, *key] += 1
            if i.do in (*BACKWARDS, Do.SEND_ACTIVATION):
                assert seen[Do.FORWARD_PASS, *key]
            if i.do == Do.BACKWARD_WEIGHT:
                assert seen[Do.BACKWARD_INPUT, *key]
            if i.do == Do.SEND_GRAD:
                assert any(seen[do, *key] for do in BACKWARDS)
        assert set(seen.values()) == {1}
        for chunk, stage in enumerate(layout.stages_of(rank)):
            done = Counter(do for do, c, m in seen if c == chunk and m is not None)
            assert done[Do.FORWARD_PASS] == sum(done[do] for do in BACKWARDS) == each
            assert done[Do.BACKWARD_INPUT] == done[Do.BACKWARD_WEIGHT]
            ends = None in (layout.before(stage), layout.after(stage))
            assert done[Do.LOAD_MICRO_BATCH] == (each if ends else 0)


@given(pipelines())
def test_what_a_stage_sends_its_neighbour_receives_in_turn(case: tuple[Pipeline, int]) -> None:
    p, micro_batches = case
    layout = p.layout
    todo = [instructions(p, rank, micro_batches) for rank in range(layout.ranks)]

    def order(stage: int, do: Do) -> list[int | None]:
        rank = layout.rank_of(stage)
        chunk = layout.stages_of(rank).index(stage)
        return [i.micro_batch for i in todo[rank] if i.do == do and i.chunk == chunk]

    for stage in range(layout.stages):
        for do, towards in ((Do.SEND_ACTIVATION, layout.after), (Do.SEND_GRAD, layout.before)):
            to = towards(stage)
            if to is None or layout.rank_of(to) == layout.rank_of(stage):
                assert order(stage, do) == []
            else:
                assert order(stage, do) == order(to, SENDS[do]) != []


def held(p: Pipeline, rank: int, micro_batches: int) -> int:
    """Most micro-batches of a chunk whose activations a rank holds, its weight gradients' too."""
    now = most = 0
    for i in instructions(p, rank, micro_batches):
        now += (i.do == Do.FORWARD_PASS) - (i.do in ENDS)
        most = max(most, now)
    return most


@settings(max_examples=25, deadline=None)
@given(ranks=st.integers(2, 8), rounds=st.integers(3, 5), chunks=st.integers(2, 4))
def test_activations_held(ranks: int, rounds: int, chunks: int) -> None:
    """In units of what a rank holds of one micro-batch; published figures of each schedule."""
    s, v, m = ranks, chunks, ranks * rounds

    def most(name: ScheduleName, rank: int, micro_batches: int = m, **options: int) -> float:
        p = of(name, s, micro_batches, **options)
        return held(p, rank, micro_batches) / p.passes

    for rank in range(s):
        assert most("1f1b", rank) == most("megatron_1f1b", rank) == s - rank
        assert most("gpipe", rank) == m
        assert most("zb_h1", rank) == most("zb_v", rank) == s
    # Narayanan et al. 2021: 1 + (p - 1) / (p v) times as much as 1F1B on the first rank.
    assert most("interleaved", 0, virtual_stages=v) == pytest.approx(s * (1 + (s - 1) / (s * v)))
    if s % 2 == 0:  # DualPipe's README: PP + 1; its V has PP stages on half the ranks
        m -= m % 2
        assert {most("dualpipe", rank, m) for rank in range(s)} == {s + 1}
        assert {held(of("dualpipe_v", s, m), rank, m) for rank in range(s)} == {2 * s + 1}


def unit_times(p: Pipeline, micro_batches: int) -> list[tuple[int, int]]:
    """When each rank begins and ends, where every pass takes one unit and sending none."""
    layout = p.layout
    todo = [p.order(rank, micro_batches) for rank in range(layout.ranks)]
    ends: dict[tuple[Do, int, int], int] = {}
    begun, now, at = [-1] * len(todo), [0] * len(todo), [0] * len(todo)
    while any(at[rank] < len(todo[rank]) for rank in range(len(todo))):
        before = sum(at)
        for rank, order in enumerate(todo):
            while at[rank] < len(order):
                a = order[at[rank]]
                stage = layout.stages_of(rank)[a.chunk]
                needs = {
                    Do.FORWARD_PASS: (Do.FORWARD_PASS, layout.before(stage)),
                    Do.BACKWARD_INPUT: (Do.BACKWARD_INPUT, layout.after(stage)),
                    Do.BACKWARD_WEIGHT: (Do.BACKWARD_INPUT, stage),
                }[a.do]
                if needs[1] is None and a.do == Do.BACKWARD_INPUT:
                    needs = Do.FORWARD_PASS, stage
                needed = None if needs[1] is None else (needs[0], needs[1], a.micro_batch)
                if needed is not None and needed not in ends:
                    break
                start = max(now[rank], 0 if needed is None else ends[needed])
                begun[rank] = start if begun[rank] < 0 else begun[rank]
                ends[a.do, stage, a.micro_batch] = now[rank] = start + 1
                at[rank] += 1
        assert sum(at) > before, "the orders wait for each other"
    return list(zip(begun, now, strict=True))


@pytest.mark.parametrize("ranks", [3, 4, 5, 6, 7, 8, 9, 12])
def test_bubbles_and_memory_where_every_pass_takes_equally_long(ranks: int) -> None:
    """Of zero-bubble schedules: none once a rank has begun, for ZB-H2 with twice 1F1B's memory;
    V-Half has half of it and V-Min a third, each and at most 4/3 micro-batches more.
    """
    s, m = ranks, 4 * ranks

    def bubble(name: ScheduleName) -> int:
        p = of(name, s, m)
        spans = [end - begin for begin, end in unit_times(p, m)]
        return max(spans) - 3 * m * p.layout.chunks

    def most(name: ScheduleName) -> set[float]:
        p = of(name, s, m)
        return {held(p, rank, m) / p.layout.chunks for rank in range(s)}

    assert bubble("zb_h1") == s - 1
    assert bubble("zb_h2") == bubble("zb_v") == 0
    assert bubble("v_half") == (3 * s - 7 if s % 2 == 0 else 3 * s - 4)
    assert bubble("v_min") == (4 * s - 6 if s % 3 == 0 else 4 * s - 5)
    assert most("zb_h2") == {2 * s - 1}
    assert max(most("v_half")) == (s + 2) // 2
    assert max(most("v_min")) == (s + 4) // 3


@pytest.mark.parametrize(
    ("name", "ranks", "micro_batches", "options", "key", "message"),
    [
        ("interleaved", 4, 8, {}, "virtual_stages", "needs 2 or more stages per rank"),
        ("megatron_1f1b", 4, 8, {"virtual_stages": 2}, "virtual_stages", "has 1 per rank, not 2"),
        ("zb_v", 4, 8, {"virtual_stages": 3}, "virtual_stages", "has 2 per rank, not 3"),
        ("interleaved", 4, 10, {"virtual_stages": 2}, "schedule", "leave 2 of groups of 4"),
        ("interleaved", 4, 3, {"virtual_stages": 2}, "schedule", r"groups of 4 .* to 3"),
        ("dualpipe", 4, 6, {}, "schedule", "needs 8 gradient accumulation steps or more, not 6"),
        ("dualpipe", 3, 12, {}, "schedule", "an even number of stages"),
        ("zb_h1", 4, 11, {"virtual_stages": 2}, "schedule", "needs a multiple of 5"),
        ("gpipe", 4, 8, {"microbatch_group_size_per_vp_stage": 4},
         "microbatch_group_size_per_vp_stage", "is of schedule interleaved"),
    ],
)  # fmt: skip
def test_what_a_schedule_does_not_take(
    name: ScheduleName, ranks: int, micro_batches: int, options: dict[str, int], key: str,
    message: str,
) -> None:  # fmt: skip
    asked = PipelineSettings(schedule=name, **options)  # type: ignore[arg-type]
    (misfit,) = misfits(asked, ranks, micro_batches)
    assert misfit.key == key
    assert re.search(message, misfit.message)
