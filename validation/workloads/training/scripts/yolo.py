"""A one-stage detector like YOLOv5s: CSP blocks, SiLU, a feature pyramid, three heads, fp16."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class Conv(nn.Module):
    def __init__(self, a, b, k=1, s=1, p=None):
        super().__init__()
        self.conv = nn.Conv2d(a, b, k, s, k // 2 if p is None else p, bias=False)
        self.bn, self.act = nn.BatchNorm2d(b, eps=1e-3, momentum=0.03), nn.SiLU(inplace=True)

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    def __init__(self, width, shortcut):
        super().__init__()
        self.cv1, self.cv2, self.add = Conv(width, width), Conv(width, width, 3), shortcut

    def forward(self, x):
        y = self.cv2(self.cv1(x))
        return x + y if self.add else y


class C3(nn.Module):
    def __init__(self, a, b, n, shortcut=True):
        super().__init__()
        self.cv1, self.cv2, self.cv3 = Conv(a, b // 2), Conv(a, b // 2), Conv(b, b)
        self.m = nn.Sequential(*[Bottleneck(b // 2, shortcut) for _ in range(n)])

    def forward(self, x):
        return self.cv3(torch.cat((self.m(self.cv1(x)), self.cv2(x)), 1))


class SPPF(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cv1, self.cv2 = Conv(width, width // 2), Conv(2 * width, width)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x):
        x = self.cv1(x)
        a = self.pool(x)
        b = self.pool(a)
        return self.cv2(torch.cat((x, a, b, self.pool(b)), 1))


class Yolo(nn.Module):
    def __init__(self, w=32, classes=80, anchors=3):
        super().__init__()
        self.p2 = nn.Sequential(Conv(3, w, 6, 2, 2), Conv(w, 2 * w, 3, 2), C3(2 * w, 2 * w, 1))
        self.p3 = nn.Sequential(Conv(2 * w, 4 * w, 3, 2), C3(4 * w, 4 * w, 2))
        self.p4 = nn.Sequential(Conv(4 * w, 8 * w, 3, 2), C3(8 * w, 8 * w, 3))
        self.p5 = nn.Sequential(Conv(8 * w, 16 * w, 3, 2), C3(16 * w, 16 * w, 1), SPPF(16 * w))
        self.up = nn.Upsample(scale_factor=2)
        self.n5, self.f4 = Conv(16 * w, 8 * w), C3(16 * w, 8 * w, 1, False)
        self.n4, self.f3 = Conv(8 * w, 4 * w), C3(8 * w, 4 * w, 1, False)
        self.d3, self.g4 = Conv(4 * w, 4 * w, 3, 2), C3(8 * w, 8 * w, 1, False)
        self.d4, self.g5 = Conv(8 * w, 8 * w, 3, 2), C3(16 * w, 16 * w, 1, False)
        self.heads = nn.ModuleList(nn.Conv2d(c * w, anchors * (classes + 5), 1) for c in (4, 8, 16))
        self.anchors = anchors

    def forward(self, x):
        p3 = self.p3(self.p2(x))
        p4 = self.p4(p3)
        n5 = self.n5(self.p5(p4))
        n4 = self.n4(self.f4(torch.cat((self.up(n5), p4), 1)))
        f3 = self.f3(torch.cat((self.up(n4), p3), 1))
        g4 = self.g4(torch.cat((self.d3(f3), n4), 1))
        g5 = self.g5(torch.cat((self.d4(g4), n5), 1))
        out = []
        for head, f in zip(self.heads, (f3, g4, g5)):
            y = head(f)
            b, _, h, v = y.shape
            out.append(y.view(b, self.anchors, -1, h, v).permute(0, 1, 3, 4, 2).contiguous())
        return out


def criterion(outputs, targets):
    loss = 0
    for y, (b, a, j, i, box, kind) in zip(outputs, targets):
        picked = y[b, a, j, i]
        xy, wh = picked[:, :2].sigmoid() * 2 - 0.5, (picked[:, 2:4].sigmoid() * 2) ** 2
        loss = loss + 0.05 * F.smooth_l1_loss(torch.cat((xy, wh), 1), box)
        thing = torch.zeros_like(y[..., 0])
        thing[b, a, j, i] = 1.0
        loss = loss + F.binary_cross_entropy_with_logits(y[..., 4], thing)
        wanted = torch.zeros_like(picked[:, 5:])
        wanted[torch.arange(len(kind), device=kind.device), kind] = 1.0
        loss = loss + 0.5 * F.binary_cross_entropy_with_logits(picked[:, 5:], wanted)
    return loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--steps", type=int, default=22)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Yolo().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.937, nesterov=True)
    scaler = torch.amp.GradScaler(device.type)
    boxes = 8 * args.batch
    for step in range(args.steps):
        images = torch.randint(0, 256, (args.batch, 3, args.size, args.size), dtype=torch.uint8)
        images = images.to(device, non_blocking=True).float() / 255
        targets = []
        for stride in (8, 16, 32):
            cells = args.size // stride
            where = [torch.randint(0, n, (boxes,), device=device)
                     for n in (args.batch, 3, cells, cells)]  # fmt: skip
            box = torch.rand(boxes, 4, device=device)
            targets.append((*where, box, torch.randint(0, 80, (boxes,), device=device)))
        with torch.autocast(device.type, dtype=torch.float16):
            loss = criterion(model(images), targets) * args.batch
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
