"""Repartitions without a shuffle, zips, sorts: what is kept in order, what its tasks are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.kernel.rng import Streams
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script, sleep
from raysim.raycore.tasks import TaskError
from raysim.raylibs.data.blocks import Block
from raysim.raylibs.data.executor import execution_of
from raysim.raylibs.data.iterate import Batching, BatchIterator, DriverStream
from raysim.raylibs.data.job import Consumer, DataJob, run_job
from raysim.raylibs.data.row_buffer import RowBuffer
from raysim.raylibs.data.specs import AllToAll, Zip
from raysim.units import to_ns
from tests.stories.ray_scripts import run
from tests.unit.raylibs.data.parts import FREE, cluster, data, left, played, training, work


def repartition(partitions: int, **more: Any) -> AllToAll:
    return AllToAll(kind="repartition", shuffle=False, partitions=partitions, **more)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 30), st.integers(1, 40), st.integers(1, 3), st.integers(1, 5_000))
def test_equal_parts_of_all_rows_come_out(
    blocks: int, partitions: int, nodes: int, rows: int
) -> None:
    on = cluster(nodes)
    outcome = played(on, data(rows, repartition(partitions), blocks=blocks, mib=2))
    last = outcome.executions[0].operators[-1]
    assert outcome.rows == rows
    assert last.blocks_out == partitions
    assert left(on) == []


def test_a_repartition_has_a_task_for_every_part_and_moves_no_more_than_they_read() -> None:
    outcome = played(cluster(), data(64_000, repartition(16), blocks=64))
    names = {op.name: op.tasks for op in outcome.executions[0].operators if op.tasks}
    assert names == {"Read": 64, "repartition": 16}


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 2_000))
def test_zipped_rows_are_as_many_as_each_has(blocks: int, others: int, rows: int) -> None:
    on = cluster()
    beside = data(rows, blocks=others, mib=2)
    outcome = played(on, data(rows, Zip(other=beside), blocks=blocks, mib=2))
    assert outcome.rows == rows
    assert left(on) == []


def test_rows_that_have_no_partner_are_an_error() -> None:
    on = cluster()
    job = DataJob(
        dataset=data(100, Zip(other=data(90, blocks=3)), blocks=4), consumer=Consumer(),
        context=FREE,
    )  # fmt: skip
    answer = run(on, lambda process: run_job(job, process, on.sim.rng), until="60h")
    assert isinstance(answer, TaskError)
    assert answer.message == "Cannot zip datasets of different number of rows: 100, 90"


def test_a_sort_looks_at_every_block_before_its_maps_begin() -> None:
    sort = AllToAll(kind="sort", partitions=8, map_core_s_per_byte=1e-9)
    outcome = played(cluster(), data(32_000, work(1e-3), sort, blocks=32))
    by_name = {op.name: op for op in outcome.executions[0].operators}
    assert by_name["sort-sample"].tasks == 32
    assert by_name["sort-sample"].rows_out == 0
    assert by_name["sort-map"].rows_in == 32_000


def test_consumers_of_an_ordered_dataset_wait_for_the_slowest_block() -> None:
    def first_s(**context: Any) -> float:
        outcome = played(
            cluster(cpus=4), data(4_000, work(1e-3, cv_frac=1.0), blocks=40, mib=1),
            training(1, step_s=1e-4), **context,
        )  # fmt: skip
        (consumed,) = outcome.consumed
        assert consumed.rows == 4_000
        return consumed.stall_s + consumed.first_s

    assert first_s(preserve_order=True) > first_s()


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(1, 30),
    st.sampled_from([None, 1]),
)  # fmt: skip
def test_a_buffer_gives_every_row_once(sizes: list[int], each: int, seed: int | None) -> None:
    buffer = RowBuffer(None if seed is None else np.random.default_rng(seed))
    for number, rows in enumerate(sizes):
        buffer.add(Block(rows, 10 * rows, start=100 * number), number)
    seen: list[int] = []
    done = size_bytes = 0.0
    while buffer.rows:
        parts, some_bytes, used = buffer.take(min(each, buffer.rows))
        seen += [p.start + i for p in parts for i in range(p.rows)]
        size_bytes += some_bytes
        done += len(used)
    rows = [100 * n + i for n, count in enumerate(sizes) for i in range(count)]
    assert sorted(seen) == rows
    assert seed is not None or seen == rows
    assert done == sum(count > 0 for count in sizes)
    assert size_bytes == pytest.approx(10 * len(rows))


def test_a_loop_that_is_left_leaves_nothing() -> None:
    on = cluster(cpus=4)

    def main(process: CoreProcess) -> Script:
        dataset = data(4_000, work(1e-3), blocks=40, mib=1)
        executor = yield from execution_of(process, dataset, FREE, Streams(0))
        batches = BatchIterator(process, DriverStream(executor), Batching(), FREE)
        first = yield from batches.next_batch()
        yield sleep(to_ns(5.0))  # blocks wait for it
        executor.stop()
        yield from batches.close()
        return first.rows

    assert run(on, main, until="60h") == 256
    assert left(on) == []
