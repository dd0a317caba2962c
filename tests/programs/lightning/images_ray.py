"""An image classifier under Ray Train, as its guide for Lightning has it; images are synthetic."""

import argparse
from pathlib import Path

import lightning.pytorch as pl
import ray
import ray.train.lightning
import torch
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return torch.randn(1, 28, 28), torch.randint(0, 10, ())


class FailsOnce(pl.Callback):
    def __init__(self, told):
        self.told = Path(told)

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 1 and trainer.global_rank == 0 and not self.told.exists():
            self.told.touch()
            raise RuntimeError("once")


class ImageClassifier(pl.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(
            nn.Conv2d(1, width, 5, padding=2), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(width * 49, 10),
        )  # fmt: skip
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = self.criterion(self.forward(x), y)
        self.log("loss", loss, on_step=True, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.log("val_loss", self.criterion(logits, y), sync_dist=True)
        self.log("val_accuracy", (logits.argmax(1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.model.parameters(), lr=0.001)


def train_func(config):
    train = DataLoader(Images(config["samples"]), batch_size=config["batch"], shuffle=True)
    val = DataLoader(Images(config["samples"] // 8), batch_size=config["batch"])
    strategy = getattr(ray.train.lightning, config["strategy"])()
    trainer = pl.Trainer(
        max_epochs=config["epochs"], devices="auto", accelerator="auto", strategy=strategy,
        plugins=[ray.train.lightning.RayLightningEnvironment()],
        callbacks=[
            ray.train.lightning.RayTrainReportCallback(),
            *([FailsOnce(config["fails_once"])] if config["fails_once"] else []),
        ],
        enable_checkpointing=False, enable_progress_bar=False, logger=False,
    )  # fmt: skip
    trainer = ray.train.lightning.prepare_trainer(trainer)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            path = Path(folder, "checkpoint.ckpt")
            trainer.fit(ImageClassifier(), train, val, ckpt_path=path)
    else:
        trainer.fit(ImageClassifier(), train, val)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--strategy", default="RayDDPStrategy")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--fails_once", default="", help="A file that says it has.")
    args = parser.parse_args()
    trainer = TorchTrainer(
        train_func, train_loop_config=vars(args),
        scaling_config=ScalingConfig(num_workers=args.workers, use_gpu=not args.cpu),
        run_config=RunConfig(
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            failure_config=FailureConfig(max_failures=1),
        ),
    )  # fmt: skip
    result = trainer.fit()
    print(sorted(result.metrics), result.metrics["epoch"], result.metrics["step"])
    with result.checkpoint.as_directory() as folder:
        print(sorted(path.name for path in Path(folder).iterdir()))
        path = Path(folder, "checkpoint.ckpt")
        if path.is_dir():  # DeepSpeed's
            print("a folder")
            return
        model = ImageClassifier.load_from_checkpoint(path)
    print(type(model).__name__, model.hparams.width)


if __name__ == "__main__":
    main()
