"""A dataset and its consumer as a job: the driver's script, and what it comes to.

Real counterpart: a user's script of ``ray.data`` calls that ends in ``write_*``, ``materialize``,
``iter_batches`` or ``streaming_split`` for trainers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from raysim.hardware.cores import Capacity, together
from raysim.hardware.specs import ObjectStorageSpec
from raysim.kernel.rng import Streams
from raysim.raycore.process import CoreProcess
from raysim.raycore.protocol import GetAllNodeInfo
from raysim.raycore.resources import UNIT
from raysim.raycore.scripts import Script, ask_gcs, drop, get, now
from raysim.raycore.tasks import Ref, TaskError
from raysim.raylibs.actors import ActorClass, ActorHandle
from raysim.raylibs.data.advice import Situation
from raysim.raylibs.data.balance import balance
from raysim.raylibs.data.blocks import Block, locations
from raysim.raylibs.data.consumers import Trainer, drain, iterate
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.executor import execution_of
from raysim.raylibs.data.iterate import Batching
from raysim.raylibs.data.report import METRICS, Outcome, report_of
from raysim.raylibs.data.resources import Resources
from raysim.raylibs.data.specs import Dataset, Source, Split
from raysim.raylibs.data.split import streaming_split
from raysim.raylibs.data.stats import ExecutionStats, stats_of
from raysim.raylibs.data.storage import Bucket
from raysim.raylibs.report import Input, Unit
from raysim.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """What is done with the rows."""

    kind: Literal["write", "materialize", "iterate", "train"] = "write"
    batching: Batching = field(default_factory=Batching)
    step_s_per_row: float = 0.0
    """Of a training worker, or of the driver's loop, per row of its own."""
    workers: int = 1
    worker_cpus: float = 1.0
    worker_gpus: float = 0.0
    strategy: Literal["DEFAULT", "SPREAD"] = "DEFAULT"
    """How workers are placed: near each other, or over all nodes."""
    epochs: int = 1
    equal: bool = True

    @property
    def held(self) -> Resources:
        """CPUs and GPUs of its workers."""
        n = self.workers if self.kind == "train" else 0
        return Resources(self.worker_cpus * n, self.worker_gpus * n)

    @property
    def rows_per_s(self) -> float:
        """That it takes at most."""
        if not self.step_s_per_row:
            return math.inf
        return (self.workers if self.kind == "train" else 1) / self.step_s_per_row


@dataclass(frozen=True, slots=True, kw_only=True)
class DataJob:
    """``data`` under a scenario's ``jobs``."""

    dataset: Dataset
    consumer: Consumer = field(default_factory=Consumer)
    context: DataContext = field(default_factory=DataContext)
    bucket: ObjectStorageSpec | None = None
    connections: int = 10
    """Side by side, of each read or write of the bucket."""
    materialize: bool = False
    """``ds.materialize()`` comes first; epochs then read blocks that are there."""
    inputs: tuple[Input, ...] = ()
    kind: str = "data"

    @property
    def metrics(self) -> Mapping[str, Unit]:
        """As ``LibraryJob``."""
        return METRICS

    def main(self, process: CoreProcess, streams: Streams) -> Script:
        """As ``LibraryJob``."""
        outcome = yield from run_job(self, process, streams)
        if isinstance(outcome, TaskError):
            return outcome
        nodes = [n for n in (yield ask_gcs(GetAllNodeInfo())) if n.state == "ALIVE"]
        hosts = dict.fromkeys(
            process.env.nodes[n.node_id].host for n in nodes if n.resources.get("CPU", 0)
        )
        machines = together(host.capacity for host in hosts)
        return report_of(outcome, self.situation(nodes, machines), self.inputs)

    def situation(self, nodes: Sequence[Any], machines: Capacity) -> Situation:
        """It and the cluster."""
        held = self.consumer.held
        cpus, gpus = (sum(n.resources.get(r, 0) for n in nodes) / UNIT for r in ("CPU", "GPU"))
        smallest = min(nodes, key=lambda n: n.resources.get("memory", 0)).resources
        return Situation(
            dataset=self.dataset,
            context=self.context,
            limits=balance(
                self.dataset, self.context, cpus=cpus - held.cpu, machines=machines,
                gpus=gpus - held.gpu, consumers_per_s=self.consumer.rows_per_s,
            ),
            trains=self.consumer.kind == "train",
            equal=self.consumer.equal,
            node_memory_bytes=smallest.get("memory", 0) / UNIT,
            node_cpus=smallest.get("CPU", 0) / UNIT,
        )  # fmt: skip


