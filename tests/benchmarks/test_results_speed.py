"""CPU time of recording, of writing traces and frames, and of a cold start; never gates.

pytest tests/benchmarks/test_results_speed.py -m benchmark --benchmark-enable -s
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raysim.kernel.record import ColumnRecorder
from raysim.kernel.simulation import collector_at_ease
from raysim.results.frames import Frames
from raysim.results.traces.perfetto import write_pftrace
from tests.benchmarks.alone import command_s
from tests.benchmarks.table import cpu_s, row

pytestmark = pytest.mark.benchmark

ROWS = 500_000
TRACKS = [(f"node-{n}", f"gpu-{g}", "compute") for n in range(8) for g in range(8)]


def recorded() -> ColumnRecorder:
    recorder = ColumnRecorder()
    for i in range(ROWS):
        t_ns = i // len(TRACKS) * 1_000
        recorder.span(TRACKS[i % 64], f"op-{i % 50}", "compute", t_ns, t_ns + 900, None)
    return recorder


@collector_at_ease()
def test_recording_and_writing(benchmark: Any, tmp_path: Path) -> None:
    """With the collector as it is in a run, and while a result is written."""
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


def test_cold_start(benchmark: Any, tmp_path: Path) -> None:
    numpy_s = command_s(["-c", "import simpy, numpy"])
    import_s = command_s(["-c", "import raysim"])
    row("import", "import raysim in a new process", import_s, f"{import_s:.2f} s",
        numpy_s / import_s, "import simpy, numpy")  # fmt: skip
    run = ["-m", "raysim", "run", "scenarios/llama3_8b_zero3", "--out", str(tmp_path / "run")]
    for what, options in (("", ["--no-trace"]), (", with its trace and tables", [])):
        answer_s = command_s([*run, *options])
        row("first answer", f"raysim run scenarios/llama3_8b_zero3{what}, in a new process",
            answer_s, f"{answer_s:.2f} s", numpy_s / answer_s, "import simpy, numpy")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)
