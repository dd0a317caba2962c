"""A physics-informed network: Burgers' equation, derivatives by autograd, second order, in fp32."""

import argparse

import torch
from torch import nn


def mlp(width, depth):
    layers = [nn.Linear(2, width), nn.Tanh()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def residual(net, x, t):
    x.requires_grad_(True)
    t.requires_grad_(True)
    u = net(torch.cat([x, t], dim=1))
    ones = torch.ones_like(u)
    u_x = torch.autograd.grad(u, x, ones, create_graph=True)[0]
    u_t = torch.autograd.grad(u, t, ones, create_graph=True)[0]
    u_xx = torch.autograd.grad(u_x, x, torch.ones_like(u_x), create_graph=True)[0]
    return u_t + u * u_x - 0.01 / torch.pi * u_xx


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=20_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = mlp(args.width, args.depth).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(args.steps):
        x = torch.rand(args.points, 1, device=device) * 2 - 1
        t = torch.rand(args.points, 1, device=device)
        x0 = torch.rand(1_000, 1, device=device) * 2 - 1
        optimizer.zero_grad()
        inside = (residual(net, x, t) ** 2).mean()
        start = net(torch.cat([x0, torch.zeros_like(x0)], dim=1)) + torch.sin(torch.pi * x0)
        loss = inside + (start**2).mean()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
