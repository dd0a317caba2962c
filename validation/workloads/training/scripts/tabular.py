"""Rows of a table: embeddings of categories, a multilayer perceptron with batch norms, dropout."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Table(nn.Module):
    def __init__(self, categories, numbers, width, depth):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(1000, 16) for _ in range(categories))
        self.norm = nn.BatchNorm1d(numbers)
        layers, inputs = [], 16 * categories + numbers
        for _ in range(depth):
            layers += [nn.Linear(inputs, width), nn.ReLU(), nn.BatchNorm1d(width), nn.Dropout(0.1)]
            inputs = width
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, categories, numbers):
        parts = [table(categories[:, i]) for i, table in enumerate(self.embeddings)]
        return self.layers(torch.cat([*parts, self.norm(numbers)], dim=1)).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = args.batch * args.steps
    data = TensorDataset(
        torch.randint(0, 1000, (rows, 20)), torch.randn(rows, 30), torch.rand(rows).round()
    )
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, pin_memory=True)
    model = Table(20, 30, args.width, args.depth).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    total = 0.0
    for categories, numbers, target in loader:
        categories = categories.to(device, non_blocking=True)
        numbers = numbers.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = criterion(model(categories, numbers), target)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"loss {total / args.steps:.3f}")


if __name__ == "__main__":
    main()
