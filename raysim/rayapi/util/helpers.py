"""``ray.util.as_completed`` and ``map_unordered``.

Real counterpart: ``python/ray/util/helpers.py`` of ray 2.60.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any


def _batch(
    refs: list[Any], chunk_size: int, yield_obj_refs: bool, **kwargs: Any
) -> tuple[list[Any], list[Any]]:
    from raysim.rayapi import api

    if chunk_size < 1:
        raise ValueError("`chunk_size` must be >= 1")
    ready, left = api.wait(refs, num_returns=min(chunk_size, len(refs)), **kwargs)
    return (ready if yield_obj_refs else api.get(ready)), left


def as_completed(
    refs: Sequence[Any], *, chunk_size: int = 10, yield_obj_refs: bool = False, **kwargs: Any
) -> Iterator[Any]:
    """Results as they become available, ``chunk_size`` at a time."""
    if chunk_size < 1:
        raise ValueError("`chunk_size` must be >= 1")
    if "num_returns" in kwargs:
        raise ValueError("Use the `chunksize` argument instead of `num_returns`.")
    left = list(refs)
    while left:
        results, left = _batch(left, chunk_size, yield_obj_refs, **kwargs)
        yield from results


def map_unordered(
    fn: Any,
    items: Iterable[Any],
    *,
    backpressure_size: int | None = 100,
    chunk_size: int = 10,
    yield_obj_refs: bool = False,
    **kwargs: Any,
) -> Iterator[Any]:
    """Results of a remote function on many items, with so many tasks at a time."""
    if backpressure_size is not None and backpressure_size < chunk_size:
        raise ValueError("`backpressure_size` must be greater than or equal to `chunk_size`")
    if "num_returns" in kwargs:
        raise ValueError("Use the `chunk_size` argument instead of `num_returns`.")
    source = iter(items)
    left = [fn.remote(item) for item in islice(source, backpressure_size)]
    while left:
        results, left = _batch(left, chunk_size, yield_obj_refs, **kwargs)
        left += [fn.remote(item) for item in islice(source, len(results))]
        yield from results
