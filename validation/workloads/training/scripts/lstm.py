"""A word-level LSTM language model, truncated backpropagation, Adam."""

import argparse
import time

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, vocabulary=33278, width=650, layers=2, dropout=0.5):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, layers, dropout=dropout)
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, tokens, hidden):
        out, hidden = self.rnn(self.drop(self.encoder(tokens)), hidden)
        return self.decoder(self.drop(out)), hidden


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--bptt", type=int, default=70)
    parser.add_argument("--width", type=int, default=650)
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Model(width=args.width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    data = torch.randint(0, 33278, (args.bptt * args.steps + 1, args.batch), device=device)
    hidden = tuple(torch.zeros(2, args.batch, args.width, device=device) for _ in range(2))
    start = time.perf_counter()
    for step in range(args.steps):
        i = step * args.bptt
        tokens, targets = data[i : i + args.bptt], data[i + 1 : i + 1 + args.bptt].reshape(-1)
        hidden = tuple(h.detach() for h in hidden)
        optimizer.zero_grad()
        output, hidden = model(tokens, hidden)
        loss = criterion(output.view(-1, output.size(-1)), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
    print(f"loss {loss.item():.3f}, {args.steps / (time.perf_counter() - start):.2f} steps/s")


if __name__ == "__main__":
    main()
