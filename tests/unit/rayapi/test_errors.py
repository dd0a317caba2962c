"""Exceptions cross processes as Ray's do."""

from __future__ import annotations

import pickle

import pytest

from raysim.rayapi import exceptions
from raysim.rayapi.failures import exception_of, raise_error, task_error
from raysim.raycore.tasks import TaskError
from tests.rayapi_parts import run


class OwnError(Exception):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code


def failed(error: BaseException) -> TaskError:
    return task_error(error, "f", pid=1, ip="10.0.0.0")


def test_an_exception_is_of_both_classes() -> None:
    found = exception_of(failed(OwnError(3)), "")
    with pytest.raises(OwnError) as caught:
        raise_error(found)
    assert isinstance(caught.value, exceptions.RayTaskError)
    assert type(caught.value).__name__ == "RayTaskError(OwnError)"
    assert caught.value.code == 3
    text = str(caught.value)
    assert "ray::f()" in text
    assert "(pid=1, ip=10.0.0.0)" in text
    assert text.endswith("OwnError: code 3")


def test_names_of_classes_let_retries_choose() -> None:
    assert "builtins.LookupError" in failed(KeyError("k")).class_names


def test_what_cannot_be_pickled_becomes_text() -> None:
    error = ValueError(lambda: 1)
    error.lock = __import__("_thread").allocate_lock()
    found = exception_of(failed(error), "")
    assert "isn't serializable" in str(found.cause)


@pytest.mark.parametrize(
    ("error_type", "kind"),
    [
        ("WORKER_DIED", "WorkerCrashedError"), ("ACTOR_DIED", "ActorDiedError"),
        ("ACTOR_UNAVAILABLE", "ActorUnavailableError"), ("OBJECT_LOST", "ObjectLostError"),
        ("OWNER_DIED", "OwnerDiedError"), ("GET_TIMEOUT", "GetTimeoutError"),
        ("OUT_OF_MEMORY", "OutOfMemoryError"), ("TASK_CANCELLED", "TaskCancelledError"),
        ("OBJECT_UNRECONSTRUCTABLE_MAX_ATTEMPTS_EXCEEDED", "ObjectReconstructionFailedError"),
        ("RUNTIME_ENV_SETUP_FAILED", "RuntimeEnvSetupError"),
        ("TASK_UNSCHEDULABLE_ERROR", "TaskUnschedulableError"),
    ],
)  # fmt: skip
def test_ray_errors_have_ray_classes(error_type, kind) -> None:
    found = exception_of(TaskError(error_type, "why"), "ab")
    assert type(found).__name__ == kind
    assert type(found).__module__ == "ray.exceptions"
    assert str(found)


def test_an_actor_that_dies_in_its_constructor_says_so() -> None:
    def main():
        import ray

        @ray.remote
        class Bad:
            def __init__(self):
                raise KeyError("no")

            def call(self):
                return 1

        try:
            ray.get(Bad.remote().call.remote())
        except ray.exceptions.ActorDiedError as error:
            return error.actor_init_failed, "KeyError: 'no'" in str(error)

    assert run(main) == (True, True)


def test_an_error_travels_through_tasks() -> None:
    def main():
        import ray

        @ray.remote
        def fails():
            raise ValueError("here")

        @ray.remote
        def passes(x):
            return x

        with pytest.raises(ValueError, match="here") as caught:
            ray.get(passes.remote(fails.remote()))
        again = pickle.loads(pickle.dumps(caught.value))
        return type(again).__name__, isinstance(again, ValueError)

    assert run(main) == ("RayTaskError(ValueError)", True)
