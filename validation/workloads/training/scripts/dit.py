"""A diffusion transformer on latents: adaptive layer norms, bf16, moving average of weights."""

import argparse
import copy
import math

import torch
from torch import nn
from torch.nn import functional as F


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(b, n, c))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, c):
        a, b, g, d, e, h = self.modulation(c).chunk(6, dim=1)
        x = x + g.unsqueeze(1) * self.attention(modulate(self.norm1(x), a, b))
        return x + h.unsqueeze(1) * self.mlp(modulate(self.norm2(x), d, e))


class DiT(nn.Module):
    def __init__(self, size=32, patch=2, width=768, depth=12, heads=12, classes=1000):
        super().__init__()
        self.patch = nn.Conv2d(4, width, patch, patch)
        self.position = nn.Parameter(torch.zeros(1, (size // patch) ** 2, width))
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(classes + 1, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.last = nn.Linear(width, patch * patch * 8)

    def forward(self, x, t, y):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.position
        waves = torch.exp(-math.log(10000) * torch.arange(128, device=t.device) / 128)
        angles = t[:, None].float() * waves[None]
        c = self.time(torch.cat([angles.cos(), angles.sin()], dim=-1)) + self.label(y)
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.modulation(c).chunk(2, dim=1)
        return self.last(modulate(self.norm(x), shift, scale))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--fp32", action="store_true")
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = DiT(width=args.width, depth=args.depth, heads=args.heads).to(device)
    ema = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0)
    for step in range(args.steps):
        x = torch.randn(args.batch, 4, 32, 32, device=device)
        t = torch.randint(0, 1000, (args.batch,), device=device)
        y = torch.randint(0, 1000, (args.batch,), device=device)
        noise = torch.randn_like(x)
        alpha = torch.cos(t.float() / 1000 * math.pi / 2).view(-1, 1, 1, 1)
        noisy = alpha * x + (1 - alpha**2).sqrt() * noise
        with torch.autocast(device, dtype=torch.bfloat16, enabled=not args.fp32):
            out = model(noisy, t, y)
        target = F.unfold(noise, 2, stride=2).transpose(1, 2)
        loss = F.mse_loss(out[..., :16].float(), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, value in zip(ema.parameters(), model.parameters()):
                mean.mul_(0.9999).add_(value, alpha=1e-4)
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
