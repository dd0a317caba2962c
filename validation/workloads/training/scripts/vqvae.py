"""VQ-VAE: residual encoder and decoder, nearest codes, the codebook follows by moving averages."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(), nn.Conv2d(width, hidden, 3, padding=1, bias=False),
            nn.ReLU(), nn.Conv2d(hidden, width, 1, bias=False),
        )  # fmt: skip

    def forward(self, x):
        return x + self.layers(x)


class Codes(nn.Module):
    def __init__(self, count, width, decay=0.99):
        super().__init__()
        self.count, self.decay = count, decay
        codes = torch.randn(count, width)
        self.register_buffer("codes", codes)
        self.register_buffer("sizes", torch.zeros(count))
        self.register_buffer("sums", codes.clone())

    def forward(self, z):
        flat = z.permute(0, 2, 3, 1).reshape(-1, z.shape[1])
        distance = (
            flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.codes.T + self.codes.pow(2).sum(1)
        )
        index = distance.argmin(1)
        chosen = F.one_hot(index, self.count).type(flat.dtype)
        quantized = F.embedding(index, self.codes).view(z.permute(0, 2, 3, 1).shape)
        quantized = quantized.permute(0, 3, 1, 2)
        if self.training:
            with torch.no_grad():
                self.sizes.mul_(self.decay).add_(chosen.sum(0), alpha=1 - self.decay)
                self.sums.mul_(self.decay).add_(chosen.T @ flat, alpha=1 - self.decay)
                total = self.sizes.sum()
                sizes = (self.sizes + 1e-5) / (total + self.count * 1e-5) * total
                self.codes.copy_(self.sums / sizes.unsqueeze(1))
        loss = F.mse_loss(z, quantized.detach())
        return z + (quantized - z).detach(), loss


class VQVAE(nn.Module):
    def __init__(self, width=128, codes=512, size=64):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width // 2, 4, 2, 1), nn.ReLU(), nn.Conv2d(width // 2, width, 4, 2, 1),
            nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1), Residual(width, 32), Residual(width, 32),
            nn.ReLU(), nn.Conv2d(width, size, 1),
        )  # fmt: skip
        self.codes = Codes(codes, size)
        self.decoder = nn.Sequential(
            nn.Conv2d(size, width, 3, 1, 1), Residual(width, 32), Residual(width, 32), nn.ReLU(),
            nn.ConvTranspose2d(width, width // 2, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(width // 2, 3, 4, 2, 1),
        )  # fmt: skip

    def forward(self, x):
        z, commitment = self.codes(self.encoder(x))
        return self.decoder(z), commitment


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = VQVAE().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    for step in range(args.steps):
        images = torch.rand(args.batch, 3, args.size, args.size).to(device)
        rebuilt, commitment = model(images)
        loss = F.mse_loss(rebuilt, images) + 0.25 * commitment
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
