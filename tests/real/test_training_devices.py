"""Tensors of two devices or two types in one function: refused where torch refuses them.

The oracle for devices is torch's own ``FakeTensorMode``, whose tensors know their device without
a GPU; its words are not those of a GPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from tests.real.test_launched_scripts import launched  # noqa: E402

MADE = """
import torch
from torch.nn import functional as F

def to(tensor): return torch.empty_like(tensor, device="cuda") if FAKE else tensor.cuda()
c, n, i = torch.randn(4, 8), torch.tensor(2.0), torch.zeros(4, dtype=torch.long)
g, m, j = to(torch.randn(4, 8)), torch.ones(4, dtype=torch.bool), to(i)
w, image, k = torch.randn(8, 8), torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
gw, gi, gk = to(w), to(image), to(k)
def copied(a, b):
    a = a.clone(); a.copy_(b); return a
def set(a, b):
    a = a.clone(); a[:, :] = b; return a
"""
ASKED = (
    "F.linear(c, gw)", "F.linear(g, gw)", "F.linear(g, w)", "F.linear(g, gw, g[0])",
    "F.linear(g, gw, c[0])", "g @ c.T", "g @ g.T", "c @ c.T", "torch.bmm(g[None], c.t()[None])",
    "F.embedding(i, gw)", "F.embedding(j, gw)",
    "g + c", "g + n", "n * g", "g + 1", "c + g", "g.mul(c)", "g * c.to(g)", "g > n", "g - c[0]",
    "g / to(c)", "torch.cat([g, c])", "torch.cat([g, g])", "g[i]", "g[j]", "c[i]", "g[m]",
    "F.cross_entropy(g, i)", "F.cross_entropy(g, j)", "F.mse_loss(g, c)", "F.mse_loss(g, g)",
    "F.binary_cross_entropy_with_logits(g, c)", "F.layer_norm(c, (8,), g[0])", "copied(c, g)",
    "copied(g, c)", "set(g, c)", "set(g, g)", "torch.gather(g, 1, i[:, None])", "g.cpu() + c",
    "torch.gather(g, 1, j[:, None])", "c.to('cuda') + g", "torch.maximum(g, c)", "g.lerp(g, n)",
    "g.float().to('cpu') @ c.T", "torch.zeros(8) + g", "torch.zeros(8, device='cuda') + g",
    "torch.zeros_like(g) + g", "torch.zeros_like(g, device='cpu') + c", "g.new_zeros(8) + g",
    "g.masked_fill(m[:, None], 0.0)", "g.masked_fill(to(m[:, None]), 0.0)",
    "torch.where(m[:, None], g, 0.0)", "torch.where(to(m[:, None]), g, c)",
    "torch.where(to(m[:, None]), g, n)",
)  # fmt: skip
MORE = {
    "F.conv2d(image, gk)": "Input type (torch.FloatTensor) and weight type "
    "(torch.cuda.FloatTensor) should be the same or input should be a MKLDNN tensor and weight is "
    "a dense tensor",
    "F.conv2d(gi, k)": "Input type (torch.cuda.FloatTensor) and weight type "
    "(torch.FloatTensor) should be the same",
    "F.conv2d(gi, gk)": "",
    "g.masked_fill(m[:, None], 1.0)": "expected self and mask to be on the same device, but got "
    "mask on cpu and self on cuda:0",
    "c[j]": "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
}
"""That fake tensors do not refuse, in a GPU's words."""


def _run(setup: str) -> dict[str, str]:
    names: dict[str, object] = {"FAKE": True}
    exec(setup, names)
    found = {}
    for asked in ASKED:
        try:
            eval(asked, names)
        except RuntimeError as error:
            found[asked] = str(error)
    return found


