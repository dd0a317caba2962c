"""The line that says where a program is: on a terminal only, and never in a pipe."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import raysim
from raysim.kernel.simulation import Simulation
from raysim.raycore.state_log import StateLog
from raysim.scenario.script import script_scenario
from raysim.workloads.watching import Watching
from tests.unit.program_cases import SQUARES, script

BUSY = (
    "import time, ray\nray.init()\n"
    "@ray.remote\ndef f():\n    time.sleep(1)\n"
    "for i in range(120):\n    ray.get([f.remote() for _ in range(16)])\nprint('done')\n"
)


def on_a_terminal(folder: Path, *flags: str) -> tuple[str, str]:
    """What ``raysim run`` writes to a terminal as stderr, and to a pipe as stdout."""
    root = Path(__file__).resolve().parents[2]
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "raysim", "run", "main.py", "--compute", "declared", *flags]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=theirs, text=True,
        env={**os.environ, "PYTHONPATH": str(root), "TERM": "xterm", "COLUMNS": "100"},
    ) as process:  # fmt: skip
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # Linux: the other end is closed
                break
            if not part:
                break
            seen += part
        assert process.stdout is not None
        printed = process.stdout.read()
    os.close(ours)
    assert process.returncode == 0, seen.decode()
    return seen.decode(), printed


def test_a_terminal_shows_where_the_program_is(tmp_path: Path) -> None:
    script(tmp_path, BUSY)
    seen, printed = on_a_terminal(tmp_path)
    assert re.search(r"virtual, [\d,]+ of [\d,]+ task attempts ended, [\d,]+ running", seen)
    assert printed.startswith("done\n")
    assert "virtual, " not in printed


def test_quiet_shows_nothing(tmp_path: Path) -> None:
    script(tmp_path, SQUARES)
    seen, printed = on_a_terminal(tmp_path, "--quiet")
    assert "task attempts" not in seen
    assert printed.startswith("Finished in")


def test_watching_counts_and_changes_nothing(tmp_path: Path) -> None:
    scenario = script_scenario(script(tmp_path, SQUARES), compute="declared")
    given: list[Callable[[], str]] = []
    watched = raysim.run(scenario, watch=given.append)
    (where,) = given
    text = where()
    assert text.endswith("virtual, 32 of 32 task attempts ended, 0 running")
    assert text == where()
    alone = raysim.run(scenario)
    assert alone.summary["simulation"]["digest"] == watched.summary["simulation"]["digest"]


def test_before_anything_has_happened_it_says_so() -> None:
    where = Watching(Simulation(), StateLog())
    assert where().endswith("virtual, 0 of 0 task attempts ended, 0 running")


def test_a_pipe_gets_the_report_alone(tmp_path: Path) -> None:
    script(tmp_path, BUSY)
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "raysim", "run", "main.py", "--compute", "declared"]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert ended.stderr == ""
