"""``ray.tune`` in programs: what it costs the driver. Its decisions are in ``raylibs/tune``."""

from __future__ import annotations

import time
from typing import Any

import pytest

from raysim.rayapi.loader import run_program
from tests.raycore_parts import ray_cluster


def fits(imports_s: float) -> list[float]:
    """Seconds of three experiments of one driver, whose first imports what Tune needs."""

    def main() -> list[float]:
        from ray import tune

        def trial(config: dict[str, Any]) -> None:
            tune.report({"score": config["x"]})

        taken = []
        for _ in range(3):
            began_s = time.perf_counter()
            tune.Tuner(trial, param_space={"x": 1}).fit()
            taken.append(time.perf_counter() - began_s)
        return taken

    taken: list[float] = run_program(main, ray_cluster(costs={"tune_first_core_s": imports_s}))[0]
    return taken


def test_a_drivers_first_fit_imports_what_the_next_finds() -> None:
    quick, slow = fits(0.01), fits(5.01)
    assert slow[0] - quick[0] == pytest.approx(5.0, abs=0.5), "workers start meanwhile"
    assert slow[1:] == pytest.approx(quick[1:], abs=0.01)
