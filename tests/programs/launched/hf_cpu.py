"""A small regression under accelerate on CPUs, whose losses are real."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for _ in range(3):
    for inputs, targets in loader:
        loss = (model(inputs) - targets).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    mean = accelerator.reduce(loss.detach(), "mean").item()
    each = accelerator.gather(loss.detach().reshape(1)).tolist()
    accelerator.print(f"{mean:.6f}", [round(value, 6) for value in each])
