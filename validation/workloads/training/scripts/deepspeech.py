"""Speech recognition: two convolutions, bidirectional GRUs, CTC, in fp32."""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


class Recognizer(nn.Module):
    def __init__(self, features=128, width=512, layers=4, symbols=29):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, 3, 2, padding=1), nn.GELU(), nn.Conv2d(32, 32, 3, padding=1), nn.GELU()
        )
        self.fc = nn.Linear(32 * features // 2, width)
        self.rnn = nn.GRU(width, width, layers, batch_first=True, bidirectional=True, dropout=0.1)
        self.out = nn.Sequential(
            nn.Linear(2 * width, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, symbols)
        )

    def forward(self, x):
        x = self.conv(x)
        x = x.flatten(1, 2).transpose(1, 2)
        x, _ = self.rnn(self.fc(x))
        return F.log_softmax(self.out(x), dim=2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--frames", type=int, default=800)
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Recognizer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    criterion = nn.CTCLoss(blank=28).to(device)
    spectrograms = torch.randn(args.batch, 1, 128, args.frames, device=device)
    labels = torch.randint(0, 28, (args.batch, 100), device=device)
    input_lengths = torch.full((args.batch,), args.frames // 2, dtype=torch.long)
    label_lengths = torch.full((args.batch,), 100, dtype=torch.long)
    start = time.perf_counter()
    for step in range(args.steps):
        optimizer.zero_grad()
        output = model(spectrograms).transpose(0, 1)
        loss = criterion(output, labels, input_lengths, label_lengths)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}, {args.steps / (time.perf_counter() - start):.2f} steps/s")


if __name__ == "__main__":
    main()
