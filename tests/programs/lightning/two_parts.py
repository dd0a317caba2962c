"""Lightning's first example, an encoder and a decoder, told apart or not; by hand or not."""

import argparse

import lightning as pl
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torchmetrics import MeanSquaredError
from torchmetrics.classification import MulticlassAccuracy


class Both(nn.Module):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, x):
        return self.decoder(self.encoder(x))


class Recomputed(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


class AutoEncoder(pl.LightningModule):
    def __init__(self, args):
        super().__init__()
        self.save_hyperparameters(vars(args))
        self.automatic_optimization = not args.by_hand
        encoder = nn.Sequential(nn.Linear(784, 16384), nn.ReLU(), nn.Linear(16384, 64))
        decoder = nn.Sequential(nn.Linear(64, 16384), nn.ReLU(), nn.Linear(16384, 784))
        self.both = Both(encoder, Recomputed(decoder) if args.recompute else decoder)
        self.error, self.accuracy = MeanSquaredError(), MulticlassAccuracy(num_classes=10)
        self.seen = 0

    def rebuilt(self, x):
        return self.both(x) if self.hparams.whole else self.both.decoder(self.both.encoder(x))

    def training_step(self, batch, batch_idx):
        x = batch[0].view(batch[0].size(0), -1)
        self.seen += 1
        loss = nn.functional.mse_loss(self.rebuilt(x), x)
        self.log("loss", loss, sync_dist=True)
        if not self.hparams.by_hand:
            return {"loss": loss}
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return None

    def validation_step(self, batch, batch_idx):
        x = batch[0].view(batch[0].size(0), -1)
        found = self.rebuilt(x)
        self.error(found, x)
        self.accuracy(found[:, :10], batch[1])
        self.log_dict({"error": self.error, "accuracy": self.accuracy})

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 1024

    def __getitem__(self, index):
        return torch.randn(1, 28, 28), index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--by_hand", action="store_true")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--strategy", default="ddp")
    args = parser.parse_args()
    trainer = pl.Trainer(
        max_epochs=2, accelerator="gpu", devices=2, strategy=args.strategy, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    model = AutoEncoder(args)
    images = torch.utils.data.DataLoader(Images(), batch_size=64)
    trainer.fit(model, images, images)
    trainer.print(trainer.global_step, model.seen, sorted(trainer.callback_metrics))


if __name__ == "__main__":
    main()
