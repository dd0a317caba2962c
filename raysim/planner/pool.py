"""Runners: how points get tried. In this process, in processes of this machine, or as Ray tasks.

All yield the same trials, in whatever order they end. A process that dies takes nothing with it:
what it held is tried again, twice at most.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any

from raysim.planner.space import Point
from raysim.planner.trials import Trial, try_point
from raysim.scenario.load import Scenario
from raysim.scenario.targets import Target

Runner = Callable[[Scenario, Iterable[Point], tuple[Target, ...]], Iterator[Trial]]
AHEAD = 4
"""Points given out per process, so that none waits for the next."""
MOST_ATTEMPTS = 2

_given: dict[str, Any] = {}


def serial(
    scenario: Scenario, points: Iterable[Point], limits: tuple[Target, ...]
) -> Iterator[Trial]:
    """One after the other, here."""
    for point in points:
        yield try_point(scenario, point, limits)


def processes(count: int) -> Runner:
    """A pool of so many processes; one: ``serial``."""
    return serial if count == 1 else partial(_pooled, count)


def _pooled(
    count: int, scenario: Scenario, points: Iterable[Point], limits: tuple[Target, ...]
) -> Iterator[Trial]:
    left = iter(points)
    again: list[Point] = []
    broke: Counter[int] = Counter()
    while True:
        pool = ProcessPoolExecutor(
            count, multiprocessing.get_context("spawn"), _begin, (scenario, limits)
        )
        running: dict[Future[Trial], Point] = {}
        try:
            while True:
                while len(running) < AHEAD * count:
                    point = again.pop() if again else next(left, None)
                    if point is None:
                        break
                    running[pool.submit(_try, point)] = point
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    trial = future.result()
                    del running[future]
                    yield trial
        except BrokenProcessPool:
            for point in running.values():
                broke[point.number] += 1
                if broke[point.number] < MOST_ATTEMPTS * AHEAD * count:
                    again.append(point)
                else:
                    yield lost(point)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def lost(point: Point) -> Trial:
    """A point whose process died every time."""
    why = "the process that tried it died, each time"
    return Trial(number=point.number, choice=point.choice, status="failed", why=why)


def _begin(scenario: Scenario, limits: tuple[Target, ...]) -> None:
    _given.update(scenario=scenario, limits=limits)


def _try(point: Point) -> Trial:
    return try_point(_given["scenario"], point, _given["limits"])


def on_ray(address: str | None) -> Runner:
    """Tasks of a real Ray cluster, which must have raysim installed."""
    return partial(_on_ray, address)


def _on_ray(
    address: str | None, scenario: Scenario, points: Iterable[Point], limits: tuple[Target, ...]
) -> Iterator[Trial]:
    import ray

    ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
    shared = ray.put((scenario, limits))
    attempt = ray.remote(_try_on_ray).options(max_retries=MOST_ATTEMPTS)
    left = iter(points)
    running: dict[Any, Point] = {}
    cpus = int(ray.cluster_resources().get("CPU", 1))  # type: ignore[no-untyped-call]
    most = AHEAD * max(cpus, 1)
    while True:
        while len(running) < most and (point := next(left, None)) is not None:
            running[attempt.remote(shared, point)] = point
        if not running:
            return
        done, _ = ray.wait(list(running))
        for ref in done:
            point = running.pop(ref)
            try:
                yield ray.get(ref)
            except ray.exceptions.WorkerCrashedError:
                yield lost(point)


def _try_on_ray(given: tuple[Scenario, tuple[Target, ...]], point: Point) -> Trial:
    scenario, limits = given
    return try_point(scenario, point, limits)
