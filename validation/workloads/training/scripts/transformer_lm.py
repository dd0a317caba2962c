"""A language model of ``nn.TransformerEncoder`` with a causal mask; the loss is read each step."""

import argparse
import math
import time

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, vocabulary, width, heads, depth, dropout=0.1):
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(1, 1024, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        x = self.embedding(tokens) * math.sqrt(self.width) + self.position[:, :length]
        return self.decoder(self.norm(self.encoder(x, mask=mask, is_causal=True)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Model(33278, args.width, args.width // 64, args.depth).to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    criterion = nn.CrossEntropyLoss()
    data = torch.randint(0, 33278, (args.batch, args.length * args.steps + 1)).to(device)
    total, start = 0.0, time.perf_counter()
    for step in range(args.steps):
        i = step * args.length
        tokens, targets = data[:, i : i + args.length], data[:, i + 1 : i + 1 + args.length]
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=args.bf16):
            output = model(tokens)
            loss = criterion(output.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        total += loss.item()
    rate = args.steps / (time.perf_counter() - start)
    print(f"loss {total / args.steps:.3f}, {rate:.2f} steps/s")


if __name__ == "__main__":
    main()
