"""One thing in a process of its own: what it returns, and the most memory the process held.

What ran before in a process leaves memory that its high water counts, and garbage that the
collector looks at.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def alone(function: Callable[..., Any], *arguments: float) -> tuple[Any, int]:
    """What a module's function returns, as JSON has it, and the bytes that its process took."""
    said = json.dumps([function.__module__, function.__name__, arguments])
    command = [sys.executable, "-m", __name__, said]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found, taken_bytes = json.loads(done.stdout.splitlines()[-1])
    return found, taken_bytes


def command_s(words: Sequence[str], rounds: int = 5) -> float:
    """Median CPU seconds of Python with these arguments, from a cold shell.

    Python keeps the bytecode of what it imported, as it does for everybody who runs a command for
    the second time; the first round, in which it may be made, does not count.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    spent = []
    for _ in range(rounds + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, check=False
        )
        assert done.returncode in {0, 1}, done.stderr.decode()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return median(spent[1:])


def _main() -> None:
    module, name, arguments = json.loads(sys.argv[1])
    found = getattr(importlib.import_module(module), name)(*arguments)
    peak_kb = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    assert peak_kb is not None, "the kernel does not say how much memory was held"
    print(json.dumps([found, int(peak_kb[1]) * 1024]))


if __name__ == "__main__":
    _main()
