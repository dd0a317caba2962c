"""Layers and sequences that DeepSpeed's ranks share: they exchange what real ones do."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from raysim.rayapi.deepspeed.autotp_specs import PRESETS, of_json  # noqa: E402
from raysim.rayapi.shapes import prediction  # noqa: E402
from raysim.rayapi.unsupported import NotEmulatedError  # noqa: E402
from tests.deepspeed_reference import recorded  # noqa: E402
from tests.real.real_ranks import said_by  # noqa: E402
from tests.real.test_launched_scripts import PROGRAMS, launched  # noqa: E402
from tests.real.test_tensor_parallel import exchanged  # noqa: E402
from tests.real.training_script_parts import machines  # noqa: E402

CASES = {case["name"]: case for case in recorded("parallel.json")}
DEVICE, STEPS = "DEVICE", "STEPS"


def words_of(case: dict[str, Any], device: str, steps: int) -> list[str]:
    return [{DEVICE: device, STEPS: str(steps)}.get(word, word) for word in case["words"]]


def counted(found: Any) -> Counter[tuple[str, int]]:
    return Counter({(kind, size): n for kind, size, n in found})


def same_as_recorded(
    name: str,
    predicted: list[prediction.Prediction],
    more: dict[tuple[str, int], int] | None = None,
) -> Counter[Any]:
    """What an emulated rank exchanges by group, which is what the real one does; ``more``: of it,
    what is not recorded."""
    case = CASES[name]
    words = "torchrun", "--nproc-per-node", "4", case["program"], *words_of(case, "cuda", 2)
    lines, _ = launched(*words, spec=machines())
    found = exchanged(predicted[-1])
    own = Counter((kind, size) for _, kind, size in found.elements())
    assert own == counted(case["collectives"]) + Counter(more)
    assert lines[:4] == [case["said"]] * 4 or not case["said"]
    return found


def test_layers_are_shared_out_as_autotp_does(predicted: list[prediction.Prediction]) -> None:
    """Two replicas of two ranks: a Qwen3, whose norms of heads stay whole."""
    found = same_as_recorded("AutoTP", predicted)
    assert found["tp", "all_gather", 2 * 32 * 256 * 4] == 1  # logits of both
    assert found["mp", "all_reduce", 4] == 1  # the gradients' norm
    mesh = predicted[-1].plan.mesh
    assert (mesh.dp, mesh.tp) == (2, 2)


def test_tied_heads_are_divided_by_vocabulary(predicted: list[prediction.Prediction]) -> None:
    """Three sums over a token's logits: their maximum, exponents, the target's."""
    found = same_as_recorded("AutoTP, tied", predicted)
    assert found["tp", "all_reduce", 2 * 31 * 4] == 3


def test_attention_over_pieces_of_a_sequence(predicted: list[prediction.Prediction]) -> None:
    """Products of attention are those of whole sequences and half the heads."""
    found = same_as_recorded("DistributedAttention", predicted)
    assert found["dp_shard:2", "all_to_all", 2 * 16 * 64 * 4] == 8
    cores = [o for layer in predicted[-1].plan.model.layers for o in layer.body.operators
             if o.name.endswith("scaled_dot_product_attention")]  # fmt: skip
    assert [o.flops for o in cores] == [4 * 32 * 32 * (64 / 2)] * 2  # of a sample


@pytest.mark.filterwarnings("ignore:torch.distributed.nn.functional:FutureWarning")
def test_ulysses_in_a_model_of_transformers(predicted: list[prediction.Prediction]) -> None:
    """Positions of both ranks in each layer; the loss of both, whose gradients are scattered."""
    more = {("all_gather", 64 * 8): 2, ("all_gather", 2 * 8): 1,
            ("all_gather", 2 * 4): 1, ("reduce_scatter", 2 * 4): 1}  # fmt: skip
    found = same_as_recorded("UlyssesSPAttentionHF", predicted, more)
    assert found["dp_shard:2", "reduce_scatter", 2 * 4] == 1
    plan = predicted[-1].plan
    assert (plan.mesh.dp, plan.micro_batch, plan.samples_per_step) == (4, 1, 2)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_the_record_is_what_deepspeed_does(case: dict[str, Any]) -> None:
    pytest.importorskip("deepspeed")

    def run(steps: int) -> tuple[Counter[tuple[str, int]], list[str]]:
        ear = Path(__file__).parent / "exchanged_by.py"
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", str(ear)]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
        words = str(PROGRAMS / case["program"]), *words_of(case, "cpu", steps)
        lines = said_by([*launch, *words], environ)
        (own,) = (json.loads(s) for s in lines if s.startswith('{"rank": 0'))
        return counted(own["found"]), lines

    (more, lines), (fewer, _) = run(3), run(2)
    assert more - fewer == counted(case["collectives"])
    assert case["said"] in lines or not case["said"]


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
    """The bias of a layer of rows is whole; fused rows are divided each by themselves."""
    script = tmp_path / "by_json.py"
    script.write_text(BY_JSON)
    words = "torchrun", "--nproc-per-node", "4", str(script)
    launched(*words, '{"shape": [2, -1]}', spec=machines())
    found, plan = exchanged(predicted[-1]), predicted[-1].plan
    own = 128 * 64 + 128 + 64 * 128 + 64
    assert sum(p.numel for layer in plan.model.layers for p in layer.body.parameters) == own
    assert found["tp", "all_reduce", 4 * 64 * 4] == 1  # forward; no input needs a gradient
    assert found["dp", "all_gather", 4 * own] == 1
    with pytest.raises(NotEmulatedError, match="85 \\+ 171 of 256 rows over 2"):
        launched(*words, '{"shape": [[85, 171], -1]}', spec=machines())


LEFT_OUT = """
import deepspeed, torch

