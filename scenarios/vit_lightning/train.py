"""A vision transformer on CIFAR-10's shapes by PyTorch Lightning, alone or under Ray Train.

Images are random. Runs unmodified: ``python train.py`` on each node, or ``--ray`` on a Ray cluster.
"""

import argparse

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy


class Images(Dataset):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.randn(3, 32, 32), index % 10


class VisionTransformer(nn.Module):
    def __init__(self, width: int, depth: int, heads: int, patch: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(torch.zeros(1, (32 // patch) ** 2, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class Classifier(pl.LightningModule):
    def __init__(self, width: int = 768, depth: int = 12, heads: int = 12, lr: float = 3e-4):
        super().__init__()
        self.save_hyperparameters()
        self.lr, self.model = lr, VisionTransformer(width, depth, heads)
        self.accuracy = MulticlassAccuracy(num_classes=10)

    def training_step(self, batch):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch):
        images, labels = batch
        outputs = self.model(images)
        self.accuracy(outputs, labels)
        self.log("val_loss", nn.functional.cross_entropy(outputs, labels), sync_dist=True)
        self.log("val_accuracy", self.accuracy)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, int(self.trainer.estimated_stepping_batches)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def train(trainer: pl.Trainer, args: argparse.Namespace) -> None:
    loader = {"batch_size": args.batch_size, "num_workers": 4, "drop_last": True}
    trainer.fit(
        Classifier(),
        DataLoader(Images(args.samples), shuffle=True, **loader),
        DataLoader(Images(args.samples // 5), **loader),
    )


def alone(args: argparse.Namespace) -> None:
    saving = [ModelCheckpoint(args.out, monitor="val_loss"), LearningRateMonitor()]
    trainer = pl.Trainer(
        max_epochs=args.epochs, accelerator="gpu", devices=args.devices, num_nodes=args.nodes,
        strategy=args.strategy, precision=args.precision, log_every_n_steps=10,
        logger=CSVLogger(args.out) if args.out else False, callbacks=saving if args.out else [],
        enable_checkpointing=bool(args.out), enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    train(trainer, args)


def worker(config: dict) -> None:
    from ray.train import lightning

    args = argparse.Namespace(**config)
    strategies = {
        "ddp": lightning.RayDDPStrategy,
        "fsdp": lightning.RayFSDPStrategy,
        "deepspeed": lightning.RayDeepSpeedStrategy,
    }
    trainer = pl.Trainer(
        max_epochs=args.epochs, accelerator="auto", devices="auto",
        strategy=strategies[args.strategy](), precision=args.precision, logger=False,
        plugins=[lightning.RayLightningEnvironment()],
        callbacks=[lightning.RayTrainReportCallback()], enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    train(lightning.prepare_trainer(trainer), args)


def under_ray(args: argparse.Namespace) -> None:
    from ray.train import CheckpointConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    trainer = TorchTrainer(
        worker, train_loop_config=vars(args),
        scaling_config=ScalingConfig(num_workers=args.devices * args.nodes, use_gpu=True),
        run_config=RunConfig(name="vit", checkpoint_config=CheckpointConfig(num_to_keep=2)),
    )  # fmt: skip
    result = trainer.fit()
    print(f"epoch {result.metrics['epoch']}, step {result.metrics['step']}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ray", action="store_true", help="Workers of Ray Train.")
    parser.add_argument("--devices", type=int, default=4, help="Of a node.")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=256, help="Of a rank.")
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--strategy", default="ddp", help="Or fsdp, deepspeed; see Lightning.")
    parser.add_argument("--precision", default="bf16-mixed")
    parser.add_argument("--out", default="", help="Folder of checkpoints and logs.")
    args = parser.parse_args()
    (under_ray if args.ray else alone)(args)


if __name__ == "__main__":
    main()
