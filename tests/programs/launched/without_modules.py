"""Scripts whose weights no module holds, or whose module is never called."""

import sys

import torch
from torch import nn

STEPS = 6
WIDTH = 2048


def numbers(device):
    x = torch.randn(512, WIDTH, device=device)
    return x, torch.randint(0, WIDTH, (512,), device=device)


def tensors(device, optimizer=None):
    first = torch.randn(WIDTH, WIDTH, device=device, requires_grad=True)
    second = torch.randn(WIDTH, WIDTH, device=device, requires_grad=True)
    bias = torch.zeros(WIDTH, device=device, requires_grad=True)
    weights = [first, second, bias]
    update = optimizer and optimizer(weights)
    for _ in range(STEPS):
        x, y = numbers(device)
        loss = nn.functional.cross_entropy((x @ first.T).relu() @ second.T + bias, y)
        loss.backward()
        if update:
            update.step()
            update.zero_grad()
            continue
        with torch.no_grad():
            for w in weights:
                w.sub_(0.01 * w.grad)
                w.grad = None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.second(self.first(x).relu())


def module(device, optimizer=torch.optim.Adam):
    net = Net().to(device)
    update = optimizer(net.parameters())
    for _ in range(STEPS):
        x, y = numbers(device)
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        update.step()
        update.zero_grad()


KINDS = {
    "by_hand": tensors,
    "adam": lambda device: tensors(device, torch.optim.Adam),
    "module": module,
}

if __name__ == "__main__":
    KINDS[sys.argv[1]]("cuda" if torch.cuda.is_available() else "cpu")