net = torch.nn.Linear(64, 64)
engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config={
    "train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "Adam"}, "zero_optimization": {
        "stage": 2, "offload_optimizer": {"device": "cpu"}, "zenflow": {"topk_ratio": 0.1}}})
"""


def test_what_the_prediction_is_without_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "left_out.py"
    script.write_text(LEFT_OUT)
    launched("torchrun", "--nproc-per-node", "2", str(script), spec=machines())
    assert capsys.readouterr().err.count("zenflow: not modelled yet") == 1


OVER = """
import sys
import deepspeed, torch

net, asked = torch.nn.Linear(64, 64), eval(sys.argv[-1])
engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config={
    "train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "Adam"},
    **({"sequence_parallel_size": asked} if isinstance(asked, int) else {})},
    mesh_param=asked if isinstance(asked, tuple) else None)
print(engine.train_batch_size())
"""


def test_ranks_that_share_sequences_share_samples(tmp_path: Path) -> None:
    """Of four, by the JSON's word; a mesh of data alone is no other than all ranks."""
    script = tmp_path / "over.py"
    script.write_text(OVER)
    words = "torchrun", "--nproc-per-node", "4", str(script)
    for asked, samples in (("2", "8"), ("(4, 1)", "16")):
        lines, _ = launched(*words, asked, spec=machines())
        assert lines[:4] == [samples] * 4
    with pytest.raises(NotEmulatedError, match="a mesh of 2 x 2"):
        launched(*words, "(2, 2)", spec=machines())


LAYERS = (
    "self_attn.o_proj", "self_attn.k_proj", "self_attn.qkv_proj", "self_attn.q_a_proj",
    "self_attn.kv_b_proj", "mlp.up_proj", "mlp.gate_proj", "mlp.down_proj", "mlp.gate_up_proj",
    "mlp.gate", "mlp.experts.3.up_proj", "mlp.experts.3.down_proj", "mlp.shared_experts.up_proj",
    "self_attention.dense", "self_attention.query_key_value", "mlp.dense_4h_to_h",
    "mlp.dense_h_to_4h", "block_sparse_moe.gate", "block_sparse_moe.experts.1.w1",
    "block_sparse_moe.experts.1.w2", "input_layernorm",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_deepspeeds(name: str) -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.module_inject.autotp_config import AutoTPPresets

    real, ours = AutoTPPresets.get_preset(name), of_json({"preset_model": name})
    for layer in LAYERS:
        weight = f"model.layers.0.{layer}.weight"
        theirs = real.find_matching_spec(weight)
        mine = next((spec for spec in ours if spec.matches(weight, "")), None)
        assert (theirs is None) == (mine is None), layer
        if mine is not None:
            parts = theirs.shape[0] if theirs.shape else 1
            assert (mine.way, mine.parts) == (theirs.partition_type.value, parts), layer
