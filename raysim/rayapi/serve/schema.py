"""The module ``ray.serve.schema``: what ``serve.status`` answers, and how logs are asked for.

Real counterpart: ``python/ray/serve/schema.py`` (ray 2.60).

Not modelled: configuration files, and logs: a configuration of them is checked and has no effect.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from raysim.rayapi.serve.statuses import (
    ApplicationStatus,
    ApplicationStatusOverview,
    DeploymentStatus,
    DeploymentStatusOverview,
    ProxyStatus,
    ServeStatus,
)
from raysim.rayapi.unsupported import getattr_of

__all__ = [
    "ApplicationStatus",
    "ApplicationStatusOverview",
    "DeploymentStatus",
    "DeploymentStatusOverview",
    "EncodingType",
    "LoggingConfig",
    "ProxyStatus",
    "ServeStatus",
]


class EncodingType(StrEnum):
    """Of lines of logs."""

    TEXT = "TEXT"
    JSON = "JSON"


@dataclass
class LoggingConfig:
    """``ray.serve.schema.LoggingConfig``."""

    encoding: str = EncodingType.TEXT
    log_level: int | str = "INFO"
    logs_dir: str | None = None
    enable_access_log: bool = True
    additional_log_standard_attrs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """As Ray checks it."""
        if self.encoding not in list(EncodingType):
            raise ValueError(
                f"Got '{self.encoding}' for encoding. Encoding must be one of {set(EncodingType)}."
            )
        names = logging.getLevelNamesMapping()
        numbers = {number: name for name, number in names.items()}
        known: Mapping[Any, Any] = numbers if isinstance(self.log_level, int) else names
        if self.log_level not in known:
            raise ValueError(
                f'Got "{self.log_level}" for log_level. log_level must be one of {list(known)}.'
            )
        if isinstance(self.log_level, int):
            self.log_level = logging.getLevelName(self.log_level)


__getattr__ = getattr_of("ray.serve.schema")
