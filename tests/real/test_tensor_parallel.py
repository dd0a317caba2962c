"""Scripts whose parameters are ``DTensor``: what ranks hold and exchange, against real torch."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.models.table import FIXED_DTYPE_BYTES  # noqa: E402
from raysim.rayapi.shapes import prediction  # noqa: E402
from raysim.rayapi.unsupported import NotEmulatedError  # noqa: E402
from tests.real.real_ranks import said_by  # noqa: E402
from tests.real.test_launched_scripts import PROGRAMS, cpus, launched  # noqa: E402
from tests.real.training_script_parts import machines  # noqa: E402

Exchanged = Counter[tuple[str, str, int]]
NORMS, WIDTH = 5, 256
RUN = "torch.distributed.run"


def exchanged(step: prediction.Prediction) -> Exchanged:
    """Collectives of a step by group, kind and bytes."""
    program = step.outcome.slowest.program
    ops = program.ops[program.step_ends[0] : program.step_ends[1]]
    return Counter((o.call.group, o.call.op, o.call.size_bytes) for o in ops if o.call)


def kept_bytes(step: prediction.Prediction) -> float:
    """For backward, of a micro-batch in fp32; not logits that the script's variable holds."""
    layers = [layer.body.saved().values() for layer in step.plan.model.layers]
    saved = [s for body in layers for s in body if not s.returned]
    widths = {"compute": 4} | FIXED_DTYPE_BYTES
    return step.plan.micro_batch * sum(s.numel * widths[s.dtype] for s in saved)


def real_step(world: int, tp: int, *folder: str) -> tuple[Exchanged, int, int]:
    file = Path(__file__).parent / "tensor_parallel_steps.py"
    (line,) = said_by([sys.executable, str(file), str(world), str(tp), *folder])
    said = json.loads(line)
    found = Counter({(group, op, size): n for group, op, size, n in said["found"]})
    return found, said["held"], said["kept"]


