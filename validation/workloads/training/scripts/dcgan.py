"""DCGAN: a generator and a discriminator of 64 x 64 images, each with an Adam of its own."""

import argparse

import torch
from torch import nn


def generator(noise, width):
    layers, sizes = [], [width * 8, width * 4, width * 2, width]
    layers += [nn.ConvTranspose2d(noise, sizes[0], 4, 1, 0, bias=False)]
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.BatchNorm2d(a), nn.ReLU(True), nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False)]
    layers += [nn.BatchNorm2d(width), nn.ReLU(True)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())


def discriminator(width):
    layers = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
    for i in range(3):
        a, b = width << i, width << (i + 1)
        layers += [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b)]
        layers += [nn.LeakyReLU(0.2, inplace=True)]
    return nn.Sequential(*layers, nn.Conv2d(width * 8, 1, 4, 1, 0, bias=False), nn.Sigmoid())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net_g = generator(100, args.width).to(device)
    net_d = discriminator(args.width).to(device)
    criterion = nn.BCELoss()
    opt_d = torch.optim.Adam(net_d.parameters(), lr=2e-4, betas=(0.5, 0.999))
    opt_g = torch.optim.Adam(net_g.parameters(), lr=2e-4, betas=(0.5, 0.999))
    images = torch.utils.data.TensorDataset(torch.randn(args.batch * 10, 3, 64, 64))
    loader = torch.utils.data.DataLoader(images, batch_size=args.batch, shuffle=True)
    step = 0
    while step < args.steps:
        for (real,) in loader:
            net_d.zero_grad()
            real = real.to(device)
            label = torch.full((real.size(0),), 1.0, device=device)
            error_real = criterion(net_d(real).view(-1), label)
            error_real.backward()
            noise = torch.randn(real.size(0), 100, 1, 1, device=device)
            fake = net_g(noise)
            label.fill_(0.0)
            error_fake = criterion(net_d(fake.detach()).view(-1), label)
            error_fake.backward()
            opt_d.step()
            net_g.zero_grad()
            label.fill_(1.0)
            error_g = criterion(net_d(fake).view(-1), label)
            error_g.backward()
            opt_g.step()
            step += 1
    print(f"loss D {(error_real + error_fake).item():.3f}, G {error_g.item():.3f}")


if __name__ == "__main__":
    main()
