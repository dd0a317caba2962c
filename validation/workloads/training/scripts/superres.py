"""Super-resolution (EDSR): wide 3 x 3 convolutions at full size, pixel shuffle, L1, Adam."""

import argparse

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(True),
            nn.Conv2d(width, width, 3, padding=1),
        )  # fmt: skip

    def forward(self, x):
        return x + 0.1 * self.body(x)


class EDSR(nn.Module):
    def __init__(self, width=64, depth=16, scale=2):
        super().__init__()
        self.head = nn.Conv2d(3, width, 3, padding=1)
        blocks = [Block(width) for _ in range(depth)]
        self.body = nn.Sequential(*blocks, nn.Conv2d(width, width, 3, padding=1))
        self.tail = nn.Sequential(
            nn.Conv2d(width, width * scale**2, 3, padding=1), nn.PixelShuffle(scale),
            nn.Conv2d(width, 3, 3, padding=1),
        )  # fmt: skip

    def forward(self, x):
        x = self.head(x)
        return self.tail(x + self.body(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--patch", type=int, default=96)
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    model = EDSR(args.width, args.depth).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=args.fp16)
    criterion = nn.L1Loss()
    for step in range(args.steps):
        low = torch.rand(args.batch, 3, args.patch, args.patch, device=device)
        high = torch.rand(args.batch, 3, args.patch * 2, args.patch * 2, device=device)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16, enabled=args.fp16):
            loss = criterion(model(low), high)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
