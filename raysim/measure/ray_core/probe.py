"""One thing to do to a real Ray, and which of raysim's constants its time informs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from raysim.measure.machine import busy_share
from raysim.measure.session import LEAST, Point, Unavailable

SETTLE_S = 3.0
BUSY = 0.1
COLUMNS = ("op", "count", "bytes", "informs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """``measure`` takes the probe and about how many seconds it may take, and returns samples.

    Nothing may be asked of this module in a worker: functions for workers are made inside
    ``measure``, so that they travel by value and a worker imports nothing but Ray.
    """

    op: str
    measure: Callable[[Probe, float], list[float]]
    informs: str
    """Fields of :class:`raysim.perf.ray_core.RayCosts`, space between."""
    count: int = 1
    """Calls, arguments, references, bundles: what ``op`` says."""
    size_bytes: int = 0
    what: str = ""
    """The activity, of rows that several operations of one time give."""
    unit: str = "s"

    def point(self) -> Point:
        """As a row of ``ray_core.csv``."""
        parameters = {
            "op": f"{self.op}_{self.what}" if self.what else self.op, "count": self.count,
            "bytes": self.size_bytes, "informs": self.informs,
        }  # fmt: skip
        return Point(parameters=parameters, measure=self._guarded, unit=self.unit)

    def _guarded(self, allowed_s: float) -> list[float]:
        """An error of Ray's leaves this row out, with its first line as the reason."""
        from ray.exceptions import RayError

        settle(min(SETTLE_S, allowed_s))
        try:
            return self.measure(self, allowed_s)
        except RayError as error:
            raise Unavailable(str(error).partition("\n")[0]) from None


def settle(seconds: float = SETTLE_S) -> None:
    """Wait until workers that were left are gone and new ones are up, or so long."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and busy_share(0.1) > BUSY:
        pass


def while_time(
    once: Callable[[], float], allowed_s: float, *, least: int = LEAST, most: int = 30
) -> list[float]:
    """Samples of something that times itself."""
    end_s = time.monotonic() + allowed_s
    samples: list[float] = []
    while len(samples) < least or (len(samples) < most and time.monotonic() < end_s):
        samples.append(once())
    return samples


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def server(*, is_async: bool = False) -> Any:
    """A new actor that holds no CPU: ``no_op(*args)`` and ``many(n)``, n values; it is up.

    ``is_async``: ``no_op`` alone, as a coroutine.
    """
    import ray

    @ray.remote(num_cpus=0)
    class Server:
        def no_op(self, *_: object) -> bytes:
            return b"ok"

        def many(self, n: int) -> tuple[int, ...] | int:
            return tuple(range(n)) if n > 1 else 0

    @ray.remote(num_cpus=0)
    class AsyncServer:
        async def no_op(self) -> bytes:
            return b"ok"

    actor = cast("Any", AsyncServer if is_async else Server).remote()
    ray.get(actor.no_op.remote())
    return actor
