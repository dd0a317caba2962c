"""``MetricsLogger`` of algorithms and env runners: what users log, and when it is in a result.

Real counterpart: ``ray/rllib/utils/metrics/metrics_logger.py`` (2.60).

Not modelled: moving averages (a mean is one over all that is kept), throughputs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from raysim.rayapi.calls import this_fiber
from raysim.rayapi.clock import fiber_ns

Key = str | tuple[Any, ...]
KEPT = 100
"""Values, where no window is said."""
REDUCE: dict[str | None, Callable[[Any], Any]] = {
    "mean": lambda values: sum(values) / len(values), "min": min, "max": max,
    "sum": sum, "lifetime_sum": sum, "ema": lambda values: sum(values) / len(values),
    "percentiles": list, "item_series": list, "item": lambda values: values[-1], None: list,
}  # fmt: skip


class Logged:
    """What has been logged, by key."""

    def __init__(self) -> None:
        self._values: dict[tuple[Any, ...], deque[Any]] = {}
        self._reduce: dict[tuple[Any, ...], str | None] = {}

    def log_value(
        self, key: Key, value: Any, *, reduce: str | None = "mean", window: int | None = None,
        clear_on_reduce: bool = False, **_others: Any,
    ) -> None:  # fmt: skip
        """Keep a number."""
        del clear_on_reduce
        path = _path(key)
        sums = reduce in ("sum", "lifetime_sum")
        if path not in self._values:
            self._values[path] = deque(maxlen=None if sums else window or KEPT)
            self._reduce[path] = reduce
        if sums and self._values[path]:
            value += self._values[path].pop()
        self._values[path].append(value)

    def log_dict(
        self, value_dict: Mapping[Any, Any], *, key: Key | None = None, **how: Any
    ) -> None:
        """Keep all of them, nested."""
        for name, value in value_dict.items():
            path = (*_path(key), name)
            if isinstance(value, Mapping):
                self.log_dict(value, key=path, **how)
            else:
                self.log_value(path, value, **how)

    @contextmanager
    def log_time(self, key: Key, **how: Any) -> Iterator[None]:
        """Keep how many seconds it took, of virtual time."""
        since_ns = fiber_ns(this_fiber())
        yield
        self.log_value(key, (fiber_ns(this_fiber()) - since_ns) / 1e9, **how)

    def set_value(self, key: Key, value: Any, **how: Any) -> None:
        """In place of all that was kept."""
        self.delete(key)
        self.log_value(key, value, **how)

    def delete(self, *key: Any, key_error: bool = False) -> None:
        """Forget it."""
        path = _path(key[0] if len(key) == 1 else key)
        if key_error and path not in self._values:
            raise KeyError(path)
        self._values.pop(path, None)

    def peek(self, key: Key | None = None, default: Any = math.nan, **_others: Any) -> Any:
        """What a result would say."""
        path = _path(key)
        if path in self._values:
            return self._reduced(path)
        inside = [p for p in self._values if p[: len(path)] == path]
        return _nested({p[len(path) :]: self._reduced(p) for p in inside}) or default

    def reduce(self, **_others: Any) -> dict[Any, Any]:
        """All of it, as a result says it."""
        return _nested({path: self._reduced(path) for path in self._values})

    def _reduced(self, path: tuple[Any, ...]) -> Any:
        how = REDUCE.get(self._reduce[path], REDUCE["mean"])
        return how(self._values[path])


def merged(result: dict[Any, Any], more: Mapping[Any, Any]) -> None:
    """What users have logged goes beside what RLlib says."""
    for name, value in more.items():
        if isinstance(value, Mapping) and isinstance(result.get(name), dict):
            merged(result[name], value)
        else:
            result[name] = value


def _path(key: Key | None) -> tuple[Any, ...]:
    if key is None:
        return ()
    return key if isinstance(key, tuple) else (key,)


def _nested(flat: Mapping[tuple[Any, ...], Any]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for path, value in flat.items():
        place = found
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value
    return found
