"""Optimizers whose classes are the script's own: by the states and operators of their step."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from tests.real.training_script_parts import Net, fit  # noqa: E402

H100_BYTES_PER_S = 3.35e12


class Own(torch.optim.Optimizer):
    """So many tensors of state for each parameter."""

    def __init__(self, parameters: Any, states: int) -> None:
        super().__init__(parameters, {"states": states})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """A step along the gradient."""
        del closure
        for group in self.param_groups:
            for p in group["params"]:
                for i in range(group["states"]):
                    state = self.state[p].setdefault(f"state_{i}", torch.zeros_like(p))
                    state.lerp_(p.grad, 0.1)
                p.add_(p.grad, alpha=-1e-3)


def loop(config: dict[str, Any]) -> None:
    """Four steps."""
    net = Net().to("cuda")
    kind = config["kind"]
    if isinstance(kind, int):
        optimizer: Any = Own(net.parameters(), kind)
    else:
        optimizer = getattr(torch.optim, kind)(net.parameters())
    for _ in range(4):
        net(torch.randn(64, 1024, device="cuda")).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(("states", "like"), [(0, "SGD"), (1, "Adagrad"), (2, "Adam")])
def test_a_class_of_the_scripts_own_keeps_what_a_known_one_with_as_many_states_does(
    states: int, like: str, capfd: pytest.CaptureFixture[str]
) -> None:
    own, known = (fit(loop, workers=1, kind=kind)[1].metrics for kind in (states, like))
    # torch's Adagrad has a copy of the gradients for a moment.
    assert own["gpu_mem_peak"] == pytest.approx(known["gpu_mem_peak"], rel=0.03)
    said = f"priced by the operators of its step; {like} keeps as many states"
    assert capfd.readouterr().err.count(said) == 1


def test_a_class_of_the_scripts_own_takes_what_its_step_computes() -> None:
    none, two = (fit(loop, workers=1, kind=states)[1].metrics["steps_s"] for states in (0, 2))
    parameters = sum(p.numel() for p in Net().parameters())
    lerps_s = 2 * 3 * 4 * parameters / H100_BYTES_PER_S  # two states, read, read and written
    # Of four steps the first prepares; 16 lerps, and as many states that are made for nothing.
    assert lerps_s < (two - none) / 3 < 2 * lerps_s + 32 * 10e-6
