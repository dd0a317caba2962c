"""CPU time of recording, of writing traces and frames, and of a cold start; never gates.

pytest tests/benchmarks/test_results_speed.py -m benchmark --benchmark-enable -s
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from raysim.kernel.record import ColumnRecorder
from raysim.results.frames import Frames
from raysim.results.traces.perfetto import write_pftrace
from tests.benchmarks.table import cpu_s, row

pytestmark = pytest.mark.benchmark

ROOT = Path(__file__).resolve().parents[2]
ROWS = 500_000
TRACKS = [(f"node-{n}", f"gpu-{g}", "compute") for n in range(8) for g in range(8)]


def recorded() -> ColumnRecorder:
    recorder = ColumnRecorder()
    for i in range(ROWS):
        t_ns = i // len(TRACKS) * 1_000
        recorder.span(TRACKS[i % 64], f"op-{i % 50}", "compute", t_ns, t_ns + 900, None)
    return recorder


def test_recording_and_writing(benchmark: Any, tmp_path: Path) -> None:
    as_json_s = cpu_s(
        lambda: (tmp_path / "plain.json").write_text(
            json.dumps([{"name": f"op-{i % 50}", "ts": i, "dur": 900} for i in range(ROWS)])
        )
    )
    kept: list[ColumnRecorder] = []
    record_s = cpu_s(lambda: kept.append(recorded()))
    (recorder,) = kept
    row("recording", f"{ROWS:,} spans into columns", record_s, f"{ROWS / record_s:,.0f} rows/s",
        as_json_s / record_s, "plain json.dump of three fields")  # fmt: skip
    trace_s = cpu_s(lambda: write_pftrace(recorder, tmp_path / "trace.pftrace"))
    row("trace", f"{ROWS:,} spans as a Perfetto file", trace_s, f"{ROWS / trace_s:,.0f} rows/s",
        as_json_s / trace_s, "plain json.dump of three fields")  # fmt: skip
    Frames(recorded(), 8).write(tmp_path)  # pyarrow's import
    frames_s = cpu_s(lambda: Frames(recorder, 8).write(tmp_path))
    row("frames", f"{ROWS:,} spans as Parquet", frames_s, f"{ROWS / frames_s:,.0f} rows/s",
        as_json_s / frames_s, "plain json.dump of three fields")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)


def child_s(*args: str, rounds: int = 3) -> float:
    """Least CPU seconds of a Python process of its own."""
    best = float("inf")
    for _ in range(rounds):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, *args]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        assert done.returncode in (0, 1), done.stderr
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        best = min(best, spent)
    return best


def test_cold_start(benchmark: Any, tmp_path: Path) -> None:
    numpy_s = child_s("-c", "import simpy, numpy")
    import_s = child_s("-c", "import raysim")
    row("import", "import raysim in a new process", import_s, f"{import_s:.2f} s",
        numpy_s / import_s, "import simpy, numpy")  # fmt: skip
    started = time.perf_counter()
    answer_s = child_s(
        "-m", "raysim", "run", "scenarios/llama3_8b_zero3", "--out", str(tmp_path / "run"),
        "--no-trace", rounds=1,
    )  # fmt: skip
    wall_s = time.perf_counter() - started
    row("first answer", f"raysim run scenarios/llama3_8b_zero3 ({wall_s:.1f} s by the clock)",
        answer_s, f"{answer_s:.2f} s", numpy_s / answer_s, "import simpy, numpy")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)
