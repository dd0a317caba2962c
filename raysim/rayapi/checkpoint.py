"""``Checkpoint`` of Ray Train and Tune: a directory.

Real counterpart (ray 2.60): ``ray/train/_checkpoint.py``. A file that stands for more bytes than it
holds (``torch.save`` of tensors without data) says so in its first line; its bytes are paid for as
if they were there. Not modelled: file systems other than the local one.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def local_filesystem() -> Any:
    """``pyarrow``'s; values are equal, made where they are asked for."""
    from pyarrow.fs import LocalFileSystem

    return LocalFileSystem()


STANDS_FOR = b"raysim stands for bytes: "
"""How such a file begins; the number and a line's end follow."""


@dataclass
class Checkpoint:
    """``ray.train.Checkpoint``."""

    path: str
    filesystem: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.path = os.fspath(self.path)
        if self.filesystem is None and "://" not in self.path:
            self.filesystem = local_filesystem()

    def __repr__(self) -> str:
        """As Ray shows it."""
        return f"Checkpoint(filesystem=local, path={self.path})"

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
        return sum(stands_for_bytes(f) for f in Path(self.path).rglob("*") if f.is_file())


_METADATA = ".metadata.json"


def best_checkpoint(
    kept: Sequence[tuple[Checkpoint, Mapping[str, Any]]], metric: str, mode: str, known: Any
) -> Checkpoint | None:
    """Of those kept, with their metrics; None: there are none. ``known``: names to choose from.

    Raises
    ------
    ValueError
        The mode is none.
    RuntimeError
        None of them has this metric.
    """
    if mode not in {"max", "min"}:
        raise ValueError(f'Unsupported mode: {mode}. Please choose from ["min", "max"]!')
    scored = [(metrics[metric], c) for c, metrics in kept if metric in metrics]
    if kept and not scored:
        raise RuntimeError(
            f"Invalid metric name {metric}! You may choose from the following metrics: {known}."
        )
    sign = 1 if mode == "max" else -1
    return max(scored, key=lambda s: sign * s[0])[1] if scored else None


def stands_for_bytes(file: Path) -> int:
    """Its size, or what it says it stands for."""
    with file.open("rb") as opened:
        first = opened.readline(100)
    if first.startswith(STANDS_FOR):
        return int(first.removeprefix(STANDS_FOR))
    return file.stat().st_size
