"""Shuffles larger than the object stores: they end, and move hardly more than their bytes."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.raycore.cluster import Cluster, NodeOptions
from raysim.raycore.scripts import Return, Sleep, drop, get, submit
from raysim.units import MB, NS_PER_MS
from tests.raycore_parts import ray_cluster
from tests.stories.ray_scripts import run, seconds, task

NODES, MAPPERS, REDUCERS = 3, 24, 8
PART_BYTES = 8 * MB
SHUFFLED_BYTES = MAPPERS * REDUCERS * PART_BYTES


def shuffle(store_bytes: int) -> Cluster:
    """Every reducer takes a part of every mapper."""
    options = {k: NodeOptions(object_store_bytes=store_bytes) for k in range(NODES)}
    cluster = ray_cluster(NODES, cpus=8, options=options, check=True)

    def main(_: Any) -> Any:
        parts = []
        for _ in range(MAPPERS):
            mapper = task(Return([PART_BYTES] * REDUCERS, core_s=1.5), num_returns=REDUCERS)
            parts.append((yield submit(mapper)))
        reducers = []
        for k in range(REDUCERS):
            reducers += yield submit(task(Sleep(800 * NS_PER_MS)), [refs[k] for refs in parts])
        for refs in parts:
            yield drop(*refs)
        yield get(reducers)
        return seconds(cluster)

    assert run(cluster, main, until="10min") < 60
    return cluster


def moved_bytes(cluster: Cluster) -> float:
    """What left the ports of all nodes."""
    out = [cluster.env.nodes[k].nics[0][0] for k in range(NODES)]
    return sum(u.carried_bytes for u in cluster.env.network.uses() if u.link in out)


@pytest.mark.parametrize("store_mb", [600, 400, 150])
def test_a_shuffle_larger_than_the_stores_moves_each_part_once(store_mb: int) -> None:
    # 1,536 MB in stores of 1,800, 1,200 and 450 MB; the arguments of one reducer are 192 MB.
    cluster = shuffle(store_mb * MB)
    assert SHUFFLED_BYTES / 2 < moved_bytes(cluster) < 1.1 * SHUFFLED_BYTES
    rows = [r for r in cluster.env.log.rows if r.kind == "object"]
    assert any(r.state == "SPILLED" for r in rows)
    assert sum(r.state == "RESTORED" for r in rows) <= MAPPERS * REDUCERS
