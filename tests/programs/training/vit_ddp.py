"""A vision transformer under DistributedDataParallel: Ray Train, torch, synthetic images."""

import argparse
import tempfile

import ray
import ray.train
import ray.train.torch
import torch
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return torch.randn(3, 224, 224), torch.randint(0, 1000, ())


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self, width=768, depth=12, heads=12, patch=16, classes=1000):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (224 // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def train_loop(config):
    model = VisionTransformer(width=config["width"], depth=config["depth"], heads=config["heads"])
    model = ray.train.torch.prepare_model(model)
    loader = DataLoader(
        Images(config["samples"]), batch_size=config["batch_size"], shuffle=True,
        num_workers=4, drop_last=True,
    )  # fmt: skip
    loader = ray.train.torch.prepare_data_loader(loader)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=config["epochs"])
    world = ray.train.get_context().get_world_size()
    for epoch in range(config["epochs"]):
        if world > 1:
            loader.sampler.set_epoch(epoch)
        model.train()
        total, seen, correct = 0.0, 0, 0
        for images, labels in loader:
            outputs = model(images)
            loss = criterion(outputs, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * labels.size(0)
            correct += (outputs.argmax(dim=1) == labels).sum().item()
            seen += labels.size(0)
        scheduler.step()
        metrics = {"epoch": epoch, "loss": total / seen, "accuracy": correct / seen, "seen": seen}
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if ray.train.get_context().get_world_rank() == 0:
                inner = model.module if world > 1 else model
                state = {"model": inner.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, f"{folder}/model.pt")
                checkpoint = Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=checkpoint)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    args = parser.parse_args()
    trainer = TorchTrainer(
        train_loop,
        train_loop_config={
            "batch_size": args.batch_size, "samples": args.samples, "epochs": args.epochs,
            "width": args.width, "depth": args.depth, "heads": args.heads,
        },
        scaling_config=ScalingConfig(num_workers=args.workers, use_gpu=True),
        run_config=RunConfig(name="vit", checkpoint_config=CheckpointConfig(num_to_keep=1)),
    )  # fmt: skip
    result = trainer.fit()
    print(result.metrics["epoch"], result.metrics["seen"], result.checkpoint is not None)


if __name__ == "__main__":
    main()
