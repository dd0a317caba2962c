"""Recurrent layers of ``torch.nn`` as CUDA runs them: one call, and what it keeps."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from raysim.perf.workspaces import workspace_bytes  # noqa: E402
from raysim.tracing import trace  # noqa: E402


class Language(nn.Module):
    """Tokens first, as torch's own example has it."""

    def __init__(self, width: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.encoder = nn.Embedding(1000, width)
        self.rnn = nn.LSTM(width, width, 2, dropout=dropout)
        self.decoder = nn.Linear(width, 1000)

    def forward(self, tokens: Any) -> Any:
        return self.decoder(self.rnn(self.encoder(tokens))[0])


def calls(module: Any, given: Any, **more: Any) -> list[Any]:
    model = trace(module, given, **more)
    operators = [o for layer in model.layers for m in layer.body.modules for o in m.operators]
    return [o for o in operators if o.recurrent is not None]


@pytest.mark.parametrize(
    ("steps", "rows", "width", "reserve_bytes"),
    [(70, 64, 650, 128_492_256), (35, 256, 1500, 593_040_256)],  # of cuDNN on an H100
)
def test_an_lstm_is_one_call_that_keeps_a_reserve_space(
    steps: int, rows: int, width: int, reserve_bytes: int
) -> None:
    (call,) = calls(Language(width), torch.zeros(steps, rows, dtype=torch.int64))
    shape = call.recurrent
    assert (shape.gates, shape.width, shape.inputs) == (4, width, (width, width))
    assert (shape.steps, shape.rows, shape.over_steps) == (1.0, rows, True)
    kept = {s.name: 4 * steps * s.numel for s in call.saves}
    assert max(kept.values()) == pytest.approx(reserve_bytes, abs=2048)
    assert len(kept) == 3  # input and output too
    weights = 2 * 4 * width * (width + width)
    assert call.flops * steps == 2 * steps * rows * weights
    assert call.dispatched < 5


def test_a_gru_keeps_the_gates_of_both_products() -> None:
    class Speech(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(512, 512, 4, batch_first=True, bidirectional=True, dropout=0.1)

        def forward(self, x: Any) -> Any:
            return self.rnn(x)[0].sum()

    (call,) = calls(Speech(), torch.zeros(20, 400, 512))
    kept = max(4 * 20 * s.numel for s in call.saves)
    assert kept == pytest.approx(890_880_256, abs=2048)  # of cuDNN on an H100
    gates = 8 * 3 * 512
    assert workspace_bytes(call, 20, 4, sms=132) == 4 * 20 * 400 * gates


def test_batch_first_both_ways_and_gru() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(16, 32, 2, bidirectional=True, batch_first=True)

        def forward(self, x: Any) -> Any:
            out, last = self.rnn(x)
            assert out.shape == (4, 10, 64)
            assert last.shape == (4, 4, 32)
            return out.sum() + last.sum()

    (call,) = calls(Tagger(), torch.zeros(4, 10, 16))
    shape = call.recurrent
    assert shape.inputs == (16, 16, 64, 64)
    assert (shape.gates, shape.directions, shape.rows, shape.steps) == (3, 2, 1.0, 10.0)
    assert not shape.over_steps


def test_under_autocast_it_runs_in_16_bits_and_packed_ones_are_unrolled() -> None:
    (call,) = calls(
        Language(64, dropout=0.0), torch.zeros(5, 4, dtype=torch.int64), autocast=torch.bfloat16
    )
    assert all(s.dtype == "compute" for s in call.saves)

    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(16, 32, proj_size=8)

        def forward(self, x: Any) -> Any:
            return self.rnn(x)[0]

    assert calls(Projected(), torch.zeros(5, 4, 16)) == []
