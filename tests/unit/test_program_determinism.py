"""A Ray program with declared costs gives the same run under any hash seed, and twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import raysim

SCENARIOS = ("ray_map_reduce", "ray_node_failure", "ray_shared_cluster")
CODE = """
import json, sys, raysim
print(json.dumps(raysim.run(raysim.load(sys.argv[1])).summary))
"""


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_run_under_any_hash_seed(name: str, root: Path) -> None:
    def found(seed: str) -> str:
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        done = subprocess.run(
            [sys.executable, "-c", CODE, f"scenarios/{name}"],
            cwd=root, env=env, check=True, capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout.splitlines()[-1]

    first, *others = (json.loads(found(seed)) for seed in ("0", "1", "4711"))
    assert others == [first, first]


def test_twice_in_one_process(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    scenario = raysim.load(Path("scenarios/ray_node_failure"))
    one, two = (raysim.run(scenario, record=record).summary for record in (True, False))
    assert one == two


def test_another_seed_is_another_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    scenario = raysim.load(Path("scenarios/ray_node_failure"))
    digests = {raysim.run(scenario, seed=s).summary["simulation"]["digest"] for s in (0, 1)}
    assert len(digests) == 2
