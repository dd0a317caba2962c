"""GPUs, whole and in parts, and what the process sees of them."""
# cluster: 4 CPU, 2 GPU

import os
import time

import ray

ray.init()


def visible():
    return ray.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES")


@ray.remote(num_gpus=1)
def one():
    return visible()


@ray.remote(num_gpus=0)
def none():
    return visible()


@ray.remote(num_gpus=0.5)
class Half:
    def gpus(self):
        return visible()

    def context(self):
        context = ray.get_runtime_context()
        ids = sorted(context.get_accelerator_ids().items())
        return ids, sorted(context.get_assigned_resources().items())


print(ray.get(one.options(num_gpus=2).remote()))
print(ray.get(none.remote()))
halves = [Half.remote() for _ in range(3)]
seen = [ray.get(half.gpus.remote()) for half in halves]
print(seen)
print(ray.get(halves[0].context.remote()))
print(len(ray.wait([one.remote()], timeout=1)[0]), ray.cluster_resources()["GPU"])
del halves
time.sleep(1)
ids, environment = ray.get(one.remote())
print(len(ids), environment == str(ids[0]), ray.get_gpu_ids())
