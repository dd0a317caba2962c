"""What a traced module holds when: outputs in a variable, attention that no fused kernel takes."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from raysim.models.table import Model, Operator  # noqa: E402
from raysim.tracing import trace  # noqa: E402


def operators(model: Model) -> list[Operator]:
    return [o for layer in model.layers for o in layer.body.operators]


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.head = nn.Embedding(100, 16), nn.Linear(16, 100)

    def forward(self, x: Any) -> Any:
        logits = self.head(self.inside(x))
        return logits, F.cross_entropy(logits.view(-1, 100), x.view(-1))


def test_held_outputs_stay_until_the_first_loss_operator_is_back() -> None:
    """Backward begins with what the script did to the loss; the logits' gradient comes after."""
    x = torch.zeros(2, 8, dtype=torch.int64, device="meta")
    model = trace(Language(), x, loss=lambda out: out[1] / 4)
    (held,) = [o for o in operators(model) if any(s.returned and s.numel > 1 for s in o.saves)]
    assert any("log_softmax" in s.name for s in held.saves)
    assert sum(s.numel for s in held.saves if s.returned and s.numel > 1) == 8 * 100
