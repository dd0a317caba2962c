"""A radiance field: positions encoded by waves, an MLP of eight layers, samples along rays."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


def encode(x, bands):
    parts = [x]
    for i in range(bands):
        parts += [torch.sin(2.0**i * x), torch.cos(2.0**i * x)]
    return torch.cat(parts, -1)


class Field(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Linear(63, width)]
            + [nn.Linear(width + 63 if i == 4 else width, width) for i in range(1, 8)]
        )
        self.density, self.feature = nn.Linear(width, 1), nn.Linear(width, width)
        self.view, self.colour = nn.Linear(width + 27, width // 2), nn.Linear(width // 2, 3)

    def forward(self, points, directions):
        x = encode(points, 10)
        h = x
        for i, layer in enumerate(self.layers):
            if i == 4:
                h = torch.cat([x, h], -1)
            h = F.relu(layer(h))
        v = torch.cat([self.feature(h), encode(directions, 4)], -1)
        return torch.sigmoid(self.colour(F.relu(self.view(v)))), F.relu(self.density(h))


def render(field, origins, directions, count):
    t = torch.linspace(2.0, 6.0, count, device=origins.device).expand(len(origins), count)
    t = t + torch.rand_like(t) * 4.0 / count
    points = origins[:, None] + directions[:, None] * t[..., None]
    colour, density = field(points, directions[:, None].expand_as(points))
    step = torch.cat([t[:, 1:] - t[:, :-1], torch.full_like(t[:, :1], 1e10)], 1)
    alpha = 1 - torch.exp(-density[..., 0] * step)
    left = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)
    weights = alpha * left[:, :-1]
    return (weights[..., None] * colour).sum(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rays", type=int, default=4096)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    if args.tf32:
        torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    field = Field().to(device)
    optimizer = torch.optim.Adam(field.parameters(), lr=5e-4)
    for step in range(args.steps):
        origins = torch.randn(args.rays, 3, device=device)
        directions = F.normalize(torch.randn(args.rays, 3, device=device), dim=-1)
        truth = torch.rand(args.rays, 3, device=device)
        loss = ((render(field, origins, directions, args.samples) - truth) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