def test_what_torch_refuses_of_two_devices_is_refused_and_nothing_else(tmp_path: Path) -> None:
    with FakeTensorMode(), torch.no_grad():
        said = _run(MADE)
    unknown = {asked for asked, text in said.items() if "not linked" in text}  # needs a GPU
    script = tmp_path / "asks.py"
    script.write_text(
        f"FAKE = False\n{MADE}\nfound = {{}}\nfor asked in {(*ASKED, *MORE)!r}:\n"
        "    try: eval(asked)\n    except RuntimeError as error: found[asked] = str(error)\n"
        "print(repr(found))\n"
    )
    (printed,), _ = launched("python", str(script))
    ours = eval(printed)
    assert {asked: ours.get(asked, "") for asked in MORE} == MORE
    assert set(ours) - set(MORE) - unknown == set(said) - unknown
    assert len(set(said) - unknown) > 10
    assert set(ours) & unknown == {
        "F.layer_norm(c, (8,), g[0])", "torch.bmm(g[None], c.t()[None])",
    }  # fmt: skip
    assert ours["F.linear(g, gw, c[0])"] == (
        "Expected all tensors to be on the same device, but got mat1 is on cuda:0, different from "
        "other tensors on cpu (when checking argument in method wrapper_CUDA_addmm)"
    )


TRAINS = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(100, 64), nn.Embedding(32, 64)
        self.body, self.head = nn.Linear(64, 64), nn.Linear(64, 100)
        self.register_buffer("scale", torch.ones(64))
    def forward(self, x):
        at = torch.arange(x.shape[1], device={positions})
        h = (self.embedding(x) + self.positions(at)) * self.scale
        return self.head(self.body(h{cast}))

torch.distributed.init_process_group()
net = {net}
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    x, y = torch.randint(100, (8, 32)), torch.randint(100, (8, 32))
    out = net({x})
    F.cross_entropy(out.flatten(0, 1){back}, {y}.flatten()).backward()
    optimizer.step()
