"""Entering Ray from a program: who calls, what its own code has cost so far, what it dropped.

Real counterpart: ``global_worker`` and ``check_connected`` of ``python/ray/_private/worker.py``,
and the automatic ``ray.init`` of the functions that need a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from raysim.rayapi.exceptions import RaySystemError
from raysim.rayapi.fibers import HUB, Fiber
from raysim.raycore.process import CoreProcess

P = ParamSpec("P")
R = TypeVar("R")


def begin_call(fiber: Fiber) -> None:
    """The program's own code stops here for a while."""
    session = fiber.process.session
    if session.compute.running:
        session.compute.end(fiber)
        session.settle_compute(fiber)
    if HUB.drops:
        HUB.drain(fiber.lead_ns)


def end_call(fiber: Fiber) -> None:
    """It goes on."""
    session = fiber.process.session
    if session.compute.running:
        session.compute.begin(fiber)


def program_call(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function of Ray's API: its own host time is not the program's."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        fiber = HUB.current
        if fiber is None or fiber.depth:
            return function(*args, **kwargs)
        begin_call(fiber)
        fiber.depth = 1
        try:
            return function(*args, **kwargs)
        finally:
            fiber.depth = 0
            end_call(fiber)

    return call


def this_fiber() -> Fiber:
    """The program that calls; its process is connected, by ``ray.init()`` if it was not."""
    fiber = HUB.current
    if fiber is None:
        from raysim.rayapi import standalone  # it imports what imports this

        fiber = standalone.driver()
    if fiber.process.core is None:
        fiber.process.session.connect(fiber, {})
    return fiber


def this_core(fiber: Fiber) -> CoreProcess:
    """The core worker of a connected program."""
    core = fiber.process.core
    if core is None:
        raise RaySystemError("Ray has not been started yet. You can start Ray with 'ray.init()'.")
    return core
