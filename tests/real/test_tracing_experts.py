"""Grouped products of other types than bf16: shapes as on the CPU, work as in CUDA's loop."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.models.table import Operator  # noqa: E402
from raysim.tracing import trace  # noqa: E402

EXPERTS, ROWS, K, N = 8, 32, 24, 40


class Bank(torch.nn.Module):
    """Experts with as many rows each."""

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(K, dtype=dtype))
        self.weight = torch.nn.Parameter(torch.randn(EXPERTS, K, N, dtype=dtype))

    def forward(self, x: Any) -> Any:
        rows = x.shape[0] // EXPERTS
        ends = torch.arange(rows, x.shape[0] + 1, rows, dtype=torch.int32, device=x.device)
        x = (x * self.scale).to(self.weight.dtype)
        return torch.nn.functional.grouped_mm(x, self.weight, offs=ends).sin()


def operators(dtype: Any, autocast: Any = None) -> list[Operator]:
    model = trace(Bank(dtype), torch.randn(ROWS, K), loss=lambda y: y.sum(), autocast=autocast)
    return [o for layer in model.layers for o in layer.body.operators]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("a", "b"),
    [((ROWS, K), (EXPERTS, K, N)), ((EXPERTS, ROWS, K), (K, ROWS)), ((K, ROWS), (ROWS, N)),
     ((EXPERTS, ROWS, K), (EXPERTS, K, N)), ((ROWS, K), (EXPERTS, K, 38))],
)  # fmt: skip
def test_shapes_and_strides_are_those_of_real_products(dtype: str, a: Any, b: Any) -> None:
    """38 columns of fp32 are padded to 40."""
    left, right = (torch.randn(s).to(getattr(torch, dtype)) for s in (a, b))
    if right.shape[-1] == 38:  # whose own rows are no multiple of 16 bytes
        right = torch.randn(EXPERTS, 38, K).to(left.dtype).mT
    ends = torch.arange(4, ROWS + 1, 4, dtype=torch.int32)
    ends = None if left.dim() == right.dim() == 3 else ends
    real = torch._grouped_mm(left, right, offs=ends)
    meta = torch._grouped_mm(
        left.to("meta"), right.to("meta"), offs=None if ends is None else ends.to("meta")
    )
    assert (meta.shape, meta.stride(), meta.dtype) == (real.shape, real.stride(), real.dtype)


def test_types_that_cuda_refuses_are_refused() -> None:
    left = torch.empty(ROWS, K, device="meta")
    right = torch.empty(EXPERTS, K, N, device="meta", dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="both of one type"):
        torch._grouped_mm(left, right, offs=torch.empty(EXPERTS, dtype=torch.int32, device="meta"))


def test_one_kernel_takes_bf16() -> None:
    (product,) = (o for o in operators(torch.bfloat16) if o.gemm)
    assert (product.kernels, product.backward_kernels) == (1, 2)
    assert not product.exact


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_a_loop_takes_fp32_with_and_without_autocast(autocast: Any) -> None:
    """Autocast has no grouped product on its lists."""
    found = operators(torch.float32, autocast)
    (product,) = (o for o in found if o.gemm)
    assert (product.kernels, product.backward_kernels) == (EXPERTS, 2 * EXPERTS)
    assert product.exact == (autocast is not None)
    assert [o.kind for o in found].count("sync") == 1


def test_the_host_waits_in_forward_and_backward_and_copies_no_weights() -> None:
    from tests.real.training_script_parts import fit_value

    def loop(_: Any) -> Any:
        import torch

        from raysim.rayapi.shapes.here import steps_here
        from tests.real.test_tracing_experts import Bank

        model = Bank(torch.float32).cuda()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(torch.randn(ROWS, K, device="cuda")).sin().sum()
            loss.backward()
            sgd.step()
        steps = steps_here()
        assert steps is not None
        assert steps.latest is not None
        program = steps.latest.outcome.slowest.program
        ops = program.ops[program.step_ends[-2] : program.step_ends[-1]]
        casts = sum(op.duration_ns for op in ops if op.name == "cast weights")
        return sum(op.category == "sync" for op in ops), casts

    waits, casts = fit_value(loop, workers=1)
    assert waits == 2
    assert casts == 0