@pytest.mark.parametrize(("world", "tp"), [(4, 2), (8, 4), (2, 2)])
def test_ranks_exchange_what_those_of_real_torch_do(
    world: int, tp: int, predicted: list[prediction.Prediction]
) -> None:
    lines, report = launched(
        "torchrun", "--nproc-per-node", str(world), "blocks_tp.py", str(tp), spec=machines()
    )
    real, held, kept = real_step(world, tp)
    ours = exchanged(predicted[-1])
    if world == tp:  # real torch reduces norms' gradients where the optimizer uses them
        reduced = ours.pop(("tp", "all_reduce", 4 * WIDTH))
        assert reduced == 3 * NORMS  # AdamW's lerp, and both factors of its addcmul
        assert kept_bytes(predicted[-1]) == pytest.approx(kept, abs=64)  # numbers
    assert ours == real
    plan = predicted[-1].plan
    assert (plan.mesh.dp, plan.mesh.tp) == (world // tp, tp)
    assert plan.model.num_parameters == held * plan.mesh.dp
    assert plan.model.seq_len == 64
    share = 256 // world
    assert f"0 ({share}, 256) (256, 256) (256, 256)" in lines
    engine = "DDP" if world == tp else "FSDP2"
    assert report.tables[0].rows[0][0] == f"Net, {engine}, tp {tp}, {world} GPUs"
    assert any("DTensor" in text for text in report.simplifications)


def test_spread_tensors_are_as_on_real_ranks() -> None:
    words = ["--nproc-per-node", "2"]
    real = said_by(
        [sys.executable, "-m", RUN, *words, str(PROGRAMS / "spread.py"), "cpu"],
        {**os.environ, "OMP_NUM_THREADS": "1"},
    )
    ours, _ = launched("torchrun", *words, "spread.py", "cuda", spec=machines())
    assert sorted(ours) == sorted(real)


def test_a_matrix_over_two_ranks_is_half_the_work_and_one_sum(
    predicted: list[prediction.Prediction],
) -> None:
    launched("torchrun", "--nproc-per-node", "2", "spread.py", "cuda", spec=machines())
    step = predicted[-1]
    # A column's input needs no gradient here: only the row's output is summed.
    assert exchanged(step) == Counter({("tp", "all_reduce", 8 * 4 * 4): 1})
    assert step.plan.model.flops == 2 * (16 * 32 + 32 * 4)


PLANNED = """
import sys
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], tp_plan="auto")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    ids = torch.randint(1000, (2, 64), device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
"""


def test_transformers_own_plan_of_tensor_parallelism(
    tmp_path: Path, predicted: list[prediction.Prediction], monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers", minversion="5.20")
    transformers.LlamaConfig(
        vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=8, num_key_value_heads=4, architectures=["LlamaForCausalLM"],
    ).save_pretrained(tmp_path)  # fmt: skip
    script = tmp_path / "planned.py"
    script.write_text(PLANNED)
    words = ["torchrun", "--nproc-per-node", "4", str(script), str(tmp_path)]
    launched(*words, spec=machines())
    real, held, _ = real_step(4, 4, str(tmp_path))
    assert exchanged(predicted[-1]) == real
    assert predicted[-1].plan.mesh.tp == 4
    assert predicted[-1].plan.model.num_parameters == held
    monkeypatch.setitem(sys.modules, "transformers.distributed.mixin", None)
    with pytest.raises(NotEmulatedError, match=r"tp_plan.*parallelize_module"):
        launched(*words, spec=machines())


TWO_DIMENSIONS = """
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("dp", "tp"))
model = nn.Sequential(nn.Linear(64, 256, bias=False), nn.Linear(256, 32, bias=False)).cuda()
for i, linear in enumerate(model):
    spread = distribute_tensor(linear.weight, mesh, [Replicate(), Shard(i)])
    linear.weight = nn.Parameter(spread)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    x = distribute_tensor(torch.randn(16, 64, device="cuda"), mesh, [Shard(0), Replicate()])
    y = model(x).redistribute(placements=[Shard(0), Replicate()])
    y.to_local().sum().backward()
    optimizer.step()
"""


def test_parameters_over_two_dimensions_are_summed_along_each(
    tmp_path: Path, predicted: list[prediction.Prediction]
) -> None:
    """What torch 2.13 does in its fake process group of eight ranks."""
    script = tmp_path / "two.py"
    script.write_text(TWO_DIMENSIONS)
    words = ["torchrun", "--nproc-per-node", "8", str(script)]
    launched(*words, spec=machines())
    held = [64 * 256 // 2 * 4, 256 * 32 // 2 * 4]
    assert predicted[-1].plan.model.num_parameters * 4 == sum(held)
    assert exchanged(predicted[-1]) == Counter(
        {("tp_shard:2", "all_reduce", 16 // 4 * 32 * 4): 1}
        | {("tp_replicate:2", "all_reduce", size): 3 for size in held}
    )
    script.write_text(TWO_DIMENSIONS.replace("AdamW(model.parameters()", "SGD(model.parameters()"))
    launched(*words, spec=machines())
    assert exchanged(predicted[-1])["tp_replicate:2", "all_reduce", held[0]] == 1


ON_CPUS = """
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

parallelize_module(nn.Linear(4, 4), init_device_mesh("cpu", (2,)), ColwiseParallel())
"""


def test_workers_on_cpus_whose_torch_computes_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "on_cpus.py"
    script.write_text(ON_CPUS)
    with pytest.raises(NotEmulatedError, match="parallelize_module on CPU workers"):
        launched("torchrun", "--nproc-per-node", "2", str(script), spec=cpus())


@pytest.mark.parametrize("more", [[], ["compiled"]])
def test_replicas_shards_and_tensor_parallel_ranks(
    tmp_path: Path, more: list[str], predicted: list[prediction.Prediction]
) -> None:
    words = ["torchrun", "--nproc-per-node", "8", "blocks_3d.py", str(tmp_path)]
    _, report = launched(*words, *more, spec=machines())
    plan = predicted[-1].plan
    assert report.tables[0].rows[0][0] == "Net, FSDP2, 2 replicas, tp 2, 8 GPUs"
    assert (plan.mesh.dp, plan.mesh.tp, plan.fsdp.replicas) == (4, 2, 2)
    assert plan.torch_compile is bool(more)
    assert plan.activation_checkpointing == "full"
    assert plan.gradient_clipping == 1.0
    found = exchanged(predicted[-1])
    assert found["tp", "all_reduce", 4 * WIDTH] == 0  # sums of norms' gradients are 16 bits wide
    assert found["tp", "all_reduce", 2 * WIDTH] == NORMS
    # Each rank writes an eighth of all, in fp32.
    size_bytes = 4 * 2 * plan.model.num_parameters / 8
    files = sorted(p.name for p in tmp_path.glob("*.distcp"))
    assert files == [f"__{rank}_0.distcp" for rank in range(8)]
    assert report.metrics["checkpoint_stall_s"] > size_bytes / 1e11


GROUPS = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank = dist.get_rank()
even = dist.new_group([2, 0])
pair = dist.new_group([rank // 2 * 2, rank // 2 * 2 + 1])
counted = torch.tensor([10**rank], device="cuda")
if rank % 2 == 0:  # nobody else takes part
    dist.all_reduce(counted, group=even)
told = torch.tensor([rank], device="cuda")
dist.broadcast(told, src=rank // 2 * 2 + 1, group=pair)
here = dist.get_world_size(even), dist.get_rank(even)
print(f"{rank} {int(counted)} {int(told)} {here}")
if "wrap" in os.environ:
    model = DistributedDataParallel(nn.Linear(2, 2).cuda(), process_group=pair)
    model(torch.ones(2, 2).cuda()).sum().backward()
    torch.optim.SGD(model.parameters()).step()
"""


def test_ranks_of_a_group_meet_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "groups.py"
    script.write_text(GROUPS)
    words = ["torchrun", "--nproc-per-node", "4", str(script)]
    lines, _ = launched(*words, spec=machines())
    assert sorted(lines) == [
        "0 101 1 (2, 0)", "1 10 1 (-1, -1)", "2 101 3 (2, 1)", "3 1000 3 (-1, -1)",
    ]  # fmt: skip
    monkeypatch.setenv("wrap", "1")
    with pytest.raises(NotEmulatedError, match="2 of 4 ranks"):
        launched(*words, spec=machines())


HYBRID = """
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))
model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024)).cuda()
fully_shard(model, mesh=mesh)
assert model[0].weight.to_local().shape == (256, 1024)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    model(torch.randn(4, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_a_mesh_of_replicas_by_shards_is_hybrid(
    tmp_path: Path, predicted: list[prediction.Prediction]
) -> None:
    script = tmp_path / "hybrid.py"
    script.write_text(HYBRID)
    _, report = launched("torchrun", "--nproc-per-node", "8", str(script), spec=machines())
    assert report.tables[0].rows[0][0] == "Sequential, FSDP2, 2 replicas, 8 GPUs"
    assert predicted[-1].plan.fsdp.replicas == 2


def test_ranks_may_have_batches_of_lengths_of_their_own() -> None:
    lines, _ = launched("torchrun", "--nproc-per-node", "2", "rows_tp.py", spec=machines())
    assert lines == [f"torch.Size([1, {length}, 32])" for length in (8, 20, 9, 20)]
