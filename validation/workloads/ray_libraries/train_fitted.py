"""Ray Train: one worker that only reports; three that train by DDP over gloo."""
# cluster: 4 CPU
# role: calibration

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


def report(settings):
    for _ in range(settings["reports"]):
        ray.train.report({"loss": 1.0})


def train(settings):
    torch.set_num_threads(1)
    width = settings["width"]
    model = prepare_model(torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(2)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.ones(16, width)
    start = time.perf_counter()
    for step in range(settings["steps"] + 3):
        if step == 3:
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
        report,
        train_loop_config={"reports": 2},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=folder),
    ).fit()
    row("fit_1_worker", time.perf_counter() - start)

    start = time.perf_counter()
    TorchTrainer(
        train,
        train_loop_config={"width": 384, "steps": 30, "told": f"{folder}/seconds"},
        scaling_config=ScalingConfig(num_workers=3),
        run_config=RunConfig(storage_path=folder),
    ).fit()
    row("fit_3_workers", time.perf_counter() - start)
