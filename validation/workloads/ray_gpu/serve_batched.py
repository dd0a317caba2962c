"""Ray Serve: a replica with a GPU encodes sentences, one by one and batched by ``serve.batch``."""
# cluster: 16 CPU, 1 GPU, 8 GiB object store
# role: validation

import json
import time

import ray
import torch
from ray import serve
from transformers import BertConfig, BertModel


def row(name, value, unit="s"):
    print(json.dumps({"row": name, "value": value, "unit": unit}), flush=True)


@serve.deployment(max_ongoing_requests=256, ray_actor_options={"num_gpus": 1})
class Encoder:
    def __init__(self):
        self.model = BertModel(BertConfig()).eval().half().cuda()

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.01)
    async def __call__(self, lengths):
        tokens = torch.randint(0, 30_000, (len(lengths), max(lengths)), device="cuda")
        with torch.inference_mode():
            vectors = self.model(tokens).last_hidden_state[:, 0].float().cpu()
        return [vector.norm().item() for vector in vectors]


ray.init()
start = time.perf_counter()
serve.start(http_options={"location": "NoServer"})
handle = serve.run(Encoder.bind())
handle.remote(128).result()
row("deploy", time.perf_counter() - start)
for _ in range(20):
    handle.remote(128).result()

start = time.perf_counter()
for _ in range(100):
    handle.remote(128).result()
row("one_by_one_100", time.perf_counter() - start)

start = time.perf_counter()
for response in [handle.remote(128) for _ in range(1_024)]:
    response.result()
row("at_once_1024", time.perf_counter() - start)
serve.shutdown()
