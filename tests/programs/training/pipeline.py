"""A two-stage pipeline: DeepSpeed's PipelineModule of decoder blocks under Ray Train."""

import argparse

import deepspeed
import ray
import ray.train
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


class Tokens(Dataset):
    def __init__(self, samples, length, vocabulary):
        self.samples, self.length, self.vocabulary = samples, length, vocabulary

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        tokens = torch.randint(0, self.vocabulary, (self.length + 1,))
        return tokens[:-1], tokens[1:]


class Embedding(nn.Module):
    def __init__(self, vocabulary, width, length):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)

    def forward(self, ids):
        return self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Head(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):
        return self.out(self.norm(x))


def loss_fn(logits, labels):
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def train_loop(config):
    vocabulary, width, length = config["vocabulary"], config["width"], config["length"]
    blocks = [LayerSpec(Block, width, config["heads"]) for _ in range(config["depth"])]
    model = PipelineModule(
        layers=[
            LayerSpec(Embedding, vocabulary, width, length), *blocks,
            LayerSpec(Head, vocabulary, width),
        ],
        num_stages=config["stages"], loss_fn=loss_fn, partition_method="parameters",
    )  # fmt: skip
    ds_config = {
        "train_micro_batch_size_per_gpu": config["micro_batch"],
        "gradient_accumulation_steps": config["micro_batches"],
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "steps_per_print": 1000,
    }
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        model_parameters=[p for p in model.parameters() if p.requires_grad],
        config=ds_config,
    )
    data = Tokens(1024, length, vocabulary)
    loader = DataLoader(data, batch_size=config["micro_batch"], drop_last=True)
    batches = iter(deepspeed.utils.RepeatingLoader(loader))
    for step in range(config["steps"]):
        loss = engine.train_batch(data_iter=batches)
        if (step + 1) % 10 == 0:
            ray.train.report({"step": step + 1, "loss": float(loss)})
    return engine.global_steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--length", type=int, default=1024)
    args = parser.parse_args()
    result = TorchTrainer(
        train_loop,
        train_loop_config={**vars(args), "vocabulary": 32000},
        scaling_config=ScalingConfig(num_workers=args.workers, use_gpu=True),
        run_config=RunConfig(name="pipeline"),
    ).fit()
    print(result.return_value)


if __name__ == "__main__":
    main()
