"""What ranks of a job do alike is done once, and what they do differently stays each one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.rayapi.shapes.alike import told  # noqa: E402
from raysim.rayapi.standins.absent.rows import Dataset  # noqa: E402
from tests.real.test_launched_scripts import launched  # noqa: E402

PICTURES = """
import os, sys, torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import datasets, transforms

dist.init_process_group("nccl")
rank = dist.get_rank()
SIDE = 32 + 8 * rank * ("sides" in sys.argv)
resized = transforms.Resize(32)

made = []

def change(picture):
    made.append(picture)
    return transforms.functional.to_tensor(resized(picture).resize((SIDE, SIDE)))

class Views(Dataset):
    def __init__(self):
        self.base = datasets.CIFAR10("nowhere", download=True)
        self.own = rank if "apart" in sys.argv else 0

    def __len__(self):
        return 192

    def __getitem__(self, i):
        picture, target = self.base[i]
        return change(picture), target

data = Views()
net = nn.parallel.DistributedDataParallel(nn.Conv2d(3, 8, 3).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(net.parameters(), 0.1)
asked = []
for epoch in range(2):
    for x, y in DataLoader(data, 32, shuffle=True):
        optimizer.zero_grad()
        net(x.cuda()).mean().backward()
        optimizer.step()
    asked.append(len(made))
print(rank, asked, tuple(x.shape), tuple(y.shape))
"""


@pytest.fixture(name="script")
def _script(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(PICTURES)
    return str(tmp_path / "train.py")


def test_one_rank_makes_what_stands_for_all_and_steps_take_as_long(script: str) -> None:
    """Two batches are made in all; other ranks and passes look at a sample of their own."""
    four = ("torchrun", "--nproc-per-node", "4", script)
    lines, together = launched(*four)
    asked = [int(line.split(maxsplit=3)[2].strip("],")) for line in lines]
    assert len(asked) == 4
    assert sum(asked) <= 2 * 32 + 2 * 4
    assert all(line.endswith("(32, 3, 32, 32) (32,)") for line in lines)
    lines, apart = launched(*four, "apart")
    assert all("[64, 65]" in line for line in lines)  # two, and a sample a pass
    assert together.metrics["step_seconds"] == apart.metrics["step_seconds"]


def test_a_rank_whose_samples_have_other_shapes_makes_its_own(script: str) -> None:
    lines, _ = launched("torchrun", "--nproc-per-node", "2", script, "sides")
    assert {line.partition("] ")[2] for line in lines} == {
        "(32, 3, 32, 32) (32,)", "(32, 3, 40, 40) (32,)",
    }  # fmt: skip


def test_what_is_the_scripts_own_is_told_by_nobody() -> None:
    class Own(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 8

    assert told(torch.utils.data.DataLoader(Own(), 4)) is None


def test_rows_of_the_hub_that_stand_for_others_are_made_for_all_passes() -> None:
    """Evaluations make a loader each; transforming every one's pictures anew took a minute."""
    rows = Dataset({"label": [0, 1, 0, 1]})
    first, second = (told(torch.utils.data.DataLoader(rows, n)) for n in (2, 4))
    assert first == second is not None


HEARD = """
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

dist.init_process_group("nccl")
rank = dist.get_rank()

class Heard(TorchDispatchMode):
    names = ()
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names += (func.overloadpacket.__name__,)
        return func(*args, **(kwargs or {}))

x = torch.ones(1024, device="cuda")
with Heard() as heard:
    for _ in range(rank + 1):
        x = x.neg()
    dist.barrier()
    for _ in range(rank + 1):
        x = x.exp()
print(rank, heard.names.count("neg"), heard.names.count("exp"))
x.sum()
print(rank, heard.names.count("sum"))
"""


def test_a_rank_hears_its_own_operators_alone(tmp_path: Path) -> None:
    """As each is a process: what others run while it waits is not its."""
    (tmp_path / "heard.py").write_text(HEARD)
    lines, _ = launched("torchrun", "--nproc-per-node", "3", str(tmp_path / "heard.py"))
    assert sorted(lines) == ["0 0", "0 1 1", "1 0", "1 2 2", "2 0", "2 3 3"]


def test_profilers_of_python_go_on_after_a_loader(tmp_path: Path) -> None:
    """cProfile's is no function, and is begun again by itself."""
    (tmp_path / "train.py").write_text(
        "import cProfile\nprofile = cProfile.Profile()\nprofile.enable()\n"
        + PICTURES.replace("print(", "profile.disable()\nprint(")
    )
    lines, _ = launched("torchrun", "--nproc-per-node", "1", str(tmp_path / "train.py"))
    assert len(lines) == 1


ENCODED = """
import torch
from torch.utils.data import DataLoader
from transformers import BatchEncoding

def collate(rows):
    return BatchEncoding({"x": torch.stack(rows), "labels": torch.zeros(len(rows)).long()})

net = torch.nn.Linear(8, 2).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for batch in DataLoader(list(torch.rand(64, 8)), 16, collate_fn=collate):
    labels = batch.pop("labels").cuda()
    torch.nn.functional.cross_entropy(net(batch["x"].cuda()), labels).backward()
    optimizer.step()
    print(*batch)
"""


def test_a_batch_that_scripts_take_apart_is_whole_the_next_time(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "train.py").write_text(ENCODED)
    lines, _ = launched("python", str(tmp_path / "train.py"))
    assert lines == ["x"] * 4
