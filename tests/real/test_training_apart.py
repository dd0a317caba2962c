"""A model on several GPUs of one process, by hand or by ``device_map``.

The oracle is the same model on one GPU: all GPUs together compute as long, one after the other.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from raysim.units import GIB  # noqa: E402
from tests.real.test_launched_scripts import launched  # noqa: E402
from tests.real.training_script_parts import LLAMA  # noqa: E402

WIDTH, ROWS = 4096, 8192
NVLINK_BYTES_PER_S = 450e9
"""18 links of an H100, each way."""
APART = f"""
import sys, torch
from torch import nn

where = sys.argv[1:]
def part():
    return nn.Sequential(nn.Linear({WIDTH}, {WIDTH}), nn.ReLU(), nn.Linear({WIDTH}, {WIDTH}))

class Apart(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(part().to(gpu) for gpu in where)
    def forward(self, x):
        for part, gpu in zip(self.parts, where):
            x = part(x.to(gpu))
        return x

model = Apart()
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
x = torch.randn({ROWS}, {WIDTH}, device=where[0])
for _ in range(3):
    for _ in range(2):
        model(x).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(*(torch.cuda.max_memory_allocated(gpu) for gpu in range(3)))
"""


@pytest.mark.parametrize(
    ("where", "copies"),
    [(("cuda:0", "cuda:1", "cuda:1"), 1), (("cuda:0", "cuda:1", "cuda:0"), 2)],
    ids=["over", "back"],
)
def test_gpus_of_one_process_work_in_turn(
    where: tuple[str, ...], copies: int, tmp_path: Path
) -> None:
    """Two micro-batches, one after the other; each GPU updates its own weights, side by side."""
    script = tmp_path / "apart.py"
    script.write_text(APART)
    (alone,), one = launched("python", str(script), "cuda:0", "cuda:0", "cuda:0")
    (line,), two = launched("python", str(script), *where)
    assert two.tables[0].rows[0][0] == "Apart, in turn, 2 GPUs"
    (update_s,) = (float(row[1] or 0) for row in one.tables[1].rows if row[0] == "optimizer")
    size_bytes = ROWS * WIDTH * 4
    elsewhere_s = update_s * (1 - where.count("cuda:0") / 3)  # while the first computes
    copied_s = two.metrics["step_seconds"] - (one.metrics["step_seconds"] - elsewhere_s)
    least_s = 2 * 2 * copies * size_bytes / NVLINK_BYTES_PER_S
    assert least_s < copied_s < 1.8 * least_s  # NCCL's, of 60 % and more
    whole, (of_0, of_1, nothing) = int(alone.split()[0]), map(int, line.split())
    part_bytes = 4 * 2 * (WIDTH + 1) * WIDTH * 4 + 2 * size_bytes  # and inputs of both products
    larger, smaller = sorted((of_0, of_1), reverse=True)
    assert larger == pytest.approx(whole - part_bytes, abs=size_bytes)
    assert part_bytes < smaller < part_bytes + 3 * size_bytes
    assert nothing == 0


MAPPED = """
import sys, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(
    sys.argv[1], device_map="auto", max_memory={0: sys.argv[2], 1: "70GiB"}, dtype=torch.bfloat16
)
print(*dict.fromkeys(model.hf_device_map.values()), model.lm_head.weight.device)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    ids = torch.zeros(int(sys.argv[3]), 2048, dtype=torch.long, device="cuda:0")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
"""


def test_a_device_map_spreads_a_model_and_the_gpu_that_is_full_is_named(tmp_path: Path) -> None:
    wide = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
            "vocab_size": 128256, "num_hidden_layers": 8, "tie_word_embeddings": True}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | wide))
    script = tmp_path / "mapped.py"
    script.write_text(MAPPED)
    (line,), report = launched("python", str(script), str(tmp_path), "2GiB", "1")
    assert line == "0 1 cuda:0"  # the head is the embedding, which is on the first
    (gpus,) = (table for table in report.tables if table.title.startswith("GPUs of the process"))
    first, second = (float(row[1] or 0) for row in gpus.rows)
    blocks = 8 * 12 * 4096**2 * 2  # no fewer elements in a block; 16 bits
    assert 2 * GIB < first < second
    assert second > 4 * blocks * 3 / 4
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | wide | {"tie_word_embeddings": False}))
    with pytest.raises(torch.OutOfMemoryError, match="GPU 1 has a total capacity of 79"):
        launched("python", str(script), str(tmp_path), "2GiB", "40")


OFFLOADED = """
import sys, time, torch, transformers
ids = torch.zeros(1, 128, dtype=torch.long, device="cuda:0")
for most in ("70GiB", "80MiB"):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        sys.argv[1], device_map="auto", max_memory={0: most, "cpu": "9GiB"}, dtype=torch.bfloat16
    )
    away = [name for name, where in model.hf_device_map.items() if where == "cpu"]
    size = sum(p.nbytes for name in away for p in model.get_submodule(name).parameters())
    held = torch.cuda.memory_allocated()
    for _ in range(2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.no_grad():
            model(input_ids=ids)
        torch.cuda.synchronize()
        took = time.perf_counter() - began
    weights = sum(p.nbytes for p in model.parameters())
    print(size, took, torch.cuda.max_memory_allocated(), held, weights)
optimizer = torch.optim.SGD(model.parameters())
try:
    model.train()(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
except Exception as error:
    print(error)
"""


def test_layers_on_the_cpu_visit_the_gpu_in_each_forward(tmp_path: Path) -> None:
    """Copies from pageable memory, behind each other; what is away is not on the GPU."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"hidden_size": 2048}))
    script = tmp_path / "offloaded.py"
    script.write_text(OFFLOADED)
    (first, second, refused), _ = launched("python", str(script), str(tmp_path))
    whole, part = ([float(x) for x in line.split()] for line in (first, second))
    assert whole[0] == 0 < part[0]
    assert whole[3] == whole[4] == pytest.approx(part[3] - part[4] + part[0], abs=100_000)
    assert 4e9 < part[0] / (part[1] - whole[1]) < 32e9  # pageable: less than a link of x16
    assert whole[2] < part[2] < 2 * whole[2] - part[0] + 60e6  # both models, but for what is away
    assert "training a model with layers on the CPU" in refused
