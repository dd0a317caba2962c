"""``ray.train.lightning`` (2.60): Lightning's Trainer in a training function.

Real counterpart: ``ray/train/lightning/_lightning_utils.py``. The Trainer is the installed one, by
either of its names; classes of it are made when they are asked for, since importing it takes
seconds.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from raysim.rayapi.checkpoint import Checkpoint
from raysim.rayapi.train.configs import CheckpointUploadMode
from raysim.rayapi.train.torch import get_device
from raysim.rayapi.train.worker import get_context, report
from raysim.rayapi.unsupported import getattr_of

NAME = "ray.train.lightning"
_STRATEGIES = {
    "RayDDPStrategy": "DDPStrategy", "RayFSDPStrategy": "FSDPStrategy",
    "RayDeepSpeedStrategy": "DeepSpeedStrategy",
}  # fmt: skip
"""By name, what each is a kind of."""


def _lightning(part: str) -> Any:
    """A part of the package that is installed, ``lightning.pytorch`` before the other.

    Raises
    ------
    ModuleNotFoundError
        Neither is.
    """
    for package in ("lightning", "pytorch_lightning"):
        if find_spec(package) is not None:
            root = "lightning.pytorch" if package == "lightning" else package
            return import_module(f"{root}.{part}")
    raise ModuleNotFoundError(
        "PyTorch Lightning isn't installed. To install PyTorch Lightning, please run "
        "'pip install lightning'"
    )


def _known_as(cls: type[Any]) -> type[Any]:
    """By the name that it can be imported by."""
    cls.__module__, cls.__qualname__ = NAME, cls.__name__
    return cls


@lru_cache
def _strategy(name: str) -> type[Any]:
    base = getattr(_lightning("strategies"), _STRATEGIES[name])

    def samples(self: Any) -> dict[str, Any]:
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    return _known_as(type(name, (base,), {
        "__doc__": f"Lightning's {base.__name__} in Ray Train's workers.",
        "root_device": property(lambda _: get_device()),
        "distributed_sampler_kwargs": property(samples),
    }))  # fmt: skip


@lru_cache
def _environment() -> type[Any]:
    base: Any = _lightning("plugins.environments").LightningEnvironment

    class RayLightningEnvironment(base):  # type: ignore[misc]
        """Ranks are Ray Train's workers."""

        def world_size(self) -> int:
            """Workers."""
            return get_context().get_world_size()

        def global_rank(self) -> int:
            """Of this one."""
            return get_context().get_world_rank()

        def local_rank(self) -> int:
            """On its node."""
            return get_context().get_local_rank()

        def node_rank(self) -> int:
            """Of its node among all."""
            return get_context().get_node_rank()

        def set_world_size(self, size: int) -> None:
            """Ray Train has."""

        def set_global_rank(self, rank: int) -> None:
            """Ray Train has."""

        def teardown(self) -> None:
            """Ray Train's variables stay."""

    return _known_as(RayLightningEnvironment)


@lru_cache
def _report_callback() -> type[Any]:
    base: Any = _lightning("callbacks").Callback

    class RayTrainReportCallback(base):  # type: ignore[misc]
        """Reports a checkpoint and the latest of all metrics at the end of each epoch."""

        CHECKPOINT_NAME = "checkpoint.ckpt"

        def __init__(self, checkpoint_upload_mode: Any = None, validation: Any = False) -> None:
            super().__init__()
            self.checkpoint_upload_mode = checkpoint_upload_mode or CheckpointUploadMode.SYNC
            self.validation = validation
            self.tmpdir_prefix = tempfile.mkdtemp(prefix="lightning_checkpoints-")

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            """It has been trained, and validated."""
            del pl_module
            folder = Path(self.tmpdir_prefix, str(trainer.current_epoch))
            folder.mkdir(parents=True, exist_ok=True)
            metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
            metrics |= {"epoch": trainer.current_epoch, "step": trainer.global_step}
            trainer.save_checkpoint(folder / self.CHECKPOINT_NAME, weights_only=False)
            mode = self.checkpoint_upload_mode
            report(
                metrics, Checkpoint.from_directory(folder), checkpoint_upload_mode=mode,
                validation=self.validation,
            )  # fmt: skip
            trainer.strategy.barrier()
            shutil.rmtree(self.tmpdir_prefix, ignore_errors=True)

    return _known_as(RayTrainReportCallback)


def prepare_trainer(trainer: Any) -> Any:
    """``prepare_trainer``: the Trainer itself, if it leaves ranks to Ray Train.

    Raises
    ------
    RuntimeError
        Its strategy or its environment does not.
    """
    if not isinstance(trainer.strategy, tuple(map(_strategy, _STRATEGIES))):
        raise RuntimeError(
            f"Invalid strategy class: {type(trainer.strategy)}. To use PyTorch Lightning with Ray, "
            f"the strategy object should be one of {list(_STRATEGIES)} class or its subclass."
        )
    environment = getattr(trainer.strategy, "cluster_environment", None)
    if environment and not isinstance(environment, _environment()):
        raise RuntimeError(
            "Invalid cluster environment plugin. The expected class is"
            f"`{NAME}.RayLightningEnvironment` but got {type(environment)}!"
        )
    return trainer


def __getattr__(name: str) -> Any:
    if name in _STRATEGIES:
        return _strategy(name)
    if name == "RayLightningEnvironment":
        return _environment()
    if name == "RayTrainReportCallback":
        return _report_callback()
    return getattr_of(NAME)(name)
