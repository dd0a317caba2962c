"""Operators of ``torch.library.custom_op`` in traced modules: the products inside."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from raysim.models.table import Gemm, Operator  # noqa: E402
from raysim.tracing import trace  # noqa: E402

ROWS, WIDTH, HEIGHT = 64, 32, 48
own: Any = torch.library.custom_op
FP8 = torch.float8_e4m3fn


def _product(x: Tensor, w: Tensor) -> Tensor:
    """In fp8, as a head that a script has written itself."""
    one = x.new_ones((), dtype=torch.float32)
    scales = {"scale_a": one, "scale_b": one}
    made: Tensor = torch._scaled_mm(x.to(FP8), w.to(FP8).T, out_dtype=torch.bfloat16, **scales)
    return made


def _gradients(grad: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return grad @ w, grad.T @ x


def _hidden(x: Tensor) -> Tensor:
    """Asks for values."""
    return x * float(x.sum())


product = own("tests::product", mutates_args=())(_product)
gradients = own("tests::gradients", mutates_args=())(_gradients)
hidden = own("tests::hidden", mutates_args=())(_hidden)
product.register_fake(lambda x, w: x @ w.T)
gradients.register_fake(_gradients)
hidden.register_fake(torch.empty_like)
product.register_autograd(
    lambda ctx, grad: gradients(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
hidden.register_autograd(lambda ctx, grad: grad)


class Head(nn.Module):
    """A product of one's own, and what nobody sees through."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(HEIGHT, WIDTH, dtype=torch.bfloat16))

    def forward(self, x: Any) -> Any:
        """Logits."""
        return hidden(product(x, self.weight))


def test_a_product_inside_an_operator_of_ones_own_is_priced_and_what_is_hidden_is_told() -> None:
    said: list[str] = []
    x = torch.zeros(ROWS, WIDTH, dtype=torch.bfloat16)
    model = trace(Head(), x, loss=lambda out: out.float().sum(), say=said.append)
    (found,) = (o for layer in model.layers for o in layer.body.operators if o.gemm)
    assert isinstance(found, Operator)
    assert found.gemm == Gemm(rows=1.0, n=HEIGHT, k=WIDTH)
    assert found.flops == 2 * WIDTH * HEIGHT
    assert (found.narrow, found.gradients) == (True, "all")
    assert [line.partition(":")[0] for line in said] == ["tests"]
    assert said[0].startswith("tests::hidden:")
