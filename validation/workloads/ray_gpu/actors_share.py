"""Ray Core: actors train a GPT on one GPU, alone and two at a time with half of it each."""
# cluster: 16 CPU, 1 GPU, 8 GiB object store
# role: validation

import json
import time

import ray
import torch
from transformers import GPT2Config, GPT2LMHeadModel


def row(name, value, unit="s"):
    print(json.dumps({"row": name, "value": value, "unit": unit}), flush=True)


@ray.remote(num_gpus=0.5)
class Trainer:
    def __init__(self):
        torch.cuda.set_device(0)
        self.model = GPT2LMHeadModel(GPT2Config()).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def train(self, steps, batch):
        tokens = torch.randint(0, 50_000, (batch, 1024), device="cuda")
        start = time.perf_counter()
        for _ in range(steps):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = self.model(tokens, labels=tokens).loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / steps


ray.init()
start = time.perf_counter()
first = Trainer.remote()
ray.get(first.train.remote(1, 8))
row("start_and_first_step", time.perf_counter() - start)
second = Trainer.remote()
ray.get([first.train.remote(3, 8), second.train.remote(3, 8)])
for batch in [2, 8]:
    row(f"alone_by_{batch}", ray.get(first.train.remote(20, batch)))
    both = ray.get([first.train.remote(20, batch), second.train.remote(20, batch)])
    row(f"both_by_{batch}", max(both))
