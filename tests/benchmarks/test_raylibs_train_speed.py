"""A week of Ray Train on 512 GPUs, with nodes that die: CPU seconds, printed; never a gate.

    pytest tests/benchmarks/test_raylibs_train_speed.py -m benchmark --benchmark-enable -s

100,000 steps of 6 s with a report each and a checkpoint every 20 minutes; a node dies about every
20 hours and comes back ten minutes later. Steps cost nothing, whatever their number: what is played
is each save (a flow per node) and each restart of 512 workers.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from raysim.raylibs.train.config import FailureConfig
from raysim.raylibs.train.loop import CheckpointSpec, ConstantStep
from tests.train_parts import loop, play, trainer

pytestmark = pytest.mark.benchmark

NODES, GPUS, FAILURES = 64, 8, 8


@pytest.mark.timeout(300)
def test_a_week_of_512_gpus() -> None:
    a_loop = loop(
        steps=100_000, step=ConstantStep(step_s=6.0), step_cv=0.02, report_every=1,
        checkpoint_every=200, checkpoint=CheckpointSpec(total_bytes=1e12, mode="ASYNC"),
    )  # fmt: skip
    spec = trainer(
        a_loop, workers=NODES * GPUS, failures=FailureConfig(max_failures=-1), keep=3
    )  # fmt: skip

    def lose(sim: Any, faults: Any) -> None:
        for i in range(1, FAILURES + 1):
            node = (i * 7) % NODES + 1
            sim.at(f"{i * 20}h", faults.kill_raylet, node)
            sim.at(f"{i * 1200 + 10}min", faults.restart_node, node)

    started = time.process_time()
    played = play(spec, nodes=NODES + 1, gpus=GPUS, faults=lose, until="10d")
    took_s = time.process_time() - started
    record = played.record
    assert played.outcome.ok
    assert len(record.attempts) == FAILURES + 1
    days, events = (record.end_ns - record.begin_ns) / 86_400e9, played.cluster.sim.log.events
    print(f"\n{days:.1f} days, {len(record.saved)} saves, {FAILURES} restarts:")
    print(f"{took_s:.1f} s of CPU, {events:,} events, goodput {record.goodput:.1%}")
