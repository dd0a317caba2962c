"""DeepSpeed's AutoTP: ranks hold and exchange what those of real DeepSpeed do."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from raysim.rayapi.shapes import prediction  # noqa: E402
from raysim.rayapi.unsupported import NotEmulatedError  # noqa: E402
from tests.deepspeed_reference import DATA  # noqa: E402
from tests.real.real_ranks import said_by  # noqa: E402
from tests.real.test_launched_scripts import PROGRAMS, launched  # noqa: E402
from tests.real.test_tensor_parallel import exchanged  # noqa: E402
from tests.real.training_script_parts import machines  # noqa: E402

SCRIPT = "qwen_autotp.py"
RECORD = DATA / "deepspeed_cpu" / "autotp.json"


def recorded() -> Counter[tuple[str, int]]:
    said = json.loads(RECORD.read_text())
    return Counter({(kind, size): n for kind, size, n in said["collectives"]})


def test_ranks_exchange_what_those_of_deepspeed_do(
    predicted: list[prediction.Prediction],
) -> None:
    """Two replicas of two ranks: a Qwen3, whose norms of heads stay whole."""
    words = "--nproc-per-node", "4", SCRIPT, "2", "cuda", "2", "32"
    lines, _ = launched("torchrun", *words, spec=machines())
    found = exchanged(predicted[-1])
    assert Counter((kind, size) for _, kind, size in found.elements()) == recorded()
    assert found["tp", "all_gather", 2 * 32 * 256 * 4] == 1  # logits of both
    assert found["mp", "all_reduce", 4] == 1  # the gradients' norm
    mesh = predicted[-1].plan.mesh
    assert (mesh.dp, mesh.tp) == (2, 2)
    assert lines[:4] == [json.loads(RECORD.read_text())["said"]] * 4


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_the_record_is_what_deepspeed_does() -> None:
    pytest.importorskip("deepspeed")

    def run(steps: int) -> tuple[Counter[tuple[str, int]], list[str]]:
        ear = Path(__file__).parent / "exchanged_by.py"
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", str(ear)]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
        words = str(PROGRAMS / SCRIPT), "2", "cpu", str(steps), "32"
        lines = said_by([*launch, *words], environ)
        (own,) = (json.loads(s) for s in lines if s.startswith('{"rank": 0'))
        return Counter({(kind, size): n for kind, size, n in own["found"]}), lines

    (more, lines), (fewer, _) = run(3), run(2)
    assert more - fewer == recorded()
    assert json.loads(RECORD.read_text())["said"] in lines


BY_JSON = """
import sys
import deepspeed, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))

net = deepspeed.tp_model_init(Net(), tp_size=2, dtype=torch.float32)
specs = [{"patterns": ["up"], "partition_type": "column"},
         {"patterns": ["down"], "partition_type": "row"}]
specs[0].update(eval(sys.argv[-1]))
engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config={
    "train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "Adam"},
    "zero_optimization": {"stage": 2},
    "tensor_parallel": {"partition_config": {"layer_specs": specs}}})
for _ in range(2):
    engine.backward(engine(torch.randn(4, 64, device="cuda")).sum())
    engine.step()
"""


def test_patterns_of_the_json_name_layers(
    tmp_path: Path, predicted: list[prediction.Prediction]
) -> None:
    """The bias of a layer of rows is whole; what is fused is refused."""
    script = tmp_path / "by_json.py"
    script.write_text(BY_JSON)
    words = "torchrun", "--nproc-per-node", "4", str(script)
    launched(*words, "{}", spec=machines())
    found, plan = exchanged(predicted[-1]), predicted[-1].plan
    own = 128 * 64 + 128 + 64 * 128 + 64
    assert sum(p.numel for layer in plan.model.layers for p in layer.body.parameters) == own
    assert found["tp", "all_reduce", 4 * 64 * 4] == 1  # forward; no input needs a gradient
    assert found["dp", "all_gather", 4 * own] == 1
    with pytest.raises(NotEmulatedError, match="shape of tensor_parallel's layer_specs"):
        launched(*words, '{"shape": [2, -1]}', spec=machines())
