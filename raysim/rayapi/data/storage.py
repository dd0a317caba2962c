"""Where files of a dataset are: a folder of this machine, whose bytes the node's disk pays for.

Real counterpart: ``pyarrow.fs`` behind ``datasource/file_based_datasource.py``. The emulated nodes
all see the folder, as a mount that each has on its own disk.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from raysim.rayapi.calls import this_core, this_fiber
from raysim.rayapi.compute import use_cores
from raysim.rayapi.unsupported import NotEmulatedError

_INSTEAD = "a folder of this machine"


def local(path: Any, call: str, instead: str = "") -> Path:
    """A path of this machine; ``instead``: what else to say, if it is not.

    Raises
    ------
    NotEmulatedError
        It is somewhere else.
    """
    text = os.fspath(path)
    for scheme in ("local://", "file://"):
        text = text.removeprefix(scheme)
    if "://" in text:
        raise NotEmulatedError(f"ray.data {call}({text!r})", instead or _INSTEAD)
    return Path(text).expanduser()


def pay_for_reading(size_bytes: float, *, decode_bytes_per_s: float) -> None:
    """Of a task, in its fiber: from the node's disk, then through one core."""
    read_from_disk(size_bytes)
    use_cores(this_fiber(), size_bytes / decode_bytes_per_s, 1.0)


def read_from_disk(size_bytes: float) -> None:
    """From the first disk of the node."""
    _move("read", size_bytes)


def pay_for_writing(size_bytes: float) -> None:
    """Onto the node's disk."""
    _move("write", size_bytes)


def _move(way: str, size_bytes: float) -> None:
    fiber = this_fiber()
    core = this_core(fiber)
    disks = fiber.process.session.env.nodes[core.me.node_id].disks
    if disks and size_bytes:
        fiber.settle()
        fiber.block(
            lambda then: getattr(disks[0], way)(size_bytes, lambda _: core.after(0, then, None))
        )
