"""What torch's activation checkpoints run again: all, or up to the last tensor that is needed."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
dispatch: Any = pytest.importorskip("torch.utils._python_dispatch")
checkpoint: Any = pytest.importorskip("torch.utils.checkpoint").checkpoint


class Products(dispatch.TorchDispatchMode):  # type: ignore[misc]
    """Counts matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += str(func).startswith(("aten.mm.", "aten.addmm."))
        return func(*args, **(kwargs or {}))


class Block(torch.nn.Module):  # type: ignore[misc]
    """Two products and a residual, as a decoder's feed-forward half."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


@pytest.mark.parametrize(("reentrant", "again"), [(False, 1), (True, 2)])
def test_the_last_product_runs_again_in_reentrant_checkpoints_alone(
    reentrant: bool, again: int
) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    y = checkpoint(Block(), x, use_reentrant=reentrant)
    with Products() as counted:
        y.sum().backward()
    assert counted.count == 4 + again  # two products each for the gradients of two layers
