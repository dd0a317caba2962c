"""Fast style transfer: an image network trained on the features of a frozen VGG-16."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models import vgg16


class Conv(nn.Sequential):
    def __init__(self, a, b, kernel, stride=1, up=False, act=True):
        layers = [nn.Upsample(scale_factor=2, mode="nearest")] if up else []
        layers += [nn.ReflectionPad2d(kernel // 2), nn.Conv2d(a, b, kernel, stride)]
        if act:
            layers += [nn.InstanceNorm2d(b, affine=True), nn.ReLU()]
        super().__init__(*layers)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = Conv(width, width, 3), Conv(width, width, 3, act=False)
        self.norm = nn.InstanceNorm2d(width, affine=True)

    def forward(self, x):
        return x + self.norm(self.two(self.one(x)))


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = vgg16(weights=None).features[:23].eval()
        for p in self.parameters():
            p.requires_grad = False

    def forward(self, x):
        found = []
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i in (3, 8, 15, 22):
                found.append(x)
        return found


def gram(x):
    b, c, h, w = x.shape
    f = x.view(b, c, h * w)
    return f.bmm(f.transpose(1, 2)) / (c * h * w)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--steps", type=int, default=22)
    args = parser.parse_args()
    if args.tf32:
        torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = nn.Sequential(
        Conv(3, 32, 9), Conv(32, 64, 3, 2), Conv(64, 128, 3, 2), *[Residual(128) for _ in range(5)],
        Conv(128, 64, 3, up=True), Conv(64, 32, 3, up=True), Conv(32, 3, 9, act=False),
    ).to(device)  # fmt: skip
    vgg = Features().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    picture = torch.rand(1, 3, args.size, args.size, device=device)
    wanted = [gram(f) for f in vgg(picture.repeat(args.batch, 1, 1, 1))]
    for step in range(args.steps):
        x = torch.rand(args.batch, 3, args.size, args.size, device=device)
        optimizer.zero_grad()
        y = net(x)
        ours, theirs = vgg(y), vgg(x)
        loss = 1e5 * F.mse_loss(ours[1], theirs[1])
        for f, g in zip(ours, wanted):
            loss = loss + 1e10 * F.mse_loss(gram(f), g)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
