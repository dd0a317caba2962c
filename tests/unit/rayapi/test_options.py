"""Options are refused with Ray's error types and messages (compared in tests/real)."""

from __future__ import annotations

import pytest

from raysim.rayapi import api as ray


def task():
    return 1


class Actor:
    pass


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"bad": 1}, ValueError, "Invalid option keyword bad for remote functions"),
        ({"num_cpus": "1"}, TypeError, "The type of keyword 'num_cpus' must be"),
        ({"num_cpus": -1}, ValueError, "The quantity of resource num_cpus cannot be negative"),
        ({"num_gpus": 0.00001}, ValueError, "cannot go beyond 0.0001"),
        ({"max_retries": -2}, ValueError, "where -1 represents infinity"),
        ({"resources": {"CPU": 1}}, ValueError, "Use the 'num_cpus' and 'num_gpus' keyword"),
        ({"num_returns": "streaming"}, ValueError, "can only be used with generator functions"),
        ({"retry_exceptions": [int]}, ValueError, "a boolean or a list of exceptions"),
        ({"label_selector": {"a": "in("}}, ValueError, "Invalid label selector value"),
        ({"max_restarts": 1}, ValueError, "Invalid option keyword max_restarts"),
    ],
)
def test_a_task_option_is_refused(options, error, message) -> None:
    with pytest.raises(error, match=message.replace("(", r"\(")):
        ray.remote(**options)(task)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_retries": 1}, "Invalid option keyword max_retries for actors"),
        ({"lifetime": "long"}, "must be one of 'detached'"),
        ({"get_if_exists": True}, "The actor name must be specified"),
    ],
)
def test_an_actor_option_is_refused(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        ray.remote(**options)(Actor)


def test_some_options_belong_to_the_decorator() -> None:
    with pytest.raises(ValueError, match="'max_calls' is not supported in"):
        ray.remote(task).options(max_calls=1)
    with pytest.raises(ValueError, match="'concurrency_groups' is not supported"):
        ray.remote(Actor).options(concurrency_groups={"io": 1})


def test_a_gpu_task_ends_its_process() -> None:
    assert ray.remote(num_gpus=1)(task)._default_options["max_calls"] == 1
    assert "max_calls" not in ray.remote(num_cpus=1)(task)._default_options


def test_remote_things_are_not_called() -> None:
    with pytest.raises(TypeError, match="Remote functions cannot be called directly"):
        ray.remote(task)()
    with pytest.raises(TypeError, match="Actors cannot be instantiated directly"):
        ray.remote(Actor)()
    with pytest.raises(TypeError, match="Inheriting from actor classes"):

        class Child(ray.remote(Actor)):
            pass


def test_async_functions_are_refused() -> None:
    async def coroutine():
        pass

    with pytest.raises(ValueError, match="'async def' should not be used"):
        ray.remote(coroutine)
