"""``ray.util.collective``: what collectives take; their values: ``tests/programs``."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, NodeGroup
from raysim.kernel.simulation import Simulation
from raysim.raycore.cluster import Cluster
from tests.rayapi_parts import run

MIB = 1 << 20


def taken_s(node: str, nodes: int, ranks: int, backend: str, size_bytes: int) -> float:
    """Of one all-reduce, in the rank that waits longest, all ranks there."""

    def main() -> float:
        import ray
        from ray.util import collective as col

        gpus = 1 if backend == "nccl" else 0

        @ray.remote(num_cpus=1, num_gpus=gpus, scheduling_strategy="SPREAD")
        class Rank:
            def work(self, rank: int) -> float:
                col.init_collective_group(ranks, rank, backend, "g")
                tensor = np.ones(size_bytes // 8)
                col.barrier("g")
                began_s = time.time()
                col.allreduce(tensor, "g")
                assert tensor[-1] == ranks
                return time.time() - began_s

        return max(ray.get([Rank.remote().work.remote(r) for r in range(ranks)]))

    spec = ClusterSpec(groups=(NodeGroup(name="w", node=catalog.node(node), count=nodes),))
    made: Any = lambda _: Cluster(Simulation(), spec)  # noqa: E731
    return float(run(main, made))


def test_gloo_is_bound_by_cores_on_one_node_and_by_the_nics_between_two() -> None:
    """A ring sends 2 (n - 1) / n of the bytes: 64 MiB through 4 ranks' NIC of 2 nodes."""
    nic = catalog.node("m5.large").nic
    least_s = 1.5 * 64 * MIB / nic.bytes_per_s
    across = taken_s("m5.large", 2, 4, "gloo", 64 * MIB)
    inside = taken_s("m5.2xlarge", 1, 4, "gloo", 64 * MIB)
    assert across >= least_s
    assert inside > 2 * 1.5 * 64 * MIB / 6e9


def test_nccl_takes_what_nccl_tests_measure() -> None:
    """8 H100: 64 MiB at about 200 GB/s of algorithm bandwidth or more, never above NVLink's 450."""
    found = taken_s("hgx-h100-8", 1, 8, "nccl", 64 * MIB)
    assert 64 * MIB / 450e9 < found < 64 * MIB / 100e9


def test_nccl_needs_a_gpu_for_each_rank() -> None:
    def main() -> str:
        import ray
        from ray.util import collective as col

        @ray.remote
        class Rank:
            def join(self) -> None:
                col.init_collective_group(1, 0, "nccl", "g")

        with pytest.raises(RuntimeError, match="needs a GPU for each rank") as error:
            ray.get(Rank.remote().join.remote())
        return str(error.value)

    assert "take backend='gloo'" in run(main)
