"""What a script does beside model and optimizer takes its time, and is no more than it did."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.hardware import catalog  # noqa: E402
from raysim.perf.host import HostCosts  # noqa: E402
from raysim.rayapi.shapes.own_work import OwnWork  # noqa: E402
from tests.real.test_launched_scripts import PROGRAMS, launched  # noqa: E402

TENSORS = 48


@cache
def step_s(*what: str) -> float:
    """Of most steps."""
    _, report = launched("python", str(PROGRAMS / "own_work.py"), *what)
    return report.metrics["step_seconds"]


def test_an_average_of_the_weights_costs_the_host_its_operators() -> None:
    more_s = step_s("averages") - step_s()
    assert more_s == pytest.approx(TENSORS * HostCosts().eager_s, rel=0.3)


def test_bytes_that_a_script_moves_take_the_devices_time() -> None:
    """8 GiB written, read and written again; some is behind what the host does."""
    least_s = 3 * 2**33 / (0.9 * catalog.gpu("H100-SXM-80GB").memory_bytes_per_s)
    assert least_s < step_s("large") < least_s + step_s()


def test_whoever_asks_for_a_value_each_step_launches_into_an_empty_queue() -> None:
    assert step_s("asks") >= step_s()


def test_a_scaler_waits_for_what_it_found() -> None:
    assert step_s("scales") > 1.03 * step_s()


def test_only_what_is_copied_is_paid() -> None:
    assert step_s("copies") >= step_s()


def test_steps_of_one_plan_are_one_row() -> None:
    _, report = launched("python", str(PROGRAMS / "own_work.py"))
    (row,) = report.tables[0].rows
    assert row[1] == 10


def test_each_rank_s_operators_count_though_others_have_made_their_shapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a rank remembers of another's functions are shapes, not what they take."""
    found: dict[int, set[float]] = {}
    fed = OwnWork.feed

    def counting(self: OwnWork, *args: Any) -> Any:
        feed = fed(self, *args)
        found.setdefault(id(self), set()).add(feed.own.operators)
        return feed

    monkeypatch.setattr(OwnWork, "feed", counting)
    launched("torchrun", "--nproc_per_node=2", str(PROGRAMS / "own_work.py"), "averages", "shifts")
    first, second = found.values()
    assert max(first) > TENSORS
    assert first == second
