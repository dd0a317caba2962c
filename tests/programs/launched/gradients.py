"""What scripts do with gradients themselves, and policies that are distributions."""

import sys

import torch
from torch import nn

STEPS = 6
WIDTH = 2048


def policies(network, device):
    spread = nn.Parameter(torch.zeros(8, device=device))
    optimizer = torch.optim.Adam([*network.parameters(), spread])
    states = torch.randn(512, WIDTH, device=device)
    taken = torch.randint(0, 8, (512,), device=device)
    moved = torch.randn(512, 8, device=device)
    for _ in range(STEPS):
        choice = torch.distributions.Categorical(logits=network(states))
        loss = -choice.log_prob(taken).mean() - choice.entropy().mean()
        place = torch.distributions.Normal(0.0, spread.exp())
        loss = loss - place.log_prob(moved).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def by_hand(network, device):
    network.share_memory()
    x = torch.randn(512, WIDTH, device=device)
    for _ in range(STEPS):
        loss = network(x).square().mean()
        network.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in network.parameters():
                p.sub_(0.01 * p.grad)


def clipped(network, device, *, measured=True):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    x = torch.randn(512, WIDTH, device=device)
    for _ in range(STEPS):
        optimizer.zero_grad()
        network(x).square().mean().backward()
        if measured:
            norms = [p.grad.detach().norm() for p in network.parameters()]
            total = torch.stack(norms).norm()
            for p in network.parameters():
                p.grad.mul_(1.0 / (total + 1e-6))
        optimizer.step()


def plain(network, device):
    clipped(network, device, measured=False)


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(8)]
    globals()[sys.argv[1]](nn.Sequential(*layers, nn.Linear(WIDTH, 8)).to(device), device)
