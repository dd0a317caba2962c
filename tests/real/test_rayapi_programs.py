"""The programs of tests/programs print on real Ray what the emulated Ray makes them print."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.rayapi_parts import PROGRAMS
from tests.unit.rayapi.test_programs import PRINTED

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("real clusters"),  # one at a time
]


@pytest.mark.parametrize("name", PRINTED)
def test_a_program_on_real_ray(name: str, tmp_path_factory) -> None:
    settings = {"RAY_ADDRESS": "local", "RAY_USAGE_STATS_ENABLED": "0", "RAY_LOG_TO_DRIVER": "0",
                "RAY_TMPDIR": "/tmp"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / f"{name}.py")],
        env=os.environ | settings, capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    printed = [line for line in lines if "(raylet)" not in line]  # warnings on a slow machine
    assert printed == PRINTED[name]
