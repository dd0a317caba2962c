"""Calls of an async actor on Ray's own benchmark machine, m5.16xlarge, release 2.48.0.

``release/perf_metrics/microbenchmark.json`` of ray-project/ray, commit 08444c4: the row of calls at
once fixed ``execute_async_ns``, the row of calls one by one fixed nothing.
"""

from __future__ import annotations

import time

import pytest

import raysim.rayapi.api as ray
from tests.rayapi_parts import on_demand, run

AT_ONCE, ONE_BY_ONE = 4259.8, 1459.7
"""Calls/s, ``1_1_async_actor_calls_async`` and ``1_1_async_actor_calls_sync``."""


class Server:
    async def no_op(self) -> bytes:
        return b"ok"


def test_calls_of_an_async_actor() -> None:
    def main() -> tuple[float, float]:
        ray.init(num_cpus=4)
        server = ray.remote(Server).remote()
        ray.get([server.no_op.remote() for _ in range(20)])
        start = time.perf_counter()
        ray.get([server.no_op.remote() for _ in range(1000)])
        middle = time.perf_counter()
        for _ in range(100):
            ray.get(server.no_op.remote())
        return 1000 / (middle - start), 100 / (time.perf_counter() - middle)

    at_once, one_by_one = run(main, on_demand(check=False))
    assert at_once == pytest.approx(AT_ONCE, rel=0.02)
    assert one_by_one == pytest.approx(ONE_BY_ONE, rel=0.08)
