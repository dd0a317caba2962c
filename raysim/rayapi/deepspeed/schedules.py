"""``deepspeed.runtime.lr_schedules``: learning rates by the names of the JSON.

Real counterpart: ``deepspeed/runtime/lr_schedules.py`` (0.19): ``WarmupLR``, ``WarmupDecayLR`` and
``WarmupCosineLR``. Rates are real numbers here, for they are what a script logs; a schedule costs
nothing. Not modelled: ``LRRangeTest`` and ``OneCycle`` (refused).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from raysim.rayapi.unsupported import NotEmulatedError

VALID_LR_SCHEDULES = ["LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"]


class _Schedule:
    """A rate for each parameter group, by the steps taken."""

    def __init__(self, optimizer: Any, warmup_num_steps: int, warmup_type: str) -> None:
        if not isinstance(warmup_num_steps, int) or warmup_num_steps <= 0:
            raise ValueError(f"warmup_num_steps must be a positive integer, got {warmup_num_steps}")
        self.optimizer = optimizer
        self.warmup_num_steps = max(2, warmup_num_steps)
        self.linear = warmup_type == "linear"
        self.last_batch_iteration = -1
        self.rates = [float(group["lr"]) for group in optimizer.param_groups]

    def warmed(self) -> float:
        """How much of the way up, while it goes up."""
        if self.linear:
            return self.last_batch_iteration / self.warmup_num_steps
        return math.log(self.last_batch_iteration + 1) / math.log(self.warmup_num_steps)

    def get_lr(self) -> list[float]:
        """Of each group, now."""
        raise NotImplementedError

    def get_last_lr(self) -> list[float]:
        """As set by the latest step."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self, last_batch_iteration: int | None = None) -> None:
        """After an update."""
        following = self.last_batch_iteration + 1
        self.last_batch_iteration = following if last_batch_iteration is None else (
            last_batch_iteration
        )  # fmt: skip
        self._set()

    def _set(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = rate

    def state_dict(self) -> dict[str, int]:
        """For a checkpoint."""
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, sd: Mapping[str, int]) -> None:
        """From one."""
        self.last_batch_iteration = sd["last_batch_iteration"]


class WarmupLR(_Schedule):
    """Up to the highest rate, which stays."""

    def __init__(
        self, optimizer: Any, warmup_min_lr: float = 0.0, warmup_max_lr: float | None = None,
        warmup_num_steps: int = 1000, warmup_type: str = "log",
    ) -> None:  # fmt: skip
        super().__init__(optimizer, warmup_num_steps, warmup_type)
        self.lowest = warmup_min_lr
        if warmup_max_lr is not None:
            self.rates = [warmup_max_lr] * len(self.rates)
        self._set()

    def get_lr(self) -> list[float]:
        """Of each group, now."""
        share = self.share() if self.last_batch_iteration >= 0 else 0.0
        return [self.lowest + share * (rate - self.lowest) for rate in self.rates]

    def share(self) -> float:
        """Of the way from the lowest to the highest."""
        return self.warmed() if self.last_batch_iteration < self.warmup_num_steps else self.after()

    def after(self) -> float:
        """When it is up."""
        return 1.0


class WarmupDecayLR(WarmupLR):
    """Up, and down again in a line."""

    def __init__(
        self, optimizer: Any, total_num_steps: int, warmup_min_lr: float = 0.0,
        warmup_max_lr: float = 0.001, **more: Any,
    ) -> None:  # fmt: skip
        self.total_num_steps = total_num_steps
        super().__init__(optimizer, warmup_min_lr, warmup_max_lr, **more)

    def after(self) -> float:
        """When it is up."""
        left = self.total_num_steps - self.last_batch_iteration
        return max(0.0, left / max(1.0, self.total_num_steps - self.warmup_num_steps))


class WarmupCosineLR(_Schedule):
    """Up to the optimizer's own rates, and down along a cosine."""

    def __init__(
        self, optimizer: Any, total_num_steps: int, warmup_min_ratio: float = 0.0,
        warmup_num_steps: int = 1000, cos_min_ratio: float = 0.0001, warmup_type: str = "log",
    ) -> None:  # fmt: skip
        super().__init__(optimizer, warmup_num_steps, warmup_type)
        self.total_num_steps = total_num_steps
        self.least = warmup_min_ratio, cos_min_ratio
        self._set()

    def get_lr(self) -> list[float]:
        """Of each group, now."""
        ratio = self._ratio() if self.last_batch_iteration >= 0 else 0.0
        return [rate * ratio for rate in self.rates]

    def _ratio(self) -> float:
        step, begin, end = self.last_batch_iteration, *self.least
        if step < self.warmup_num_steps:
            return begin + self.warmed() * (1.0 - begin)
        down = max(1, self.total_num_steps - self.warmup_num_steps)
        gone = min(1.0, (step - self.warmup_num_steps + 1) / down)
        return max(0.0, end + (1.0 - end) * (1.0 + math.cos(math.pi * gone)) / 2)


_KNOWN = {cls.__name__: cls for cls in (WarmupLR, WarmupDecayLR, WarmupCosineLR)}


def schedule_of(section: Mapping[str, Any], optimizer: Any) -> Any:
    """The JSON's ``scheduler``, if it has one."""
    name = section.get("type")
    if name is None:
        return None
    if name not in _KNOWN:
        raise NotEmulatedError(f"scheduler {name} of DeepSpeed's JSON", ", ".join(_KNOWN))
    return _KNOWN[name](optimizer, **section.get("params", {}))


def __getattr__(name: str) -> Any:
    if name in VALID_LR_SCHEDULES:
        raise NotEmulatedError(f"deepspeed.runtime.lr_schedules.{name}", ", ".join(_KNOWN))
    raise AttributeError(name)
