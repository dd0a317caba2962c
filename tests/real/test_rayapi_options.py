"""Options are refused by the emulated Ray exactly as by the real one."""

from __future__ import annotations

import warnings

import pytest

real = pytest.importorskip("ray")

from raysim.rayapi import api as emulated  # noqa: E402

pytestmark = pytest.mark.real


def task(x=1):
    return x


def stream():
    yield 1


class Actor:
    def __init__(self, x=1):
        self.x = x

    def method(self, y):
        return y


TASK_OPTIONS = [
    {"bad": 1}, {"num_cpus": "1"}, {"num_cpus": -1}, {"num_cpus": 0.00001}, {"num_gpus": -0.5},
    {"memory": "1"}, {"max_retries": -2}, {"max_retries": 1.5}, {"max_calls": -1},
    {"num_returns": -1}, {"num_returns": "some"}, {"num_returns": "streaming"},
    {"num_returns": "dynamic"}, {"retry_exceptions": [int]}, {"retry_exceptions": 3},
    {"resources": {"CPU": 1}}, {"resources": {"a": -1}}, {"resources": []},
    {"object_store_memory": 1}, {"label_selector": {"a": "in("}}, {"label_selector": {"-a": "b"}},
    {"label_selector": {"p/-a": "b"}}, {"label_selector": "a"}, {"fallback_strategy": [{}]},
    {"fallback_strategy": [{"x": 1}]}, {"fallback_strategy": [1]}, {"scheduling_strategy": 3},
    {"runtime_env": 3}, {"name": 3}, {"accelerator_type": 1}, {"max_restarts": 1},
    {"resources": {"TPU": 3}}, {"resources": {"neuron_cores": 0.5}}, {"resources": {"HPU": 0.5}},
    {"resources": {"TTNPU": 0.5}}, {"resources": {"MBLT": 0.5}}, {"resources": {"FURIOSA": 0.5}},
    {"_generator_backpressure_num_objects": 0}, {"_num_objects_per_yield": 0},
    {"enable_task_events": None},
]  # fmt: skip

ACTOR_OPTIONS = [
    {"bad": 1}, {"max_retries": 1}, {"num_returns": 2}, {"lifetime": "long"}, {"max_restarts": -2},
    {"max_concurrency": -1}, {"max_concurrency": "2"}, {"max_task_retries": -2}, {"namespace": 3},
    {"get_if_exists": True}, {"get_if_exists": 1}, {"concurrency_groups": 3}, {"num_cpus": -1},
    {"max_pending_calls": -2}, {"_actor_generator_backpressure_num_objects": 0},
    {"label_selector": {"a": "!!b"}}, {"allow_out_of_order_execution": 3},
]  # fmt: skip


def refusal(act) -> tuple[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            act()
        except Exception as error:  # noqa: BLE001  (both must raise the same)
            return type(error).__name__, str(error)
    return "accepted", ""


def placed(text: tuple[str, str]) -> tuple[str, str]:
    """Without the places in memory that a message may show."""
    return text[0], text[1].split(" at 0x", maxsplit=1)[0]


@pytest.mark.parametrize("options", TASK_OPTIONS, ids=str)
def test_a_task_option(options) -> None:
    def act(ray):
        return lambda: ray.remote(**options)(task)

    assert placed(refusal(act(emulated))) == placed(refusal(act(real)))


@pytest.mark.parametrize("options", [*TASK_OPTIONS, {"max_calls": 1}], ids=str)
def test_a_task_option_given_later(options) -> None:
    def act(ray):
        return lambda: ray.remote(task).options(**options)

    assert placed(refusal(act(emulated))) == placed(refusal(act(real)))


@pytest.mark.parametrize("options", ACTOR_OPTIONS, ids=str)
def test_an_actor_option(options) -> None:
    def act(ray):
        return lambda: ray.remote(**options)(Actor)

    assert placed(refusal(act(emulated))) == placed(refusal(act(real)))


@pytest.mark.parametrize("options", [*ACTOR_OPTIONS, {"concurrency_groups": {}}], ids=str)
def test_an_actor_option_given_later(options) -> None:
    def act(ray):
        return lambda: ray.remote(Actor).options(**options)

    assert placed(refusal(act(emulated))) == placed(refusal(act(real)))


@pytest.mark.parametrize(
    "use",
    [
        lambda ray: ray.remote(3), lambda ray: ray.remote(), lambda ray: ray.remote(1, 2),
        lambda ray: ray.remote(num_cpus=1)(3), lambda ray: ray.remote(task)(),
        lambda ray: ray.remote(Actor)(), lambda ray: ray.method(num_returns=-1)(task),
        lambda ray: ray.method(bad=1), lambda ray: ray.method(3),
        lambda ray: ray.method(num_returns="streaming")(task),
        lambda ray: ray.remote(num_returns="streaming")(stream) and None,
        lambda ray: ray.actor.exit_actor,
    ],
)  # fmt: skip
def test_a_wrong_use(use) -> None:
    assert placed(refusal(lambda: use(emulated))) == placed(refusal(lambda: use(real)))
