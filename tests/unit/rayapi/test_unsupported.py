"""What is not emulated says so, in whichever process it is read."""

from __future__ import annotations

import importlib
import pickle

import pytest

from raysim.rayapi.unsupported import NotEmulatedError
from tests.rayapi_parts import run


def test_a_refusal_says_the_same_after_any_number_of_pickles() -> None:
    error = NotEmulatedError("ray.data", "tasks")
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error))))
    assert (
        str(again) == str(error) == "ray.data is not emulated by raysim. Emulated instead: tasks."
    )
    assert (again.name, again.instead) == ("ray.data", "tasks")


@pytest.mark.parametrize(
    ("module", "name", "same"),
    [
        ("ray.tune.search.variant_generator", "grid_search", "ray.tune"),
        ("ray.tune.search.concurrency_limiter", "ConcurrencyLimiter", "ray.tune.search"),
        ("ray.tune.stopper.maximum_iteration", "MaximumIterationStopper", "ray.tune.stopper"),
        ("ray.tune.trainable.trainable", "Trainable", "ray.tune"),
        ("ray.tune.logger.json", "JsonLoggerCallback", "ray.tune.logger"),
        ("ray.data.iterator", "NumpyBatchCollateFn", "ray.data.collate_fn"),
        ("ray.data.iterator", "DataIterator", "ray.data"),
        ("ray.runtime_env.runtime_env", "RuntimeEnv", "ray.runtime_env"),
        ("ray.util.check_serialize", "inspect_serializability", "ray.util"),
    ],
)
def test_a_name_is_found_in_the_module_of_ray_that_defines_it(
    module: str, name: str, same: str
) -> None:
    def main() -> bool:
        inner, outer = importlib.import_module(module), importlib.import_module(same)
        return getattr(inner, name) is getattr(outer, name)

    assert run(main) is True


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("ray.tune.schedulers.hb_bohb", "HyperBandForBOHB"),
        ("ray.tune.search.searcher", "Searcher"),
        ("ray.serve._private.http_util", "ASGIAppReplicaWrapper"),
        ("ray.data.exceptions", "RayDataUserCodeException"),
        ("ray.train._internal.session", "get_session"),
    ],
)
def test_a_part_of_ray_that_is_missing_is_refused_by_name(module: str, name: str) -> None:
    def main() -> None:
        getattr(importlib.import_module(module), name)

    with pytest.raises(NotEmulatedError, match=r"ray\."):
        run(main)
