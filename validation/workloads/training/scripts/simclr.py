"""SimCLR on small images: a ResNet-18, two views of each, a contrastive loss, bf16."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class Basic(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.skip = nn.Sequential()
        if stride != 1 or a != b:
            self.skip = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.skip(x))


class Encoder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        blocks = []
        for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
            blocks += [Basic(a, b, 2 if i else 1), Basic(b, b, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(
            nn.Linear(8 * width, 8 * width), nn.ReLU(), nn.Linear(8 * width, 128)
        )

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--fp32", action="store_true")
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    model = Encoder().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    images = torch.rand(args.batch, 3, 32, 32, device=device)
    for step in range(args.steps):
        views = torch.cat([images + 0.1 * torch.randn_like(images), images.flip(3)])
        with torch.autocast(device, dtype=torch.bfloat16, enabled=not args.fp32):
            z = F.normalize(model(views), dim=1)
            scores = z @ z.T / 0.5
            scores = scores.masked_fill(torch.eye(len(z), dtype=torch.bool, device=device), -1e4)
            target = torch.arange(len(z), device=device).roll(args.batch)
            loss = F.cross_entropy(scores, target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
