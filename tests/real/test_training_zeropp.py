"""DeepSpeed still does what the record says: ZeRO++ and Twin-Flow on four CPU ranks once more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# DeepSpeed builds its C++ optimizers for the offloaded cases: minutes.
pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.exhaustive]
pytest.importorskip("deepspeed")

from tests.deepspeed_reference import recorded  # noqa: E402
from tests.real.test_training_collectives import free_port  # noqa: E402


@pytest.mark.timeout(600)
def test_the_record_is_what_deepspeed_does(tmp_path: Path, root: Path) -> None:
    cases = recorded("zeropp.json")
    source, target = tmp_path / "cases.json", tmp_path / "found.json"
    source.write_text(json.dumps(cases))
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    launch += ["--master-port", str(free_port()), "-m", "tests.real.zeropp_steps"]
    more = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "LOCAL_SIZE": "2"}
    done = subprocess.run(
        [*launch, source, target],
        check=False,
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, **more},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(target.read_text())
    assert [c["name"] for c in cases if found[c["name"]] != c["collectives"]] == []
