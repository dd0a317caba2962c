"""A bidirectional LSTM that tags words, from a loader of packed-free, padded sentences."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self, count, length):
        self.count, self.length = count, length

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.randint(1, 50000, (self.length,)), torch.randint(0, 20, (self.length,))


class Tagger(nn.Module):
    def __init__(self, width=256, layers=2):
        super().__init__()
        self.embed = nn.Embedding(50000, 300, padding_idx=0)
        self.drop = nn.Dropout(0.3)
        self.lstm = nn.LSTM(300, width, layers, batch_first=True, bidirectional=True, dropout=0.3)
        self.out = nn.Linear(2 * width, 20)

    def forward(self, x):
        y, _ = self.lstm(self.drop(self.embed(x)))
        return self.out(self.drop(y))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=100)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(Sentences(args.batch * args.steps, args.length), batch_size=args.batch)
    model = Tagger(args.width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    right = seen = 0
    for words, tags in loader:
        words, tags = words.to(device), tags.to(device)
        optimizer.zero_grad()
        scores = model(words)
        loss = criterion(scores.view(-1, 20), tags.view(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        right += (scores.argmax(-1) == tags).sum().item()
        seen += tags.numel()
    print(f"loss {loss.item():.3f}, accuracy {right / seen:.3f}")


if __name__ == "__main__":
    main()
