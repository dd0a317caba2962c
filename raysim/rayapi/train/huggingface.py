"""``ray.train.huggingface.transformers`` (2.60): transformers' Trainer in a training function.

Real counterpart: ``ray/train/huggingface/transformers/_transformers_utils.py``. The Trainer is the
installed one; classes of it are made when they are asked for, since importing it takes seconds.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from raysim.rayapi.checkpoint import Checkpoint
from raysim.rayapi.data.iterator import _Iterable as Batches
from raysim.rayapi.train.worker import report
from raysim.rayapi.unsupported import getattr_of

NAME = "ray.train.huggingface.transformers"
transformers = sys.modules[__name__]
"""The one module of the package ``ray.train.huggingface``."""
_FOLDER = "checkpoint"
"""``RayTrainReportCallback.CHECKPOINT_NAME``."""


@lru_cache
def _report_callback() -> type[Any]:
    from transformers.trainer_callback import TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint

    class RayTrainReportCallback(TrainerCallback):  # type: ignore[misc]
        """Reports each checkpoint that the Trainer saves, with the latest of all metrics."""

        CHECKPOINT_NAME = _FOLDER

        def on_save(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
            """It has been written."""
            del control
            metrics = {name: value for log in state.log_history for name, value in log.items()}
            with TemporaryDirectory() as folder:
                saved = get_last_checkpoint(args.output_dir)
                if saved is not None:
                    shutil.copytree(saved, Path(folder, _FOLDER))
                report(metrics, None if saved is None else Checkpoint.from_directory(folder))

    return _known_as(RayTrainReportCallback)


def _known_as(cls: type[Any]) -> type[Any]:
    """By the name that it can be imported by."""
    cls.__module__, cls.__qualname__ = NAME, cls.__name__
    return cls


def prepare_trainer(trainer: Any) -> Any:
    """``prepare_trainer``: datasets may be what ``iter_torch_batches`` gives."""
    base: Any = type(trainer)

    class RayTransformersTrainer(base):  # type: ignore[misc]
        """The trainer's own class, whose loaders take Ray Data's batches as they are."""

        def get_train_dataloader(self) -> Any:
            """Of ``train_dataset``."""
            if isinstance(self.train_dataset, Batches):
                return _loader(self.train_dataset)
            return super().get_train_dataloader()

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            """Of ``eval_dataset``, or one of several by its name."""
            found = self.eval_dataset if eval_dataset is None else eval_dataset
            if isinstance(found, str) and isinstance(self.eval_dataset, dict):
                found = self.eval_dataset[found]
            if isinstance(found, Batches):
                return _loader(found)
            return super().get_eval_dataloader(eval_dataset)

    trainer.__class__ = RayTransformersTrainer
    return trainer


def _loader(batches: Iterable[Any]) -> Any:
    """Batches that are made already."""
    from torch.utils.data import DataLoader, IterableDataset

    class Made(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(batches)

    return DataLoader(Made(), batch_size=1, collate_fn=_only)


def _only(batch: list[Any]) -> Any:
    return batch[0]


def __getattr__(name: str) -> Any:
    if name == "RayTrainReportCallback":
        return _report_callback()
    return getattr_of(NAME)(name)
