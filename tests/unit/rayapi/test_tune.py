"""``ray.tune`` in programs: what it costs the driver. Its decisions are in ``raylibs/tune``."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
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


def test_errored_trials_begin_again_with_what_callbacks_have_kept(tmp_path: Path) -> None:
    """A trial that fails in its first run is restarted without its checkpoint."""

    def main() -> dict[str, Any]:
        from ray import tune

        class Counting(tune.Callback):
            def __init__(self) -> None:
                self.results = 0

            def on_trial_result(self, *args: Any, **info: Any) -> None:
                self.results += 1

            def get_state(self) -> dict[str, Any]:
                return {"results": self.results}

            def set_state(self, state: dict[str, Any]) -> None:
                (tmp_path / "seen").write_text(str(state["results"]))

        flag = tmp_path / "flag"

        def trial(config: dict[str, Any]) -> None:
            for step in range(2):
                tune.report({"step": step})
            if config["x"] and not flag.exists():
                raise RuntimeError("the first time")

        def fitted(tuner: Any) -> list[tuple[int, int]]:
            return [
                (r.metrics["training_iteration"], len(r.metrics_dataframe)) for r in tuner.fit()
            ]

        settings = tune.RunConfig(name="e", callbacks=[Counting()])
        tuner = tune.Tuner(trial, param_space={"x": tune.grid_search([0, 1])}, run_config=settings)
        first = fitted(tuner)
        flag.touch()
        restored = tune.Tuner.restore("~/ray_results/e", trial, restart_errored=True)
        return {
            "first": first, "again": fitted(restored), "seen": (tmp_path / "seen").read_text(),
            "there": tune.Tuner.can_restore("~/ray_results/e"),
            "not": tune.Tuner.can_restore("~/ray_results/other"),
        }  # fmt: skip

    said = run_program(main, ray_cluster(cpus=4))[0]
    assert said["first"] == [(2, 2), (2, 2)]
    assert said["again"] == [(2, 2), (2, 2)]
    assert said["seen"] == "4", "two results of each trial, given back once"
    assert (said["there"], said["not"]) == (True, False)


def test_a_search_goes_on_where_it_was_pickled() -> None:
    """What has been drawn is not drawn again, and nothing that it shares is kept."""
    import numpy as np

    from raysim.raylibs.tune import sample
    from raysim.raylibs.tune.search.algorithms import BasicVariantGenerator
    from raysim.raylibs.tune.trial import Trial

    def make(trial_id: str, config: dict[str, Any], tag: str, evaluated: dict[str, Any]) -> Trial:
        return Trial(trial_id, config, experiment_tag=tag, evaluated_params=evaluated)

    def drawn(search: BasicVariantGenerator) -> list[tuple[str, float]]:
        trials = iter(search.next_trial, None)
        return [(t.trial_id, t.config["x"]) for t in trials]

    space = {"x": sample.uniform(0.0, 1.0)}
    whole = BasicVariantGenerator(random_state=np.random.RandomState(5))
    whole.begin(space, 4, None, make)
    parts = BasicVariantGenerator(random_state=np.random.RandomState(5))
    parts.begin(space, 4, None, make)
    first = parts.next_trial()
    assert first is not None
    kept = pickle.loads(pickle.dumps(parts))
    kept.resume(None, make)
    assert [(first.trial_id, first.config["x"]), *drawn(kept)] == drawn(whole)


def test_pretty_print_is_yaml_without_the_configuration() -> None:
    """As ``ray.tune.logger.pretty_print`` of ray 2.60 prints it."""
    from raysim.rayapi.tune.callbacks import pretty_print

    result = {"n": {"b": [1.5, 2]}, "a": 1, "config": {"x": 2}, "none": None, "left": 0}
    assert pretty_print(result, exclude={"left"}) == "a: 1\nn:\n  b:\n  - 1.5\n  - 2\n"


def test_a_trial_that_fails_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        from ray import tune

        def trial(config: dict[str, Any]) -> None:
            raise ValueError(f"no {config['x']}")

        found: int = tune.Tuner(trial, param_space={"x": tune.grid_search([1, 2])}).fit().num_errors
        return found

    assert run_program(main, ray_cluster(cpus=4))[0] == 2
    said = capsys.readouterr().err
    assert "Trial task failed for trial" in said
    assert "(and 1 more)" in said
    assert said.count("ValueError: no") == 1
