"""Ray's own release benchmarks, row by row.

``validation/programs/ray_core_benchmarks.py`` runs unmodified on the emulated machine of each row;
what would need the bytes themselves, or hundreds of nodes, is a script of sizes here. Rows marked
calibration in the data fixed service times of ``perf.ray_core``, or the speed of one release of Ray
relative to 2.48.0 (one row of each later or earlier release; nothing of 2.37.0).
"""

from __future__ import annotations

import contextlib
import io
import statistics
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
from raysim.kernel.simulation import Simulation
from raysim.rayapi.loader import run_script
from raysim.raycore import scripts
from raysim.raycore.cluster import Cluster, NodeOptions
from raysim.raycore.resources import ResourceSet
from raysim.raycore.scripts import Sleep, drive, drop, get, put, sleep, submit, wait
from raysim.raycore.tasks import Payload, TaskOptions
from raysim.units import NS_PER_S, to_ns
from raysim.validate.points import Point
from raysim.validate.published import rows

PROGRAM = Path("programs/ray_core_benchmarks.py")
"""Under the folder ``validation``."""
P90_SD = 1.2816
"""Standard deviations from the mean of a normal distribution to its 90th percentile."""
FAMILY = "ray_published"


class Benchmarks:
    """What raysim says of each benchmark of Ray 2.48.0; each is run once."""

    def __init__(self, validation: Path) -> None:
        self._validation = validation
        self._known: dict[str, float] = {}

    def predicted(self, metric: str) -> float:
        """Its value, in the unit of the data."""
        if metric not in self._known:
            script = self._scripts.get(metric)
            self._known[metric] = script() if script else self._by_program(metric)
        return self._known[metric]

    def _by_program(self, metric: str) -> float:
        """What the benchmark program prints."""
        out = io.StringIO()
        program = self._validation / PROGRAM
        with contextlib.redirect_stdout(out):
            run_script(program, [metric], cluster=lambda _: _one_node("m5.16xlarge"))
        return float(out.getvalue().split()[1])

    @cached_property
    def _many_nodes(self) -> tuple[float, float, float]:
        return many_nodes()

    @property
    def _scripts(self) -> dict[str, Callable[[], float]]:
        return {
            "single_client_put_gigabytes": put_gigabytes,
            "107374182400_large_object_time": large_object,
            "1000000_queued_time": queued,
            "time": lambda: self._many_nodes[0],
            "tasks_per_second": lambda: self._many_nodes[1],
            "used_cpus_by_deadline": lambda: self._many_nodes[2],
        }


def ray_published_points(validation: Path) -> Iterator[Point]:
    """Every row of the data, those left out with the reason that stands there."""
    data, benchmarks = rows(validation, "ray_core.json"), Benchmarks(validation)
    speeds = {}
    for row in data:
        if "relative" in row["why"]:
            speeds[row["release"]] = row["value"] / benchmarks.predicted(row["metric"])
    for row in data:
        replaced = " (first run)" if row["why"].startswith("a first run") else ""
        name = f"{row['metric']} {row['release']}{replaced}"
        sd, value = row["sd"] or 0.0, row["value"]
        measured: dict[str, Any] = {"unit": row["unit"], "measured": value} | (
            {"low": value - P90_SD * sd, "high": value + P90_SD * sd, "repetitions": 2}
            if sd
            else {}
        )
        if row["use"] == "left_out":
            yield Point(
                family=FAMILY, name=name, role="validation", left_out=row["why"], **measured
            )
            continue
        scales = row["suite"] == "microbenchmark" and row["unit"] != "GB/s"
        speed = speeds.get(row["release"], 1.0) if scales else 1.0
        said = benchmarks.predicted(row["metric"]) * speed
        yield Point(family=FAMILY, name=name, role=row["use"], predicted=said, **measured)


def _one_node(name: str, store_bytes: int | None = None) -> Cluster:
    group = NodeGroup(
        name="head", node=catalog.node(name), count=1, head=True, resources={"custom": 100}
    )
    spec = ClusterSpec(groups=(group,), fabric=FabricSpec(kind="star"))
    options = {0: NodeOptions(object_store_bytes=store_bytes)} if store_bytes else None
    return Cluster(Simulation(), spec, options=options)


