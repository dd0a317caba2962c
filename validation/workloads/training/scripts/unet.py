"""A denoising U-Net (DDPM): residual blocks with group norm, attention at low resolution, EMA."""

import argparse
import copy
import math
import time

import torch
from torch import nn
from torch.nn import functional as F


def timestep_embedding(steps, width):
    half = width // 2
    rates = torch.exp(-math.log(10000) * torch.arange(half, device=steps.device) / half)
    angles = steps[:, None].float() * rates[None]
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class ResBlock(nn.Module):
    def __init__(self, inputs, outputs, time_width, dropout=0.1):
        super().__init__()
        self.norm1 = nn.GroupNorm(32, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time_width, outputs)
        self.norm2 = nn.GroupNorm(32, outputs)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(emb))[:, :, None, None]
        h = self.conv2(self.dropout(F.silu(self.norm2(h))))
        return h + self.skip(x)


class Attention(nn.Module):
    def __init__(self, channels, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(32, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        qkv = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w)
        q, k, v = qkv.transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, width=128, factors=(1, 2, 2, 4), blocks=2, attend=(2, 3)):
        super().__init__()
        time_width = 4 * width
        self.width = width
        self.time = nn.Sequential(
            nn.Linear(width, time_width), nn.SiLU(), nn.Linear(time_width, time_width)
        )
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.up, skips, channels = nn.ModuleList(), nn.ModuleList(), [width], width
        for level, factor in enumerate(factors):
            for _ in range(blocks):
                layers = [ResBlock(channels, width * factor, time_width)]
                channels = width * factor
                if level in attend:
                    layers.append(Attention(channels))
                self.down.append(nn.ModuleList(layers))
                skips.append(channels)
            if level < len(factors) - 1:
                self.down.append(nn.ModuleList([nn.Conv2d(channels, channels, 3, 2, padding=1)]))
                skips.append(channels)
        self.middle = nn.ModuleList(
            [
                ResBlock(channels, channels, time_width),
                Attention(channels),
                ResBlock(channels, channels, time_width),
            ]
        )
        for level, factor in reversed(list(enumerate(factors))):
            for i in range(blocks + 1):
                layers = [ResBlock(channels + skips.pop(), width * factor, time_width)]
                channels = width * factor
                if level in attend:
                    layers.append(Attention(channels))
                if level and i == blocks:
                    layers.append(nn.Upsample(scale_factor=2, mode="nearest"))
                    layers.append(nn.Conv2d(channels, channels, 3, padding=1))
                self.up.append(nn.ModuleList(layers))
        self.norm = nn.GroupNorm(32, channels)
        self.last = nn.Conv2d(channels, 3, 3, padding=1)

    def run(self, layers, x, emb):
        for layer in layers:
            x = layer(x, emb) if isinstance(layer, ResBlock) else layer(x)
        return x

    def forward(self, x, steps):
        emb = self.time(timestep_embedding(steps, self.width))
        x = self.first(x)
        skips = [x]
        for layers in self.down:
            x = self.run(layers, x, emb)
            skips.append(x)
        x = self.run(self.middle, x, emb)
        for layers in self.up:
            x = self.run(layers, torch.cat([x, skips.pop()], dim=1), emb)
        return self.last(F.silu(self.norm(x)))


@torch.no_grad()
def update_ema(ema, model, decay=0.9999):
    for old, new in zip(ema.parameters(), model.parameters()):
        old.mul_(decay).add_(new, alpha=1 - decay)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = UNet().to(device)
    ema = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    betas = torch.linspace(1e-4, 0.02, 1000, device=device)
    alphas = torch.cumprod(1 - betas, dim=0)
    start = time.perf_counter()
    for step in range(args.steps):
        images = torch.randn(args.batch, 3, args.size, args.size, device=device)
        noise = torch.randn_like(images)
        steps = torch.randint(0, 1000, (args.batch,), device=device)
        a = alphas[steps].view(-1, 1, 1, 1)
        noisy = a.sqrt() * images + (1 - a).sqrt() * noise
        with torch.autocast(device, dtype=torch.bfloat16, enabled=args.bf16):
            loss = F.mse_loss(model(noisy, steps), noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        update_ema(ema, model)
    print(f"loss {loss.item():.3f}, {args.steps / (time.perf_counter() - start):.2f} steps/s")


if __name__ == "__main__":
    main()
