"""PointNet on clouds of points: convolutions of one point each, batch norms, a global maximum."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class PointNet(nn.Module):
    def __init__(self, classes=40):
        super().__init__()
        sizes = [3, 64, 64, 64, 128, 1024]
        self.points = nn.Sequential(
            *(
                layer
                for a, b in zip(sizes, sizes[1:])
                for layer in (nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU())
            )
        )
        self.head = nn.Sequential(
            nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(),
            nn.Linear(512, 256), nn.Dropout(0.3), nn.BatchNorm1d(256), nn.ReLU(),
            nn.Linear(256, classes),
        )  # fmt: skip

    def forward(self, x):
        return F.log_softmax(self.head(self.points(x).max(dim=2)[0]), dim=-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--points", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = PointNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    model.train()
    for step in range(args.steps):
        points = torch.randn(args.batch, 3, args.points)
        target = torch.randint(0, 40, (args.batch,))
        points, target = points.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(points), target)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"{step}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
