"""What DeepSpeed's check of one gradient for inf or nan calls, beside raysim's count."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed")

from raysim.training.engines.zero12 import OVERFLOW_KERNELS  # noqa: E402


def test_a_gradient_s_check_is_thirteen_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a kernel: a profile on an H100 shows as many."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.utils import has_inf_or_nan
    from torch.utils._python_dispatch import TorchDispatchMode

    called = []

    class Counting(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            called.append(func.name())
            return func(*args, **(kwargs or {}))

    count, gradient = torch.zeros(1), torch.ones(5, dtype=torch.bfloat16)
    with Counting():
        count += has_inf_or_nan(gradient)
    assert len(called) == OVERFLOW_KERNELS
