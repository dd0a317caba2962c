"""What chaos has found and nobody has repaired yet; each test says what should be."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.raycore.core_worker import bodies
from raysim.raycore.core_worker.bodies import (
    create_actor,
    drop,
    drop_actor,
    sleep,
)
from raysim.units import NS_PER_S
from tests.faults.tasks import body_of
from tests.raycore_parts import ray_cluster
from tests.stories.ray_scripts import actor, method, run

S = NS_PER_S

pytestmark = pytest.mark.xfail(strict=True, reason="open")


def test_calls_behind_an_exit_do_not_run() -> None:
    cluster = ray_cluster(1, check=True)

    def leave(running: Any, _frame: Any) -> Any:
        yield sleep(S)
        running.exit_process(reason="test", intended=True)
        yield sleep(1000 * S)
        return []

    ran: list[int] = []

    def behind(_running: Any, _frame: Any) -> Any:
        ran.append(1)
        yield sleep(1)
        return []

    def main(_: Any) -> Any:
        a = yield create_actor(actor())
        first = yield bodies.call_actor(a, method(body_of(leave)))
        second = yield bodies.call_actor(a, method(body_of(behind)))
        yield sleep(20 * S)
        yield drop(*first, *second)
        yield drop_actor(a)

    run(cluster, main)
    assert not ran
