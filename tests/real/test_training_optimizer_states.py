"""States that torch's own optimizers make, beside raysim's bytes."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.training.settings.deepspeed import Optimizer  # noqa: E402
from raysim.training.states.optimizer import state_bytes_per_element  # noqa: E402
from tests.training_parts import llama, plan  # noqa: E402


def test_adafactors_sums_are_torchs() -> None:
    model = llama(layers=1, hidden=64, vocab=96)
    tensors = [torch.nn.Parameter(torch.ones(p.shape)) for _, p in model.parameters()]
    optimizer = torch.optim.Adafactor(tensors)
    for tensor in tensors:
        tensor.grad = torch.ones_like(tensor)
    optimizer.step()
    held = sum(
        value.numel() * 4
        for state in optimizer.state.values()
        for name, value in state.items()
        if name in ("row_var", "col_var", "variance")
    )
    p = plan(model, optimizer=Optimizer(type="Adafactor"), engine="ddp", precision="fp32")
    assert state_bytes_per_element(p) * model.num_trainable == pytest.approx(held)
