"""A DLRM-like recommender: embedding bags, a bottom and a top MLP, pairwise interactions."""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


def mlp(*widths):
    layers = []
    for a, b in zip(widths, widths[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class DLRM(nn.Module):
    def __init__(self, tables, rows, width):
        super().__init__()
        self.bottom = mlp(13, 512, 256, width)
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables)
        )
        pairs = (tables + 1) * tables // 2
        self.top = mlp(width + pairs, 1024, 1024, 512, 256, 1)

    def forward(self, dense, bags):
        x = self.bottom(dense)
        features = torch.stack([x] + [t(b) for t, b in zip(self.tables, bags)], dim=1)
        dots = torch.bmm(features, features.transpose(1, 2))
        i, j = torch.tril_indices(features.shape[1], features.shape[1], offset=-1)
        return self.top(torch.cat([x, dots[:, i, j]], dim=1)).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--tables", type=int, default=26)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--hots", type=int, default=4)
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = DLRM(args.tables, args.rows, args.width).to(device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    start = time.perf_counter()
    for step in range(args.steps):
        dense = torch.rand(args.batch, 13, device=device)
        bags = [
            torch.randint(args.rows, (args.batch, args.hots), device=device)
            for _ in range(args.tables)
        ]
        clicks = torch.randint(0, 2, (args.batch,), device=device).float()
        loss = F.binary_cross_entropy_with_logits(model(dense, bags), clicks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}, {args.steps / (time.perf_counter() - start):.2f} steps/s")


if __name__ == "__main__":
    main()
