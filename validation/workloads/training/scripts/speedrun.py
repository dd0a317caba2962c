"""A GPT in the manner of speed-runs: Muon for matrices, AdamW for the rest, rotary, ReLU squared."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = (
            nn.Linear(width, 4 * width, bias=False),
            nn.Linear(4 * width, width, bias=False),
        )

    def forward(self, x, cos, sin):
        b, t, w = x.shape
        q, k, v = self.qkv(F.rms_norm(x, (w,))).view(b, t, 3, self.heads, -1).unbind(2)
        q, k = F.rms_norm(q, (q.shape[-1],)), F.rms_norm(k, (k.shape[-1],))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        x = x + self.out(y.transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.relu(self.up(F.rms_norm(x, (w,)))).square())


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos + b * sin, b * cos - a * sin), -1).type_as(x)


class GPT(nn.Module):
    def __init__(self, words, width, depth, heads, length):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, words, bias=False)
        size = width // heads
        angle = torch.outer(torch.arange(length), 1e4 ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("cos", angle.cos()[None, :, None], persistent=False)
        self.register_buffer("sin", angle.sin()[None, :, None], persistent=False)

    def forward(self, words, targets):
        x = F.rms_norm(self.embed(words), (self.embed.embedding_dim,))
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(F.rms_norm(x, (x.shape[-1],))).float()
        logits = 15 * torch.tanh(logits / 15)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--steps", type=int, default=22)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = GPT(50_304, args.width, args.depth, args.heads, args.length).to(device).bfloat16()
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    others = [*model.embed.parameters(), *model.head.parameters()]
    optimizers = [
        torch.optim.Muon(matrices, lr=0.02, momentum=0.95),
        torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), fused=True),
    ]
    run = torch.compile(model) if args.compile else model
    for step in range(args.steps):
        words = torch.randint(0, 50_304, (args.batch, args.length + 1), device=device)
        loss = run(words[:, :-1], words[:, 1:])
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
