"""Datasets on small clusters, and a driver that costs nothing, so that only the data shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raysim.raycore.checks import leaks
from raysim.raycore.cluster import Cluster
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.iterate import Batching
from raysim.raylibs.data.job import Consumer, DataJob, run_job
from raysim.raylibs.data.report import Outcome
from raysim.raylibs.data.specs import Dataset, Map, Operation, Source
from raysim.units import MIB
from tests.raycore_parts import ray_cluster
from tests.stories.ray_scripts import run

FREE = DataContext(coordinated_limits=False)
"""An execution that knows at once what there is to use."""
WARM = {
    "worker_start_core_s": 0.001, "worker_start_sigma": 0.0, "data_run_ns": 0, "data_step_ns": 0,
    "data_active_task_ns": 0, "data_task_ns": 0, "data_block_ns": 0, "data_map_ns": 0,
    "data_batch_ns": 0, "data_exchange_ns": 0, "data_iterated_batch_ns": 0,
    "data_worker_core_s": 0.0,
}  # fmt: skip
"""Workers that are there at once, and a library whose own code takes no time."""


def cluster(nodes: int = 1, *, cpus: int = 8, **more: Any) -> Cluster:
    """Equal nodes of 32 GiB with quick workers; nothing is logged."""
    return ray_cluster(nodes, cpus=cpus, costs=WARM, log=False, **more)


def data(rows: int = 64_000, *operations: Operation, blocks: int = 64, mib: float = 32) -> Dataset:
    """``ray.data.range_tensor``: rows in so many blocks, of so many MiB each."""
    source = Source(rows=rows, row_bytes=mib * MIB * blocks / rows, override_num_blocks=blocks)
    return Dataset(source=source, operations=operations)


def work(core_s: float, **more: Any) -> Map:
    """A map that keeps a core busy so long per row."""
    return Map(core_s_per_row=core_s, **more)


def pool(core_s: float, size: int | tuple[int, int], **more: Any) -> Map:
    """The same in actors of half a CPU, which are not fused with tasks before them."""
    return work(core_s, actors=True, num_cpus=0.5, concurrency=size, **more)


def training(workers: int = 2, *, step_s: float = 0.0, **more: Any) -> Consumer:
    """Trainers, by default with batches of 100 rows and a step of no time."""
    batching = more.pop("batching", Batching(batch_size=100))
    return Consumer(
        kind="train", workers=workers, step_s_per_row=step_s, batching=batching, worker_cpus=0.0,
        **more,
    )  # fmt: skip


def played(
    on: Cluster, dataset: Dataset, consumer: Consumer | None = None, **context: Any
) -> Outcome:
    """A job's outcome, alone on a cluster."""
    job = DataJob(
        dataset=dataset, consumer=consumer or Consumer(), context=replace(FREE, **context)
    )
    outcome = run(on, lambda process: run_job(job, process, on.sim.rng), until="60h")
    assert isinstance(outcome, Outcome), outcome
    return outcome


def left(on: Cluster) -> list[str]:
    """Leases, workers and objects that are left behind; handles of actors do not count."""
    on.sim.run("61h")
    return [line for line in leaks(on) if "driver" not in line]
