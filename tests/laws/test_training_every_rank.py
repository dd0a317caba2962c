"""Every rank at once is every rank one by one: the same draws, the same nanosecond."""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.kernel.rng import Streams
from raysim.kernel.simulation import Simulation
from raysim.training.drawn_step import drawn_step_ns
from raysim.training.jitter import launches, quantiles
from raysim.training.noise import Noise
from raysim.training.plan import MegatronSettings, TrainingPlan
from raysim.training.settings.deepspeed import PipelineSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import simulate
from tests.laws.test_training_noise import CASES
from tests.training_parts import cluster, llama, plan, play

WHERE = cluster(nodes=1)
MEGATRON = MegatronSettings(sequence_parallel=True, use_distributed_optimizer=True)
EVERY = {
    **CASES,
    "megatron tp4 dp2": plan(
        llama(hidden=2048, seq_len=512), engine="megatron", mesh=Mesh(tp=4, dp=2), megatron=MEGATRON
    ),
    "megatron pp2 tp2 dp2": plan(
        llama(hidden=2048, seq_len=512),
        engine="megatron",
        mesh=Mesh(pp=2, tp=2, dp=2),
        megatron=MEGATRON,
        gradient_accumulation_steps=4,
        pipeline=PipelineSettings(
            stages=2, partition_method="uniform", schedule="megatron_1f1b"
        ),
    ),
}  # fmt: skip
CVS = st.floats(0.0, 0.2)


def one_by_one(p: TrainingPlan, noise: Noise, seed: int) -> int:
    played = simulate(
        p, WHERE, simulation=Simulation(seed=seed), noise=noise, exact=True, memory=False
    )
    assert len(played.timelines) == p.mesh.world
    return played.step_ns[-1]


@settings(deadline=None, max_examples=25)
@given(
    name=st.sampled_from(sorted(EVERY)),
    cv=CVS,
    gpu_cv=CVS,
    step_cv=CVS,
    slowdown=st.floats(1.0, 2.0),
    host=st.floats(1.0, 2.0),
    seed=st.integers(0, 2**32 - 1),
)
def test_all_at_once_is_one_by_one(
    name: str, cv: float, gpu_cv: float, step_cv: float, slowdown: float, host: float, seed: int
) -> None:
    """On one node, where no two communications share a link for long enough to matter."""
    p = replace(EVERY[name], micro_batch=8)
    noise = Noise(
        kernel_cv=cv, gpu_cv=gpu_cv, step_cv=step_cv, kernels=((0, slowdown),), hosts=((0, host),)
    )
    # Times are rounded to whole nanoseconds at other places, once an operation on the way.
    assert abs(drawn_step_ns(p, WHERE, noise, seed=seed) - one_by_one(p, noise, seed)) <= 8


@pytest.mark.parametrize("name", EVERY)
def test_ranks_that_are_alike_step_as_their_representative(name: str) -> None:
    p = replace(EVERY[name], micro_batch=8)
    drawn, folded = drawn_step_ns(p, WHERE, Noise()), play(p, WHERE, memory=False).step_ns[-1]
    assert abs(drawn - folded) <= 1e-6 * folded


def test_two_nodes_of_which_one_is_slow() -> None:
    """Nodes' own factors reach their own ranks."""
    p, where = replace(CASES["zero3"], micro_batch=8), cluster(nodes=2, gpus=4)
    noise = Noise(kernels=((1, 1.5),), hosts=((1, 1.2),))
    slow = simulate(p, where, simulation=Simulation(), noise=noise, exact=True, memory=False)
    assert drawn_step_ns(p, where, noise) == slow.step_ns[-1]


def test_more_replicas_wait_longer_for_the_last() -> None:
    p = replace(CASES["ddp"], micro_batch=16)
    noise, means = Noise(gpu_cv=0.05), []
    for nodes in (1, 8, 64):
        wide = replace(p, mesh=Mesh(dp=8 * nodes))
        steps = [drawn_step_ns(wide, cluster(nodes), noise, seed=s) for s in range(8)]
        means.append(statistics.mean(steps) / drawn_step_ns(wide, cluster(nodes), Noise()))
    assert 1.0 < means[0] < means[1] < means[2]


def test_kernels_that_vary_apart_cost_less_than_gpus_that_vary() -> None:
    """Over a step's kernels one GPU's draws even out; what is a GPU's for good does not."""
    p = replace(CASES["ddp"], micro_batch=16)
    alike = drawn_step_ns(p, WHERE, Noise())
    apart = statistics.mean(drawn_step_ns(p, WHERE, Noise(kernel_cv=0.1), seed=s) for s in range(8))
    for_good = statistics.mean(drawn_step_ns(p, WHERE, Noise(gpu_cv=0.1), seed=s) for s in range(8))
    assert alike < apart < for_good


def test_draws_are_a_seeds_own() -> None:
    p, noise = CASES["pp4 dp2"], Noise(kernel_cv=0.05)
    first, again, other = (drawn_step_ns(p, WHERE, noise, seed=seed) for seed in (3, 3, 4))
    assert first == again != other


@given(cv=st.floats(0.001, 0.3))
@settings(deadline=None, max_examples=10)
def test_quantiles_are_a_lognormal_of_mean_one(cv: float) -> None:
    found = quantiles(cv)
    assert found.mean() == pytest.approx(1.0, rel=1e-12)
    assert found.std() == pytest.approx(cv, rel=0.01)
    assert (np.diff(found) > 0).all()


def test_every_quantile_is_as_likely() -> None:
    drawn = launches(Streams(5), 0, 200, 1000)
    assert drawn.shape == (200, 1000)
    counts = np.bincount(drawn.ravel() >> 12, minlength=16)
    assert abs(counts - drawn.size / 16).max() < 5 * (drawn.size / 16) ** 0.5
    assert not np.array_equal(drawn, launches(Streams(5), 1, 200, 1000))
