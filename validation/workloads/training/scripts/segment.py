"""A U-Net that segments large images: RMSprop, half precision with a scaler, cross entropy and dice."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class Double(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, classes=2, width=64):
        super().__init__()
        sizes = [width << i for i in range(5)]
        self.inside = Double(3, width)
        self.down = nn.ModuleList(Double(a, b) for a, b in zip(sizes, sizes[1:]))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(sizes, sizes[1:])
        )
        self.merge = nn.ModuleList(Double(2 * a, a) for a in sizes[:-1])
        self.outside = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        x = self.inside(x)
        kept = []
        for block in self.down:
            kept.append(x)
            x = block(F.max_pool2d(x, 2))
        for i in reversed(range(len(self.up))):
            x = self.merge[i](torch.cat([kept[i], self.up[i](x)], dim=1))
        return self.outside(x)


def dice_loss(logits, masks):
    scores = F.softmax(logits, dim=1).float()
    target = F.one_hot(masks, logits.shape[1]).permute(0, 3, 1, 2).float()
    inter = 2 * (scores * target).sum(dim=(0, 2, 3))
    sums = scores.sum(dim=(0, 2, 3)) + target.sum(dim=(0, 2, 3))
    return 1 - ((inter + 1e-6) / (sums + 1e-6)).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--height", type=int, default=640)
    parser.add_argument("--width", type=int, default=960)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = UNet().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.RMSprop(
        model.parameters(), lr=1e-5, weight_decay=1e-8, momentum=0.999, foreach=True
    )
    scaler = torch.amp.GradScaler(device, enabled=args.amp)
    criterion = nn.CrossEntropyLoss()
    for step in range(args.steps):
        images = torch.randn(args.batch, 3, args.height, args.width)
        masks = torch.randint(0, 2, (args.batch, args.height, args.width))
        images = images.to(device=device, memory_format=torch.channels_last)
        masks = masks.to(device=device, dtype=torch.long)
        with torch.autocast(device, enabled=args.amp):
            logits = model(images)
            loss = criterion(logits, masks) + dice_loss(logits, masks)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
