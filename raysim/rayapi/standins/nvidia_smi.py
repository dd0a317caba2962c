"""``nvidia-smi`` of the cluster's GPUs, for scripts that print or read what it says.

Real counterpart: NVIDIA's System Management Interface. Its three commonest forms are answered: the
table, ``-L`` and ``--query-gpu=...``; of what nobody knows it says ``[N/A]``, as NVIDIA's does.

It is a program, that a script's ``subprocess`` finds first on its path; run by itself this file is
that program, of the standard library alone.
"""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

NAME = "nvidia-smi"
_FIELDS: Mapping[str, tuple[str, Callable[[Any, int], object]]] = {
    "name": ("", lambda gpu, _: gpu["name"]),
    "gpu_name": ("", lambda gpu, _: gpu["name"]),
    "index": ("", lambda _, index: index),
    "count": ("", lambda gpu, _: gpu["count"]),
    "uuid": ("", lambda _, index: _uuid(index)),
    "gpu_uuid": ("", lambda _, index: _uuid(index)),
    "memory.total": ("MiB", lambda gpu, _: gpu["mib"]),
    "memory.free": ("MiB", lambda gpu, _: gpu["mib"]),
    "memory.used": ("MiB", lambda *_: 0),
    "utilization.gpu": ("%", lambda *_: 0),
    "power.limit": ("W", lambda gpu, _: f"{gpu['watts']:.2f}"),
    "compute_cap": ("", lambda gpu, _: gpu["capability"]),
}
"""Units, and what is said of a GPU and its index: before anybody uses it."""


@contextmanager
def on_path(gpu: Mapping[str, Any]) -> Iterator[None]:
    """Have this process find the program first.

    ``gpu``: ``name``, ``mib``, ``watts``, ``capability`` and ``count`` of a node's.
    """
    before = os.environ.get("PATH", os.defpath)
    with TemporaryDirectory(prefix="raysim-smi-") as folder:
        program = Path(folder) / NAME
        called = [sys.executable, "-I", "-S", __file__, json.dumps(dict(gpu))]
        program.write_text(f'#!/bin/sh\nexec {shlex.join(called)} "$@"\n')
        program.chmod(0o755)
        os.environ["PATH"] = folder + os.pathsep + before
        try:
            yield
        finally:
            os.environ["PATH"] = before


def answer(gpu: Mapping[str, Any], asked: list[str]) -> str:
    """What it prints."""
    query = next((a for a in asked if a.startswith("--query-gpu")), None)
    every = range(gpu["count"])
    if query is not None:
        _, _, fields = query.partition("=")
        form = next((a.partition("=")[2] for a in asked if a.startswith("--format")), "csv")
        return _queried(gpu, fields.split(","), form.split(","), every)
    if "-L" in asked or "--list-gpus" in asked:
        return "\n".join(f"GPU {i}: {gpu['name']} (UUID: {_uuid(i)})" for i in every)
    return _table(gpu, every)


def _uuid(index: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{index:012d}"


def _queried(gpu: Mapping[str, Any], fields: list[str], form: list[str], every: range) -> str:
    known = [_FIELDS.get(f.strip(), ("", lambda *_: "[N/A]")) for f in fields]
    bare = "nounits" in form
    head = zip(fields, (unit for unit, _ in known), strict=True)
    rows = [", ".join(f"{f.strip()} [{u}]" if u else f.strip() for f, u in head)]
    if "noheader" in form:
        rows.clear()
    for i in every:
        said = (f"{say(gpu, i)}{f' {u}' if u and not bare else ''}" for u, say in known)
        rows.append(", ".join(said))
    return "\n".join(rows)


def _table(gpu: Mapping[str, Any], every: range) -> str:
    """Columns as wide as NVIDIA's, for scripts that cut them."""
    line = "+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+"
    head = "+" + "-" * 89 + "+"
    rows = [
        head, f"| {'NVIDIA-SMI of an emulated cluster':<87} |", line,
        f"| GPU  {'Name':<34} | {'Bus-Id':<22} | {'':20} |",
        f"| Fan  Temp   Perf  {'Pwr:Usage/Cap':>21} | {'Memory-Usage':>22} | {'GPU-Util':>20} |",
        line,
    ]  # fmt: skip
    for i in every:
        power, memory = f"{'N/A'} / {gpu['watts']:.0f}W", f"0MiB / {gpu['mib']}MiB"
        rows += [
            f"| {i:>3}  {gpu['name']:<34} | {f'00000000:{i:02X}:00.0':<22} | {'':20} |",
            f"| N/A   N/A    P0   {power:>21} | {memory:>22} | {'0%':>20} |", line,
        ]  # fmt: skip
    return "\n".join(rows)


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.stdout.write(answer(json.loads(sys.argv[1]), sys.argv[2:]) + "\n")