def _run(cluster: Cluster, main: Callable[[Any], Any]) -> Any:
    """What a driver's script returns; it must end within an hour."""
    ended: list[Any] = []
    cluster.driver(lambda driver: drive(driver, main, ended.append))
    cluster.sim.run("1h")
    assert ended, "the driver has not ended within an hour"
    return ended[0]


def _now_s(cluster: Cluster) -> float:
    return cluster.sim.now_ns / NS_PER_S


def _task(body: Any, cpus: float) -> TaskOptions:
    return TaskOptions(function=scripts.function(body, ""), resources=ResourceSet.of({"CPU": cpus}))


def put_gigabytes() -> float:
    """GB/s: a second of warm-up, then four trials of two seconds, as Ray's timer does it."""
    cluster = _one_node("m5.16xlarge")

    def once() -> Any:
        ref = yield put(Payload(838_860_800))
        yield drop(ref)

    def main(_: Any) -> Any:
        start_s, calls, rates = _now_s(cluster), 0, []
        while _now_s(cluster) < start_s + 1:
            yield from once()
            calls += 1
        for _ in range(4):
            start_s, done = _now_s(cluster), 0
            while _now_s(cluster) < start_s + 2:
                for _ in range(calls // 10 + 1):
                    yield from once()
                    done += 1
            rates.append(0.8 * done / (_now_s(cluster) - start_s))
        return statistics.mean(rates)

    return float(_run(cluster, main))


def large_object() -> float:
    """Seconds of 100 GiB of untouched zeros: read once, written once, pages new on both sides."""
    cluster, size_bytes = _one_node("m4.16xlarge", 128 * 10**9), 100 * 2**30

    def main(driver: Any) -> Any:
        start_s = _now_s(cluster)
        yield sleep(to_ns(size_bytes / driver.costs.first_touch_bytes_per_s))
        ref = yield put(Payload(size_bytes))
        yield get([ref])
        return _now_s(cluster) - start_s

    return float(_run(cluster, main))


def queued() -> float:
    """Seconds of a million no-op tasks behind 64 that block, then got one by one."""
    cluster, no_op = _one_node("m4.16xlarge", 128 * 10**9), _task(scripts.no_op, 1)

    def main(_: Any) -> Any:
        start_s, refs = _now_s(cluster), []
        for _ in range(1_000_000):
            refs += yield submit(no_op)
        for ref in refs:
            yield get([ref])
        return _now_s(cluster) - start_s

    return float(_run(cluster, main))


def many_nodes() -> tuple[float, float, float]:
    """(seconds in all, tasks per second, CPUs used at the deadline) of 1,000 tasks of 300 s."""
    head = NodeGroup(
        name="head", node=catalog.node("r5dn.16xlarge"), count=1, head=True, resources={"CPU": 0}
    )
    workers = NodeGroup(name="worker", node=catalog.node("m5.2xlarge"), count=249)
    spec = ClusterSpec(groups=(head, workers), fabric=FabricSpec(kind="star"))
    cluster = Cluster(Simulation(), spec)
    work, n = _task(Sleep(300 * NS_PER_S), 0.25), 1000

    def main(_: Any) -> Any:
        yield sleep(10 * NS_PER_S)
        start_s, left = _now_s(cluster), []
        for _ in range(n):
            left += yield submit(work)
        yield sleep(1)
        deadline_s, used = _now_s(cluster) + 300, 0.0
        while _now_s(cluster) < deadline_s:
            used = max(used, _cpus_used(cluster))
            yield sleep(NS_PER_S // 10)
        while left:
            ready = (yield wait(left)).index(True)
            yield get([left[ready]])
            del left[ready]
        total_s = _now_s(cluster) - start_s
        return total_s, n / (total_s - 300), used

    seconds, per_s, used = _run(cluster, main)
    return seconds, per_s, used


def _cpus_used(cluster: Cluster) -> float:
    views = [node.resources for node in cluster.env.view.nodes.values()]
    return sum(v.total.get("CPU", 0) - v.available.get("CPU", 0) for v in views) / 10_000
