"""Collectives that a model's own code calls, in forward and in autograd functions' backward."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.perf.collectives import GroupShape, collective  # noqa: E402
from raysim.rayapi.shapes import prediction  # noqa: E402
from tests.real.real_ranks import said_by  # noqa: E402
from tests.real.test_launched_scripts import PROGRAMS, launched  # noqa: E402
from tests.real.test_tensor_parallel import exchanged  # noqa: E402
from tests.real.training_script_parts import machines  # noqa: E402

SCRIPT = "tp_by_hand.py"
WORDS = SCRIPT, "2"


def real_step(world: int, parts: int) -> Counter[tuple[str, int]]:
    """What a step adds to those before it, on gloo's ranks."""

    def run(steps: int) -> Counter[tuple[str, int]]:
        ear = Path(__file__).parent / "exchanged_by.py"
        lines = said_by(
            [
                sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world),
                str(ear), str(PROGRAMS / SCRIPT), str(parts), "cpu", str(steps), "32",
            ],
            {**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        (own,) = (s for s in map(json.loads, lines) if s["rank"] == 0)
        return Counter({(kind, size): n for kind, size, n in own["found"]})

    return run(2) - run(1)


def test_ranks_exchange_what_those_of_real_torch_do(predicted: list[prediction.Prediction]) -> None:
    """Two replicas of two ranks that share each product."""
    launched("torchrun", "--nproc-per-node", "4", *WORDS, "cuda", "2", "32", spec=machines())
    found, plan = exchanged(predicted[-1]), predicted[-1].plan
    own = Counter({(kind, size): n for (_, kind, size), n in found.items()})
    assert own == real_step(4, 2)
    assert {group for group, *_ in found} == {"tp", "dp"}
    assert (plan.mesh.dp, plan.mesh.tp) == (2, 2)


def test_each_takes_nccls_time(predicted: list[prediction.Prediction]) -> None:
    words = "--nproc-per-node", "2", *WORDS, "cuda", "2", "65536"
    launched("torchrun", *words, spec=machines())
    shape = GroupShape.on(machines().groups[0].node, ranks=2)
    line, size = predicted[-1].outcome.slowest, 4 * 65536 * 64 * 4
    spans = zip(line.program.ops, line.met_ns, line.end_ns, strict=True)
    taken = [
        end - met for op, met, end in spans
        if op.call and (op.call.op, op.call.size_bytes) == ("all_reduce", size)
    ]  # fmt: skip
    seconds = collective("all_reduce", size, shape).seconds
    assert taken == pytest.approx([1e9 * seconds] * len(taken), abs=2)
    assert taken


CONTRASTED = """
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
half = dist.new_group([dist.get_rank() // 2 * 2, dist.get_rank() // 2 * 2 + 1])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        x = self.layer(x)
        all_x = [torch.empty_like(x) for _ in range(4)]
        dist.all_gather(all_x, x)
        dist.all_reduce(x.detach().mean(0), group=half)
        return x @ torch.cat(all_x).T


model = nn.parallel.DistributedDataParallel(Net().cuda())
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    model(torch.randn(8, 64, device="cuda")).mean().backward()
    optimizer.step()
"""


def test_ranks_of_a_replicated_model_exchange_over_replicas(
    tmp_path: Path, predicted: list[prediction.Prediction]
) -> None:
    script = tmp_path / "contrasted.py"
    script.write_text(CONTRASTED)
    launched("torchrun", "--nproc-per-node", "4", str(script), spec=machines())
    found = exchanged(predicted[-1])
    assert found["dp", "all_gather", 4 * 8 * 64 * 4] == 1
    assert found["dp_shard:2", "all_reduce", 64 * 4] == 1
    assert (predicted[-1].plan.mesh.dp, predicted[-1].plan.mesh.tp) == (4, 1)


UNDER_MPU = """
import sys
import deepspeed
import torch
import torch.distributed as dist
from types import SimpleNamespace

sys.path.insert(0, sys.argv[-1])
import tp_by_hand

deepspeed.init_distributed()
rank = dist.get_rank()
near = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
far = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
mpu = SimpleNamespace(
    get_model_parallel_world_size=lambda: 2, get_model_parallel_rank=lambda: rank % 2,
    get_model_parallel_group=lambda: near, get_data_parallel_world_size=lambda: 2,
    get_data_parallel_rank=lambda: rank // 2, get_data_parallel_group=lambda: far,
)
model = tp_by_hand.Net(near, 2)
data = torch.utils.data.TensorDataset(torch.arange(40))
engine, _, loader, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), mpu=mpu, training_data=data,
    config={
        "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    },
)
for _ in range(2):
    loss = engine(torch.randn(4, 32, 64, device="cuda")).pow(2).mean()
    engine.backward(loss)
    engine.step()
print(engine.train_batch_size(), len(loader), rank, [int(i) for (x,) in loader for i in x][:4])
"""


def test_an_mpu_says_which_ranks_are_replicas(
    tmp_path: Path, predicted: list[prediction.Prediction]
) -> None:
    script = tmp_path / "under_mpu.py"
    script.write_text(UNDER_MPU)
    words = ["deepspeed", "--num_gpus", "4", str(script), str(PROGRAMS)]
    lines, _ = launched(*words, spec=machines())
    plan, found = predicted[-1].plan, exchanged(predicted[-1])
    assert (plan.mesh.dp, plan.mesh.tp, plan.zero.stage) == (2, 2, 2)
    assert found["tp", "all_reduce", 4 * 32 * 64 * 4] == 6
    own = 2 * (64 * 64 + 64) + 3 * 2 * 64 * 128
    assert found["dp", "all_gather", 4 * own] == 1  # ZeRO's weights, of a rank's half
    said = sorted(line.split(" ", 3) for line in lines if line.startswith("8 "))
    samples = {rank: seen for _, _, rank, seen in said}
    assert [each[:2] for each in said] == [["8", "5"]] * 4
    assert samples["0"] == samples["1"] != samples["2"] == samples["3"]


CONTEXT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.experimental import context_parallel

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "cp"))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(256, 3 * 256), nn.Linear(256, 256)

    def forward(self, x):
        q, k, v = self.qkv(x).view(2, 512, 3, 4, 64).permute(2, 0, 3, 1, 4)
        o = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(o.transpose(1, 2).reshape(2, 512, 256))


