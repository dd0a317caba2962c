"""What DeepSpeed's check of one gradient for inf or nan calls, beside raysim's count."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from raysim.training.engines.replicated import SERIAL_OVERFLOW_KERNELS  # noqa: E402
from raysim.training.engines.zero12 import OVERFLOW_KERNELS  # noqa: E402


class Counting(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called.append(func.name())
        return func(*args, **(kwargs or {}))


def test_a_gradient_s_check_is_thirteen_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a kernel: a profile on an H100 shows as many."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.utils import has_inf_or_nan

    count, gradient = torch.zeros(1), torch.ones(5, dtype=torch.bfloat16)
    with Counting() as counting:
        count += has_inf_or_nan(gradient)
    assert len(counting.called) == OVERFLOW_KERNELS


def test_without_zero_gradients_of_bf16_are_looked_at_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.utils import CheckOverflow

    def operators(count: int) -> int:
        held = [torch.nn.Parameter(torch.ones(5, dtype=torch.bfloat16)) for _ in range(count)]
        for p in held:
            p.grad = torch.ones_like(p)
        with Counting() as counting:
            assert not CheckOverflow([held]).has_overflow(held)
        # ``p.grad.data`` is a view; a flag that is looked at is copied, not computed.
        return sum("detach" not in n and "local_scalar" not in n for n in counting.called)

    assert operators(3) - operators(2) == SERIAL_OVERFLOW_KERNELS
