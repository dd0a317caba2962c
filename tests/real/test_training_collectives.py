"""DeepSpeed still does what the record says: two CPU ranks, every configuration once more."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
pytest.importorskip("deepspeed")

from tests.deepspeed_reference import compiled, gpt, recorded  # noqa: E402
from tests.real import deepspeed_steps  # noqa: E402


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.mark.timeout(240)
def test_the_record_is_what_deepspeed_does(tmp_path: Path) -> None:
    cases = recorded("small_gpt.json")
    source, target = tmp_path / "cases.json", tmp_path / "found.json"
    source.write_text(json.dumps(cases))
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launch, "--master-port", str(free_port()), deepspeed_steps.__file__, source, target],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(target.read_text())
    different = [c["name"] for c in cases if found[c["name"]] != c["collectives"]]
    assert different == []


def test_the_table_has_the_parameters_of_the_real_model() -> None:
    shape = {"hidden": 32, "layers": 3, "vocab": 128}
    real = {n: tuple(p.shape) for n, p in deepspeed_steps.Gpt(**shape).named_parameters()}
    assert {n: p.shape for n, p in gpt(**shape, seq=16).parameters()} == real


def test_the_traced_model_compiles_to_the_same_gradient_collectives() -> None:
    """Traced instead of written down; ZeRO-2's order and buckets follow from the modules alone."""
    import torch

    from raysim.tracing import trace

    (case,) = (c for c in recorded("small_gpt.json") if c["name"] == "zero2-bf16")
    shape = {k: case["model"][k] for k in ("hidden", "layers", "vocab")}
    module = deepspeed_steps.Gpt(**shape).to(torch.bfloat16)
    traced = trace(module, torch.zeros(2, case["model"]["seq"], dtype=torch.long))
    assert compiled(case, model=traced) == compiled(case)
