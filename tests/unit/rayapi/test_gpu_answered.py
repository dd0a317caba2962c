"""What binds processes that answer, of tallies that are written down here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raysim.rayapi.ranks.answered import HELPS, binds, shares, waits_for
from raysim.rayapi.ranks.gpu_use import Tally


def tally(**more: int) -> Tally:
    return Tally(processes=2, gpus=1, forwards=4, span_ns=1_000, **more)


def test_shares_are_of_the_time_that_processes_are_at_work() -> None:
    found = shares(tally(busy_ns=600, issued_ns=250, copy_ns=100, cpu_ns=50))
    assert found == pytest.approx(
        {"kernels": 0.6, "launches": 0.25, "copies": 0.1, "own work on the CPU": 0.05}
    )


@pytest.mark.parametrize(
    ("spent", "what", "share"),
    [
        ({"busy_ns": 600, "issued_ns": 250, "copy_ns": 100, "cpu_ns": 50}, "kernels", 0.6),
        ({"busy_ns": 100, "issued_ns": 800}, "launches", 0.8),
        ({"busy_ns": 100, "copy_ns": 650}, "copies", 0.65),
        ({"busy_ns": 100, "cpu_ns": 700}, "own work on the CPU", 0.7),
        ({"busy_ns": 200, "issued_ns": 250, "copy_ns": 50}, "input", 0.7),
    ],
)
def test_what_binds_is_the_largest_part_or_the_input_where_they_wait(
    spent: dict[str, int], what: str, share: float
) -> None:
    assert binds(tally(**spent)) == (what, pytest.approx(share))


def test_replicas_wait_for_requests_and_stages_for_what_comes_before_them() -> None:
    app = SimpleNamespace(built=SimpleNamespace(code={"Model": object()}))
    serve = SimpleNamespace(apps={"default": app})
    session: Any = SimpleNamespace(libraries={"serve": serve})
    assert waits_for(session, "Model") == "requests"
    assert "CPUs" not in HELPS["requests"]
    assert waits_for(session, "MapBatches(Model)") == "input"
    assert waits_for(SimpleNamespace(libraries={}), "Model") == "input"  # type: ignore[arg-type]
