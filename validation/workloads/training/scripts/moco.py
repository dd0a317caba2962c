"""MoCo v2: a query and a slowly following key encoder, a queue of 65,536 keys, ResNet-50, bf16."""

import argparse
import copy

import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models import resnet50


class MoCo(nn.Module):
    def __init__(self, width=128, keys=65_536, momentum=0.999, temperature=0.2):
        super().__init__()
        self.momentum, self.temperature, self.keys = momentum, temperature, keys
        self.query = resnet50(num_classes=width)
        self.query.fc = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), self.query.fc)
        self.key = copy.deepcopy(self.query)
        for p in self.key.parameters():
            p.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(width, keys), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def follow(self):
        for a, b in zip(self.query.parameters(), self.key.parameters()):
            b.data = b.data * self.momentum + a.data * (1.0 - self.momentum)

    @torch.no_grad()
    def enqueue(self, keys):
        start = int(self.pointer)
        self.queue[:, start : start + len(keys)] = keys.T
        self.pointer[0] = (start + len(keys)) % self.keys

    def forward(self, one, other):
        q = F.normalize(self.query(one), dim=1)
        with torch.no_grad():
            self.follow()
            order = torch.randperm(len(other), device=other.device)
            k = F.normalize(self.key(other[order]), dim=1)[torch.argsort(order)]
        positive = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
        logits = torch.cat([positive, negative], dim=1) / self.temperature
        labels = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
        self.enqueue(k.float())
        return logits, labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=22)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = MoCo().to(device)
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.03, momentum=0.9, weight_decay=1e-4
    )
    criterion = nn.CrossEntropyLoss().to(device)
    for step in range(args.steps):
        one, other = (torch.randn(args.batch, 3, 224, 224, device=device) for _ in range(2))
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits, labels = model(one, other)
            loss = criterion(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
