"""Memory and step time of training layouts, beside peers that say both; skipped without them.

    make .peers/.installed
    pytest tests/benchmarks/test_peer_layouts.py -m benchmark --benchmark-enable -s

Twelve layouts of Llama 3 70B under DeepSpeed on 512 H100: three ZeRO stages, two micro-batches,
with and without recomputation. Peers answer by closed forms (``layout_peers``); raysim compiles the
step of every layout, plays it on the cluster's links, and plays its tensors on torch's allocator.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.kernel.simulation import collector_at_ease
from raysim.planner.space import Point
from raysim.planner.trials import try_point
from raysim.scenario.load import Scenario
from tests.benchmarks.alone import ROOT
from tests.benchmarks.table import row
from tests.benchmarks.test_planner_speed import JOB, PARAMETERS, SPACE, each_s, per_s

pytestmark = pytest.mark.benchmark

PEERS = ROOT / os.environ.get("RAYSIM_BENCH_PEERS", ".peers")
GPUS, SEQ_LEN, BATCH_TOKENS, TOKENS = 512, 8192, 8 * 2**20, 100 * 10**9


def layout(point: Point) -> dict[str, Any]:
    """In plain words."""
    micro_batch = point.choice["train.micro_batch"]
    return {
        "stage": point.choice["train.zero_stage"], "micro_batch": micro_batch,
        "accumulation": BATCH_TOKENS // SEQ_LEN // GPUS // micro_batch,
        "recomputed": point.choice["train.activation_checkpointing"] == "full",
    }  # fmt: skip


@pytest.mark.parametrize("peer", ["llm_analysis", "ftuneai"])
def test_layouts(benchmark: Any, peer: str) -> None:
    python = PEERS / "bin/python"
    probe = [str(python), "-c", f"import {peer}"]
    if not python.exists() or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip(f"{peer} is not installed in {PEERS}")
    scenario = raysim.load(JOB)
    assert isinstance(scenario, Scenario)
    points = list(SPACE.points())
    asked = {
        "model": json.loads(Path(JOB["model"]["from"]).read_text(encoding="utf-8")),
        "parameters": PARAMETERS, "gpus": GPUS, "seq_len": SEQ_LEN, "tokens": TOKENS,
        "layouts": [layout(p) for p in points],
    }  # fmt: skip
    command = [str(python), str(Path(__file__).with_name("layout_peers.py")), peer]
    out = subprocess.run(
        command, cwd=ROOT, input=json.dumps(asked), capture_output=True, text=True, check=True
    ).stdout
    theirs_s, said = json.loads(out)
    with collector_at_ease():
        trials = [try_point(scenario, p, ()) for p in points]
        ours_s = each_s(lambda p: try_point(scenario, p, ()), points)
    fit = sum(trial.status == "ok" for trial in trials), sum(s is not None for s in said)
    row("plan, beside a peer", f"{len(points)} layouts of Llama 3 70B: memory and step time"
        f" ({fit[0]} fit; {peer}: {fit[1]})", len(points) * ours_s, per_s(ours_s),
        theirs_s / ours_s,
        f"{peer}, whose answers are closed forms ({per_s(theirs_s)})")  # fmt: skip
    for trial, theirs in zip(trials, said, strict=True):
        ours = trial.metrics.get("gpu_mem_peak"), trial.metrics.get("step_seconds")
        print(trial.choice, trial.status, ours, theirs)
    benchmark.pedantic(lambda: None, rounds=1)
