"""Steps of several forwards of one model, against what torch itself computes and keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from tests.real.training_script_parts import fit, fit_value  # noqa: E402

Forward = Callable[[Any], Any]
BATCH, WIDTH = 64, 128
STEPS = 5


def net() -> Any:
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.ReLU(), torch.nn.Linear(4 * WIDTH, WIDTH)
    )


def turned(model: Forward, x: Any, y: Any) -> Any:
    return (y @ model(x).T).mean()


def towers(model: Forward, x: Any, y: Any) -> Any:
    return (model(x) @ model(y).T).mean()


def triplet(model: Forward, x: Any, y: Any) -> Any:
    return torch.nn.functional.triplet_margin_loss(model(x), model(y), model(x + y))


def again(model: Forward, x: Any, _: Any) -> Any:
    return model(model(x)).mean()


def apart(model: Forward, x: Any, y: Any) -> Any:
    return model(x).mean() + model(y).mean()


LOSSES = [turned, towers, triplet, again, apart]


def real_flops(loss: Callable[..., Any]) -> int:
    """On the CPU, forward and backward."""
    model, x, y = net(), torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    with FlopCounterMode(display=False) as counted:
        loss(model, x, y).backward()
    return counted.get_total_flops()


def really_kept(loss: Callable[..., Any]) -> int:
    """Bytes that autograd keeps, but for weights and inputs."""
    model, x, y = net(), torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    others = {t.untyped_storage().data_ptr() for t in (x, y, *model.parameters())}
    sizes: dict[int, int] = {}
    held: list[Any] = []

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        held.append(storage)
        if storage.data_ptr() not in others:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        loss(model, x, y)
    return sum(sizes.values())


def table(loss: Callable[..., Any]) -> Any:
    """Of a step in raysim, after others that were alike."""

    def loop(_: Any) -> Any:
        from raysim.rayapi.shapes.here import steps_here

        model = net().cuda()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            x, y = (torch.randn(BATCH, WIDTH, device="cuda") for _ in range(2))
            loss(model, x, y).backward()
            sgd.step()
        steps = steps_here()
        assert steps is not None
        assert steps.latest is not None
        return steps.latest.plan.model

    return fit_value(loop, workers=1)


@pytest.mark.parametrize("loss", LOSSES)
def test_products_are_those_that_torch_runs(loss: Callable[..., Any]) -> None:
    operators = [o for layer in table(loss).layers for o in layer.body.operators]
    flops = sum(
        2 * o.gemm.rows * o.gemm.k * o.gemm.n * (1 + o.of_inputs + o.of_weights)
        for o in operators if o.gemm is not None
    )  # fmt: skip
    assert BATCH * flops == pytest.approx(real_flops(loss), rel=1e-9)


@pytest.mark.parametrize("loss", [towers, triplet, apart])
def test_each_forward_keeps_tensors_of_its_own(loss: Callable[..., Any]) -> None:
    found: dict[tuple[int, str], float] = {}
    for at, layer in enumerate(table(loss).layers):
        found |= {(at, s.name): s.numel for o in layer.body.operators for s in o.saves}
    inputs = 2 * BATCH * WIDTH
    kept = BATCH * sum(found.values())
    assert 4 * kept == pytest.approx(really_kept(loss) + 4 * inputs, rel=0.02)


def test_weights_count_once() -> None:
    parameters = [p for _, p in table(towers).parameters() if p.tied_to is None]
    assert sum(p.numel for p in parameters) == sum(p.numel() for p in net().parameters())


def seconds(kind: str) -> tuple[float, float]:
    """Of a step, and of all steps."""

    def loop(_: Any) -> None:
        model, teacher = net().cuda(), net().cuda().eval()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        if kind == "tried":
            model(torch.randn(BATCH, WIDTH, device="cuda"))
        for step in range(STEPS):
            x, y = (torch.randn(BATCH, WIDTH, device="cuda") for _ in range(2))
            if kind in {"taught", "own"}:
                with torch.no_grad():
                    y = (teacher if kind == "taught" else model)(y)
            twice = kind == "twice" or (kind == "later" and step)
            out = model(x) + model(y) if twice else model(x) + y
            out.mean().backward()
            sgd.step()

    _, report = fit(loop, workers=1)
    return report.metrics["step_seconds"], report.metrics["steps_s"]


def test_a_forward_that_is_tried_before_the_first_step_changes_no_step() -> None:
    assert seconds("tried")[0] == seconds("once")[0]


@pytest.mark.parametrize("kind", ["taught", "own"])
def test_a_step_has_the_forwards_without_gradients_that_it_calls(kind: str) -> None:
    once_s, steps_s = seconds("once")
    step_s, all_s = seconds(kind)
    assert once_s + 20e-6 < step_s < 1.7 * once_s
    # the first one knows nothing of them yet
    assert all_s - steps_s == pytest.approx((STEPS - 1) * (step_s - once_s), rel=0.02)


def test_a_second_forward_from_some_step_on_is_told_from_then_on() -> None:
    assert seconds("later")[0] == pytest.approx(seconds("twice")[0], rel=0.02)
    assert seconds("twice")[0] > 1.2 * seconds("once")[0]
