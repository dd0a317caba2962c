"""Runners: how points get tried. In this process, in processes of this machine, or as Ray tasks.

All yield the same trials, in whatever order they end. A process that dies takes nothing with it:
what was given out is tried again, each point alone, and given up when its process dies again.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any

from raysim.errors import ScenarioError
from raysim.kernel.simulation import what_exists_stays
from raysim.planner.space import Point
from raysim.planner.tasks import Task
from raysim.planner.trials import Trial

Runner = Callable[[Task, Iterable[Point]], Iterator[Trial]]
AHEAD = 4
"""Points given out per process, so that none waits for the next."""
MOST_ATTEMPTS = 2
FEW = 8
"""Points that take less time than starting processes, as long as nobody looks at the clock."""
WORTH_S = 8.0
"""Work left that is worth starting processes for: they take some two seconds to begin."""
MEMORY_FRAC = 0.5
"""Of the machine's memory, for all processes together, each as large as this one was at most."""
RUNNERS = ("processes", "ray")

_given: dict[str, Any] = {}


def serial(task: Task, points: Iterable[Point]) -> Iterator[Trial]:
    """One after the other, here."""
    return map(task, points)


def processes(count: int | None) -> Runner:
    """A pool of so many processes; one: ``serial``; None: ``as_needed``."""
    if count is None:
        return as_needed
    return serial if count == 1 else partial(_pooled, count)


def as_needed(task: Task, points: Iterable[Point]) -> Iterator[Trial]:
    """Here, while what is left takes seconds; what takes longer, by a process for each core."""
    left = list(points)
    begun = time.perf_counter()
    for done, point in enumerate(left, 1):
        yield task(point)
        rest = left[done:]
        each_s = (time.perf_counter() - begun) / done
        if each_s * len(rest) > WORTH_S and (count := min(_cores(), len(rest))) > 1:
            yield from _by_pool(count, task, rest)
            return


def _cores() -> int:
    """Processes that this machine has cores and memory for."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    unit = 1 if sys.platform == "darwin" else 1024
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(cores, int(MEMORY_FRAC * memory / own)))


def _pooled(count: int, task: Task, points: Iterable[Point]) -> Iterator[Trial]:
    asked = list(points)
    return serial(task, asked) if len(asked) <= FEW else _by_pool(count, task, asked)


def _by_pool(count: int, task: Task, points: Iterable[Point]) -> Iterator[Trial]:
    left = iter(points)
    suspects: list[Point] = []
    while True:
        yield from _shared_pool(count, task, left, suspects)
        if not suspects:
            return
        yield from _one_by_one(task, suspects)


def _shared_pool(
    count: int, task: Task, left: Iterator[Point], suspects: list[Point]
) -> Iterator[Trial]:
    """Until all is tried, or a process has died: what was given out then are the suspects."""
    running: dict[Future[Trial], Point] = {}
    with _pool(count, task) as pool:
        try:
            while True:
                while len(running) < AHEAD * count and (point := next(left, None)) is not None:
                    with _deaf():
                        running[pool.submit(_try, point)] = point
                if not running:
                    return
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    trial = future.result()
                    del running[future]
                    yield trial
        except BrokenProcessPool:
            suspects += running.values()


def _one_by_one(task: Task, suspects: list[Point]) -> Iterator[Trial]:
    """In one process: whoever is tried when it dies has killed it; twice, and it is given up."""
    killed: list[Point] = []
    while suspects:
        with _pool(1, task) as pool:
            while suspects:
                point = suspects[-1]
                try:
                    trial = pool.submit(_try, point).result()
                except BrokenProcessPool:
                    killed.append(point)
                    if killed.count(point) < MOST_ATTEMPTS:
                        break
                    trial = lost(point)
                suspects.pop()
                yield trial
                if trial.status == "failed":
                    break


@contextlib.contextmanager
def _pool(count: int, task: Task) -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, context, _begin, (task,))
    try:
        yield pool
    except KeyboardInterrupt:  # what they are at is not waited for
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def lost(point: Point) -> Trial:
    """A point whose process died every time."""
    why = "the process that tried it died, each time"
    return Trial(number=point.number, choice=point.choice, status="failed", why=why)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Processes that start now ignore interrupts from the first: they are for the one that asks."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _begin(task: Task) -> None:
    _given["task"] = task
    what_exists_stays()


def _try(point: Point) -> Trial:
    task: Task = _given["task"]
    return task(point)


def runner_of(
    where: str = "processes", *, jobs: int | None = 1, address: str | None = None
) -> Runner:
    """``jobs`` processes of this machine (None: as needed), or tasks of a ``ray`` cluster.

    Raises
    ------
    ScenarioError
        There is no such runner.
    """
    if where not in RUNNERS:
        raise ScenarioError(f"points are tried on {' or '.join(RUNNERS)}, not on {where!r}")
    return on_ray(address) if where == "ray" else processes(jobs)


def on_ray(address: str | None) -> Runner:
    """Tasks of a real Ray cluster, which must have raysim installed."""
    return partial(_on_ray, address)


def _on_ray(address: str | None, task: Task, points: Iterable[Point]) -> Iterator[Trial]:
    asked = list(points)
    if len(asked) <= FEW:
        yield from serial(task, asked)
        return
    import ray

    ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
    shared = ray.put(task)
    attempt = ray.remote(_try_on_ray).options(max_retries=MOST_ATTEMPTS)
    left = iter(asked)
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


def _try_on_ray(task: Task, point: Point) -> Trial:
    return task(point)
