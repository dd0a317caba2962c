"""``torch.distributed.pipelining.pipeline``: what torch splits, against real ranks and wholes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # torch copies its own trees
]
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from raysim.models.table import Model  # noqa: E402
from raysim.rayapi.shapes import prediction  # noqa: E402
from raysim.tracing import trace  # noqa: E402
from tests.real.test_launched_scripts import launched  # noqa: E402
from tests.real.test_launched_sharded_pipelines import exchanged, real_ranks  # noqa: E402
from tests.real.training_script_parts import machines  # noqa: E402


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (4, "Schedule1F1B 1 4 here"),
        pytest.param(2, "ScheduleGPipe 1 4 named", marks=pytest.mark.exhaustive),
        pytest.param(2, "ScheduleInterleaved1F1B 2 4", marks=pytest.mark.exhaustive),
    ],
)
def test_split_models_ranks_hold_and_exchange_what_real_ones_do(
    ranks: int, words: str, predicted: list[prediction.Prediction]
) -> None:
    expected, said = real_ranks(ranks, "split_model.py", *words.split())
    asked = ("torchrun", "--nproc-per-node", str(ranks), "split_model.py", *words.split())
    lines, _ = launched(*asked, spec=machines(ranks))
    assert sorted(lines) == sorted(said)  # parameters by name, the output's shape, losses
    ours = exchanged(predicted[-1])
    assert len(ours) == ranks
    assert all(expected[rank] == counted for rank, counted in ours.items())
    layers = [layer.name for layer in predicted[-1].plan.model.layers]
    assert sum(".layers." in name for name in layers) == 8  # torch's graphs have the modules


class Attending(nn.Module):
    """A layer with what the tracer stands in for: fused attention, dropout, norms."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(64), nn.Dropout(0.1)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Four heads."""
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.drop(self.out(seen.transpose(1, 2).reshape(x.shape)))


class Deep(nn.Module):
    """Some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Attending() for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One by one."""
        for layer in self.layers:
            x = layer(x)
        return x


def amounts(model: Model) -> list[tuple[object, ...]]:
    """Of each layer: weights, work, what is kept."""
    return [
        (
            layer.body.numel,
            sum(o.flops for m in layer.body.modules for o in m.operators),
            sum(o.kernels for m in layer.body.modules for o in m.operators),
            sum(s.numel for m in layer.body.modules for o in m.operators for s in o.saves),
            [o.attention for m in layer.body.modules for o in m.operators if o.attention],
        )
        for layer in model.layers
    ]


def test_a_stages_graph_is_the_layers_that_it_was_made_of() -> None:
    """Its operators are called directly, not by torch's functions, and its modules are graphs."""
    from torch.distributed.pipelining import SplitPoint, pipeline

    with torch.device("meta"):
        model, x = Deep().to(torch.bfloat16), torch.rand(2, 128, 64, dtype=torch.bfloat16)
    whole = amounts(trace(model, (x,)))
    pipe = pipeline(model, mb_args=(x,), split_spec={"layers.2": SplitPoint.BEGINNING})
    parts = [amounts(trace(pipe.get_stage_module(i), (x,))) for i in range(2)]
    assert parts[0] + parts[1] == whole
    assert all(attention for *_, attention in whole)


READS_INPUT_LATE = """
import torch
from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline
torch.distributed.init_process_group("nccl")
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    def forward(self, x):
        return self.b(self.a(x)) * x
rank = torch.distributed.get_rank()
pipe = pipeline(Net(), mb_args=(torch.rand(2, 8),), split_spec={"b": SplitPoint.BEGINNING})
stage = pipe.build_stage(rank, torch.device("cuda", rank))
schedule = ScheduleGPipe(stage, 2, loss_fn=torch.nn.functional.mse_loss)
x = torch.rand(4, 8, device="cuda")
schedule.step(*([x] if rank == 0 else []), **({"target": x} if rank else {}))
"""


def test_a_later_stage_that_reads_the_models_input_fails_as_torchs_does(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(READS_INPUT_LATE)
    with pytest.raises(Exception, match="reads the input x") as caught:
        launched("torchrun", "--nproc-per-node", "2", str(tmp_path / "late.py"))
    assert caught.type.__name__ == "PipeliningMetadataError"
