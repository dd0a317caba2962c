"""Scripts as people write them: counters, masks, checkpoints, streams, frozen models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from raysim.hardware import catalog  # noqa: E402
from raysim.rayapi.shapes.mode import ShapesMode  # noqa: E402
from raysim.rayapi.shapes.roles import samples_of  # noqa: E402
from raysim.rayapi.unsupported import NotEmulatedError  # noqa: E402
from tests.real.test_launched_scripts import (  # noqa: E402
    PROGRAMS,
    launched,
    said_by_real_ranks,
)


def test_what_a_script_counts_on_gpus_is_what_real_ranks_count() -> None:
    """Draws of a collate function, masks, counters over all ranks, gathers and broadcasts."""
    expected = said_by_real_ranks("--nproc-per-node", "2", str(PROGRAMS / "counted.py"))
    lines, report = launched("torchrun", "--nproc-per-node", "2", "counted.py")
    assert sorted(lines) == sorted(expected)
    assert report.ok


def test_parameters_of_fsdp2_answer_as_shards_and_a_whole_checkpoint_is_read_again(
    tmp_path: Path,
) -> None:
    words = ("torchrun", "--nproc-per-node", "4", "sharded_fsdp2.py", str(tmp_path))
    first, _ = launched(*words)
    # 30 rows in chunks of 8, as torch.chunk cuts them
    assert sorted(first) == [f"{i} False (30, 30) ({8 if i < 3 else 6}, 30)" for i in range(4)]
    again, report = launched(*words)
    assert sorted(again) == [f"{i} True (30, 30) ({8 if i < 3 else 6}, 30)" for i in range(4)]
    assert report.ok


def test_a_frozen_model_takes_its_forward_and_its_weights() -> None:
    """20 layers of 4096 x 4096 in fp16, 512 samples: at least what the GPU's peak allows."""
    words = ("torchrun", "--nproc-per-node", "2", "distilled.py")
    alone = [float(v) for v in launched(*words)[0][0].split()]
    taught = [float(v) for v in launched(*words, "teaches")[0][0].split()]
    gpu = catalog.node("dgx-h100").gpu
    assert gpu is not None
    least_ms = 2 * 20 * 4096**2 * 512 / gpu.flops_per_s["fp16"] * 1e3
    assert least_ms < taught[0] - alone[0] < 3 * least_ms
    assert alone[1] > 20 * 4096**2 * 2 / 2**20  # it lies there, called or not
    assert 0 <= taught[1] - alone[1] < 16  # and what it is given


@pytest.mark.parametrize("where", ["cuda:0", "cpu"])
def test_weights_of_this_machine_are_read(tmp_path: Path, where: str) -> None:
    torch.save({"w": torch.ones(64, 64), "step": torch.tensor(3)}, tmp_path / "real.pt")
    (tmp_path / "reads.py").write_text(
        "import torch\n"
        f"found = torch.load({str(tmp_path / 'real.pt')!r}, map_location={where!r})\n"
        "net = torch.nn.Linear(64, 64, bias=False).cuda()\n"
        "net.load_state_dict({'weight': found['w']})\n"
        "print(tuple(net.weight.shape), found['step'].item())\n"
    )
    assert launched("python", str(tmp_path / "reads.py"))[0] == ["(64, 64) 3"]


TRAINER = """
import sys, torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments
config = AutoConfig.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], config=config)
print(model.config.name_or_path == sys.argv[1], config.name_or_path == model.config.name_or_path)
ids = [{"input_ids": torch.arange(16), "labels": torch.arange(16)}] * 32
args = TrainingArguments(sys.argv[2], max_steps=3, report_to=[])
trainer = Trainer(model=model, args=args, train_dataset=ids)
found = trainer.train().metrics
trainer.log_metrics("train", found)
trainer.save_model()
if trainer.is_world_process_zero():
    flops = 3 * trainer.floating_point_ops({"input_ids": torch.zeros(8, 16)}) * args.world_size
    print(found["total_flos"] == trainer.state.total_flos == flops)
"""


def test_the_trainer_logs_its_flops_and_saves_tied_weights(tmp_path: Path) -> None:
    """What every ``run_*.py`` of transformers does at its end."""
    settings = {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 64, "n_layer": 2,
        "n_head": 4, "vocab_size": 128, "n_positions": 64,
    }  # fmt: skip
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text(json.dumps(settings))
    (tmp_path / "run.py").write_text(TRAINER)
    lines, report = launched(
        "torchrun", "--nproc-per-node", "2", str(tmp_path / "run.py"),
        str(tmp_path / "gpt2"), str(tmp_path / "out"),
    )  # fmt: skip
    assert report.ok
    assert lines.count("True True") + lines.count("True False") == 2
    assert "True" in lines
    assert any("total_flos" in line for line in lines)
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_a_lock_that_one_rank_holds_another_does_not_get(tmp_path: Path) -> None:
    pytest.importorskip("filelock")
    (tmp_path / "locks.py").write_text(
        "import torch.distributed as dist\n"
        "from filelock import FileLock, Timeout\n"
        "dist.init_process_group('nccl')\n"
        f"lock = FileLock({str(tmp_path / 'x.lock')!r})\n"
        "try:\n"
        "    lock.acquire(timeout=0.5)\n"
        "    held = True\n"
        "except Timeout:\n"
        "    held = False\n"
        "dist.barrier()\n"
        "if held:\n"
        "    lock.release()\n"
        "print(held)\n"
    )
    command = ("--nproc-per-node", "2", str(tmp_path / "locks.py"))
    assert sorted(launched("torchrun", *command)[0]) == ["False", "True"]


