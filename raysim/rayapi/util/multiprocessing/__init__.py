"""``ray.util.multiprocessing``: ``multiprocessing.Pool`` on actors."""

from multiprocessing import TimeoutError  # noqa: A004  (part of the interface)

from raysim.rayapi.util.multiprocessing.pool import Pool

__all__ = ["Pool", "TimeoutError"]
