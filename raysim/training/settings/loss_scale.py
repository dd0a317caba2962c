"""Dynamic loss scaling of fp16: which optimizer steps are skipped because gradients overflow.

Where gradients overflow depends on the model and its data; here, deterministically, whenever the
scale is above ``2 ** stable_power``. A scaler that starts higher skips a step per halving (the
first ``hysteresis - 1`` overflows only count), and later, whenever it has doubled again after
``window`` good steps. Sources: ``runtime/fp16/loss_scaler.py`` of DeepSpeed 0.19; Megatron's
``DynamicGradScaler`` and torch's ``GradScaler`` skip as many, with defaults of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from raysim.hardware.specs import Provenance

STABLE_POWER = 15
PROVENANCE = {
    "stable_scale_power": Provenance(
        basis="assumed", source="2^15 is the largest power of two that fp16 can hold (65,504)"
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """A dynamic scaler; defaults are DeepSpeed's ``fp16``."""

    initial_power: int = 16
    window: int = 1000
    hysteresis: int = 2
    stable_power: int = STABLE_POWER
    """Of the largest scale at which gradients do not overflow."""

    def skipped(self, steps: int) -> int:
        """How many of the first ``steps`` do not update the weights."""
        power, tolerated = self.initial_power, self.hysteresis - 1
        done = skipped = 0
        last_overflow = -1
        while done < steps:
            if power > self.stable_power:
                overflows = min(power - self.stable_power + tolerated, steps - done)
                skipped, done = skipped + overflows, done + overflows
                power, last_overflow = self.stable_power, done - 1
            # It doubles after every so many good steps since the last overflow.
            since = done - last_overflow - 1
            done += -(-max(since, 1) // self.window) * self.window - since + 1
            power, tolerated = power + 1, self.hysteresis - 1
        return skipped
