"""A residual network as a LightningModule; flags are the Trainer's."""

import argparse

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.ModuleList(Residual(width) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Regression(pl.LightningModule):
    def __init__(self, width=1024, depth=4, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = Net(width, depth)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        return {
            "optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}
        }  # fmt: skip


class Numbers(pl.LightningDataModule):
    def __init__(self, samples, width, batch_size):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage):
        x = torch.randn(self.hparams.samples, self.hparams.width)
        self.data = torch.utils.data.TensorDataset(x, x)

    def _loader(self, shuffle):
        return torch.utils.data.DataLoader(
            self.data, batch_size=self.hparams.batch_size, shuffle=shuffle
        )

    def train_dataloader(self):
        return self._loader(shuffle=True)

    def val_dataloader(self):
        return self._loader(shuffle=False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accelerator", default="gpu")
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--strategy", default="ddp")
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--clip", type=float)
    parser.add_argument("--clip_by", default="norm")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--bar", action="store_true")
    parser.add_argument("--save", default="")
    parser.add_argument("--resume")
    args = parser.parse_args()
    callbacks = [LearningRateMonitor()] if args.save else []
    if args.save:
        callbacks.append(ModelCheckpoint(args.save, monitor="val_loss", save_last=True))
    trainer = pl.Trainer(
        accelerator=args.accelerator, devices=args.devices, num_nodes=args.nodes,
        strategy=args.strategy, precision=args.precision, max_steps=args.steps,
        accumulate_grad_batches=args.accumulate, gradient_clip_val=args.clip,
        gradient_clip_algorithm=args.clip_by, callbacks=callbacks,
        logger=CSVLogger(args.save) if args.save else False,
        enable_checkpointing=bool(args.save), enable_progress_bar=args.bar,
        enable_model_summary=False, log_every_n_steps=1,
    )  # fmt: skip
    model = Regression(args.width)
    numbers = Numbers(args.samples, args.width, args.batch)
    trainer.fit(model, numbers, ckpt_path=args.resume)
    lr = f"{trainer.optimizers[0].param_groups[0]['lr']:.0e}"
    kind = type(trainer.strategy.model).__name__
    trainer.print(
        trainer.global_step, trainer.world_size, kind, lr, sorted(trainer.callback_metrics)
    )


if __name__ == "__main__":
    main()
