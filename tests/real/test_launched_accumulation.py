"""Whether micro-batches reduce their gradients each: what scripts say, against real ranks."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.rayapi.shapes import prediction  # noqa: E402
from tests.real.real_ranks import said_by  # noqa: E402
from tests.real.test_launched_scripts import PROGRAMS, launched  # noqa: E402
from tests.real.test_training_collectives import free_port  # noqa: E402
from tests.real.training_script_parts import machines  # noqa: E402

SUMS = ("all_reduce", "reduce_scatter")


def real(how: str) -> dict[tuple[str, int], int]:
    """Of gradients."""
    counts = Path(__file__).parent / "exchanged_by.py"
    said = said_by(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
         "--master-port", str(free_port()), str(counts), str(PROGRAMS / "accumulating.py"), how],
        {**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    found = next(json.loads(line) for line in said if line.startswith("{"))["found"]
    return {(op, size): n for op, size, n in found if op in SUMS}


def ours(step: prediction.Prediction) -> dict[tuple[str, int], int]:
    """Likewise, of the step behind the pass that goes before it."""
    ops = step.outcome.timelines[0].program.ops
    before = next(i for i, op in enumerate(ops) if op.name == "SGD")
    calls = [op.call for op in ops[before:] if op.call is not None]
    return dict(Counter((call.op, call.size_bytes) for call in calls if call.op in SUMS))


def asked(how: str, predicted: list[prediction.Prediction]) -> dict[tuple[str, int], int]:
    """Of a script on virtual time."""
    launched("torchrun", "--nproc-per-node", "2", "accumulating.py", how, spec=machines(2))
    return ours(predicted[-1])


@pytest.mark.parametrize(
    ("how", "times"),
    [
        ("ddp", 3), ("ddp no_sync", 1), ("ddp attribute", 1),
        ("fsdp1", 3), ("fsdp1 no_sync", 1), ("fsdp2", 3), ("fsdp2 set", 1),
    ],
)  # fmt: skip
def test_gradients_are_reduced_as_often_as_scripts_say(
    how: str, times: int, predicted: list[prediction.Prediction]
) -> None:
    assert set(asked(how, predicted).values()) == {times}


MORE = pytest.mark.exhaustive


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("fsdp1", marks=MORE), pytest.param("fsdp1 no_sync", marks=MORE),
        pytest.param("fsdp2", marks=MORE), "fsdp2 set",
    ],
)  # fmt: skip
@pytest.mark.timeout(200)
def test_gradients_are_reduced_as_often_as_by_real_ranks(
    how: str, predicted: list[prediction.Prediction]
) -> None:
    """But for DDP's, which may hang where something listens to their operators."""
    assert asked(how, predicted) == real(how)
