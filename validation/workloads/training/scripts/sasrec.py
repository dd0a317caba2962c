"""Sequential recommendation: a causal transformer over items, one negative per position."""

import argparse

import torch
from torch import nn


class SASRec(nn.Module):
    def __init__(self, items, width, length, layers=2, heads=2):
        super().__init__()
        self.item = nn.Embedding(items + 1, width, padding_idx=0)
        self.position = nn.Embedding(length, width)
        self.drop = nn.Dropout(0.2)
        layer = nn.TransformerEncoderLayer(width, heads, width, 0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        mask = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
        self.register_buffer("mask", mask)

    def forward(self, sequence, positive, negative):
        places = torch.arange(sequence.shape[1], device=sequence.device)
        x = self.drop(self.item(sequence) + self.position(places))
        x = self.encoder(x, mask=self.mask)
        return (x * self.item(positive)).sum(-1), (x * self.item(negative)).sum(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--items", type=int, default=500000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--length", type=int, default=200)
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = SASRec(args.items, args.width, args.length).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
    criterion = nn.BCEWithLogitsLoss()
    shape = (args.batch, args.length)
    for step in range(args.steps):
        sequence, positive, negative = (
            torch.randint(1, args.items, shape).to(device) for _ in range(3)
        )
        yes, no = model(sequence, positive, negative)
        loss = criterion(yes, torch.ones_like(yes)) + criterion(no, torch.zeros_like(no))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
