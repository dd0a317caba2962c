"""Shuffles against closed forms: what moves, what is stored, what waits for what."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.raycore.cluster import NodeOptions
from raysim.raycore.faults import Faults
from raysim.raylibs.data.defaults import ShuffleStrategy
from raysim.raylibs.data.job import Consumer
from raysim.raylibs.data.specs import AllToAll, Dataset, Map
from raysim.units import GIB, MIB
from tests.unit.raylibs.data.parts import cluster, data, left, played, work

STRATEGIES: tuple[ShuffleStrategy, ...] = (
    "shuffle_v2", "hash_shuffle", "sort_shuffle_pull_based", "sort_shuffle_push_based",
)  # fmt: skip


def shuffled(kind: str = "sort", *, blocks: int = 32, mib: float = 32, **more: Any) -> Dataset:
    """A read of no time, then all to all."""
    return data(32_000, AllToAll(kind=kind, **more), blocks=blocks, mib=mib)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", ["sort", "random_shuffle", "repartition", "aggregate"])
def test_all_rows_come_out_and_nothing_stays(kind: str, strategy: ShuffleStrategy) -> None:
    on = cluster(3)
    outcome = played(on, shuffled(kind, partitions=20), shuffle_strategy=strategy)
    assert outcome.consumed[0].rows == 32_000
    assert left(on) == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_maps_and_reduces_keep_all_cores_busy(strategy: ShuffleStrategy) -> None:
    # 1 GiB at 100 ns a byte to cut and as much to put together, on 8 cores: 27 s of work.
    costs = {"map_core_s_per_byte": 1e-7, "reduce_core_s_per_byte": 1e-7}
    took_s = played(
        cluster(), shuffled(partitions=32, **costs), shuffle_strategy=strategy,
        shuffle_input_batch_bytes=1,
    ).took_s  # fmt: skip
    ideal_s = 2 * GIB * 1e-7 / 8
    if strategy == "sort_shuffle_push_based":
        assert ideal_s <= took_s < 1.5 * ideal_s  # Rounds of 5 maps beside 3 merges leave gaps.
    else:
        assert took_s == pytest.approx(ideal_s, rel=0.06)


def test_reduces_begin_when_all_maps_have_ended() -> None:
    outcome = played(cluster(), shuffled(partitions=8, map_core_s_per_byte=1e-7))
    by_name = {op.name: op for op in outcome.executions[0].operators}
    assert by_name["sort-reduce"].rows_in == by_name["sort-map"].rows_out == 32_000


def test_what_other_nodes_hold_crosses_the_network() -> None:
    for nodes in (1, 2, 4):
        on = cluster(nodes)
        played(on, shuffled("random_shuffle", blocks=64, mib=64, partitions=64))
        uses = [u for u in on.env.network.uses() if str(u.link).endswith("/in)")]
        carried = sum(u.carried_bytes for u in uses)
        # Maps run where their block is.
        assert carried == pytest.approx(64 * 64 * MIB * (1 - 1 / nodes), rel=0.02)


def test_more_than_the_store_holds_goes_to_disk_once() -> None:
    # 30 GiB through a store of 8 GiB: blocks, then parts of them, are written as room is needed,
    # and what does not fit at least once.
    on = cluster(options={0: NodeOptions(object_store_bytes=8 * GIB)})
    played(on, shuffled("random_shuffle", blocks=240, mib=128, partitions=240))
    disks = [d for n in on.env.nodes for d in n.disks]
    written, read = (sum(getattr(d, f"{k}_bytes") for d in disks) for k in ("written", "read"))
    assert (30 - 8) * GIB < written < 62 * GIB
    assert 20 * GIB < read <= written * 1.01


def test_an_aggregation_gives_few_rows() -> None:
    spec = {"rows_out_frac": 0.001, "bytes_out_frac": 0.001}
    outcome = played(cluster(), shuffled("aggregate", partitions=8, **spec))
    assert outcome.consumed[0].rows == 32


def test_fused_maps_read_and_fused_reduces_write() -> None:
    sort = AllToAll(kind="sort", partitions=16, fused=True)
    outcome = played(cluster(), data(32_000, sort, Map(name="Write", io_s_per_row=1e-3), blocks=32))
    names = [op.name for op in outcome.executions[0].operators if op.tasks]
    assert names == ["sort-map", "sort-reduce->Write"]


def test_a_map_behind_a_pull_based_shuffle_runs_apart() -> None:
    outcome = played(
        cluster(), data(32_000, AllToAll(kind="sort", partitions=16), work(1e-3), blocks=32),
        shuffle_strategy="sort_shuffle_pull_based",
    )  # fmt: skip
    names = [op.name for op in outcome.executions[0].operators if op.tasks]
    assert names == ["Read", "sort-sample", "sort-map", "sort-reduce", "MapBatches"]


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(STRATEGIES), st.integers(1, 40), st.integers(1, 50), st.integers(1, 4),
    st.integers(1, 10_000),
)  # fmt: skip
def test_rows_are_kept(
    strategy: ShuffleStrategy, blocks: int, partitions: int, nodes: int, rows: int
) -> None:
    on = cluster(nodes)
    dataset = data(rows, AllToAll(kind="sort", partitions=partitions), blocks=blocks, mib=2)
    outcome = played(on, dataset, shuffle_strategy=strategy)
    assert outcome.consumed[0].rows == rows
    assert left(on) == []


def test_a_node_lost_between_maps_and_reduces_costs_its_maps_again() -> None:
    def took_s(kill: bool) -> float:
        on = cluster(4)
        if kill:
            on.sim.at("10s", lambda: Faults(on).fail_node(2))
        dataset = shuffled("random_shuffle", partitions=64, blocks=64, map_core_s_per_byte=4e-7,
                           reduce_core_s_per_byte=4e-7)  # fmt: skip
        outcome = played(on, dataset, Consumer())
        assert outcome.consumed[0].rows == 32_000
        return outcome.took_s

    assert took_s(kill=True) > 1.1 * took_s(kill=False)
