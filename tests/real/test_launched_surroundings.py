"""What training scripts have around their steps: trackers, weights to download, child processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.rayapi.torch_programs import load_for  # noqa: E402
from tests.real.test_launched_scripts import launched  # noqa: E402

TRAINS = (
    "import torch\n"
    "net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)).cuda()\n"
    "net = {wrapped}\n"
    "optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
    "for _ in range(4):\n"
    "    net(torch.randn(64, 256, device='cuda')).square().mean().backward()\n"
    "    optimizer.step()\n"
    "    optimizer.zero_grad()\n"
)


def run(tmp_path: Path, text: str) -> Any:
    """Rows of steps."""
    script = tmp_path / "script.py"
    script.write_text(text)
    _, report = launched("python", str(script))
    return report.tables[0].rows


def test_trackers_take_what_they_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, (
        "import wandb\n"
        "from torch.utils.tensorboard import SummaryWriter\n"
        "with wandb.init(project='p', config={'rate': 3}) as run:\n"
        "    assert (wandb.config.rate, run.config.rate) == (3, 3)\n"
        "    run.log({'loss': 1.0})\n"
        "wandb.run.summary['best'] = 1\n"
        "SummaryWriter('here').add_scalar('loss', 1.0, 2)\n"
    ) + TRAINS.format(wrapped="net"))  # fmt: skip
    assert "wandb is told nothing" in capsys.readouterr().err
    assert not (tmp_path / "here").exists()


def test_weights_that_are_not_here_are_taken_to_be_loaded(tmp_path: Path) -> None:
    text = TRAINS.format(wrapped="net") + (
        "state = torch.hub.load_state_dict_from_url('https://example.org/net-0.pth')\n"
        "state.pop('head.weight')\n"
        "print(net.load_state_dict(state['model']))\n"
    )
    (row,) = run(tmp_path, text)
    assert row[1] == 4


def test_data_parallel_shares_a_batch_among_gpus(tmp_path: Path) -> None:
    """Slower than one GPU for so little: weights are broadcast, forwards take turns."""
    (alone,) = run(tmp_path, TRAINS.format(wrapped="net"))
    (shared,) = run(tmp_path, TRAINS.format(wrapped="torch.nn.DataParallel(net)"))
    assert shared[0] == "Sequential, DDP, 8 GPUs"
    assert shared[1] == alone[1] == 4
    assert shared[2] > 1.2 * alone[2]
    rates = [row[3] * row[2] for row in (alone, shared)]
    assert rates == pytest.approx([64, 64])


GATHERS = """
import torch
from torch import nn
net = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 32000)).cuda()
net = nn.DataParallel(net, device_ids=[0, 1, 2, 3])
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    for _ in range({micro_batches}):
        out = net(torch.zeros(8192, 256, device="cuda"))
        wanted = torch.zeros(8192, dtype=torch.long, device="cuda")
        nn.functional.cross_entropy(out, wanted).backward()
    optimizer.step()
