"""Configurations and checkpoints as programs write them.

Real counterparts (ray 2.60): ``ray/tune/tune_config.py``, ``ray/air/config.py``,
``ray/train/_checkpoint.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class FailureConfig:
    """``tune.FailureConfig``."""

    max_failures: int = 0
    fail_fast: bool | str = False


@dataclass
class CheckpointConfig:
    """``tune.CheckpointConfig``."""

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: str | None = "max"
    checkpoint_frequency: int | None = 0
    checkpoint_at_end: bool | None = None

    def __post_init__(self) -> None:
        """As Ray checks."""
        if self.num_to_keep is not None and self.num_to_keep <= 0:
            raise ValueError(
                f"Received invalid num_to_keep: {self.num_to_keep}. "
                "Must be None or an integer >= 1."
            )


@dataclass
class SyncConfig:
    """``tune.SyncConfig``: accepted, of no effect."""

    sync_period: int = 300
    sync_timeout: int = 1800
    sync_artifacts: bool = False
    sync_artifacts_on_checkpoint: bool = True


@dataclass
class RunConfig:
    """``tune.RunConfig``."""

    name: str | None = None
    storage_path: str | None = None
    storage_filesystem: Any = None
    failure_config: FailureConfig | None = None
    checkpoint_config: CheckpointConfig | None = None
    sync_config: SyncConfig | None = None
    verbose: Any = None
    stop: Any = None
    callbacks: list[Any] | None = None
    progress_reporter: Any = None
    log_to_file: Any = False


@dataclass
class TuneConfig:
    """``tune.TuneConfig``."""

    mode: str | None = None
    metric: str | None = None
    search_alg: Any = None
    scheduler: Any = None
    num_samples: int = 1
    max_concurrent_trials: int | None = None
    time_budget_s: Any = None
    reuse_actors: bool = False
    trial_name_creator: Any = None
    trial_dirname_creator: Any = None


@dataclass
class Checkpoint:
    """``tune.Checkpoint``: a directory."""

    path: str
    filesystem: Any = field(default=None, repr=False)

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Of a local directory."""
        return cls(os.fspath(path))

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """A copy, in a given or a new directory."""
        target = os.fspath(path) if path is not None else tempfile.mkdtemp("checkpoint")
        shutil.copytree(self.path, target, dirs_exist_ok=True)
        return target

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """The directory itself, since it is local."""
        yield self.path

    def get_metadata(self) -> dict[str, Any]:
        """What ``set_metadata`` has left."""
        file = Path(self.path, _METADATA)
        metadata: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return metadata

    def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Beside its files."""
        Path(self.path, _METADATA).write_text(json.dumps(metadata))

    def update_metadata(self, metadata: dict[str, Any]) -> None:
        """Added to what is there."""
        self.set_metadata(self.get_metadata() | metadata)

    @property
    def size_bytes(self) -> int:
        """Of its files."""
        return sum(f.stat().st_size for f in Path(self.path).rglob("*") if f.is_file())


_METADATA = ".metadata.json"