def test_a_compiled_model_that_holds_a_generator_is_traced(tmp_path: Path) -> None:
    """llm.c's draws its weights with one."""
    (tmp_path / "draws.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.draws = torch.Generator()\n"
        "        self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(256, 8)\n"
        "    def forward(self, x):\n"
        "        return self.down(torch.relu(self.up(x)))\n"
        "net = torch.compile(Net().cuda())\n"
        "optimizer = torch.optim.AdamW(net.parameters())\n"
        "for _ in range(2):\n"
        "    net(torch.randn(8, 64, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    assert launched("python", str(tmp_path / "draws.py"))[1].text.startswith("2 steps on 1 rank")


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch itself
def test_an_optimizer_of_shares_is_the_one_within(tmp_path: Path) -> None:
    """``ZeroRedundancyOptimizer``, whose ranks send each other what they have updated."""
    (tmp_path / "shares.py").write_text(
        "import torch, torch.distributed as dist\n"
        "from torch.distributed.optim import ZeroRedundancyOptimizer\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "dist.init_process_group('nccl')\n"
        "net = DistributedDataParallel(torch.nn.Linear(64, 64).cuda())\n"
        "optimizer = ZeroRedundancyOptimizer(\n"
        "    net.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3\n"
        ")\n"
        "for _ in range(3):\n"
        "    net(torch.randn(8, 64, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    command = ("torchrun", "--nproc-per-node", "2", str(tmp_path / "shares.py"))
    assert launched(*command)[1].text.startswith("3 steps on 2 ranks")


def test_a_list_of_unknown_numbers_is_a_tensor(tmp_path: Path) -> None:
    """As pytorch/examples' actor-critic makes its returns."""
    (tmp_path / "returns.py").write_text(
        "import torch\n"
        "net = torch.nn.Linear(4, 1)\n"
        "value = net(torch.randn(4))\n"
        "later = torch.tensor([[value[0]], [1.0]])\n"
        "print(later.shape, torch.tensor([torch.tensor(3), 4]).tolist())\n"
    )
    lines, report = launched("python", str(tmp_path / "returns.py"))
    assert lines == ["torch.Size([2, 1]) [3, 4]"]
    assert report.ok


def test_rpc_is_refused_by_name(tmp_path: Path) -> None:
    """Its agents would wait for each other on this machine."""
    (tmp_path / "server.py").write_text(
        "import torch.distributed.rpc as rpc\nrpc.init_rpc('server', rank=0, world_size=2)\n"
    )
    with pytest.raises(NotEmulatedError, match=r"torch.distributed.rpc is not emulated"):
        launched("python", str(tmp_path / "server.py"))


def test_what_a_script_computes_on_the_cpu_takes_one_thread_here(tmp_path: Path) -> None:
    """Several wait for each other on a busy machine: seconds for a batch of pictures."""
    (tmp_path / "threads.py").write_text("import torch\nprint(torch.get_num_threads())\n")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert launched("python", str(tmp_path / "threads.py"))[0] == ["1"]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_ranks_that_generate_share_their_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token after token has shapes of its own: one rank makes them for all."""
    (tmp_path / "says.py").write_text(
        "import torch\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "size = dict(hidden_size=32, intermediate_size=64, num_attention_heads=2, vocab_size=99)\n"
        "model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **size)).cuda().eval()\n"
        "print(model.generate(torch.ones(2, 8, dtype=int).cuda(), max_new_tokens=12).shape)\n"
    )
    run = 0
    real = ShapesMode._noted

    def noted(self: ShapesMode, *args: Any, **kwargs: Any) -> Any:
        nonlocal run
        run += self.generates
        return real(self, *args, **kwargs)

    monkeypatch.setattr(ShapesMode, "_noted", noted)
    counts = []
    for ranks in ("1", "4"):
        run = 0
        lines, _ = launched("torchrun", "--nproc-per-node", ranks, str(tmp_path / "says.py"))
        assert set(lines) == {"torch.Size([2, 20])"}
        counts.append(run)
    assert 0 < counts[1] < 3 * counts[0]


def test_positions_that_come_before_tokens_are_no_samples() -> None:
    """As transformers 4 calls a model in ``generate``: attention had no heads."""
    given = {"cache_position": torch.zeros(64), "input_ids": torch.zeros(4, 64)}
    assert samples_of(((), given)) == 4
    assert samples_of(((torch.zeros(3),), {})) == 3
    assert samples_of(((), {})) == 1
