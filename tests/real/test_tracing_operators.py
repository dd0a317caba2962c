"""Operators that a trace hears beside those that torch runs; what goes by indices, fills, sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from raysim.models.table import Operator  # noqa: E402
from raysim.tracing import composite, indexing, operators  # noqa: E402
from raysim.tracing.module import trace  # noqa: E402

ROWS, WIDTH = 6, 64


def called(run: Callable[[Any], Any], name: str) -> list[str]:
    """Operators that real torch's ``name`` calls on the CPU, itself left out if it calls any."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run(torch.randn(ROWS, WIDTH))
    (event,) = [e for e in seen.events() if e.name == name and e.cpu_parent is None]
    while [c for c in event.cpu_children if c.name == name]:  # its ``out=`` form
        (event,) = [c for c in event.cpu_children if c.name == name]
    return [c.name for c in event.cpu_children]


def heard(run: Callable[[Any], Any]) -> list[str]:
    """The same by the trace, on tensors of shapes only."""
    said = composite.Heard()  # what it hears is what is tested
    with said:
        run(torch.randn(ROWS, WIDTH, device="meta"))
    return ["aten::" + p.func.name().split("::")[1].split(".")[0] for p in said.parts]


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("aten::masked_fill", lambda x: x.masked_fill(x > 0, 0.0)),
        ("aten::logsumexp", lambda x: torch.logsumexp(x, -1)),
        ("aten::slice_backward", lambda x: torch.ops.aten.slice_backward(x, [12, 64], 0, 0, 6, 1)),
        ("aten::select_backward", lambda x: torch.ops.aten.select_backward(x, [3, 6, 64], 0, 1)),
        (
            "aten::binary_cross_entropy_with_logits",
            lambda x: functional.binary_cross_entropy_with_logits(x, torch.empty_like(x)),
        ),
    ],
)
def test_a_composite_is_what_torch_makes_it_of(name: str, run: Callable[[Any], Any]) -> None:
    """Of kernels that change data, as many of each as real torch calls."""
    kernels = {"masked_fill_", "copy_", "amax", "exp_", "sum", "sub", "sub_", "mul_", "log_"}
    real = [c.removeprefix("aten::") for c in called(run, name)]
    real = ["copy_" if c == "clone" else c for c in real]
    own = [c.removeprefix("aten::") for c in heard(run)]
    own = ["copy_" if c == "clone" else c for c in own]
    for kernel in kernels:
        assert own.count(kernel) == real.count(kernel), (kernel, own, real)
    assert set(own) & kernels, "nothing was compared"


def traced(module: Any, *given: Any, loss: Callable[[Any], Any] = lambda y: y.sum()) -> list[Any]:
    """Operators of a module's table."""
    model = trace(module, given, loss=loss)
    return [o for layer in model.layers for o in layer.body.operators]


class Added(nn.Module):
    """Rows of messages, added up where they go."""

    def forward(self, x: Any, messages: Any, to: Any) -> Any:
        return (x * 2).index_add_(1, to, messages)


def test_what_is_added_at_indices_does_not_move_the_whole_tensor() -> None:
    messages = torch.randn(2, 10, 8, requires_grad=True)
    found = traced(Added(), torch.randn(2, 1000, 8), messages, torch.zeros(10, dtype=torch.int64))
    run = [o for o in found if o.kind != "loss"]
    assert sum(o.indexed for o in run) == pytest.approx(10 * 8 * indexing.ADDED)
    # The product's passes, and the messages once.
    assert sum(o.moved for o in run) == pytest.approx(2 * 1000 * 8 + 10 * 8, rel=0.01)


class Largest(nn.Module):
    """Of each row."""

    def forward(self, x: Any) -> Any:
        return (x * 2).max(dim=2)[0]


