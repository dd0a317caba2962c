"""``deepspeed.utils``: what scripts take from it.

Real counterparts: ``deepspeed/utils/logging.py``, ``deepspeed/runtime/dataloader.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from logging import INFO, getLogger
from types import SimpleNamespace
from typing import Any

from raysim.rayapi.unsupported import NotEmulatedError

logger = getLogger("DeepSpeed")


def log_dist(message: str, ranks: Any = None, level: int = INFO) -> None:
    """``deepspeed.utils.log_dist``."""
    del ranks
    logger.log(level, message)


logging = SimpleNamespace(logger=logger, log_dist=log_dist)
"""``deepspeed.utils.logging``."""


def set_random_seed(seed: int) -> None:
    """``deepspeed.runtime.utils.set_random_seed``."""
    import torch

    from raysim.rayapi.randomness import seed_globals

    seed_globals(seed)
    torch.manual_seed(seed)


def see_memory_usage(message: str, force: bool = False, **_more: Any) -> None:
    """``deepspeed.runtime.utils.see_memory_usage``: said by rank 0."""
    import torch
    import torch.distributed as dist

    if force and not (dist.is_initialized() and dist.get_rank()):
        logger.info(message)
        logger.info(f"MA {torch.cuda.memory_allocated() / 2**30:.2f} GB (predicted)")


class RepeatingLoader:
    """``deepspeed.utils.RepeatingLoader``: a loader without an end."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.data_iter: Any = iter(loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self.data_iter)
        except StopIteration:
            self.data_iter = iter(self.loader)
            return next(self.data_iter)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotEmulatedError(f"deepspeed.utils.{name}", "deepspeed.utils.RepeatingLoader")
