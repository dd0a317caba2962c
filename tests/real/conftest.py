"""Real Ray beside other tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module", autouse=True)
def _workers_of_real_ray_do_not_give_way() -> Iterator[None]:
    """As polite as Ray starts them, they would starve beside other tests that are busy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        yield


@pytest.fixture
def predicted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every ``Prediction`` that a script asks for."""
    from raysim.rayapi.shapes import prediction  # it needs torch

    found: list[Any] = []
    real = prediction.predict

    def predict(*args: Any) -> Any:
        found.append(real(*args))
        return found[-1]

    monkeypatch.setattr(prediction, "predict", predict)
    return found


@pytest.fixture
def steps_taken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every ``Prediction`` of a step that workers take."""
    from raysim.rayapi.shapes.steps import Steps  # it needs torch

    found: list[Any] = []
    take = Steps.take_step

    def taken(self: Steps, step: Any, *args: Any, **kwargs: Any) -> None:
        found.append(step)
        take(self, step, *args, **kwargs)

    monkeypatch.setattr(Steps, "take_step", taken)
    return found
