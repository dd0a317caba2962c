"""RL by hand: an actor samples from a Qwen2.5 0.5B, another trains it; weights go as objects."""
# cluster: 16 CPU, 1 GPU, 8 GiB object store
# role: validation

import json
import time

import ray
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM


def row(name, value, unit="s"):
    print(json.dumps({"row": name, "value": value, "unit": unit}), flush=True)


def build():
    config = Qwen2Config(
        vocab_size=151_936, hidden_size=896, intermediate_size=4_864, num_hidden_layers=24,
        num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).to(torch.bfloat16).cuda()


@ray.remote(num_gpus=0.5)
class Sampler:
    def __init__(self):
        self.model = build().eval()

    def load(self, weights):
        self.model.load_state_dict(weights)

    def sample(self, prompts, new):
        with torch.inference_mode():
            return self.model.generate(
                prompts.cuda(),
                min_new_tokens=new,
                max_new_tokens=new,
                do_sample=True,
                pad_token_id=0,
            ).cpu()


@ray.remote(num_gpus=0.5)
class Learner:
    def __init__(self):
        self.model = build().train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6)

    def learn(self, tokens):
        for part in tokens.cuda().split(8):
            self.model(part, labels=part).loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        torch.cuda.synchronize()

    def weights(self):
        return {name: value.cpu() for name, value in self.model.state_dict().items()}


ray.init()
sampler, learner = Sampler.remote(), Learner.remote()
prompts = torch.randint(0, 150_000, (32, 128))
spent = {"sample": [], "learn": [], "sync": []}
for _ in range(4):
    start = time.perf_counter()
    tokens = ray.get(sampler.sample.remote(prompts, 128))
    sampled = time.perf_counter()
    ray.get(learner.learn.remote(tokens))
    learned = time.perf_counter()
    ray.get(sampler.load.remote(learner.weights.remote()))
    spent["sample"].append(sampled - start)
    spent["learn"].append(learned - sampled)
    spent["sync"].append(time.perf_counter() - learned)
for name, seconds in spent.items():
    row(name, sum(seconds[1:]) / 3)
