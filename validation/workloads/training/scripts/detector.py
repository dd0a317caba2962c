"""A one-stage detector at 640 x 640: cross-stage blocks, three scales, half precision, EMA."""

import argparse
import copy

import torch
from torch import nn
from torch.nn import functional as F


class Conv(nn.Module):
    def __init__(self, a, b, k=1, s=1):
        super().__init__()
        self.conv = nn.Conv2d(a, b, k, s, k // 2, bias=False)
        self.bn = nn.BatchNorm2d(b, eps=1e-3, momentum=0.03)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class C2f(nn.Module):
    def __init__(self, a, b, n, add=True):
        super().__init__()
        self.half = b // 2
        self.cv1, self.cv2 = Conv(a, b), Conv((2 + n) * self.half, b)
        self.m = nn.ModuleList(
            nn.Sequential(Conv(self.half, self.half, 3), Conv(self.half, self.half, 3))
            for _ in range(n)
        )
        self.add = add

    def forward(self, x):
        parts = list(self.cv1(x).chunk(2, 1))
        for block in self.m:
            y = block(parts[-1])
            parts.append(parts[-1] + y if self.add else y)
        return self.cv2(torch.cat(parts, 1))


class Detector(nn.Module):
    def __init__(self, w=32, classes=80):
        super().__init__()
        self.stem = nn.Sequential(Conv(3, w, 3, 2), Conv(w, 2 * w, 3, 2), C2f(2 * w, 2 * w, 1))
        self.p3 = nn.Sequential(Conv(2 * w, 4 * w, 3, 2), C2f(4 * w, 4 * w, 2))
        self.p4 = nn.Sequential(Conv(4 * w, 8 * w, 3, 2), C2f(8 * w, 8 * w, 2))
        self.p5 = nn.Sequential(Conv(8 * w, 16 * w, 3, 2), C2f(16 * w, 16 * w, 1))
        self.up4 = C2f(24 * w, 8 * w, 1, False)
        self.up3 = C2f(12 * w, 4 * w, 1, False)
        self.heads = nn.ModuleList(
            nn.Sequential(Conv(c * w, 4 * w, 3), Conv(4 * w, 4 * w, 3), nn.Conv2d(4 * w, 4 + classes, 1))
            for c in (4, 8, 16)
        )

    def forward(self, x):
        x = self.stem(x)
        p3 = self.p3(x)
        p4 = self.p4(p3)
        p5 = self.p5(p4)
        p4 = self.up4(torch.cat([F.interpolate(p5, scale_factor=2, mode="nearest"), p4], 1))
        p3 = self.up3(torch.cat([F.interpolate(p4, scale_factor=2, mode="nearest"), p3], 1))
        outs = [head(p).flatten(2) for head, p in zip(self.heads, (p3, p4, p5))]
        return torch.cat(outs, 2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--fp32", action="store_true")
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Detector().to(device)
    ema = copy.deepcopy(model).eval()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.937, nesterov=True, weight_decay=5e-4
    )
    scaler = torch.amp.GradScaler(device.type, enabled=not args.fp32)
    images = torch.randint(0, 256, (args.batch, 3, args.size, args.size), dtype=torch.uint8)
    for step in range(args.steps):
        batch = images.to(device, non_blocking=True).float() / 255
        with torch.autocast(device.type, dtype=torch.float16, enabled=not args.fp32):
            out = model(batch)
            boxes, scores = out[:, :4].float(), out[:, 4:].float()
            loss = F.binary_cross_entropy_with_logits(scores, torch.zeros_like(scores))
            loss = loss + F.smooth_l1_loss(boxes, torch.zeros_like(boxes))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        with torch.no_grad():
            state = model.state_dict()
            for key, value in ema.state_dict().items():
                if value.dtype.is_floating_point:
                    value.mul_(0.999).add_(state[key].detach(), alpha=0.001)
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