print(*(torch.cuda.max_memory_allocated(i) for i in (0, 3, 4)), torch.cuda.memory_allocated(3))
"""


def test_the_first_gpu_of_data_parallel_has_the_loss_of_all(tmp_path: Path) -> None:
    """Outputs, their log-softmax and two gradients of all rows; weights move with each backward."""
    script = tmp_path / "gathers.py"
    script.write_text(GATHERS.format(micro_batches=1))
    (line,), once = launched("python", str(script))
    first, fourth, none, after = map(int, line.split())
    rows_bytes, weights_bytes = 8192 * 32000 * 4, 4 * 257 * (256 + 32000)
    assert 4 * rows_bytes < first < 4 * rows_bytes + 0.5e9
    # Its share of the outputs, or of their gradient; weights and gradients until these are summed.
    own, workspaces = rows_bytes / 4 + 2 * weights_bytes, 2 * 32 * 2**20
    assert (none, after) == (0, workspaces)
    assert own < fourth - workspaces < own + 10e6
    script.write_text(GATHERS.format(micro_batches=2))
    _, twice = launched("python", str(script))
    ((_, one_s, _),) = (row for row in once.tables[1].rows if row[0] == "exposed collectives")
    ((_, two_s, _),) = (row for row in twice.tables[1].rows if row[0] == "exposed collectives")
    assert two_s == pytest.approx(2 * float(one_s or 0), rel=0.05)


def test_processes_that_a_script_starts_are_its_ranks(tmp_path: Path) -> None:
    (row,) = run(tmp_path, (
        "import torch, torch.distributed as dist\n"
        "from torch.multiprocessing import Process\n"
        "def train(rank, world, *, steps):\n"
        "    dist.init_process_group('nccl', 'tcp://127.0.0.1:1234', rank=rank, world_size=world)\n"
        "    net = torch.nn.Linear(64, 64).cuda(rank)\n"
        "    net = torch.nn.parallel.DistributedDataParallel(net)\n"
        "    optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        "    for _ in range(steps):\n"
        "        net(torch.randn(8, 64).cuda(rank)).sum().backward()\n"
        "        optimizer.step()\n"
        "if __name__ == '__main__':\n"
        "    made = [Process(target=train, args=(i, 4), kwargs={'steps': 5}) for i in range(4)]\n"
        "    for p in made:\n"
        "        p.start()\n"
        "    for p in made:\n"
        "        p.join()\n"
        "    assert [p.exitcode for p in made] == [0] * 4\n"
    ))  # fmt: skip
    assert row[:2] == ("Linear, DDP, 4 GPUs", 5)


def test_a_rank_may_look_at_its_own_process(tmp_path: Path) -> None:
    pytest.importorskip("psutil")
    text = "import os, psutil\nassert psutil.Process().memory_info().rss\n"
    run(tmp_path, f"{text}assert psutil.Process(os.getpid()).pid\n{TRAINS.format(wrapped='net')}")


def test_a_thread_that_watches_memory_gives_way(tmp_path: Path) -> None:
    """As PEFT's and Accelerate's examples watch their peak: without a pause."""
    pytest.importorskip("psutil")
    watches = (
        "import psutil, threading\n"
        "process, on, seen = psutil.Process(), [True], []\n"
        "def watch():\n"
        "    while on:\n"
        "        seen.append(process.memory_info().rss)\n"
        "thread = threading.Thread(target=watch, daemon=True)\n"
        "thread.start()\n"
    )
    ends = "on.clear()\nthread.join()\nassert seen\n"
    (row,) = run(tmp_path, f"{watches}{TRAINS.format(wrapped='net')}{ends}")
    assert row[1] == 4


def test_a_loss_that_nobody_knows_is_taken_to_be_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts that guard against divergence end where it is not."""
    monkeypatch.chdir(tmp_path)
    (row,) = run(tmp_path, (
        "import math, sys, torch\n"
        "from math import isnan\n"
        "net = torch.nn.Linear(64, 64).cuda()\n"
        "optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        "for _ in range(3):\n"
        "    loss = net(torch.randn(8, 64, device='cuda')).square().mean()\n"
        "    mean = round(2 * loss.item() / 3, 4)\n"
        "    if not math.isfinite(mean) or isnan(mean) or not torch.isfinite(loss):\n"
        "        sys.exit(1)\n"
        "    assert str(mean) == 'nan' and isnan(float('nan')) and math.isinf(1e999)\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "torch.save({'loss': mean, 'all': [mean]}, 'losses.pt')\n"
        "assert type(torch.load('losses.pt')['loss']) is float\n"
    ))  # fmt: skip
    assert row[1] == 3


