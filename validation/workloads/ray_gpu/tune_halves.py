"""Ray Tune: four trials of a ResNet with half a GPU each; two run at a time."""
# cluster: 16 CPU, 1 GPU, 8 GiB object store
# role: validation

import json
import tempfile
import time

import ray
import torch
from ray import tune
from torchvision.models import resnet18


def row(name, value, unit="s"):
    print(json.dumps({"row": name, "value": value, "unit": unit}), flush=True)


def train(config):
    model = resnet18(num_classes=10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    images = torch.randn(config["batch"], 3, 224, 224, device="cuda")
    labels = torch.randint(0, 10, (config["batch"],), device="cuda")
    for _ in range(4):
        start = time.perf_counter()
        for _ in range(15):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        tune.report({"step": (time.perf_counter() - start) / 15})


ray.init()
with tempfile.TemporaryDirectory() as folder:
    start = time.perf_counter()
    results = tune.Tuner(
        tune.with_resources(train, {"cpu": 2, "gpu": 0.5}),
        param_space={"lr": tune.grid_search([0.1, 0.03, 0.01, 0.003]), "batch": 128},
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    ).fit()
    row("four_trials", time.perf_counter() - start)
row("step_of_two", max(result.metrics["step"] for result in results))
