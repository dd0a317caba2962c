"""A 3-D residual network on clips of 16 frames: SGD, bf16 or single precision."""

import argparse

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv3d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm3d(outputs)
        self.conv2 = nn.Conv3d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm3d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.skip = None
        if stride != 1:
            self.skip = nn.Sequential(
                nn.Conv3d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm3d(outputs)
            )

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.skip is None else self.skip(x)))


class R3D(nn.Module):
    def __init__(self, classes=400):
        super().__init__()
        layers = [
            nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False),
            nn.BatchNorm3d(64),
            nn.ReLU(inplace=True),
        ]
        inputs = 64
        for i in range(4):
            outputs = 64 << i
            layers += [Block(inputs, outputs, 2 if i else 1), Block(outputs, outputs, 1)]
            inputs = outputs
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool3d(1)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        return self.fc(self.pool(self.features(x)).flatten(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = R3D().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    clips = torch.randn(args.batch, 3, 16, 112, 112, device=device)
    labels = torch.randint(0, 400, (args.batch,), device=device)
    for step in range(args.steps):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=args.bf16):
            loss = criterion(model(clips), labels)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
