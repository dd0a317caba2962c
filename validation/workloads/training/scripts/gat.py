"""Graph attention on a whole graph: scores of edges, softmax over neighbours by scatter."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class GAT(nn.Module):
    def __init__(self, inputs, outputs, heads):
        super().__init__()
        self.heads, self.outputs = heads, outputs
        self.linear = nn.Linear(inputs, heads * outputs, bias=False)
        self.source = nn.Parameter(torch.randn(1, heads, outputs) * 0.1)
        self.target = nn.Parameter(torch.randn(1, heads, outputs) * 0.1)
        self.bias = nn.Parameter(torch.zeros(heads * outputs))

    def forward(self, x, edges):
        n = len(x)
        h = self.linear(x).view(n, self.heads, self.outputs)
        a, b = (h * self.source).sum(-1), (h * self.target).sum(-1)
        score = F.leaky_relu(a[edges[0]] + b[edges[1]], 0.2)
        index = edges[1].unsqueeze(1).expand_as(score)
        top = torch.full((n, self.heads), -1e9, device=x.device)
        top = top.scatter_reduce(0, index, score, "amax").detach()
        weight = (score - top[edges[1]]).exp()
        total = torch.zeros(n, self.heads, device=x.device).index_add(0, edges[1], weight)
        weight = F.dropout(weight / (total[edges[1]] + 1e-16), 0.3, self.training)
        message = h[edges[0]] * weight.unsqueeze(-1)
        out = torch.zeros_like(h).index_add(0, edges[1], message)
        return out.flatten(1) + self.bias


class Net(nn.Module):
    def __init__(self, inputs, width, outputs, heads):
        super().__init__()
        self.one, self.two = GAT(inputs, width, heads), GAT(width * heads, outputs, 1)

    def forward(self, x, edges):
        x = F.elu(self.one(F.dropout(x, 0.5, self.training), edges))
        return self.two(F.dropout(x, 0.5, self.training), edges)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=60_000)
    parser.add_argument("--degree", type=int, default=16)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=25)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    edges = torch.randint(0, args.nodes, (2, args.nodes * args.degree), device=device)
    x = torch.randn(args.nodes, 256, device=device)
    y = torch.randint(0, 40, (args.nodes,), device=device)
    known = torch.rand(args.nodes, device=device) < 0.5
    model = Net(256, args.width, 40, args.heads).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    for epoch in range(args.epochs):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, edges)[known], y[known])
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
