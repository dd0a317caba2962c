"""The disk that the tables' folder lies on: sequential writes and reads, small files, fsync.

Reads and writes called ``direct`` pass the page cache by (O_DIRECT); ``cached`` writes end with an
fsync, whose time is in the row; ``cached`` reads come after the file was written, from memory.
Values are bytes per second, or seconds of one file or one fsync.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from raysim.measure.session import Point, Session, Unavailable, repeat, stopwatch
from raysim.units import GIB, KIB, MIB

COLUMNS = ("op", "cache", "bytes", "block_bytes")

SIZES = (64 * MIB, GIB)
BLOCKS = (128 * KIB, 4 * MIB)
SMALL = 4 * KIB
FREE_SHARE = 0.25
"""Of the free space, what one file may take."""


def measure(session: Session) -> None:
    """Fill ``disk.csv``; files are made in the tables' folder and removed."""
    session.folder.mkdir(parents=True, exist_ok=True)
    with (
        session.table("disk", COLUMNS) as table,
        TemporaryDirectory(prefix=".disk-", dir=session.folder) as scratch,
    ):
        session.run(table, points(Path(scratch), quick=session.quick))


def points(scratch: Path, *, quick: bool) -> Iterator[Point]:
    """Small files first, then ever larger ones."""
    for op in ("create", "fsync", "open_read"):
        yield _small(scratch, op)
    for size_bytes in (MIB,) if quick else SIZES:
        for block_bytes in BLOCKS[:1] if quick else BLOCKS:
            for cache in ("cached", "direct"):
                for op in ("write", "read"):
                    yield _sequential(scratch, op, cache, size_bytes, block_bytes)


def _small(scratch: Path, op: str) -> Point:
    def measure(allowed_s: float) -> list[float]:
        folder = scratch / op
        folder.mkdir(exist_ok=True)
        numbers = iter(range(10**9))
        content = bytes(SMALL)
        there = folder / "there"
        there.write_bytes(content)

        def fsync() -> None:
            with there.open("r+b") as file:
                file.write(content)
                os.fsync(file.fileno())

        works: dict[str, Callable[[], object]] = {
            "create": lambda: (folder / str(next(numbers))).write_bytes(content),
            "fsync": fsync,
            "open_read": there.read_bytes,
        }
        try:
            return repeat(stopwatch(works[op]), min(allowed_s, 1.0))
        finally:
            shutil.rmtree(folder)

    parameters = {"op": op, "cache": "cached", "bytes": SMALL, "block_bytes": SMALL}
    return Point(parameters=parameters, measure=measure)


def _sequential(scratch: Path, op: str, cache: str, size_bytes: int, block_bytes: int) -> Point:
    def measure(allowed_s: float) -> list[float]:
        free = shutil.disk_usage(scratch).free
        if size_bytes > free * FREE_SHARE:
            raise Unavailable(f"would take more than a quarter of the {free} bytes that are free")
        path = scratch / "sequential"
        with contextlib.ExitStack() as stack:
            stack.callback(path.unlink, missing_ok=True)
            block = stack.enter_context(mmap.mmap(-1, block_bytes))  # aligned, as O_DIRECT wants
            block.write(b"\x5a" * block_bytes)
            blocks = size_bytes // block_bytes
            if op == "read":
                _write(path, block, blocks, direct=cache == "direct")
            run = _write if op == "write" else _read
            samples: list[float] = []
            end_s = time.monotonic() + allowed_s
            while not samples or (len(samples) < 5 and time.monotonic() < end_s):
                start = time.perf_counter()
                run(path, block, blocks, direct=cache == "direct")
                samples.append(size_bytes / (time.perf_counter() - start))
            return samples

    parameters = {"op": op, "cache": cache, "bytes": size_bytes, "block_bytes": block_bytes}
    return Point(parameters=parameters, measure=measure, unit="B/s")


def _open(path: Path, flags: int, *, direct: bool) -> int:
    try:
        return os.open(path, flags | (os.O_DIRECT if direct else 0), 0o600)
    except OSError as error:
        if direct:
            raise Unavailable(f"no O_DIRECT on this file system: {error.strerror}") from None
        raise


def _write(path: Path, block: mmap.mmap, blocks: int, *, direct: bool) -> None:
    """A new file, on the disk when this returns."""
    path.unlink(missing_ok=True)
    file = _open(path, os.O_WRONLY | os.O_CREAT, direct=direct)
    try:
        for _ in range(blocks):
            os.write(file, block)
        os.fsync(file)
    finally:
        os.close(file)


def _read(path: Path, block: mmap.mmap, blocks: int, *, direct: bool) -> None:
    file = _open(path, os.O_RDONLY, direct=direct)
    try:
        for _ in range(blocks):
            os.readv(file, [block])
    finally:
        os.close(file)