def test_a_maximum_has_a_gradient_of_zeros_and_of_little_else() -> None:
    """``new_zeros`` reads nothing, and ``scatter_`` writes one element of each row."""
    found = traced(Largest(), torch.randn(2, 4, 1000, requires_grad=True))
    back = sum(o.backward_moved for o in found)
    assert back < (1 + 2) * 4 * 1000 * 1.05  # zeros, and the product's gradient read and written


def test_short_rows_of_a_gather_take_a_block_each() -> None:
    source = torch.empty(1000, 256, device="meta")
    at = torch.empty(50, dtype=torch.int64, device="meta")
    for width, row_bytes in ((256, 1024), (40, indexing.ROW_BYTES)):
        out = source[:, :width].contiguous().index_select(0, at)
        cost = indexing.gathered((source[:, :width].contiguous(), 0, at), out)
        assert cost.moved_bytes == pytest.approx(2 * 50 * row_bytes)


def test_indices_that_accumulate_are_sorted() -> None:
    zeros, at = torch.empty(1000, 256), torch.zeros(50, dtype=torch.int64)
    put = (zeros, [at], torch.empty(50, 256), True)
    added = indexing.scattered("index_put", put, zeros)
    plain = indexing.scattered("index_put", (*put[:3], False), zeros)
    assert added.kernels - plain.kernels == indexing.SORT_KERNELS - 1
    assert added.indexed > plain.indexed == 0.0
    copied = indexing.scattered("index_put", (*put[:3], False), torch.empty(1000, 256))
    assert copied.moved_bytes - plain.moved_bytes == 2 * zeros.nbytes


class Thrice(nn.Module):
    """A table that is looked up so many times."""

    def __init__(self, times: int, *, sparse: bool = False) -> None:
        super().__init__()
        self.table, self.times = nn.Embedding(1000, 8, sparse=sparse), times

    def forward(self, at: Any) -> Any:
        return sum(self.table(at) for _ in range(self.times))


def embeddings(*, times: int, sparse: bool = False) -> list[Operator]:
    found = traced(Thrice(times, sparse=sparse), torch.zeros(2, 5, dtype=torch.int64))
    return [o for o in found if o.kind == "embedding"]


def test_gradients_of_a_table_that_is_used_again_are_added_up() -> None:
    (once,) = embeddings(times=1)
    assert once.moved_fixed_backward == 1000 * 8  # zeros of the table's size
    first, second, last = embeddings(times=3)
    assert last.moved_fixed_backward == once.moved_fixed_backward
    for o in (first, second):
        assert o.moved_fixed_backward - once.moved_fixed_backward == 3 * 1000 * 8
        assert o.backward_kernels > last.backward_kernels
        assert sum(s.numel for s in o.scratch_backward) * 2 == 1000 * 8
    assert not last.scratch_backward


def test_fills_read_nothing() -> None:
    x = torch.empty(3, 5, device="meta")

    def bytes_of(out: Any, name: str) -> float:
        return operators.moved(name, ((x,), {}), out, width=1, counts=lambda t: t.is_meta)

    assert bytes_of(torch.zeros_like(x), "zeros_like") == x.nbytes
    assert bytes_of(x, "zero") == x.nbytes
    assert bytes_of(torch.empty_like(x), "neg") == 2 * x.nbytes


def test_a_composite_that_shapes_alone_do_not_run_stays_one_operator() -> None:
    """``_trilinear`` fails on the meta device when its parts are run one by one."""
    bilinear = nn.Bilinear(8, 8, 4)
    found = traced(bilinear, torch.randn(2, 8), torch.randn(2, 8))
    assert sum(o.kernels for o in found if o.kind != "loss") > 0


def test_a_composite_that_turns_a_tensor_in_place_turns_it_once() -> None:
    class Spectrum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5, 17))

        def forward(self, x: Any) -> Any:
            window = torch.ones(32, device=x.device)
            spectrum = torch.stft(x, 32, 8, window=window, return_complex=True)
            return self.weight @ spectrum.abs()

    found = traced(Spectrum(), torch.randn(2, 256))
    assert 5 * (256 // 8 + 1) in [o.output for o in found]
