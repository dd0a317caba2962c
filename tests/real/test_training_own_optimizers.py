"""Optimizers whose classes are the script's own: priced by the states that their step makes."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from tests.real.training_script_parts import Net, fit  # noqa: E402


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
def test_a_class_of_the_scripts_own_is_the_known_one_with_as_many_states(
    states: int, like: str, capfd: pytest.CaptureFixture[str]
) -> None:
    own, known = (fit(loop, workers=1, kind=kind)[1].metrics for kind in (states, like))
    for metric in ("step_seconds", "gpu_mem_peak"):
        assert own[metric] == known[metric]
    assert capfd.readouterr().err.count(f"Own is priced as {like}") == 1
