"""Continuous batching: by hand, and stretches against iterations one by one."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.errors import InfeasibleError
from raysim.kernel.simulation import Simulation
from raysim.serving.engine import LLMEngine, Request, Served
from raysim.serving.scheduler import Sequence
from raysim.serving.stages import Stages
from tests.unit.serving.parts import Linear, engine

Arrival = tuple[int, Request]


def play(made: LLMEngine, arrivals: Iterable[Arrival]) -> list[tuple[int, Served]]:
    """Outcomes by the number of their request, in order of time."""
    done: list[tuple[int, Served]] = []
    for i, (at_ns, request) in enumerate(arrivals):
        made.simulation.clock.call_at(
            at_ns,
            lambda r, i=i: made.submit(r, lambda outcome: done.append((i, outcome))),
            request,
        )
    made.simulation.run("10h")
    return done


def test_one_request_prefills_in_chunks_and_decodes_token_by_token() -> None:
    made = engine(Simulation(), times=Linear(context_s=0.0))
    [(_, outcome)] = play(made, [(0, Request(prompt_tokens=5_000, output_tokens=11))])
    # Chunks of 2,048, 2,048 and 904 tokens; then ten iterations of one token.
    assert outcome.ttft_s == pytest.approx(3 * 10e-3 + 5_000 * 10e-6)
    assert outcome.tpot_s == pytest.approx(10e-3 + 10e-6)
    assert made.iterations == 13
    assert made.tokens_made == 11


def test_a_prompt_that_comes_slows_those_that_decode() -> None:
    made = engine(Simulation(), times=Linear(context_s=0.0))
    first, second = (
        Request(prompt_tokens=1, output_tokens=3),
        Request(prompt_tokens=1_000, output_tokens=1),
    )
    done = dict(play(made, [(0, first), (5_000_000, second)]))
    # The second waits for the iteration under way, then shares the next with the first.
    assert done[1].first_token_ns == pytest.approx(2 * 10e6 + 1_002 * 10e3, abs=10)
    assert done[0].finished_ns == pytest.approx(3 * 10e6 + 1_003 * 10e3, abs=10)


def test_who_finds_no_blocks_is_preempted_and_starts_over() -> None:
    made = engine(Simulation(), blocks=8)  # 128 tokens
    requests = [(0, Request(prompt_tokens=50, output_tokens=40)) for _ in range(2)]
    done = dict(play(made, requests))
    assert done[0].preemptions == 0
    assert done[1].preemptions == 1
    assert done[1].first_token_ns < done[0].finished_ns < done[1].finished_ns
    assert made.pool.free == 8


def test_who_was_preempted_goes_on_where_the_cache_still_has_it() -> None:
    took = {}
    for caching in (True, False):
        made = engine(
            Simulation(), blocks=130, times=Linear(context_s=0.0), enable_prefix_caching=caching,
            max_num_batched_tokens=256,
        )  # fmt: skip
        first = Request(prompt_tokens=1_000, output_tokens=80)
        second = Request(prompt_tokens=1_200, output_tokens=2)
        done = dict(play(made, [(0, first), (1, second)]))
        assert done[1].preemptions >= 1
        took[caching] = done[1].finished_ns - done[0].finished_ns, made.busy_ns
        assert made.pool.available == 130
    # Of its 1,200 tokens the first left room for a thousand: one more chunk, and a last token.
    assert took[True][0] == pytest.approx(2 * 10e6 + 250 * 10e3, rel=0.1)
    assert took[False][0] > took[True][0]
    assert took[True][1] < took[False][1]


def test_blocks_that_a_prefix_covers_by_now_are_not_counted_twice() -> None:
    scheduler = engine(Simulation(), blocks=100).scheduler
    pool = scheduler.pool
    sequence = Sequence(
        request=None, prompt=900, output=1, arrived_ns=0, then=lambda _: None, prefix="system",
        prefix_tokens=480, preemptions=1,
    )  # fmt: skip
    # It was preempted with 31 blocks of its own; meanwhile another has kept the 30 of the prefix.
    assert pool.take(61)
    pool.set_aside(sequence, 31)
    pool.keep("system", 30)
    pool.leave("system")
    scheduler.waiting.append(sequence)
    [part] = scheduler.schedule()
    assert (sequence.computed, part[1]) == (31 * 16, 900 - 31 * 16)
    assert (sequence.shared, sequence.blocks) == (30, 57 - 30)
    assert pool.free == 100 - 57


def test_a_prefix_is_computed_once() -> None:
    made = engine(Simulation(), times=Linear(context_s=0.0))
    same = {"prompt_tokens": 1_000, "output_tokens": 1, "prefix": "system", "prefix_tokens": 800}
    first, second = (
        outcome for _, outcome in play(made, [(0, Request(**same)), (10**9, Request(**same))])
    )
    assert (first.hit_tokens, second.hit_tokens) == (0, 800)
    assert first.ttft_s - second.ttft_s == pytest.approx(800 * 10e-6)


def test_a_prefix_of_this_iteration_is_found_by_who_comes_after_it() -> None:
    """As the samples of one prompt, which come together."""
    made = engine(Simulation(), times=Linear(context_s=0.0), max_num_batched_tokens=1_500)
    same = {"prompt_tokens": 1_000, "output_tokens": 1, "prefix": "prompt", "prefix_tokens": 1_000}
    before = Request(prompt_tokens=1, output_tokens=1)  # while it runs, the others come
    arrivals = [(0, before), *[(1, Request(**same))] * 3]
    done = [outcome for _, outcome in play(made, arrivals)][1:]
    assert [o.hit_tokens for o in done] == [0, 992, 992]  # whole blocks
    assert len({o.finished_ns for o in done}) == 1


def test_who_leaves_ends_with_the_iteration_under_way_or_never_begins() -> None:
    sim = Simulation()
    made = engine(sim, times=Linear(context_s=0.0), max_num_seqs=1)
    done: list[Served] = []
    left = made.submit(Request(prompt_tokens=1, output_tokens=1_000), done.append)
    never = made.submit(Request(prompt_tokens=1, output_tokens=1_000), done.append)
    made.submit(Request(prompt_tokens=1, output_tokens=1), done.append)
    at_ns = 10 * 10_010_000 + 1  # in the eleventh iteration
    sim.clock.call_at(at_ns, lambda _: (made.abort(never), made.abort(left)), None)
    sim.run("10h")
    assert [o.request.output_tokens for o in done] == [1_000, 1]
    assert [o.finished_ns for o in done] == pytest.approx([11 * 10.01e6, 12 * 10.01e6], abs=20)
    assert made.pool.free == 10_000


def test_tokens_are_known_while_a_stretch_is_under_way() -> None:
    sim = Simulation()
    made = engine(sim, times=Linear(context_s=0.0))
    sequence = made.submit(Request(prompt_tokens=1, output_tokens=50), lambda _: None)
    seen = []
    for at_ns in (0, 10_010_001, 25_000_000, 500_500_001):
        sim.run(at_ns)
        seen.append((made.tokens_of(sequence), round((made.next_ns - sim.now_ns) / 1e6, 2)))
    assert seen == [(0, 10.01), (1, 10.01), (2, 5.03), (50, 0.0)]


def test_layers_that_slide_hold_their_window_and_no_more() -> None:
    # 160 tokens fill ten blocks, and two more of the layers that slide.
    assert engine(Simulation(), window_blocks=2).pool.needed(160) == 12
    with pytest.raises(InfeasibleError, match="the cache holds 128 tokens"):
        engine(Simulation(), blocks=10, window_blocks=2).submit(
            Request(prompt_tokens=128, output_tokens=1), lambda _: None
        )


def test_a_model_that_leaves_no_room_says_what_is_missing() -> None:
    with pytest.raises(InfeasibleError, match="a sequence may have 4,096"):
        engine(Simulation(), blocks=100, max_model_len=4_096)


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 2_000_000_000),
        st.builds(
            Request,
            prompt_tokens=st.integers(1, 300), output_tokens=st.integers(1, 120),
            prefix=st.sampled_from([None, "a", "b"]), prefix_tokens=st.just(0),
        ) | st.builds(
            Request,
            prompt_tokens=st.integers(100, 300), output_tokens=st.integers(1, 120),
            prefix=st.sampled_from(["a", "b"]), prefix_tokens=st.just(96),
        ),
    ),
    min_size=1, max_size=25,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    arrivals=REQUESTS, blocks=st.integers(30, 120), window_blocks=st.integers(0, 3),
    seqs=st.integers(1, 12), budget=st.sampled_from([32, 64, 2048]),
    chunked=st.booleans(), caching=st.booleans(), count=st.integers(1, 3),
)  # fmt: skip
def test_stretches_give_the_nanoseconds_of_single_iterations(
    arrivals: list[Arrival], blocks: int, window_blocks: int, seqs: int, budget: int,
    chunked: bool, caching: bool, count: int,
) -> None:  # fmt: skip
    results = []
    for stepwise in (False, True):
        made = engine(
            Simulation(), blocks=blocks, window_blocks=window_blocks, stepwise=stepwise,
            max_num_seqs=seqs, max_num_batched_tokens=budget if chunked else 2048,
            enable_chunked_prefill=chunked, enable_prefix_caching=caching,
            stages=Stages(count=count, hop_s=1e-4, token_s=1e-7),
        )  # fmt: skip
        done = play(made, arrivals)
        assert len(done) == len(arrivals)
        assert made.pool.available == blocks
        assert made.tokens_made >= sum(r.output_tokens for _, r in arrivals)
        results.append((done, made.iterations, made.busy_ns, made.scheduler.preemptions))
    assert results[0] == results[1]


@settings(max_examples=60, deadline=None)
@given(arrivals=REQUESTS, blocks=st.integers(30, 60))
def test_the_pool_never_gives_more_than_it_has(arrivals: list[Arrival], blocks: int) -> None:
    made = engine(Simulation(), blocks=blocks, stepwise=True)
    taken = 0

    def count(_: object) -> None:
        nonlocal taken
        held = sum(s.blocks for s in made.scheduler.running)
        held += sum(p.blocks for p in made.pool.prefixes.values())
        assert held + made.pool.free == blocks
        taken = max(taken, held)
        if made.load or taken == 0:
            made.simulation.clock.call_later(3_000_000, count)

    made.simulation.clock.call_at(max(1, min(t for t, _ in arrivals)), count)
    play(made, arrivals)
    assert 0 < taken <= blocks
