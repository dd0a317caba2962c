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


def test_examples_of_ray_are_the_installed_rays(tmp_path, monkeypatch) -> None:
    """They are code as users write it; the Ray around them is not imported."""
    folder = tmp_path / "ray" / "rllib" / "examples" / "envs"
    folder.mkdir(parents=True)
    (tmp_path / "ray" / "__init__.py").write_text("raise AssertionError('the real one')\n")
    (folder / "__init__.py").write_text("")
    (folder / "mine.py").write_text("import ray\nNAMES = [ray.__name__, __name__]\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def main() -> list[str]:
        found: list[str] = importlib.import_module("ray.rllib.examples.envs.mine").NAMES
        with pytest.raises(NotEmulatedError, match="yours is not emulated"):
            importlib.import_module("ray.rllib.examples.envs.yours")
        return found

    assert run(main) == ["raysim.rayapi.api", "ray.rllib.examples.envs.mine"]


def test_signals_and_conditions_of_rays_own_tests() -> None:
    """As Ray's documentation and release scripts import them."""

    def main() -> tuple[int, list[object], str]:
        ray = importlib.import_module("ray")
        utils = importlib.import_module("ray._common.test_utils")
        signal, semaphore = utils.SignalActor.remote(), utils.Semaphore.remote(0)

        @ray.remote
        def work() -> int:
            ray.get(signal.wait.remote())
            return 5

        waits = work.remote()
        utils.wait_for_condition(lambda: ray.get(signal.cur_num_waiters.remote()) == 1)
        ray.get(signal.send.remote())
        taken = semaphore.acquire.remote()
        ready, _ = ray.wait([taken], timeout=1)
        ray.get([semaphore.release.remote(), taken])
        with pytest.raises(RuntimeError, match="wasn't met before the timeout") as error:
            utils.wait_for_condition(lambda: False, timeout=1)
        return ray.get(waits), ready, str(error.value)

    assert run(main)[:2] == (5, [])


def test_programs_ask_rays_inner_worker_what_they_are() -> None:
    def mode() -> tuple[bool, bool]:
        import ray

        worker = ray._private.worker
        return hasattr(worker, "global_worker"), worker.global_worker.mode == worker.WORKER_MODE

    def main() -> list[tuple[bool, bool]]:
        import ray

        ray.init(num_cpus=1)
        return [mode(), ray.get(ray.remote(mode).remote())]

    assert run(main) == [(True, False), (True, True)]
