"""Ray Train: two workers train a small network by DDP over gloo, fifty steps."""
# cluster: 4 CPU
# role: validation

import json
import tempfile
import time
from pathlib import Path

import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model


def row(name, seconds):
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


def train(settings):
    torch.set_num_threads(1)
    width = settings["width"]
    layers = [torch.nn.Linear(width, width) for _ in range(4)]
    model = prepare_model(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.ones(32, width)
    start = time.perf_counter()
    for step in range(settings["steps"] + 5):
        if step == 5:
            start = time.perf_counter()
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    if ray.train.get_context().get_world_rank() == 0:
        Path(settings["told"]).write_text(str(time.perf_counter() - start))


ray.init()
with tempfile.TemporaryDirectory() as folder:
    start = time.perf_counter()
    TorchTrainer(
        train,
        train_loop_config={"width": 512, "steps": 50, "told": f"{folder}/seconds"},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=folder),
    ).fit()
    row("fit_2_workers", time.perf_counter() - start)
    row("steps_50_of_ddp", float(Path(folder, "seconds").read_text()))
