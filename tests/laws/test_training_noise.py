"""Ranks that are not alike: a step waits for the slowest of them; folded as one by one."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.kernel.rng import Streams
from raysim.kernel.simulation import Simulation
from raysim.perf.jitter import (
    combined_cv,
    expected_slowest,
    lognormal_parameters,
    slowest_quantile,
)
from raysim.training.noise import Noise
from raysim.training.plan import TrainingPlan
from raysim.training.settings.deepspeed import PipelineSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome, simulate
from tests.training_parts import cluster, llama, plan, play, wide_stack

CVS = st.floats(0.0, 0.3)
WHERE = cluster(nodes=2, gpus=4)


def noisy(p: TrainingPlan, noise: Noise, seed: int = 0, **options: Any) -> StepOutcome:
    return simulate(
        p, WHERE, simulation=Simulation(seed=seed), noise=noise, memory=False, **options
    )


# The maximum of lognormal variables.


@given(cv=st.floats(0.001, 0.5))
def test_one_rank_is_as_slow_as_its_mean(cv: float) -> None:
    assert expected_slowest([(1.0, 1)], cv) == pytest.approx(1.0, rel=1e-6)


@given(cv=st.floats(0.001, 0.5))
def test_the_slower_of_two_has_a_closed_form(cv: float) -> None:
    """E max(X, Y) = 2 Phi(sigma / sqrt 2) for two lognormal variables of mean 1."""
    _, sigma = lognormal_parameters(cv)
    closed = 1.0 + math.erf(sigma / 2)
    assert expected_slowest([(1.0, 2)], cv) == pytest.approx(closed, rel=1e-6)


@given(cv=CVS, more=st.floats(0.0, 0.3), count=st.integers(1, 10_000), others=st.integers(0, 1000))
def test_more_ranks_and_more_noise_wait_longer(
    cv: float, more: float, count: int, others: int
) -> None:
    here = expected_slowest([(1.0, count)], cv)
    assert 1.0 <= here <= expected_slowest([(1.0, count + others)], cv) * (1 + 1e-9)
    assert here <= expected_slowest([(1.0, count)], cv + more) * (1 + 1e-9)
    assert max(1.2, here) <= expected_slowest([(1.0, count), (1.2, 1)], cv) * (1 + 1e-9)


@given(cv=st.floats(0.001, 0.3), count=st.integers(1, 5000))
def test_the_median_of_the_slowest_is_the_root_of_a_half(cv: float, count: int) -> None:
    mu, sigma = lognormal_parameters(cv)
    share = 0.5 ** (1 / count)
    expected = math.exp(mu + sigma * statistics.NormalDist().inv_cdf(share))
    assert slowest_quantile([(1.0, count)], cv, 0.5) == pytest.approx(expected, rel=1e-9)


def test_the_expected_slowest_is_the_mean_of_draws() -> None:
    cv, mu_sigma = 0.1, lognormal_parameters(0.1)
    draws = Streams(1)("law").lognormal(*mu_sigma, size=(4000, 64)).max(axis=1)
    error = draws.std() / math.sqrt(len(draws))
    assert abs(expected_slowest([(1.0, 64)], cv) - draws.mean()) < 4 * error


# The step.

CASES = {
    "ddp": plan(llama(hidden=2048, seq_len=512), stage=0),
    "zero3": plan(llama(hidden=2048, seq_len=512), stage=3),
    "zero3 tp2": plan(llama(hidden=2048, seq_len=512), stage=3, mesh=Mesh(dp=4, tp=2)),
    "pp2 dp2 tp2": plan(
        llama(hidden=2048, seq_len=512),
        stage=1,
        mesh=Mesh(pp=2, dp=2, tp=2),
        gradient_accumulation_steps=4,
        pipeline=PipelineSettings(stages=2, partition_method="uniform"),
    ),
    "pp4 dp2": plan(
        llama(hidden=2048, seq_len=512),
        stage=1,
        mesh=Mesh(pp=4, dp=2),
        gradient_accumulation_steps=8,
        pipeline=PipelineSettings(stages=4, partition_method="uniform"),
    ),
}
UNLIKE = [
    Noise(kernels=((1, 1.3),)),
    Noise(hosts=((1, 1.5),)),
    Noise(kernels=((0, 1.2),), hosts=((0, 1.4),)),
    Noise(links=((1, 0, 0.25),)),
    Noise(links=((1, 2, 0.5),), kernels=((0, 1.1),)),
]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("noise", UNLIKE, ids=str)
def test_a_slow_node_folded_is_a_slow_node(name: str, noise: Noise) -> None:
    p = CASES[name]
    folded, exact = noisy(p, noise), noisy(p, noise, exact=True)
    assert len(exact.timelines) == 8
    assert folded.step_ns == pytest.approx(exact.step_ns, abs=1)  # rounded at two places


def test_slow_hosts_and_slow_gpus_on_different_nodes_are_overstated_a_little() -> None:
    noise = Noise(kernels=((0, 1.2),), hosts=((1, 2.0),))
    for p in CASES.values():
        folded, exact = noisy(p, noise).steady_step_ns, noisy(p, noise, exact=True).steady_step_ns
        assert exact <= folded <= 1.025 * exact  # most where a timer makes each wait for the other


def test_a_slow_node_slows_a_step_of_kernels_by_its_factor() -> None:
    """ZeRO-0 without a bucket to reduce before the end: nearly all of the step is kernels."""
    p = plan(wide_stack(8), mesh=Mesh(dp=1), micro_batch=4096, gradient_accumulation_steps=1)
    alike, slow = noisy(p, Noise()), noisy(p, Noise(kernels=((0, 1.5),)))
    busy = alike.breakdown.parts_ns["compute"] + alike.breakdown.parts_ns["optimizer"]
    assert busy > 0.9 * alike.steady_step_ns
    added = slow.steady_step_ns - alike.steady_step_ns
    assert added == pytest.approx(0.5 * alike.steady_step_ns, rel=0.06)


def test_a_narrow_link_slows_a_step_of_communication_by_its_share() -> None:
    p = plan(
        llama(hidden=2048, seq_len=128), stage=0, gradient_accumulation_steps=1,
        throughput_timer=False,
    )  # fmt: skip
    alike = noisy(p, Noise())
    waits = alike.breakdown.parts_ns["exposed_collectives"]
    assert waits > 0.3 * alike.steady_step_ns
    narrow = noisy(p, Noise(links=((0, 1, 0.5),)))
    assert alike.steady_step_ns + 0.5 * waits < narrow.steady_step_ns
    assert narrow.steady_step_ns < alike.steady_step_ns + 1.1 * alike.breakdown.collective_ns


def test_a_link_within_one_node_is_not_missed() -> None:
    p = plan(llama(), mesh=Mesh(dp=4), stage=3)
    assert noisy(p, Noise(links=((0, 0, 0.01),))).step_ns == noisy(p, Noise()).step_ns


@pytest.mark.parametrize("name", ["ddp", "pp2 dp2 tp2", "pp4 dp2"])
def test_the_folded_step_is_the_mean_of_every_rank_drawn(name: str) -> None:
    """Of kernel-bound steps; of a pipeline, one replica stands for all."""
    p = replace(CASES[name], micro_batch=16)
    noise = Noise(gpu_cv=0.08, step_cv=0.06)
    folded = noisy(p, noise).steady_step_ns
    drawn = [noisy(p, noise, seed, exact=True).steady_step_ns for seed in range(16)]
    mean, error = statistics.mean(drawn), statistics.stdev(drawn) / math.sqrt(len(drawn))
    assert folded > 1.03 * noisy(p, Noise()).steady_step_ns
    assert abs(folded - mean) < 4 * error + 0.01 * mean


def test_the_slow_step_is_what_one_in_twenty_draws_exceeds() -> None:
    p = replace(CASES["ddp"], micro_batch=16)
    noise = Noise(step_cv=0.1)
    slow = noisy(p, replace(noise, quantile=0.95)).steady_step_ns
    drawn = [noisy(p, noise, seed, exact=True).steady_step_ns for seed in range(40)]
    assert sum(ns > slow for ns in drawn) <= 7  # P(more than 7 of 40 at 5 %) is 0.1 %
    assert slow > noisy(p, noise).steady_step_ns


@settings(deadline=None, max_examples=15)
@given(
    cv=CVS,
    slowdown=st.floats(1.0, 3.0),
    host=st.floats(1.0, 3.0),
    share=st.floats(0.05, 1.0),
    name=st.sampled_from(sorted(CASES)),
)
def test_noise_never_makes_a_step_faster(
    cv: float, slowdown: float, host: float, share: float, name: str
) -> None:
    p = replace(CASES[name], model=llama(layers=2))
    alike = noisy(p, Noise()).steady_step_ns
    some = Noise(gpu_cv=cv, kernels=((1, slowdown),), hosts=((0, host),), links=((1, 1, share),))
    first = noisy(p, some).steady_step_ns
    assert first >= alike
    more = replace(some, step_cv=cv, kernels=((0, slowdown), (1, slowdown)))
    assert noisy(p, more).steady_step_ns >= first


def test_no_noise_is_the_same_to_the_last_bit() -> None:
    for p in CASES.values():
        assert noisy(p, Noise()).simulation.digest == play(p, WHERE, memory=False).simulation.digest
        still = Noise(kernels=((1, 1.0),), hosts=((0, 1.0),))
        assert noisy(p, still).step_ns == noisy(p, Noise()).step_ns


def test_draws_are_a_ranks_own_and_a_seeds_own() -> None:
    p, noise = CASES["ddp"], Noise(gpu_cv=0.05, step_cv=0.05)
    first, again = (noisy(p, noise, 3, exact=True) for _ in range(2))
    assert first.step_ns == again.step_ns
    assert noisy(p, noise, 4, exact=True).step_ns != first.step_ns
    factors = {tuple(op.duration_ns for op in line.program.ops) for line in first.timelines}
    assert len(factors) == 8


def test_independent_spreads_add_up() -> None:
    assert combined_cv(0.0, 0.0) == 0.0
    assert combined_cv(0.03, 0.0) == pytest.approx(0.03)
    assert combined_cv(0.03, 0.04) == pytest.approx(0.05, rel=1e-3)
