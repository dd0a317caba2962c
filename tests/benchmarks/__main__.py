"""Run benchmarks and write the table: ``python -m tests.benchmarks [PART OF A FILE'S NAME ...]``.

Each benchmark has a process of its own, so that none sees what another left. Named files only: the
lines of the others stay, if they are of this machine and these versions.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks import readme, table

HERE = Path(__file__).resolve().parent


def functions(path: Path) -> Iterator[str]:
    """Names of a file's tests."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name


def measured(path: Path, name: str, by: str) -> list[list[str]] | None:
    """Lines of both tables that a test makes; None: it failed."""
    with TemporaryDirectory() as folder:
        lines = Path(folder, "lines.json")
        environment = {**os.environ, "RAYSIM_BENCH_LINES": str(lines), "RAYSIM_BENCH_BY": by}
        command = [
            sys.executable, "-m", "pytest", "-m", "benchmark", "--benchmark-enable", "-s", "-rs",
            "-p", "no:cacheprovider", f"{path}::{name}",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=readme.ROOT, env=environment, check=False)
        if done.returncode:
            return None
        found: list[list[str]] = json.loads(lines.read_text(encoding="utf-8"))
        return found


def main(only: Sequence[str]) -> int:
    """Exit code 1 if a benchmark failed; its file's lines stay as they were."""
    failed = False
    for path in sorted(HERE.glob("test_*.py")):
        by = path.stem.removeprefix("test_")
        if only and not any(part in by for part in only):
            continue
        found = [measured(path, name, by) for name in functions(path)]
        if None in found:
            failed = True
            continue
        rows, laws = ([line for each in found if each for line in each[i]] for i in (0, 1))
        before = readme.RESULTS.read_text(encoding="utf-8")
        readme.RESULTS.write_text(table.merged(before, (rows, laws), {by}), encoding="utf-8")
        readme.write()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