def ranks(tmp_path: Path, model: str) -> Any:
    """Rows of steps of four ranks with DistributedDataParallel somewhere."""
    script = tmp_path / "ranks.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\n"
        "from torch import nn\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "class Task(nn.Module):\n"
        "    def __init__(self, net):\n"
        "        super().__init__()\n"
        "        self.net = net\n"
        "    def forward(self, x):\n"
        "        return self.net(x).square().mean()\n"
        "dist.init_process_group('nccl')\n"
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
        "net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.Conv2d(64, 64, 3))\n"
        f"net = {model}.cuda()\n"
        "optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        "for _ in range(3):\n"
        "    net(torch.randn(8, 3, 64, 64, device='cuda')).backward()\n"
        "    optimizer.step()\n"
    )
    _, report = launched("torchrun", "--nproc-per-node", "4", str(script))
    return report.tables[0].rows


def test_a_task_around_ddp_meets_as_ddp_around_a_task_does(tmp_path: Path) -> None:
    (within,), (around,) = ranks(tmp_path, "Task(DDP(net))"), ranks(tmp_path, "DDP(Task(net))")
    assert within[0] == around[0] == "Task, DDP, 4 GPUs"
    assert within[2] == pytest.approx(around[2], rel=0.02)


def test_sync_batch_norm_runs(tmp_path: Path) -> None:
    synced, alone = "DDP(nn.SyncBatchNorm.convert_sync_batchnorm(Task(net)))", "DDP(Task(net))"
    (with_it,), (without,) = ranks(tmp_path, synced), ranks(tmp_path, alone)
    assert with_it[2] == pytest.approx(without[2], rel=0.02)


def test_a_scripts_own_module_goes_before_a_package_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages are loaded for scripts that name them; ``datasets.py`` may be the script's own."""
    pytest.importorskip("gymnasium")
    monkeypatch.delitem(sys.modules, "gymnasium")
    (tmp_path / "gymnasium.py").write_text("OWN = True\n")
    load_for("from gymnasium import OWN", tmp_path)
    assert "gymnasium" not in sys.modules


def test_a_model_may_gather_from_all_ranks_under_autocast(tmp_path: Path) -> None:
    """One rank traces for all; a tensor's own device says whether autocast is on."""
    script = tmp_path / "contrast.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "class Contrast(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        assert torch.is_autocast_enabled(x.device.type)\n"
        "        assert torch.get_autocast_dtype(x.device.type) == torch.bfloat16\n"
        "        own = super().forward(x)\n"
        "        every = [torch.zeros_like(own) for _ in range(4)]\n"
        "        dist.all_gather(every, own)\n"
        "        every[dist.get_rank()] = own\n"
        "        return (own @ torch.cat(every).T).logsumexp(-1).mean()\n"
        "net = torch.nn.parallel.DistributedDataParallel(Contrast(64, 64).cuda())\n"
        "optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        "for _ in range(3):\n"
        "    with torch.autocast('cuda', torch.bfloat16):\n"
        "        loss = net(torch.randn(16, 64, device='cuda'))\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
    )
    _, report = launched("torchrun", "--nproc-per-node", "4", str(script))
    assert sum(row[1] for row in report.tables[0].rows) == 3


MAKES = """
import os, time, torch
from torch.utils.data import DataLoader, Dataset
class Slow(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        time.sleep(0.1 if os.environ["RANK"] == "0" else 0.5)
        return torch.ones(4)
torch.distributed.init_process_group("nccl")
for batch in DataLoader(Slow(), 8):
    torch.distributed.barrier()
print("made")
"""


def test_workers_that_make_batches_at_once_leave_no_profiler_on(tmp_path: Path) -> None:
    (tmp_path / "makes.py").write_text(MAKES)
    lines, _ = launched("torchrun", "--nproc-per-node", "2", str(tmp_path / "makes.py"))
    assert lines == ["made"] * 2
    assert sys.getprofile() is None


def test_one_rank_looks_for_the_garbage_of_all(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import gc, os\n"
        "def looks():\n"
        "    return gc.get_stats()[2]['collections']\n"
        "before = looks()\n"
        "gc.collect()\n"
        "print(os.environ['RANK'], looks() - before)\n"
    )
    said, _ = launched("torchrun", "--nproc_per_node=2", str(script))
    assert sorted(said) == ["0 1", "1 0"]
