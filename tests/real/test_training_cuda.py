"""What scripts ask ``torch.cuda`` of, in the forms in which they ask."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from tests.real.test_launched_scripts import launched  # noqa: E402
from tests.real.test_launched_surroundings import TRAINS  # noqa: E402

ASKED = (
    "synchronize", "memory_allocated", "max_memory_allocated", "memory_reserved", "memory_stats",
    "max_memory_reserved", "memory_summary", "reset_peak_memory_stats", "mem_get_info",
    "get_device_name", "get_device_capability", "get_device_properties", "current_stream",
    "default_stream", "get_rng_state", "set_device",
)  # fmt: skip
"""That have a parameter ``device`` in torch."""

STATS = """
stats = torch.cuda.memory_stats(device=torch.device("cuda:0"))
for kind in ("allocated", "reserved", "active"):
    assert stats[f"{kind}_bytes.all.current"] <= stats[f"{kind}_bytes.all.peak"]
assert stats["allocated_bytes.all.peak"] == torch.cuda.max_memory_allocated()
assert stats["reserved_bytes.all.peak"] == torch.cuda.max_memory_reserved() > 0
print(stats["num_alloc_retries"], stats["inactive_split_bytes.large_pool.current"])
"""


def test_a_device_may_be_named(tmp_path: Path) -> None:
    script = tmp_path / "asks.py"
    script.write_text(
        TRAINS.format(wrapped="net")
        + "".join(f"torch.cuda.{name}(device=torch.device('cuda', 0))\n" for name in ASKED)
        + "assert torch.version.cuda >= '11.0' and torch.cuda.nccl.version() >= (2, 10)\n"
        + "print('all asked')\n"
    )
    printed, _ = launched("python", str(script))
    assert printed[-1] == "all asked"


def test_memory_stats_has_torchs_names(tmp_path: Path) -> None:
    script = tmp_path / "stats.py"
    before = "import torch\nassert torch.cuda.memory_stats()['allocated_bytes.all.current'] >= 0\n"
    script.write_text(before + TRAINS.format(wrapped="net") + STATS)
    printed, _ = launched("python", str(script))
    assert printed[-1] == "0 0"


def test_weights_made_empty_on_the_cpu_take_no_memory_of_this_machine(tmp_path: Path) -> None:
    script = tmp_path / "empty.py"
    script.write_text(
        "import torch\n"
        "with torch.device('meta'):\n"
        "    net = torch.nn.Linear(16384, 16384, dtype=torch.bfloat16)\n"
        "net.to_empty(device='cpu')\n"
        "net.reset_parameters()\n"
        "torch.empty_like(net.weight.data, device='cpu', pin_memory=True).copy_(net.weight.data)\n"
        "print(net.weight.shape)\n"
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    printed, _ = launched("python", str(script))
    assert printed == ["torch.Size([16384, 16384])"]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < 2 * 16384**2 / 2


HELD = """
import torch
net = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048, bias=False) for _ in range(4)]).cuda()
made = torch.cuda.memory_allocated()
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(3):
    net(torch.randn(4096, 2048, device='cuda')).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
print(made, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
"""


def test_between_steps_weights_and_moments_are_held(tmp_path: Path) -> None:
    """Gradients and activations are gone then; cuBLAS keeps a workspace for each thread."""
    script = tmp_path / "held.py"
    script.write_text(HELD)
    printed, _ = launched("python", str(script))
    made, held, most = map(int, printed[-1].split())
    weights = 4 * 4 * 2048**2
    assert made == weights
    assert held == pytest.approx(3 * weights + 2 * 32 * 2**20, rel=0.01)
    assert most > held + weights  # gradients, at least


PEAKS = """
import torch
net = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def peaks(batch):
    net(torch.randn(batch, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
found = [peaks(65536), peaks(1024)]
torch.cuda.reset_peak_memory_stats()
found += [peaks(1024)]
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
found += [peaks(1024)]
print(*(number for pair in found for number in pair))
"""


def test_peaks_are_those_since_they_were_reset_and_a_cache_is_kept_until_emptied(
    tmp_path: Path,
) -> None:
    script = tmp_path / "peaks.py"
    script.write_text(PEAKS)
    printed, _ = launched("python", str(script))
    numbers = list(map(int, printed[-1].split()))
    large, after, reset, emptied = zip(numbers[::2], numbers[1::2], strict=True)
    assert large == after
    least = 6 * 65536 * 1024 * 4  # outputs of four layers, the square, gradients
    assert large[0] > least > 10 * reset[0]
    assert reset[1] == large[1]  # what the large step has made stays reserved
    assert emptied[0] == reset[0]
    assert emptied[1] < reset[1] / 10


MADE_LATER = """
import sys, torch
from safetensors.torch import load_file, save
with torch.device("meta"):
    net = torch.nn.Linear(8, 8)
assert not any(p.is_meta for p in net.to_empty(device="cuda").parameters())
with open("net.safetensors", "wb") as file:
    file.write(save(net.state_dict()))
assert load_file("net.safetensors")["weight"].shape == (8, 8)
try:
    sys.stdout.write(b"")
except TypeError:
    print("made")
"""


def last_line(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a script prints last, whose files are in that folder."""
    monkeypatch.chdir(folder)
    (folder / "script.py").write_text(text)
    printed, _ = launched("python", str(folder / "script.py"))
    return printed[-1]


def test_torchtunes_recipes_ask_for_meta_tensors_and_write_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert last_line(MADE_LATER, tmp_path, monkeypatch) == "made"


READS = """
import json, struct, torch
from safetensors import safe_open
from safetensors.torch import load_file
end = 2 ** 31
head = {"w": {"dtype": "BF16", "shape": [2 ** 15, 2 ** 15], "data_offsets": [0, end]},
        "n": {"dtype": "I64", "shape": [1], "data_offsets": [end, end + 8]}}
text = json.dumps(head).encode()
with open("holes.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    file.truncate(8 + len(text) + end + 8)
found = load_file("holes.safetensors")
assert found["w"].device.type == "cpu" and int(found["n"]) == 0
with safe_open("holes.safetensors", framework="pt", device="cuda:0") as file:
    assert all(file.get_tensor(name).is_cuda for name in file.keys())
print(*found["w"].clone().t().contiguous().shape)
"""


def test_of_a_file_of_weights_only_the_head_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert last_line(READS, tmp_path, monkeypatch) == "32768 32768"


HEADED = """
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
torch.distributed.init_process_group("nccl")

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)
    def forward(self, x):
        return self.down(self.up(x).relu())

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.output = nn.Sequential(Block(), Block()), nn.Linear(64, 1000)
    def forward(self, x):
        return self.layers(x)

class Loss(nn.Module):
    def forward(self, hidden, labels):
        return nn.functional.cross_entropy(self.head(hidden), labels)

net, loss_of = Net().cuda(), Loss()
for part in (*net.layers, net.output):
    fully_shard(part)
fully_shard(net)
loss_of.head = net.output
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(2):
    labels = torch.zeros(8, dtype=torch.long).cuda()
    loss_of(net(torch.randn(8, 64).cuda()), labels).backward()
    optimizer.step()
"""


def test_a_loss_that_holds_a_sharded_models_head_is_a_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "headed.py").write_text(HEADED)
    _, report = launched("torchrun", "--nproc-per-node", "2", str(tmp_path / "headed.py"))
    assert report.tables[0].rows[0][:2] == ("Net_and_Loss, FSDP2, 2 GPUs", 2)