def run_job(job: DataJob, process: CoreProcess, streams: Streams) -> Script:
    """Play it: an ``Outcome``, or the TaskError it ended with."""
    bucket = None
    if job.bucket is not None:
        bucket = Bucket(process, job.bucket, connections=job.connections)
    began_ns = yield now()
    kept: list[Block] = []
    before: list[ExecutionStats] = []
    if job.materialize:
        first = replace(job, consumer=Consumer(kind="materialize"))
        answer = yield from _alone(first, process, streams, bucket, kept)
        if isinstance(answer, TaskError):
            return answer
        before = answer[1]
        job = replace(job, dataset=Dataset(source=_materialized(process, job.dataset.source, kept)))
    prepared_ns = yield now()
    if job.consumer.kind == "train":
        answer = yield from _train(job, streams, bucket)
    else:
        answer = yield from _alone(job, process, streams, bucket, kept)
    if isinstance(answer, TaskError):
        return answer
    yield drop(*(b.ref for b in kept if b.ref is not None))
    consumed, stats = answer
    ended_ns = yield now()
    return Outcome(
        took_s=(ended_ns - began_ns) / NS_PER_S, prepared_s=(prepared_ns - began_ns) / NS_PER_S,
        consumed=tuple(consumed), executions=(*before, *stats),
    )  # fmt: skip


def _materialized(process: CoreProcess, source: Source, kept: list[Block]) -> Source:
    blocks = tuple(b._replace(owned=False, nodes=locations(process, b)) for b in kept)
    return replace(source, name="Input", rows=sum(b.rows for b in blocks), blocks=blocks)


def _alone(
    job: DataJob, process: CoreProcess, streams: Streams, bucket: Any, kept: list[Block]
) -> Script:
    """The driver runs the execution and takes its rows; what is materialised is ``kept``."""
    executor = yield from execution_of(
        process, job.dataset, job.context, streams, storage=bucket,
        has_consumer=job.consumer.kind == "iterate",
    )  # fmt: skip
    if job.consumer.kind == "iterate":
        batching, step_s = job.consumer.batching, job.consumer.step_s_per_row
        consumed = yield from iterate(process, executor, batching, step_s)
    else:
        consumed = yield from drain(executor, kept if job.consumer.kind == "materialize" else None)
    if isinstance(consumed, TaskError):
        return consumed
    return [consumed], [stats_of(executor)]


def _train(job: DataJob, streams: Streams, bucket: Any) -> Script:
    """Workers train on the shards of a streaming split, with the workers' nodes as hints."""
    consumer, context = job.consumer, job.context
    resources = {"CPU": consumer.worker_cpus, "GPU": consumer.worker_gpus}
    worker = ActorClass(cls=Trainer, resources={k: v for k, v in resources.items() if v})
    worker = worker.options(strategy=consumer.strategy)
    handles: list[ActorHandle] = []
    for index in range(consumer.workers):
        handle = yield from worker.remote(
            index, consumer.batching, context, consumer.step_s_per_row, consumer.epochs
        )
        handles.append(handle)
    nodes = yield from _of_all(handles, "node")
    if isinstance(nodes, TaskError):
        return nodes
    split = Split(n=consumer.workers, equal=consumer.equal, locality_hints=tuple(nodes))
    coordinator = yield from streaming_split(
        job.dataset, split, context, streams, excluded=consumer.held, storage=bucket
    )
    consumed = yield from _of_all(handles, "train", coordinator)
    if isinstance(consumed, TaskError):
        return consumed
    stats = yield from coordinator.ask("finish")
    for handle in (*handles, coordinator):
        yield handle.kill()
    return stats if isinstance(stats, TaskError) else (consumed, stats)


def _of_all(handles: Sequence[ActorHandle], method: str, *args: Any) -> Script:
    """Values of a method of all workers, or the first TaskError."""
    refs: list[Ref] = []
    for handle in handles:
        refs += yield handle.call(method, *args)
    values = yield get(refs)
    yield drop(*refs)
    if isinstance(values, TaskError):
        return values
    failed = next((v for v in values if isinstance(v, TaskError)), None)
    return failed or [v.data for v in values]
