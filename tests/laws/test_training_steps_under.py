"""Steps under many kinds of noise, priced at once, are those simulated one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raysim.kernel.simulation import Simulation
from raysim.training.compiler.feed import Feed
from raysim.training.noise import Noise
from raysim.training.settings.parallel import Mesh
from raysim.training.steps_under import steady_steps_ns
from raysim.training.tower import simulate
from tests.laws.test_training_every_rank import EVERY
from tests.training_parts import cluster

WHERE = cluster(nodes=2, gpus=4)
NOISES = [
    Noise(),
    Noise(kernels=((1, 1.3),)),
    Noise(hosts=((0, 1.5),), kernels=((0, 1.1),)),
    Noise(gpu_cv=0.05, step_cv=0.02),
    Noise(links=((1, 0, 0.25),), kernels=((1, 1.2),)),
    Noise(gpu_cv=0.05, quantile=0.95, hosts=((1, 2.0),)),
]
FEED = Feed(host_s=1e-4, copy_bytes=1e6)


@pytest.mark.parametrize("micro_batches", [4, 24])
@pytest.mark.parametrize("name", EVERY)
def test_steps_at_once_are_steps_one_by_one(name: str, micro_batches: int) -> None:
    """More micro-batches than are simulated, and as many; pipelines with and without replicas."""
    for mesh in (EVERY[name].mesh, replace(EVERY[name].mesh, dp=1)):
        p = replace(EVERY[name], mesh=mesh, gradient_accumulation_steps=micro_batches)
        if mesh == Mesh():
            continue
        one_by_one = [
            simulate(p, WHERE, simulation=Simulation(), feed=FEED, memory=False, noise=noise)
            for noise in NOISES
        ]
        at_once = steady_steps_ns(p, WHERE, NOISES, FEED)
        assert at_once == [played.steady_step_ns for played in one_by_one]
