"""A vocoder: HiFi-GAN's generator against discriminators of periods, mel spectrograms as a loss."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm


class ResBlock(nn.Module):
    def __init__(self, width, kernel, dilations=(1, 3, 5)):
        super().__init__()
        self.first = nn.ModuleList(
            weight_norm(nn.Conv1d(width, width, kernel, dilation=d, padding=(kernel - 1) * d // 2))
            for d in dilations
        )
        self.second = nn.ModuleList(
            weight_norm(nn.Conv1d(width, width, kernel, padding=kernel // 2)) for _ in dilations
        )

    def forward(self, x):
        for one, two in zip(self.first, self.second):
            x = x + two(F.leaky_relu(one(F.leaky_relu(x, 0.1)), 0.1))
        return x


class Generator(nn.Module):
    def __init__(self, width=512, rates=(8, 8, 2, 2), kernels=(3, 7, 11)):
        super().__init__()
        self.pre = weight_norm(nn.Conv1d(80, width, 7, padding=3))
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for i, rate in enumerate(rates):
            a, b = width >> i, width >> (i + 1)
            self.ups.append(
                weight_norm(nn.ConvTranspose1d(a, b, 2 * rate, rate, padding=rate // 2))
            )
            self.blocks.append(nn.ModuleList(ResBlock(b, k) for k in kernels))
        self.post = weight_norm(nn.Conv1d(width >> len(rates), 1, 7, padding=3))

    def forward(self, mel):
        x = self.pre(mel)
        for up, blocks in zip(self.ups, self.blocks):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.post(F.leaky_relu(x)))


class Period(nn.Module):
    def __init__(self, period):
        super().__init__()
        self.period = period
        sizes = [1, 32, 128, 512, 1024]
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), padding=(2, 0)))
            for a, b in zip(sizes, sizes[1:])
        )
        self.post = weight_norm(nn.Conv2d(1024, 1, (3, 1), padding=(1, 0)))

    def forward(self, x):
        short = -x.shape[-1] % self.period
        x = F.pad(x, (0, short), "reflect")
        x = x.view(x.shape[0], 1, -1, self.period)
        features = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
            features.append(x)
        return self.post(x).flatten(1), features


class Mel(nn.Module):
    def __init__(self, bands=80, size=1024, hop=256):
        super().__init__()
        self.size, self.hop = size, hop
        self.register_buffer("window", torch.hann_window(size))
        self.register_buffer("bank", torch.rand(bands, size // 2 + 1))

    def forward(self, wave):
        spectrum = torch.stft(
            wave, self.size, self.hop, window=self.window, center=True, return_complex=True
        )
        return torch.log(torch.clamp(self.bank @ spectrum.abs(), min=1e-5))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--frames", type=int, default=32)
    parser.add_argument("--steps", type=int, default=22)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    generator = Generator().to(device)
    critics = nn.ModuleList(Period(p) for p in (2, 3, 5, 7, 11)).to(device)
    mel = Mel().to(device)
    g = torch.optim.AdamW(generator.parameters(), 2e-4, betas=(0.8, 0.99))
    d = torch.optim.AdamW(critics.parameters(), 2e-4, betas=(0.8, 0.99))
    for step in range(args.steps):
        wave = torch.randn(args.batch, 1, args.frames * 256, device=device)
        target = mel(wave.squeeze(1))[..., : args.frames]
        fake = generator(target)
        d.zero_grad()
        loss = 0
        for critic in critics:
            loss = (
                loss + ((1 - critic(wave)[0]) ** 2).mean() + (critic(fake.detach())[0] ** 2).mean()
            )
        loss.backward()
        d.step()
        g.zero_grad()
        loss = 45 * F.l1_loss(mel(fake.squeeze(1))[..., : args.frames], target)
        for critic in critics:
            score, features = critic(fake)
            with torch.no_grad():
                wanted = critic(wave)[1]
            loss = loss + ((1 - score) ** 2).mean()
            loss = loss + 2 * sum(F.l1_loss(a, b) for a, b in zip(features, wanted))
        loss.backward()
        g.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
