"""Attention that no fused kernel takes: operator by operator, in fp32."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from raysim.tracing import trace  # noqa: E402


class Attention(nn.Module):
    """Channels first, as in U-Nets: the last dimension is strided unless it is copied.

    A bias has its heads last in memory, as T5 has them, unless ``bias_in_rows``.
    """

    def __init__(
        self, *, copies: bool = True, biased: bool = False, bias_in_rows: bool = False
    ) -> None:
        super().__init__()
        self.qkv = nn.Conv1d(32, 96, 1)
        self.biases = nn.Parameter(torch.zeros(1, 64, 64, 2)) if biased else None
        self.copies, self.bias_in_rows = copies, bias_in_rows

    @property
    def bias(self) -> Any:
        if self.biases is None:
            return None
        heads_first = self.biases.permute(0, 3, 1, 2)
        return heads_first.contiguous() if self.bias_in_rows else heads_first

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).view(x.shape[0], 3, 2, 16, -1).transpose(-1, -2).unbind(1)
        if self.copies:
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        return functional.scaled_dot_product_attention(q, k, v, self.bias)


def operators(module: Any) -> list[Any]:
    model = trace(module, torch.zeros(4, 32, 64), autocast=torch.bfloat16)
    return [o for layer in model.layers for m in layer.body.modules for o in m.operators]


@pytest.mark.parametrize("how", [{"copies": False}, {"biased": True}], ids=["strided", "biased"])
def test_it_is_operator_by_operator_and_its_products_are_of_fp32(how: dict[str, bool]) -> None:
    found = operators(Attention(**how))
    assert not any(o.kind == "attention" for o in found)
    assert [o.exact for o in found if o.kind == "gemm"] == [True, True]
    softmax = [s for o in found for s in o.saves if s.dtype == "fp32" and s.numel == 2 * 64 * 64]
    assert softmax


@pytest.mark.parametrize("how", [{}, {"biased": True, "bias_in_rows": True}], ids=["plain", "bias"])
def test_others_are_fused(how: dict[str, bool]) -> None:
    found = operators(Attention(**how))
    assert [o.kind for o in found if o.kind in {"gemm", "attention"}] == ["attention"]
    assert not any(o.exact for o in found)
