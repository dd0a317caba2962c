"""Retrieval with two towers: sparse embeddings under SparseAdam, dense layers under Adam."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class Tower(nn.Module):
    def __init__(self, ids, fields, width, sparse):
        super().__init__()
        self.id = nn.Embedding(ids, width, sparse=sparse)
        self.bag = nn.EmbeddingBag(fields, width, mode="mean", sparse=sparse)
        self.layers = nn.Sequential(
            nn.Linear(2 * width, 512), nn.ReLU(), nn.BatchNorm1d(512), nn.Linear(512, 128)
        )

    def forward(self, ids, fields):
        x = torch.cat([self.id(ids), self.bag(fields)], 1)
        return F.normalize(self.layers(x), dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--dense", action="store_true")
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    users = Tower(2_000_000, 50_000, args.width, not args.dense).to(device)
    items = Tower(1_000_000, 50_000, args.width, not args.dense).to(device)
    dense, sparse = [], []
    for tower in (users, items):
        for name, p in tower.named_parameters():
            (dense if args.dense or name.startswith("layers") else sparse).append(p)
    optimizers = [torch.optim.Adam(dense, lr=1e-3)]
    if sparse:
        optimizers.append(torch.optim.SparseAdam(sparse, lr=1e-3))
    n = args.batch
    for step in range(args.steps):
        who = torch.randint(0, 2_000_000, (n,), device=device)
        what = torch.randint(0, 1_000_000, (n,), device=device)
        seen = torch.randint(0, 50_000, (n, 20), device=device)
        tags = torch.randint(0, 50_000, (n, 8), device=device)
        scores = users(who, seen) @ items(what, tags).T / 0.05
        loss = F.cross_entropy(scores, torch.arange(n, device=device))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