print("done")
"""
RIGHT = {
    "positions": "x.device", "cast": "", "net": "Net().cuda()", "x": "x.cuda()", "back": "",
    "y": "y.cuda()",
}  # fmt: skip
INDEX = "got index is on {}, different from other tensors on {}"


def _trains(tmp_path: Path, **changes: str) -> list[str]:
    script = tmp_path / "trains.py"
    script.write_text(TRAINS.format(**(RIGHT | changes)))
    return launched("torchrun", "--nproc-per-node", "1", str(script))[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x": "x"}, INDEX.format("cpu", "cuda:0")),
        ({"net": "Net()"}, INDEX.format("cuda:0", "cpu")),
        ({"positions": "None"}, INDEX.format("cpu", "cuda:0")),
        ({"y": "y"}, "got target is on cpu, different from other tensors on cuda:0"),
        ({"back": ".cpu()"}, "got target is on cuda:0, different from other tensors on cpu"),
        ({"cast": ".half()"}, "mat1 and mat2 must have the same dtype, but got Half and Float"),
    ],
)
def test_what_breaks_first_on_a_gpu_breaks_here(
    tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    with pytest.raises(RuntimeError, match=said):
        _trains(tmp_path, **changes)


def test_what_the_script_or_nobody_moves_is_not_refused(tmp_path: Path) -> None:
    assert _trains(tmp_path, back=".cpu()", y="y") == ["done"]
    assert _trains(tmp_path, net="Net()", x="x", y="y") == ["done"]  # all on the CPU
    assert _trains(tmp_path, net="Net().half().cuda()") == ["done"]


@pytest.mark.parametrize(
    "net",
    [
        "nn.parallel.DistributedDataParallel(Net().cuda(), device_ids=[0])",
        "nn.DataParallel(Net().cuda(), device_ids=[0])",
        "torch.distributed.fsdp.FullyShardedDataParallel(Net(), device_id=0)",
        "torch.distributed.fsdp.fully_shard(Net())",
    ],
)
def test_wrappers_that_know_their_gpu_move_what_they_are_given(tmp_path: Path, net: str) -> None:
    assert _trains(tmp_path, net=net, x="x") == ["done"]


def test_data_parallel_ranks_of_no_device_move_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=INDEX.format("cpu", "cuda:0")):
        _trains(tmp_path, net="nn.parallel.DistributedDataParallel(Net().cuda())", x="x")


MISFITS = (
    "F.linear(Z(4, 8), Z(16, 9))", "F.linear(Z(2, 4, 8), Z(16, 9), Z(16))", "Z(4, 8) @ Z(9, 8)",
    "Z(2, 4, 8) @ Z(9, 8)", "Z(4, 8) + Z(4, 7)", "Z(2, 1, 8) * Z(3, 4, 1, 7)", "Z(5).sub(Z(4, 8))",
    "F.conv2d(Z(2, 1, 8, 8), Z(4, 3, 3, 3))", "F.conv2d(Z(2, 6, 8, 8), Z(4, 2, 3, 3), groups=2)",
    "F.conv1d(Z(2, 6, 8), Z(4, 3, 3), None, 1, 0, 1, 2)",
)  # fmt: skip


def test_shapes_that_do_not_fit_are_refused_in_torchs_words(tmp_path: Path) -> None:
    asks = (
        "import torch\nfrom torch.nn import functional as F\nsaid = []\n"
        "def Z(*shape): return torch.zeros(*shape, device=DEVICE)\n"
        f"for asked in {MISFITS!r}:\n"
        "    try: eval(asked); said.append('fits')\n"
        "    except RuntimeError as error: said.append(str(error))\n"
    )
    names: dict[str, object] = {"DEVICE": "cpu"}
    exec(asks, names)
    script = tmp_path / "misfits.py"
    script.write_text(f"DEVICE = 'cuda'\n{asks}print(repr(said))\n")
    (printed,), _ = launched("python", str(script))
    assert eval(printed) == names["said"]


def test_a_script_reads_where_its_tensors_are() -> None:
    lines, _ = launched("python", "where.py")
    assert lines.pop(8) == "0 True"
    assert lines[:8] == [
        "cpu False cpu", "gpu cuda True gpu gpu cpu", "gpu gpu", "True False", "gpu True", "True",
        "gpu", "cuda:1",
    ]  # fmt: skip
    same = "Expected all tensors to be on the same device, but got {}, different from other "
    when = "tensors on {} (when checking argument in method wrapper_CUDA_{})"
    of_attention = (
        "Expected query, key, and value to have the same device type, but got query.device: gpu "
        "key.device: cpu and value.device: cpu instead."
    )
    assert lines[8:] == [
        of_attention, (same + when).format("weight is on gpu", "cpu", "_native_batch_norm"),
        (same + when).format("mat1 is on gpu", "cuda:1", "addmm"),
    ]  # fmt: skip


ENGINE = """
import sys
import deepspeed
import torch
from torch import nn

for kind in ("bf16", "fp16", "fp32"):
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}
    config["zero_allow_untested_optimizer"] = True
    config |= {} if kind == "fp32" else {kind: {"enabled": True}}
    model = nn.Linear(8, 8)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config,
        optimizer=torch.optim.SGD(model.parameters()),
    )
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        try:
            engine(torch.randn(4, 8, device=engine.device, dtype=dtype))
        except RuntimeError as error:
            print(kind, error)
"""


def test_an_engine_of_deepspeed_casts_nothing_that_it_is_given(tmp_path: Path) -> None:
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    lines, _ = launched("deepspeed", "--num_gpus", "1", str(script))
    names = {"fp32": "Float", "bf16": "BFloat16", "fp16": "Half"}
    assert [line for line in lines if "mat1" in line] == [
        f"{kind} mat1 and mat2 must have the same dtype, but got {names[given]} and {names[kind]}"
        for kind in ("bf16", "fp16", "fp32") for given in names if given != kind
    ]  # fmt: skip
