"""A WaveNet: gated dilated convolutions over one second of samples, single precision."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.dilation = dilation
        self.conv = nn.Conv1d(width, 2 * width, 2, dilation=dilation)
        self.out = nn.Conv1d(width, width, 1)
        self.skip = nn.Conv1d(width, 256, 1)

    def forward(self, x):
        a, b = self.conv(F.pad(x, (self.dilation, 0))).chunk(2, dim=1)
        y = torch.tanh(a) * torch.sigmoid(b)
        return x + self.out(y), self.skip(y)


class WaveNet(nn.Module):
    def __init__(self, width=64, cycles=3, depth=10):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.layers = nn.ModuleList(Layer(width, 2**i) for _ in range(cycles) for i in range(depth))
        self.end1, self.end2 = nn.Conv1d(256, 256, 1), nn.Conv1d(256, 256, 1)

    def forward(self, x):
        h, total = self.embed(x).transpose(1, 2), 0
        for layer in self.layers:
            h, skip = layer(h)
            total = total + skip
        return self.end2(F.relu(self.end1(F.relu(total))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--samples", type=int, default=16000)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = WaveNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        x = torch.randint(0, 256, (args.batch, args.samples + 1), device=device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=args.bf16):
            loss = F.cross_entropy(model(x[:, :-1]), x[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
