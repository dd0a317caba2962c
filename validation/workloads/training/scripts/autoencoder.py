"""A convolutional autoencoder under PyTorch Lightning, bf16-mixed."""

import argparse
import time

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F


class Images(torch.utils.data.Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return torch.zeros(3, 128, 128)


class Autoencoder(L.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        w = width
        self.encoder = nn.Sequential(
            nn.Conv2d(3, w, 3, 2, 1), nn.GELU(), nn.Conv2d(w, w, 3, 1, 1), nn.GELU(),
            nn.Conv2d(w, 2 * w, 3, 2, 1), nn.GELU(), nn.Conv2d(2 * w, 2 * w, 3, 1, 1), nn.GELU(),
            nn.Conv2d(2 * w, 2 * w, 3, 2, 1), nn.GELU(), nn.Flatten(),
            nn.Linear(2 * 16 * 16 * w, 384),
        )  # fmt: skip
        self.linear = nn.Sequential(nn.Linear(384, 2 * 16 * 16 * w), nn.GELU())
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(2 * w, 2 * w, 3, 2, 1, 1), nn.GELU(),
            nn.Conv2d(2 * w, 2 * w, 3, 1, 1), nn.GELU(),
            nn.ConvTranspose2d(2 * w, w, 3, 2, 1, 1), nn.GELU(),
            nn.Conv2d(w, w, 3, 1, 1), nn.GELU(),
            nn.ConvTranspose2d(w, 3, 3, 2, 1, 1), nn.Tanh(),
        )  # fmt: skip
        self.width = w

    def training_step(self, batch, index):
        z = self.linear(self.encoder(batch))
        y = self.decoder(z.reshape(z.shape[0], 2 * self.width, 16, 16))
        loss = F.mse_loss(y, batch)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    loader = torch.utils.data.DataLoader(Images(args.batch * args.steps), batch_size=args.batch)
    trainer = L.Trainer(
        max_steps=args.steps,
        accelerator="auto",
        devices=1,
        precision="bf16-mixed",
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    start = time.perf_counter()
    trainer.fit(Autoencoder(), loader)
    print(f"{args.steps / (time.perf_counter() - start):.2f} steps/s")


if __name__ == "__main__":
    main()
