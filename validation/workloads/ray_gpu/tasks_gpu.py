"""Ray Core: tasks with a quarter of a GPU each multiply matrices; workers have CUDA contexts."""
# cluster: 16 CPU, 1 GPU, 8 GiB object store
# role: validation

import json
import time

import ray
import torch


def row(name, value, unit="s"):
    print(json.dumps({"row": name, "value": value, "unit": unit}), flush=True)


@ray.remote(num_gpus=0.25, max_calls=0)
def multiply(size, times):
    left = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    for _ in range(times):
        left = left @ left
    return left.float().abs().mean().item()


ray.init()
start = time.perf_counter()
ray.get(multiply.remote(256, 1))
row("first", time.perf_counter() - start)
start = time.perf_counter()
ray.get([multiply.remote(256, 1) for _ in range(8)])
row("first_on_4_workers", time.perf_counter() - start)
for name, size, times in [("small", 512, 200), ("large", 8192, 60)]:
    start = time.perf_counter()
    ray.get(multiply.remote(size, times))
    row(f"one_{name}", time.perf_counter() - start)
    start = time.perf_counter()
    ray.get([multiply.remote(size, times) for _ in range(8)])
    row(f"eight_{name}", time.perf_counter() - start)
