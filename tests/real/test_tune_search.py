"""Sampling of search spaces against Ray's own, from the same generators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raysim.raylibs.tune import sample
from raysim.raylibs.tune.search.algorithms import BasicVariantGenerator
from raysim.raylibs.tune.search.variants import count, format_vars, variants
from raysim.raylibs.tune.trial import Trial

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("ray")


def _space(tune: Any) -> dict[str, Any]:
    return {
        "u": tune.uniform(-1, 2), "qu": tune.quniform(0, 1, 0.25), "l": tune.loguniform(1e-4, 1),
        "ql": tune.qloguniform(0.5, 8, 0.5), "r": tune.randint(0, 9), "qr": tune.qrandint(4, 64, 8),
        "lr": tune.lograndint(1, 1000), "qlr": tune.qlograndint(2, 512, 2), "n": tune.randn(3, 2),
        "qn": tune.qrandn(0, 4, 0.5), "c": tune.choice(["a", 2, None]), "fixed": 7,
        "deep": {"z": tune.uniform(0, 1), "g": tune.grid_search([1, 2, 3])},
        "listed": [tune.choice([1, 2]), 5], "g2": tune.grid_search(["x", "y"]),
    }  # fmt: skip


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("legacy", [False, True])
def test_same_variants(constant: bool, legacy: bool) -> None:
    from ray import tune
    from ray.tune.search import variant_generator as theirs

    for seed in range(20):
        make = np.random.RandomState if legacy else np.random.default_rng
        real = list(
            theirs.generate_variants(
                {"config": _space(tune)}, constant_grid_search=constant, random_state=make(seed)
            )
        )
        mine = list(variants(_space(sample), make(seed), constant_grid_search=constant))
        assert count(_space(sample)) == 6
        assert [config for _, config in mine] == [spec["config"] for _, spec in real]
        tags = [theirs.format_vars(chosen) for chosen, _ in real]
        assert [
            format_vars({("config", *p): v for p, v in chosen.items()}) for chosen, _ in mine
        ] == tags


def test_same_trials_of_the_generator() -> None:
    from ray import tune
    from ray.tune.experiment import Experiment
    from ray.tune.search import BasicVariantGenerator as Theirs

    points = [{"u": 0.5}, {"deep": {"g": 2}, "g2": "y"}]
    tune.register_trainable("nothing", lambda config: None)
    real = Theirs(points_to_evaluate=points, random_state=3)
    real.add_configurations(Experiment("e", "nothing", config=_space(tune), num_samples=4))
    mine = BasicVariantGenerator(points_to_evaluate=points, random_state=3)
    mine.begin(
        _space(sample),
        4,
        None,
        lambda i, c, t, e: Trial(i, c, experiment_tag=t, evaluated_params=e),
    )
    assert mine.total_samples == real.total_samples
    while (trial := real.next_trial()) is not None:
        same = mine.next_trial()
        assert same is not None
        assert same.config == trial.config
        assert same.experiment_tag == trial.experiment_tag
        assert same.evaluated_params == trial.evaluated_params
    assert mine.next_trial() is None
    assert mine.is_finished()
    assert real.is_finished()
