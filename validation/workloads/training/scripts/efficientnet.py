"""EfficientNet-B0: inverted residuals with squeeze and excitation, stochastic depth, RMSprop."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

STAGES = [  # expansion, kernel, stride, outputs, layers
    (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1),
]  # fmt: skip


def conv(inputs, outputs, kernel=1, stride=1, groups=1, act=True):
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, momentum=0.01, eps=1e-3),
    ]
    return nn.Sequential(*layers, *([nn.SiLU(inplace=True)] if act else []))


class Squeeze(nn.Module):
    def __init__(self, width, squeezed):
        super().__init__()
        self.fc1 = nn.Conv2d(width, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, width, 1)

    def forward(self, x):
        scale = F.adaptive_avg_pool2d(x, 1)
        return x * torch.sigmoid(self.fc2(F.silu(self.fc1(scale))))


class MBConv(nn.Module):
    def __init__(self, inputs, outputs, expansion, kernel, stride, drop):
        super().__init__()
        width = inputs * expansion
        self.layers = nn.Sequential(
            *([conv(inputs, width)] if expansion > 1 else []),
            conv(width, width, kernel, stride, width),
            Squeeze(width, max(1, inputs // 4)),
            conv(width, outputs, act=False),
        )
        self.same, self.drop = stride == 1 and inputs == outputs, drop

    def forward(self, x):
        y = self.layers(x)
        if not self.same:
            return y
        if self.training and self.drop:
            keep = torch.empty(x.shape[0], 1, 1, 1, dtype=y.dtype, device=x.device)
            y = y * keep.bernoulli_(1 - self.drop).div_(1 - self.drop)
        return x + y


class EfficientNet(nn.Module):
    def __init__(self, classes=1000):
        super().__init__()
        blocks, inputs, total, index = [conv(3, 32, 3, 2)], 32, 16, 0
        for expansion, kernel, stride, outputs, layers in STAGES:
            for i in range(layers):
                drop = 0.2 * index / total
                blocks.append(MBConv(inputs, outputs, expansion, kernel, 1 if i else stride, drop))
                inputs, index = outputs, index + 1
        self.features = nn.Sequential(*blocks, conv(inputs, 1280))
        self.dropout = nn.Dropout(0.2)
        self.classifier = nn.Linear(1280, classes)

    def forward(self, x):
        x = F.adaptive_avg_pool2d(self.features(x), 1).flatten(1)
        return self.classifier(self.dropout(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    model = EfficientNet().to(device, memory_format=layout)
    optimizer = torch.optim.RMSprop(
        model.parameters(), lr=0.01, alpha=0.9, eps=1e-3, momentum=0.9, weight_decay=1e-5
    )
    scaler = torch.amp.GradScaler(device, enabled=args.fp16)
    images = torch.randn(args.batch, 3, args.size, args.size, device=device)
    images = images.to(memory_format=layout)
    labels = torch.randint(0, 1000, (args.batch,), device=device)
    for step in range(args.steps):
        with torch.autocast(device, dtype=torch.float16, enabled=args.fp16):
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
