"""Who calls torch: the steps of the training worker that does, if it is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.rayapi.fibers import HUB

if TYPE_CHECKING:
    from raysim.rayapi.shapes.cpu_steps import CpuSteps
    from raysim.rayapi.shapes.steps import Steps
    from raysim.rayapi.train.worker import Worker


def worker_here() -> Worker | None:
    """The training worker that calls, on GPUs or not."""
    fiber = HUB.current
    found: Worker | None = None if fiber is None else fiber.process.training
    return found


def steps_here() -> Steps | None:
    """None outside of training workers: there, torch is torch."""
    fiber = HUB.current
    if fiber is None or fiber.process.training is None:
        return None
    found: Steps | None = fiber.process.training.torch_steps
    return found


def cpu_steps_here() -> CpuSteps | None:
    """Of a training worker without GPUs."""
    fiber = HUB.current
    if fiber is None or fiber.process.training is None:
        return None
    found: CpuSteps | None = fiber.process.training.cpu_steps
    return found
