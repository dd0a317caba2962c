"""States that torch's own optimizers make, beside raysim's bytes."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from raysim.perf.optimizer import ADAFACTOR_MATRIX_OPERATORS  # noqa: E402
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


class _Count(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operators = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operators += 1
        return func(*args, **(kwargs or {}))


def test_adafactor_does_more_to_a_matrix_than_to_a_vector() -> None:
    def operators(*shape: int) -> int:
        tensor = torch.nn.Parameter(torch.ones(shape))
        tensor.grad = torch.ones_like(tensor)
        optimizer = torch.optim.Adafactor([tensor], foreach=False)
        optimizer.step()
        with _Count() as count:
            optimizer.step()
        return count.operators

    assert operators(8, 8) - operators(64) == ADAFACTOR_MATRIX_OPERATORS
