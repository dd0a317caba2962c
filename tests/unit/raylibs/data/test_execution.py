"""Executions against closed forms: throughput, conservation, budgets, pools, limits."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.raylibs.data.job import Consumer
from raysim.raylibs.data.specs import Limit, Map, Operation, Union
from raysim.units import MIB
from tests.unit.raylibs.data.parts import cluster, data, left, played, pool, work


@pytest.mark.parametrize(("blocks", "cpus"), [(64, 8), (60, 8), (8, 16)])
def test_a_map_takes_as_many_waves_as_its_blocks_need(blocks: int, cpus: int) -> None:
    # 64,000 rows of 10 ms are 640 core seconds; tasks of one block each run side by side.
    took_s = played(cluster(cpus=cpus), data(64_000, work(0.01), blocks=blocks)).took_s
    assert took_s == pytest.approx(math.ceil(blocks / cpus) * 640 / blocks, rel=0.03)


def test_two_stages_run_at_the_pace_of_all_cores() -> None:
    # An actor that holds half a CPU works on a whole core as long as one is free. Beyond that are
    # whole blocks at the end and a pool that grows step by step: 8 or 11 %, as its steps fall.
    outcome = played(cluster(), data(64_000, work(0.005), pool(0.01, (1, 16))))
    assert outcome.took_s == pytest.approx(64_000 * (0.005 + 0.01) / 8, rel=0.12)


def test_a_slow_pool_binds_and_its_feeder_waits_within_its_budget() -> None:
    outcome = played(cluster(), data(64_000, work(0.0), pool(0.01, 4)))
    assert outcome.took_s == pytest.approx(64_000 * 0.01 / 4, rel=0.05)
    (stats,) = outcome.executions
    assert stats.peak_store_bytes <= stats.store_limit_bytes


def test_waiting_for_storage_takes_no_core() -> None:
    # Twice as many waiters as cores is what num_cpus=0.5 buys.
    waiting = Map(io_s_per_row=0.01, num_cpus=0.5)
    busy = Map(core_s_per_row=0.01, num_cpus=0.5)
    assert played(cluster(), data(64_000, waiting)).took_s == pytest.approx(640 / 16, rel=0.12)
    assert played(cluster(), data(64_000, busy)).took_s == pytest.approx(640 / 8, rel=0.12)


def test_a_pool_grows_to_what_keeps_up_and_no_further() -> None:
    # Two tasks at a time at 1 ms a row, and 0.1 s until the driver sees a block of 0.5 s: 1,670
    # rows/s. Actors of 4 ms a row keep up with it when there are seven.
    feeder = work(0.001, concurrency=2)
    outcome = played(cluster(cpus=32), data(200_000, feeder, pool(0.004, (1, 30)), blocks=400))
    peak = next(op.peak_actors for op in outcome.executions[0].operators if op.peak_actors)
    assert 7 <= peak <= 9
    fixed = played(cluster(cpus=32), data(200_000, feeder, pool(0.004, 8), blocks=400))
    assert outcome.took_s == pytest.approx(fixed.took_s, rel=0.1)


def test_a_pool_starts_with_its_constructors() -> None:
    quick = played(cluster(), data(6_400, pool(0.001, 4)))
    slow = played(cluster(), data(6_400, pool(0.001, 4, setup_s=30.0)))
    assert slow.took_s - quick.took_s == pytest.approx(30.0, abs=0.5)


def test_enough_rows_end_what_is_upstream() -> None:
    outcome = played(cluster(), data(64_000, work(0.01), Limit(rows=1_500)))
    assert outcome.consumed[0].rows == 1_500
    assert outcome.took_s < 64_000 * 0.01 / 8 / 3


def test_a_union_has_the_rows_of_all() -> None:
    others = (data(1_000, work(0.001), blocks=3), data(500, blocks=2))
    outcome = played(cluster(), data(2_000, Union(others=others), blocks=5))
    assert outcome.consumed[0].rows == 3_500


def test_small_blocks_are_put_together_for_a_batch() -> None:
    outcome = played(cluster(), data(6_400, pool(0.0, 2, batch_size=1_000), blocks=64))
    batches = next(op for op in outcome.executions[0].operators if op.peak_actors)
    assert batches.tasks == math.ceil(6_400 / 1_000)
    assert batches.rows_in == 6_400


def test_bulk_execution_is_not_slower_than_its_stages_one_by_one() -> None:
    stages = (work(0.002), pool(0.002, 8))
    streaming = played(cluster(), data(64_000, *stages))
    assert streaming.took_s < played(cluster(), data(64_000, work(0.002))).took_s + 64_000 * 0.002


STEPS = st.lists(
    st.builds(
        lambda cost, grows, size, actors: Map(
            core_s_per_row=cost, rows_out_per_row=grows, row_bytes_out=size, actors=actors,
            num_cpus=0.5 if actors else None, concurrency=(1, 3) if actors else None,
        ),
        cost=st.sampled_from([0.0, 0.001, 0.01]),
        grows=st.sampled_from([1.0, 3.0]),
        size=st.sampled_from([None, 100.0, 0.5 * MIB]),
        actors=st.booleans(),
    ),
    max_size=3,
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(
    steps=STEPS, blocks=st.integers(1, 30), rows=st.integers(30, 2_000), mib=st.integers(1, 200),
    nodes=st.integers(1, 3),
)  # fmt: skip
def test_rows_are_conserved_budgets_hold_and_nothing_is_left(
    steps: list[Operation], blocks: int, rows: int, mib: int, nodes: int
) -> None:
    on = cluster(nodes, check=True)
    outcome = played(on, data(rows, *steps, blocks=blocks, mib=mib))
    factor = math.prod(s.rows_out_per_row for s in steps if isinstance(s, Map))
    assert outcome.consumed[0].rows == pytest.approx(rows * factor, abs=blocks * factor)
    (stats,) = outcome.executions
    maps = [op for op in stats.operators if op.tasks]
    for before, after in pairwise(maps):
        assert after.rows_in == before.rows_out
    # An operator's budget may be overrun by what each of its running tasks has in its generator
    # before the first block told how large blocks are, and by one block that a guard lets through.
    largest = max(mib * MIB, *(op.bytes_out / op.blocks_out for op in maps))
    slack = 2 * largest * (8 * nodes * 2 + 3) + largest
    assert stats.peak_store_bytes <= stats.store_limit_bytes + slack
    assert left(on) == []


def test_equal_seeds_give_equal_runs() -> None:
    noisy = data(6_400, work(0.01, cv_frac=0.3), pool(0.002, (1, 4)))
    first, again = (played(cluster(2, seed=5), noisy) for _ in range(2))
    assert first == again
    assert played(cluster(2, seed=6), noisy).took_s != first.took_s


def test_what_is_materialised_is_dropped_at_the_end() -> None:
    on = cluster(check=True)
    played(on, data(640, work(0.001)), Consumer(kind="materialize"))
    assert left(on) == []
