"""Each rank that Lightning starts writes what it finds, and what it has learnt."""

import json
import os
import sys
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping
from pytorch_lightning.utilities import rank_zero_only
from torch.utils.data import DataLoader, TensorDataset


class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(8, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.line(x), y)
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.line(x), y), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@rank_zero_only
def said_by_one(trainer):
    print(f"{trainer.world_size} ranks, epoch {trainer.current_epoch}")


def main():
    pl.seed_everything(7)
    x = torch.randn(64, 8)
    data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=3, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[EarlyStopping("val_loss", patience=1, min_delta=10.0)],
    )  # fmt: skip
    model = Line()
    trainer.fit(model, data, data)
    said_by_one(trainer)
    found = {
        "argv": sys.argv, "name": __name__, "environ": dict(os.environ),
        "rank": trainer.global_rank, "weights": [p.tolist() for p in model.parameters()],
        "metrics": {k: v.item() for k, v in trainer.callback_metrics.items()},
    }  # fmt: skip
    Path(os.environ["SEEN"], f"{trainer.global_rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
