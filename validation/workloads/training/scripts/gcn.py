"""A graph network on a whole graph: rows gathered along edges, added up at their ends."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x, source, target, weight):
        x = self.linear(x)
        messages = x[source] * weight[:, None]
        total = torch.zeros_like(x).index_add_(0, target, messages)
        return total + self.bias


class Graph(nn.Module):
    def __init__(self, inputs=128, width=256, classes=40, layers=3):
        super().__init__()
        sizes = [inputs, *[width] * (layers - 1), classes]
        self.layers = nn.ModuleList(Layer(a, b) for a, b in zip(sizes, sizes[1:]))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers - 1))

    def forward(self, x, source, target, weight):
        for layer, norm in zip(self.layers, self.norms):
            x = F.dropout(F.relu(norm(layer(x, source, target, weight))), 0.5, self.training)
        return self.layers[-1](x, source, target, weight)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=169343)
    parser.add_argument("--edges", type=int, default=1166243)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.randn(args.nodes, 128, device=device)
    source = torch.randint(0, args.nodes, (args.edges,), device=device)
    target = torch.randint(0, args.nodes, (args.edges,), device=device)
    weight = torch.rand(args.edges, device=device)
    labels = torch.randint(0, 40, (args.nodes,), device=device)
    train = torch.randperm(args.nodes, device=device)[: args.nodes // 2]
    model = Graph(width=args.width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(args.steps):
        model.train()
        optimizer.zero_grad()
        out = model(x, source, target, weight)
        loss = F.cross_entropy(out[train], labels[train])
        loss.backward()
        optimizer.step()
        if epoch % 10 == 0:
            print(f"epoch {epoch}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
