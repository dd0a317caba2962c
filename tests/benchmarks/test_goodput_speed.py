"""CPU time of a week of a training job whose machines fail; never gates.

    pytest tests/benchmarks/test_goodput_speed.py -m benchmark --benchmark-enable -s

Llama 3 70B on 512 H100 that vary, throttle and fail. The yardstick is one SimPy process that waits
once for every step of one life of that week, and does nothing else.
"""

from __future__ import annotations

from typing import Any

import pytest
import simpy

import raysim
from tests.benchmarks.table import cpu_s, row

pytestmark = pytest.mark.benchmark

WEEK_S = 7 * 86_400


def steps_s(steps: int, step_s: float) -> float:
    """CPU seconds of so many steps as SimPy timeouts."""
    env = simpy.Environment()

    def job() -> Any:
        for _ in range(steps):
            yield env.timeout(step_s)

    env.process(job())
    return cpu_s(env.run)


def test_a_week_of_failures(benchmark: Any) -> None:
    scenario = raysim.load("scenarios/llama3_70b_goodput")
    whole = raysim.run(scenario, record=False, what_if=False)  # imports, formulas' tables
    step_s = whole.summary["step"]["seconds"]
    steps = int(WEEK_S / step_s)
    week = scenario.with_({"train.tokens": None, "train.steps": steps})
    ended: list[raysim.Result] = []
    spent_s = cpu_s(lambda: ended.append(raysim.run(week, record=False, what_if=False)))
    told = ended[0].summary["goodput"]
    row("week of failures", f"512 GPUs, {steps:,} steps, {told['runs']} lives of "
        f"{told['failures']:.1f} failures, its step simulated", spent_s, f"{spent_s:.2f} s",
        told["runs"] * steps_s(steps, step_s) / spent_s,
        "a SimPy timeout for each step")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)
