"""MobileNetV2 on synthetic images: depthwise convolutions, RMSprop, label smoothing."""

import argparse
import time

import torch
from torch import nn


def conv_bn(inputs, outputs, kernel, stride=1, groups=1, act=True):
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, nn.ReLU6(inplace=True)) if act else nn.Sequential(*layers)


class Inverted(nn.Module):
    def __init__(self, inputs, outputs, stride, expand):
        super().__init__()
        hidden = inputs * expand
        layers = [conv_bn(inputs, hidden, 1)] if expand != 1 else []
        layers += [
            conv_bn(hidden, hidden, 3, stride, groups=hidden),
            conv_bn(hidden, outputs, 1, act=False),
        ]
        self.layers = nn.Sequential(*layers)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.layers(x) if self.adds else self.layers(x)


class MobileNet(nn.Module):
    def __init__(self, classes=1000):
        super().__init__()
        blocks, inputs = [conv_bn(3, 32, 3, 2)], 32
        for expand, outputs, n, stride in (
            (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
            (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
        ):  # fmt: skip
            for i in range(n):
                blocks.append(Inverted(inputs, outputs, stride if i == 0 else 1, expand))
                inputs = outputs
        self.features = nn.Sequential(*blocks, conv_bn(inputs, 1280, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, x):
        return self.classifier(self.features(x).mean([2, 3]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = MobileNet().to(device)
    images = torch.randn(args.batch, 3, 224, 224, device=device)
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (args.batch,), device=device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.RMSprop(
        model.parameters(), lr=0.045, alpha=0.9, momentum=0.9, weight_decay=4e-5
    )
    start = time.perf_counter()
    for step in range(args.steps):
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=args.bf16):
            loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}, {args.steps / (time.perf_counter() - start):.2f} steps/s")


if __name__ == "__main__":
    main()