model = fully_shard(Net().cuda().bfloat16(), mesh=mesh["dp", "cp"]._flatten("dp_cp"))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    x = torch.randn(2, 512, 256, device="cuda", dtype=torch.bfloat16)
    with context_parallel(mesh["cp"], buffers=[x], buffer_seq_dims=[1]):
        model(x).pow(2).mean().backward()
    optimizer.step()
"""


def test_ranks_that_share_sequences_pass_on_keys_and_values(
    tmp_path: Path, predicted: list[prediction.Prediction]
) -> None:
    """Gathered in forward and again in backward; gradients go all around the two in fp32."""
    script = tmp_path / "context.py"
    script.write_text(CONTEXT)
    launched("torchrun", "--nproc-per-node", "4", str(script), spec=machines())
    found, plan = exchanged(predicted[-1]), predicted[-1].plan
    both = 2 * 2 * 512 * 256 * 2  # keys and values of two samples
    assert found["cp", "all_gather", both] == 2
    # A ring passes (2 - 1) / 2 of what it reduces; here each rank's part goes around twice.
    assert found["cp", "reduce_scatter", 2 * (2 * both)] == 1
    assert (plan.mesh.dp, plan.mesh.cp, plan.mesh.tp) == (2, 2, 1)
    program = predicted[-1].outcome.slowest.program
    forward = program.ops[: program.step_ends[0]]
    products = sum(op.flops for op in forward if op.category == "forward")
    linears, attention = 2 * 1024 * 4 * 256 * 256, 2 * 4 * 512 * 512 * 256  # masked or not
    assert products == (linears + attention) / 2
