"""Trainers and drivers that iterate: prefetching, equal shares, epochs, a slow consumer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.raylibs.data.iterate import Batching
from raysim.raylibs.data.job import Consumer
from tests.unit.raylibs.data.parts import cluster, data, left, played, training, work


def test_a_slow_consumer_hides_the_data() -> None:
    # 64,000 rows: trainers step 80 s each over half of them, 8 cores make them in 16 s.
    outcome = played(cluster(), data(64_000, work(0.002)), training(2, step_s=0.0025))
    for consumed in outcome.consumed:
        assert consumed.rows == 32_000
        assert consumed.busy_s == pytest.approx(80.0)
        assert consumed.stall_s == pytest.approx(0.0, abs=0.8)


def test_a_hungry_consumer_waits_for_the_difference() -> None:
    # 80 s of data and 16 s of steps, but for the blocks that are kept back for equal shares and
    # locality: two for each trainer, made into batches at the end.
    outcome = played(cluster(), data(64_000, work(0.01)), training(2, step_s=0.0005))
    for consumed in outcome.consumed:
        waited_s = consumed.stall_s + consumed.first_s
        assert 80 - 16 < waited_s < 80 - 16 + 2 * 2 + 1


def test_collating_beside_the_step_costs_nothing_until_it_takes_longer() -> None:
    def took_s(collate_s: float, prefetch: int) -> float:
        batching = Batching(batch_size=100, prefetch_batches=prefetch, core_s_per_row=collate_s)
        consumer = Consumer(kind="iterate", batching=batching, step_s_per_row=0.001)
        return played(cluster(), data(6_400), consumer).took_s

    assert took_s(0.0005, 1) == pytest.approx(6.4, abs=0.5)
    assert took_s(0.003, 1) == pytest.approx(3 * 6.4, rel=0.05)
    assert took_s(0.003, 4) == pytest.approx(6.4, abs=0.5)


def test_a_block_is_cut_when_the_rows_ahead_are_taken() -> None:
    """With one batch ahead the second block has to be there, with none the first is enough."""

    def first_s(prefetch: int) -> float:
        batching = Batching(batch_size=50, prefetch_batches=prefetch)
        consumer = Consumer(kind="iterate", batching=batching)
        one_by_one = data(1_000, work(0.01, concurrency=1), blocks=4)  # 2.5 s each
        (consumed,) = played(cluster(), one_by_one, consumer).consumed
        return consumed.first_s

    assert first_s(0) == pytest.approx(2.5, abs=0.3)
    assert first_s(1) == pytest.approx(5.0, abs=0.3)
    assert first_s(6) == pytest.approx(7.5, abs=0.3)  # 300 rows are two blocks, and one behind


def test_a_loop_without_tasks_keeps_the_lock_from_who_iterates() -> None:
    """In its first second an execution runs one task at a time, when its consumer has nothing.

    The consumer looks every 10 ms, finds the loop spinning, and waits 5 ms for Python's lock.
    """
    few = played(
        cluster(), data(100, blocks=10, mib=0.01), Consumer(kind="iterate"), coordinated_limits=True
    )
    many = played(
        cluster(), data(400, blocks=40, mib=0.01), Consumer(kind="iterate"), coordinated_limits=True
    )
    assert (many.took_s - few.took_s) / 30 == pytest.approx(0.015, abs=0.0005)


def test_the_last_batch_is_kept_or_dropped() -> None:
    def batches(**batching: object) -> tuple[int, int]:
        consumer = Consumer(kind="iterate", batching=Batching(**batching))  # type: ignore[arg-type]
        (consumed,) = played(cluster(), data(1_000, blocks=7), consumer).consumed
        return consumed.batches, consumed.rows

    assert batches(batch_size=300) == (4, 1_000)
    assert batches(batch_size=300, drop_last=True) == (3, 900)
    assert batches(batch_size=None) == (7, 1_000)
    assert batches(batch_size=300, local_shuffle_buffer_size=500) == (4, 1_000)


@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(10, 3_000), blocks=st.integers(1, 20), workers=st.integers(1, 5),
    equal=st.booleans(), epochs=st.integers(1, 2),
)  # fmt: skip
def test_shares_are_equal_and_epochs_begin_together(
    rows: int, blocks: int, workers: int, equal: bool, epochs: int
) -> None:
    on = cluster(2)
    consumer = training(workers, step_s=0.001, equal=equal, epochs=epochs)
    outcome = played(on, data(rows, blocks=blocks), consumer)
    shares = [c.rows for c in outcome.consumed]
    assert len(outcome.executions) == epochs
    if equal:
        assert shares == [rows // workers * epochs] * workers
    else:
        assert sum(shares) == rows * epochs
        block = -(-rows // min(blocks, rows))
        assert max(shares) - min(shares) <= block * epochs
    assert left(on) == []


def test_two_trainers_take_half_the_time() -> None:
    small = data(6_400, blocks=640, mib=16)
    alone = played(cluster(), small, training(1, step_s=0.002))
    assert alone.took_s == pytest.approx(6_400 * 0.002, rel=0.15)
    both = played(cluster(), small, training(2, step_s=0.002))
    assert both.took_s == pytest.approx(alone.took_s / 2, rel=0.15)
