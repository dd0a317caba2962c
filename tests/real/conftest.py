"""Real Ray beside other tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _workers_of_real_ray_do_not_give_way() -> Iterator[None]:
    """As polite as Ray starts them, they would starve beside other tests that are busy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        yield
