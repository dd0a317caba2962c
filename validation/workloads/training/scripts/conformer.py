"""A Conformer encoder for speech with a CTC loss: half-step feed-forwards, attention, convolution."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class FeedForward(nn.Sequential):
    def __init__(self, d):
        super().__init__(
            nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.SiLU(), nn.Dropout(0.1),
            nn.Linear(4 * d, d), nn.Dropout(0.1),
        )  # fmt: skip


class Convolution(nn.Module):
    def __init__(self, d, kernel=31):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.inner = nn.Conv1d(d, 2 * d, 1)
        self.depth = nn.Conv1d(d, d, kernel, padding=kernel // 2, groups=d)
        self.bn = nn.BatchNorm1d(d)
        self.outer = nn.Conv1d(d, d, 1)

    def forward(self, x):
        x = F.glu(self.inner(self.norm(x).transpose(1, 2)), dim=1)
        return self.outer(F.silu(self.bn(self.depth(x)))).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.ff1, self.ff2 = FeedForward(d), FeedForward(d)
        self.norm = nn.LayerNorm(d)
        self.attention = nn.MultiheadAttention(d, heads, dropout=0.1, batch_first=True)
        self.conv = Convolution(d)
        self.last = nn.LayerNorm(d)

    def forward(self, x):
        x = x + 0.5 * self.ff1(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.conv(x)
        return self.last(x + 0.5 * self.ff2(x))


class Conformer(nn.Module):
    def __init__(self, d=256, layers=16, heads=4, tokens=1000):
        super().__init__()
        self.sub = nn.Sequential(
            nn.Conv2d(1, d, 3, 2), nn.ReLU(), nn.Conv2d(d, d, 3, 2), nn.ReLU()
        )
        self.inside = nn.Linear(d * 19, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.out = nn.Linear(d, tokens)

    def forward(self, x):
        x = self.sub(x.unsqueeze(1))
        b, c, t, f = x.shape
        x = self.inside(x.transpose(1, 2).reshape(b, t, c * f))
        for block in self.blocks:
            x = block(x)
        return self.out(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--frames", type=int, default=1200)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Conformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ctc = nn.CTCLoss(zero_infinity=True)
    for step in range(args.steps):
        x = torch.randn(args.batch, args.frames, 80, device=device)
        targets = torch.randint(1, 1000, (args.batch, 60), device=device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=args.bf16):
            logits = model(x)
        logp = logits.float().log_softmax(-1).transpose(0, 1)
        lengths = torch.full((args.batch,), logp.shape[0], dtype=torch.long)
        sizes = torch.full((args.batch,), 60, dtype=torch.long)
        loss = ctc(logp, targets, lengths, sizes)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
