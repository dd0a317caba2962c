"""``timeline.json`` beside what ``ray.timeline()`` writes of the same program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

pytestmark = pytest.mark.real
PROGRAM = """
import sys, time
import ray
ray.init(num_cpus=2)

@ray.remote
def inner(x):
    time.sleep(0.05)
    return x

@ray.remote
def outer(x):
    return ray.get(inner.remote(x))

@ray.remote
class Model:
    def score(self, x):
        time.sleep(0.05)
        return x

@ray.remote(max_retries=0)
def bad():
    raise ValueError("no")

model = Model.remote()
ray.get([outer.remote(1), model.score.remote(2)])
try:
    ray.get(bad.remote())
except ValueError:
    pass
"""
ON_RAY = """
time.sleep(4)  # task events reach the GCS every second
ray.timeline(sys.argv[1])
"""
FINER = re.compile(r"task:[a-z_]+|wait_for_function|ray\\.put")
"""What the state log does not tell apart."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], list[Any]]:
    pytest.importorskip("ray")
    folder = tmp_path_factory.mktemp("timeline")
    (folder / "real.py").write_text(PROGRAM + ON_RAY)
    (folder / "ours.py").write_text(PROGRAM)
    environment = {
        **os.environ, "RAY_ADDRESS": "local", "RAY_PROFILING": "1", "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }  # fmt: skip
    for command in (
        [sys.executable, "real.py", "real.json"],
        [sys.executable, "-m", "raysim", "run", "ours.py", "-o", "ours", "-q"],
    ):
        done = subprocess.run(
            command, check=False, cwd=folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
    real = json.loads((folder / "real.json").read_text())
    return real, json.loads((folder / "ours" / "timeline.json").read_text())


def kinds(events: list[Any]) -> Counter[tuple[Any, ...]]:
    """Slices on workers' rows, and calls of ``.remote()`` on any."""
    return Counter(
        (e["ph"], e["cat"], e["name"], e["cname"], tuple(e["args"]), e["tid"].partition(":")[0])
        for e in events
        if not FINER.fullmatch(e["cat"])
        and (e["tid"].startswith("worker") or e["cat"] == "submit_task")
    )


def test_the_same_slices_with_the_same_words(both: tuple[list[Any], list[Any]]) -> None:
    real, ours = both
    assert kinds(ours) == kinds(real)


def test_rows_are_grouped_alike(both: tuple[list[Any], list[Any]]) -> None:
    """Process = address of the node, thread = kind and id of the worker."""
    for events in both:
        for event in events:
            assert set(event) == set(both[0][0])
            assert re.fullmatch(r"\d+(\.\d+){3}", event["pid"])
            assert re.fullmatch(r"(worker|driver):[0-9a-f]{56}", event["tid"])
    rows = [
        sorted(
            (e["tid"].partition(":")[0], sorted(o["cat"] for o in events if o["tid"] == e["tid"]))
            for e in events
            if e["cat"].startswith("task::Model.score")
        )
        for events in ([e for e in side if not FINER.fullmatch(e["cat"])] for side in both)
    ]
    assert rows[0] == rows[1]
