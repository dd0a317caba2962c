"""Ray Data feeds a GPU trainer: images are cropped and scaled on 1, 2, 4 or 8 CPUs at a time."""
# cluster: 16 CPU, 1 GPU, 8 GiB object store
# role: validation

import json
import tempfile
import time
from pathlib import Path

import numpy as np
import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device, prepare_model
from torchvision.models import resnet50


def row(name, value, unit="s"):
    print(json.dumps({"row": name, "value": value, "unit": unit}), flush=True)


random = np.random.default_rng(0)


def decode(batch):
    pictures = random.integers(0, 256, (len(batch["id"]), 256, 256, 3), dtype=np.uint8)
    return {"picture": pictures, "label": batch["id"] % 1000}


def augment(batch):
    top, left = random.integers(0, 32, 2)
    cropped = batch["picture"][:, top : top + 224, left : left + 224, ::-1]
    scaled = (cropped.astype(np.float32) / 255 - 0.45) / 0.225
    return {"image": np.ascontiguousarray(scaled.transpose(0, 3, 1, 2)), "label": batch["label"]}


def train(settings):
    device = get_device()
    model = prepare_model(resnet50())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    shard = ray.train.get_dataset_shard("train")
    count, start = 0, time.perf_counter()
    for batch in shard.iter_torch_batches(batch_size=settings["batch"]):
        if count == 4 * settings["batch"]:
            start = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(batch["image"].to(device))
            loss = torch.nn.functional.cross_entropy(logits, batch["label"].to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        count += len(batch["label"])
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    Path(settings["told"]).write_text(str((count - 4 * settings["batch"]) / seconds))


ray.init()
ray.data.DataContext.get_current().enable_progress_bars = False
for cpus in [1, 2, 4, 8]:
    images = 2_048 * min(cpus, 4)
    dataset = (
        ray.data.range(images, override_num_blocks=images // 64)
        .map_batches(decode, batch_size=64, concurrency=cpus)
        .map_batches(augment, batch_size=64, concurrency=cpus)
    )
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        TorchTrainer(
            train,
            train_loop_config={"batch": 64, "told": f"{folder}/told"},
            datasets={"train": dataset},
            scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
            run_config=RunConfig(storage_path=folder),
        ).fit()
        row(f"fit_on_{cpus}_cpus", time.perf_counter() - start)
        row(f"images_on_{cpus}_cpus", float(Path(folder, "told").read_text()), "images/s")
