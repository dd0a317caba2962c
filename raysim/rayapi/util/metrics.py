"""``ray.util.metrics`` and ``ray.serve.metrics``: a program's own counters, gauges and histograms.

Real counterpart: ``python/ray/util/metrics.py`` of ray 2.60, which hands values to the node's
agent. Here they are checked as Ray checks them, and nobody scrapes them: what the emulated cluster
does is in raysim's report.
"""

from __future__ import annotations

import warnings
from typing import Any

Tags = dict[str, str]


class Metric:
    """What all kinds have in common."""

    def __init__(
        self, name: str, description: str = "", tag_keys: tuple[str, ...] | None = None
    ) -> None:
        if not name:
            raise ValueError("Empty name is not allowed. Please provide a metric name.")
        self._name = name
        self._description = description
        self._tag_keys = tag_keys or ()
        self._default_tags: Tags = {}
        if not isinstance(self._tag_keys, tuple):
            raise TypeError(f"tag_keys should be a tuple type, got: {type(self._tag_keys)}")
        for key in self._tag_keys:
            if not isinstance(key, str):
                raise TypeError(f"Tag keys must be str, got {type(key)}.")
        if ":" in name:
            warnings.warn(
                f"Metric name {name} contains a : character, which is no longer allowed. Please "
                "migrate to the new metric name format. This will be an error in the future.",
                FutureWarning,
                stacklevel=3,
            )

    def __reduce__(self) -> Any:
        """Default tags stay behind, as in Ray."""
        return type(self), (self._name, self._description, self._tag_keys)

    def set_default_tags(self, default_tags: Tags) -> Metric:
        """For values that are given without them."""
        for key, value in default_tags.items():
            if key not in self._tag_keys:
                raise ValueError(f"Unrecognized tag key {key}.")
            if not isinstance(value, str):
                raise TypeError(f"Tag values must be str, got {type(value)}.")
        self._default_tags = default_tags
        return self

    @property
    def info(self) -> dict[str, Any]:
        """How it was made."""
        return {
            "name": self._name,
            "description": self._description,
            "tag_keys": self._tag_keys,
            "default_tags": self._default_tags,
        }

    def _check(self, value: Any, tags: Tags | None) -> None:
        if not isinstance(value, int | float):
            raise TypeError(f"value must be int or float, got {type(value)}.")
        for tag in (tags or {}).values():
            if not isinstance(tag, str):
                raise TypeError(f"Tag values must be str, got {type(tag)}.")
        given = {**self._default_tags, **(tags or {})}
        missing = [key for key in self._tag_keys if key not in given]
        if missing:
            raise ValueError(f"Missing value for tag key(s): {','.join(missing)}.")


class Counter(Metric):
    """Only grows."""

    def inc(self, value: float = 1.0, tags: Tags | None = None) -> None:
        """By a positive number."""
        if isinstance(value, int | float) and value <= 0:
            raise ValueError(f"value must be >0, got {value}")
        self._check(value, tags)


class Gauge(Metric):
    """The last value counts."""

    def set(self, value: float | None, tags: Tags | None = None) -> None:
        """None: as it is."""
        if value is not None:
            self._check(value, tags)


class Histogram(Metric):
    """How many values are in each bucket."""

    def __init__(
        self,
        name: str,
        description: str = "",
        boundaries: list[float] | None = None,
        tag_keys: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(name, description, tag_keys)
        if not boundaries:
            raise ValueError(
                "boundaries argument should be provided when using the Histogram class. e.g., "
                'Histogram("name", boundaries=[1.0, 2.0])'
            )
        for index, boundary in enumerate(boundaries):
            if boundary <= 0:
                raise ValueError(
                    f"Invalid `boundaries` argument at index {index}, {boundaries}. Use positive "
                    "values for the arguments."
                )
        self.boundaries = boundaries

    def __reduce__(self) -> Any:
        """See ``Metric``."""
        return type(self), (self._name, self._description, self.boundaries, self._tag_keys)

    def observe(self, value: float, tags: Tags | None = None) -> None:
        """One more value."""
        self._check(value, tags)

    @property
    def info(self) -> dict[str, Any]:
        """How it was made."""
        return {**super().info, "boundaries": self.boundaries}


__all__ = ["Counter", "Gauge", "Histogram", "Metric"]
