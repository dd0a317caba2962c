"""Ray Train: one worker with a GPU trains a ViT-Base on images of its own, as fast as it can."""
# cluster: 16 CPU, 1 GPU, 8 GiB object store
# role: validation

import json
import tempfile
import time
from pathlib import Path

import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device, prepare_model
from torchvision.models import vit_b_16


def row(name, value, unit="s"):
    print(json.dumps({"row": name, "value": value, "unit": unit}), flush=True)


def train(settings):
    device = get_device()
    model = prepare_model(vit_b_16(num_classes=1000))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    images = torch.randn(settings["batch"], 3, 224, 224, device=device)
    labels = torch.randint(0, 1000, (settings["batch"],), device=device)
    for step in range(settings["steps"] + 5):
        if step == 5:
            torch.cuda.synchronize()
            start = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    told = [seconds / settings["steps"], *(peak / 2**30 for peak in peaks)]
    Path(settings["told"]).write_text(json.dumps(told))


ray.init()
with tempfile.TemporaryDirectory() as folder:
    start = time.perf_counter()
    TorchTrainer(
        train,
        train_loop_config={"batch": 64, "steps": 30, "told": f"{folder}/told"},
        scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
        run_config=RunConfig(storage_path=folder),
    ).fit()
    row("fit", time.perf_counter() - start)
    step, allocated, reserved = json.loads(Path(folder, "told").read_text())
row("step", step)
row("allocated", allocated, "GiB")
row("reserved", reserved, "GiB")
