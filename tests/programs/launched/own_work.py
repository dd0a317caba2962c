"""A step of a small network, with what a script may do beside it: EMA, waits, a scaler, copies."""

import copy
import sys

import torch
from torch import nn

WHAT = set(sys.argv[1:])
net = nn.Sequential(*(nn.Linear(256, 256) for _ in range(24))).cuda()
average = copy.deepcopy(net).requires_grad_(False)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled="scales" in WHAT)
there = torch.randn(64, 256, device="cuda")
for _ in range(10):
    x = torch.randn(64, 256).to("cuda") if "copies" in WHAT else there
    if "large" in WHAT:
        torch.randn(2**31, device="cuda").mul_(2)
    loss = net(x).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if "averages" in WHAT:
        with torch.no_grad():
            for old, new in zip(average.parameters(), net.parameters(), strict=True):
                old.lerp_(new, 0.001)
    if "shifts" in WHAT:
        shifted = there + 1
    if "asks" in WHAT:
        loss.item()
