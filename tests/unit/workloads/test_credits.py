"""Network credits: what an "up to" rate does to a job that is longer than they last."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec
from raysim.kernel.simulation import Simulation
from raysim.results.credits import credits_part
from raysim.training.link_use import link_use
from raysim.training.settings.parallel import Mesh
from raysim.workloads.credits import CREDITS_S
from raysim.workloads.long_run import Pace
from raysim.workloads.train_job import TrainJob
from raysim.workloads.train_run import JobOutcome, play_job
from tests.training_parts import cluster, llama, plan

STEPS = 1_000_000


def played(where: ClusterSpec, micro_batch: int = 1) -> JobOutcome:
    p = plan(
        llama(hidden=1024), stage=3, mesh=Mesh(dp=4), gradient_accumulation_steps=1,
        micro_batch=micro_batch,
    )  # fmt: skip
    return play_job(TrainJob(name="train", plan=p, steps=STEPS), where, Simulation())


def test_a_job_that_sends_more_than_the_baseline_slows_down_when_credits_are_used_up() -> None:
    found = played(cluster(4, "g5.4xlarge"))
    throttle, nic = found.throttle, catalog.node("g5.4xlarge").nic
    assert throttle is not None
    assert nic.baseline_bytes_per_s == pytest.approx(10e9 / 8)
    carried = max(u.carried_bytes for u in link_use(found.step) if "/nic-" in u.link.name)
    assert throttle.step_s == pytest.approx(carried / (10e9 / 8 * nic.efficiency))
    assert throttle.step_s > found.step_s
    # At the full rate they would last CREDITS_S; a step that also computes uses them up later.
    assert throttle.after_s > CREDITS_S
    fast = throttle.after_s / found.step_s
    assert found.training_s == pytest.approx(throttle.after_s + (STEPS - fast) * throttle.step_s)
    (part,) = credits_part(found).values()
    assert "up to 25 Gb/s, 10 Gb/s guaranteed" in part["text"]


def test_short_jobs_and_guaranteed_rates_are_not_slowed() -> None:
    found = played(cluster(4, "g5.4xlarge"))
    assert found.throttle is not None
    few = replace(found, steps=10)
    assert few.training_s == pytest.approx(10 * found.step_s)
    guaranteed = played(cluster(4, "g5.8xlarge"))
    assert guaranteed.throttle is None
    assert credits_part(guaranteed) == {}
    assert guaranteed.training_s == pytest.approx(STEPS * guaranteed.step_s)


def test_a_job_whose_mean_rate_is_within_the_baseline_keeps_its_credits() -> None:
    assert played(cluster(4, "g4dn.4xlarge"), micro_batch=512).throttle is None


def test_guaranteed_rates_are_below_what_the_nic_is_up_to() -> None:
    burst = [n for n in catalog.names("nic") if catalog.nic(n).baseline_bytes_per_s is not None]
    assert len(burst) > 15
    for name in burst:
        nic = catalog.nic(name)
        assert nic.baseline_bytes_per_s is not None
        assert 0 < nic.baseline_bytes_per_s < nic.bytes_per_s, name


@given(
    lengths=st.lists(st.integers(1, 100), min_size=1, max_size=5),
    moment=st.integers(0, 60),
    least=st.integers(1, 100),
    now=st.integers(0, 80),
)
def test_a_pace_has_longer_steps_from_a_moment_on_and_the_same_before(
    lengths: list[int], moment: int, least: int, now: int
) -> None:
    pace = Pace(step_ns=tuple(lengths), changes_ns=tuple(range(10, 10 * len(lengths), 10)))
    slower = pace.no_shorter_from(moment, least)
    length, _ = pace.at(now)
    assert slower.at(now)[0] == (max(length, least) if now >= moment else length)
    assert len(slower.step_ns) == len(slower.changes_ns) + 1
