"""Skipped steps against DeepSpeed's own scaler."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.real
pytest.importorskip("deepspeed")

from raysim.training.settings.loss_scale import LossScale  # noqa: E402


@pytest.mark.parametrize("initial", [10, 16, 20])
@pytest.mark.parametrize("hysteresis", [1, 2, 3])
def test_skips_are_deepspeeds(
    initial: int, hysteresis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deepspeed.runtime.fp16 import loss_scaler

    monkeypatch.setattr(loss_scaler.dist, "get_rank", lambda: 1)
    real = loss_scaler.DynamicLossScaler(
        init_scale=2.0**initial, scale_window=7, min_scale=1, delayed_shift=hysteresis,
        consecutive_hysteresis=False,
    )  # fmt: skip
    ours = LossScale(initial_power=initial, window=7, hysteresis=hysteresis, stable_power=12)
    skipped = 0
    for steps in range(1, 200):
        overflow = real.cur_scale > 2.0**12
        skipped += overflow
        real.update_scale(overflow)
        assert ours.skipped(steps) == skipped
