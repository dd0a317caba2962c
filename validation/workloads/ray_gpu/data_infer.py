"""Batch inference: Ray Data prepares images on CPUs, an actor with a GPU classifies them."""
# cluster: 16 CPU, 1 GPU, 8 GiB object store
# role: validation

import json
import time

import numpy as np
import ray
import torch
from torchvision.models import vit_b_16


def row(name, value, unit="s"):
    print(json.dumps({"row": name, "value": value, "unit": unit}), flush=True)


random = np.random.default_rng(0)


def decode(batch):
    pictures = random.integers(0, 256, (len(batch["id"]), 224, 224, 3), dtype=np.uint8)
    scaled = (pictures.astype(np.float32) / 255 - 0.45) / 0.225
    return {"id": batch["id"], "image": np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))}


class Classifier:
    def __init__(self):
        self.model = vit_b_16().eval().half().cuda()

    def __call__(self, batch):
        images = torch.from_numpy(batch["image"]).cuda().half()
        with torch.inference_mode():
            best = self.model(images).argmax(dim=1)
        return {"id": batch["id"], "class": best.cpu().numpy()}


ray.init()
ray.data.DataContext.get_current().enable_progress_bars = False
for images, batch in [(4_096, 64), (8_192, 64), (8_192, 256)]:
    dataset = (
        ray.data.range(images, override_num_blocks=64)
        .map_batches(decode, batch_size=64)
        .map_batches(Classifier, batch_size=batch, num_gpus=1, concurrency=1)
    )
    start = time.perf_counter()
    dataset.materialize()
    row(f"classify_{images}_by_{batch}", time.perf_counter() - start)
