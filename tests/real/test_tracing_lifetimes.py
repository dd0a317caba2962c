"""Bytes of a step's fullest moment, of modules of every form, against torch's own on the CPU."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from raysim.tracing import trace  # noqa: E402
from raysim.training.plan import TrainingPlan  # noqa: E402
from raysim.training.settings.deepspeed import Optimizer  # noqa: E402
from raysim.training.settings.parallel import Mesh  # noqa: E402
from tests.training_parts import programs  # noqa: E402

ROWS, WIDTH = 4096, 128
TABLE = 4 * ROWS * WIDTH
"""Bytes of one activation; a weight is a thirty-second of that."""


def kept(self: Any, x: Any) -> Any:
    wide = torch.cat([x, x, x, x], 1)
    y = x + wide.sum(1, keepdim=True)  # a variable's last read
    z = y.cumsum(1)
    return self.last(z.cumsum(1))


def deleted(self: Any, x: Any) -> Any:
    wide = torch.cat([x, x, x, x], 1)
    y = x + wide.sum(1, keepdim=True)
    del wide
    return self.last(torch.cat([y, y], 1).chunk(2, 1)[0].cumsum(1))


def rebound(self: Any, x: Any) -> Any:
    for _ in range(4):
        x = torch.roll(x, 1, 0) + x
    return self.last(x)


def temporaries(self: Any, x: Any) -> Any:
    return self.last(x + (torch.cat([x, x, x], 1) + 1).sum(1, keepdim=True))


def in_place(self: Any, x: Any) -> Any:
    y = x.new_zeros(len(x), 4 * WIDTH)
    y[:, :WIDTH] += x
    y.relu_()
    return self.last(y[:, :WIDTH])


def views(self: Any, x: Any) -> Any:
    a, b = x.view(-1, 2, WIDTH // 2).unbind(1)
    return self.last(torch.stack([a * b, b], 1).flatten(1).t().contiguous().t())


def several(self: Any, x: Any) -> Any:
    a, b, c = self.inner(x)
    d = torch.cat([a, b], 1).sum(1, keepdim=True)
    return self.last(x * d) + c


def without_gradients(self: Any, x: Any) -> Any:
    with torch.no_grad():
        far = torch.cdist(x[:, :4], x[: 4 * WIDTH, :4])
        near = far.argmin(1)
        one = F.one_hot(near, 4 * WIDTH).to(x.dtype)
        mean = one.T @ x
    return self.last(x + mean[near].detach())


def detached(self: Any, x: Any) -> Any:
    target = (x * 2).detach().sigmoid()
    return self.last(x + (target - x).detach())


def scattered(self: Any, x: Any) -> Any:
    index = torch.arange(len(x)) // 2
    weight = x.sum(1, keepdim=True).exp()
    message = x[index] * weight
    return self.last(torch.zeros_like(x).index_add(0, index, message))


def gathered(self: Any, x: Any) -> Any:
    index = torch.zeros(len(x), 3 * WIDTH, dtype=torch.int64)
    return self.last(x.gather(1, index).sum(1, keepdim=True) * x)


def branches(self: Any, x: Any) -> Any:
    return self.last(torch.sin(x) * torch.cos(x)) + self.other(x).tanh() + x


def einsum(self: Any, x: Any) -> Any:
    heads = x.view(-1, 32, 4, WIDTH // 4)
    scores = torch.einsum("bqhd,bkhd->bhqk", heads, heads).softmax(-1)
    return self.last(torch.einsum("bhqk,bkhd->bqhd", scores, heads).reshape(-1, WIDTH))


class Cube(torch.autograd.Function):
    """Keeps its input; three tensors within."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        square = x * x
        return square * x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        square = x * x
        return 3 * square * gradient


def function(self: Any, x: Any) -> Any:
    return self.last(Cube.apply(x))


FORMS = (
    kept, deleted, rebound, temporaries, in_place, views, several, without_gradients, detached,
    scattered, gathered, branches, einsum, function,
)  # fmt: skip


class Inner(nn.Module):
    """Gives three tensors, of which it keeps none; a variable of its own is gone with it."""

    def forward(self, x: Any) -> Any:
        wide = torch.cat([x, x, x], 1)
        return wide[:, :WIDTH] + 1, x + 2, x + 3


class Formed(nn.Module):
    """One layer, a function, another."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        self.form = form
        self.first, self.last, self.other = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.inner = Inner()

    def forward(self, x: Any) -> Any:
        return self.form(self, self.first(x))


def loss_of(y: Any) -> Any:
    return y.sin().sum()


def real_bytes(module: Any) -> int:
    """Of all that torch allocates in a step, at most."""
    x = torch.zeros(ROWS, WIDTH)
    loss_of(module(x)).backward()  # gradients are there
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        loss_of(module(x)).backward()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most + x.nbytes


def predicted_bytes(module: Any) -> int:
    model = trace(module, torch.zeros(ROWS, WIDTH), loss=loss_of)
    plan = TrainingPlan(
        model=model, mesh=Mesh(dp=1), engine="ddp", micro_batch=ROWS, precision="fp32",
        gradient_accumulation_steps=1, optimizer=Optimizer(type="SGD"),
    )  # fmt: skip
    (program,) = programs(plan)
    live = most = 0
    for event in program.memory:
        if event.category in {"activation", "temporary", "logits"}:
            live += event.delta_bytes
            most = max(most, live)
    return most


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_a_steps_fullest_moment_is_torchs(form: Any) -> None:
    module = Formed(form)
    assert predicted_bytes(module) / TABLE == pytest.approx(real_bytes(module) / TABLE, abs=0.25)
