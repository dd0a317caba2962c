"""Autoscaling decisions and averages of handles against Ray Serve's own functions."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from raysim.raylibs.serve.config import AutoscalingConfig
from raysim.raylibs.serve.policy import NO_WISH, decide
from raysim.raylibs.serve.timeseries import merged

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("ray")

CONFIGS: dict[str, dict[str, Any]] = {
    "default": {"min_replicas": 1, "max_replicas": 20},
    "quick": {"min_replicas": 1, "max_replicas": 50, "upscale_delay_s": 0.0,
              "downscale_delay_s": 5.0},
    "factors": {"min_replicas": 2, "max_replicas": 30, "upscaling_factor": 0.5,
                "downscaling_factor": 0.3, "upscale_delay_s": 3.0, "downscale_delay_s": 4.0},
    "to zero": {"min_replicas": 0, "max_replicas": 10, "upscale_delay_s": 2.0,
                "downscale_delay_s": 3.0, "downscale_to_zero_delay_s": 9.0},
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_decisions_are_rays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.serve import autoscaling_policy
    from ray.serve._private.common import DeploymentID
    from ray.serve.config import AutoscalingConfig as RealConfig
    from ray.serve.config import AutoscalingContext

    said = CONFIGS[name] | {"target_ongoing_requests": 2.0}
    ours, real = AutoscalingConfig(**said), RealConfig(**said)
    policy = autoscaling_policy._apply_autoscaling_config(
        autoscaling_policy.replica_queue_length_autoscaling_policy
    )
    draws = random.Random(name)
    now_s, target, running, total = 1000.0, ours.min_replicas, ours.min_replicas, 0.0
    mine, theirs = NO_WISH, dict[str, Any]()
    changes = 0
    monkeypatch.setattr(autoscaling_policy, "time", SimpleNamespace(time=lambda: now_s))
    for _ in range(4_000):
        now_s += draws.choice([0.1, 0.1, 3.0])
        if draws.random() < 0.03:
            total = draws.choice([0.0, 0.0, draws.uniform(0, 3), draws.uniform(0, 90)])
        if draws.random() < 0.3:
            running = target
        context = AutoscalingContext(
            deployment_id=DeploymentID("d", "a"), deployment_name="d", app_name="a",
            current_num_replicas=running, target_num_replicas=target, running_replicas=[],
            total_num_requests=total, total_queued_requests=0, aggregated_metrics=None,
            raw_metrics=None, capacity_adjusted_min_replicas=ours.min_replicas,
            capacity_adjusted_max_replicas=ours.max_replicas, policy_state=theirs,
            last_scale_up_time=None, last_scale_down_time=None, current_time=now_s, config=real,
        )  # fmt: skip
        decided, theirs = policy(context)
        bounded = max(ours.min_replicas, min(ours.max_replicas, decided))
        expected, mine = decide(total, running, target, ours, mine, now_s)
        assert expected == bounded
        changes += expected != target
        target = expected
    assert changes > 5


@pytest.mark.parametrize("how", ["mean", "max", "min"])
def test_averages_are_rays(how: Any) -> None:
    from ray.serve._private.autoscaling_metrics_merge import merge_and_aggregate_arrays

    draws = random.Random(how)
    for _ in range(500):
        series = []
        for _ in range(draws.randint(1, 6)):
            gaps = [draws.uniform(0.001, 6.0) for _ in range(draws.randint(0, 8))]
            times = itertools.accumulate(gaps, initial=draws.uniform(100, 110))
            series.append(tuple((t, float(draws.randint(0, 5))) for t in times))
        now_s = max(t for points in series for t, _ in points) + draws.uniform(0, 10)
        if len(series) == 1:
            continue  # Ray takes a lone series as it is, without rounding its times
        flat = [p for points in series for p in points]
        real = merge_and_aggregate_arrays(
            np.array([t for t, _ in flat]), np.array([v for _, v in flat]),
            np.cumsum([0, *(len(points) for points in series)]), now_s, how,
        )  # fmt: skip
        assert merged(series).at(now_s, how) == pytest.approx(real, abs=1e-9)
