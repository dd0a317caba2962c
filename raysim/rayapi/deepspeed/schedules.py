"""``deepspeed.runtime.lr_schedules``: learning rates by the names of the JSON.

Real counterpart: ``deepspeed/runtime/lr_schedules.py`` (0.19); other names are torch's. Rates are
real numbers here, for they are what a script logs; a schedule costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch.optim import lr_scheduler

VALID_LR_SCHEDULES = ["LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"]


class _Schedule:
    """A rate for each parameter group, by the steps taken."""

    def __init__(self, optimizer: Any, last_batch_iteration: int = -1) -> None:
        self.optimizer = optimizer
        self.last_batch_iteration = last_batch_iteration

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

    def _set(self, rates: Any = None) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates or self.get_lr(), strict=True):
            group["lr"] = rate

    def state_dict(self) -> dict[str, int]:
        """For a checkpoint."""
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, sd: Mapping[str, int]) -> None:
        """From one."""
        self.last_batch_iteration = sd["last_batch_iteration"]


class _Warmup(_Schedule):
    """Goes up first."""

    def __init__(self, optimizer: Any, warmup_num_steps: int, warmup_type: str) -> None:
        super().__init__(optimizer)
        if not isinstance(warmup_num_steps, int) or warmup_num_steps <= 0:
            raise ValueError(f"warmup_num_steps must be a positive integer, got {warmup_num_steps}")
        self.warmup_num_steps = max(2, warmup_num_steps)
        self.linear = warmup_type == "linear"
        self.rates = [float(group["lr"]) for group in optimizer.param_groups]

    def warmed(self) -> float:
        """How much of the way up, while it goes up."""
        if self.linear:
            return self.last_batch_iteration / self.warmup_num_steps
        return math.log(self.last_batch_iteration + 1) / math.log(self.warmup_num_steps)


class WarmupLR(_Warmup):
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


class WarmupCosineLR(_Warmup):
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


class LRRangeTest(_Schedule):
    """Up without end, in a line or by stairs."""

    def __init__(
        self, optimizer: Any, lr_range_test_min_lr: Any = 1e-3, lr_range_test_step_size: int = 2000,
        lr_range_test_step_rate: float = 1.0, lr_range_test_staircase: bool = False,
        last_batch_iteration: int = -1,
    ) -> None:  # fmt: skip
        super().__init__(optimizer, last_batch_iteration)
        self.step_size, self.step_rate = lr_range_test_step_size, lr_range_test_step_rate
        self.staircase = lr_range_test_staircase
        self.lowest = _of_each(optimizer, lr_range_test_min_lr)
        if last_batch_iteration == -1:
            self._set(self.lowest)

    def get_lr(self) -> list[float]:
        """Of each group, now."""
        interval = (self.last_batch_iteration + 1) / self.step_size
        up = 1 + self.step_rate * (math.floor(interval) if self.staircase else interval)
        return [rate * up for rate in self.lowest]


class OneCycle(_Schedule):
    """Up and down once, momentum the other way; then down for good."""

    def __init__(
        self, optimizer: Any, cycle_min_lr: Any, cycle_max_lr: Any, decay_lr_rate: float = 0.0,
        cycle_first_step_size: float = 2000, cycle_second_step_size: float | None = None,
        cycle_first_stair_count: int = 0, cycle_second_stair_count: int | None = None,
        decay_step_size: int = 0, cycle_momentum: bool = True, cycle_min_mom: Any = 0.8,
        cycle_max_mom: Any = 0.9, decay_mom_rate: float = 0.0, last_batch_iteration: int = -1,
    ) -> None:  # fmt: skip
        super().__init__(optimizer, last_batch_iteration)
        first, second = cycle_first_stair_count, cycle_second_stair_count
        halves = cycle_first_step_size, cycle_second_step_size
        self.halves = float(halves[0]), float(halves[0] if halves[1] is None else halves[1])
        self.stairs = first, first if second is None else second
        self.decays = decay_step_size, decay_lr_rate, decay_mom_rate
        self.lrs = _of_each(optimizer, cycle_min_lr), _of_each(optimizer, cycle_max_lr)
        self.moms = _of_each(optimizer, cycle_min_mom), _of_each(optimizer, cycle_max_mom)
        self.cycle_momentum = cycle_momentum and "betas" in optimizer.defaults
        if last_batch_iteration == -1:
            self._set(self.lrs[0], self.moms[0])

    def get_lr(self) -> list[float]:
        """Of each group, now."""
        low, high = self.lrs
        if (gone := self._decay()) is None:
            up = self._up()
            return [a + (b - a) * up for a, b in zip(low, high, strict=True)]
        return [rate / (1 + self.decays[1] * gone) for rate in low]

    def get_mom(self) -> list[float]:
        """The first beta of each group, now."""
        low, high = self.moms
        if (gone := self._decay()) is None:
            up = self._up()
            return [b - (b - a) * up for a, b in zip(low, high, strict=True)]
        return [beta * (1 + self.decays[2] * gone) for beta in high]

    def _up(self) -> float:
        """How far up the cycle is."""
        (first, second), at = self.halves, (self.last_batch_iteration + 1) % sum(self.halves)
        share = at / first if at <= first else (first + second - at) / second
        stairs = self.stairs[at > first]
        return math.floor(share * stairs + 1e-9) / stairs if stairs else share

    def _decay(self) -> float | None:
        """Intervals since the cycle ended; None: it has not."""
        gone = self.last_batch_iteration - sum(self.halves)
        if gone < 0:
            return None
        return (gone + 1) / self.decays[0] if self.decays[0] else 0.0

    def _set(self, rates: Any = None, moms: Any = None) -> None:
        super()._set(rates)
        if self.cycle_momentum:
            groups = self.optimizer.param_groups
            for group, beta in zip(groups, moms or self.get_mom(), strict=True):
                group["betas"] = beta, 0.99


def _of_each(optimizer: Any, said: Any) -> list[float]:
    """A value, or one for each group."""
    groups = len(optimizer.param_groups)
    return list(said) if isinstance(said, list | tuple) else [float(said)] * groups


_KNOWN: dict[str, Any] = {
    cls.__name__: cls for cls in (WarmupLR, WarmupDecayLR, WarmupCosineLR, LRRangeTest, OneCycle)
}


def schedule_of(section: Mapping[str, Any], optimizer: Any) -> Any:
    """The JSON's ``scheduler``, if it has one."""
    name = section.get("type")
    if name is None:
        return None
    made = _KNOWN.get(name) or getattr(lr_scheduler, name, None)
    assert made is not None, f"DeepSpeed does not recognize LR scheduler {name}"
    return made(optimizer, **section.get("params", {}))
