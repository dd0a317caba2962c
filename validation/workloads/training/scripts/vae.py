"""A convolutional variational autoencoder in fp32, with noise drawn on the GPU."""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self, latent=256, widths=(64, 128, 256, 512)):
        super().__init__()
        layers, inputs = [], 3
        for width in widths:
            layers += [nn.Conv2d(inputs, width, 3, 2, 1), nn.BatchNorm2d(width), nn.LeakyReLU()]
            inputs = width
        self.encoder = nn.Sequential(*layers, nn.Flatten())
        self.mean, self.log_var = nn.Linear(512 * 16, latent), nn.Linear(512 * 16, latent)
        self.start = nn.Linear(latent, 512 * 16)
        layers = []
        for width in (*reversed(widths[:-1]), 64):
            layers += [
                nn.ConvTranspose2d(inputs, width, 3, 2, 1, 1),
                nn.BatchNorm2d(width),
                nn.LeakyReLU(),
            ]
            inputs = width
        self.decoder = nn.Sequential(*layers, nn.Conv2d(inputs, 3, 3, padding=1), nn.Tanh())

    def forward(self, x):
        h = self.encoder(x)
        mean, log_var = self.mean(h), self.log_var(h)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_var)
        return self.decoder(self.start(z).view(-1, 512, 4, 4)), mean, log_var


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=144)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = VAE().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    images = torch.rand(args.batch, 3, 64, 64, device=device) * 2 - 1
    start = time.perf_counter()
    for step in range(args.steps):
        made, mean, log_var = model(images)
        divergence = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(dim=1).mean()
        loss = F.mse_loss(made, images) + 0.00025 * divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}, {args.steps / (time.perf_counter() - start):.2f} steps/s")


if __name__ == "__main__":
    main()
