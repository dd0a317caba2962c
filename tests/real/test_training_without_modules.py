"""Scripts of tensors that no module holds: their steps are those of a module that holds them.

``tests/programs/launched/without_modules.py`` also runs with real torch on a CPU.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real
pytest.importorskip("torch")

from tests.real.test_launched_scripts import launched  # noqa: E402

STEPS = 6
NAME, COUNT, SECONDS, _, PEAK, _ = range(6)


@cache
def row(kind: str) -> Any:
    """Its only row of steps."""
    _, report = launched("python", "without_modules.py", kind)
    (found,) = report.tables[0].rows
    return found


def test_every_step_is_taken_and_named() -> None:
    assert row("by_hand")[:2] == ("LooseTensors, DDP, 1 GPUs", STEPS)


def test_it_takes_as_long_and_as_much_memory_as_in_a_module() -> None:
    loose, held = row("adam"), row("module")
    assert loose[COUNT] == held[COUNT] == STEPS
    assert loose[SECONDS] == pytest.approx(held[SECONDS], rel=0.1)
    assert loose[PEAK] == pytest.approx(held[PEAK], rel=0.05)


def test_an_update_by_hand_keeps_no_states() -> None:
    """Two of 4 bytes for each of 8 M weights, and as much once while Adam's foreach steps."""
    states = 3 * 4 * (2 * 2048**2 + 2048)
    assert row("adam")[PEAK] - row("by_hand")[PEAK] == pytest.approx(states, rel=0.05)


def test_a_module_whose_own_functions_are_called_is_trained(tmp_path: Path) -> None:
    """``nn.Module.forward`` or a method, without ``__call__``."""
    script = tmp_path / "direct.py"
    script.write_text(
        "import torch\n"
        "class Own(torch.nn.Linear):\n"
        "    def score(self, x):\n"
        "        return torch.mm(x, self.weight.T) + self.bias\n"
        "net = Own(64, 64).cuda()\n"
        "optimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        "for _ in range(3):\n"
        "    net.score(torch.randn(8, 64, device='cuda')).square().mean().backward()\n"
        "    optimizer.step()\n"
    )
    _, report = launched("python", str(script))
    assert sum(r[COUNT] for r in report.tables[0].rows) == 3


def test_a_module_may_keep_what_autograd_has_made(tmp_path: Path) -> None:
    """Log-probabilities of an episode, in a list of the policy's."""
    script = tmp_path / "reinforce.py"
    script.write_text(
        "import torch\n"
        "class Policy(torch.nn.Linear):\n"
        "    kept = ()\n"
        "policy = Policy(4, 2).cuda()\n"
        "optimizer = torch.optim.Adam(policy.parameters())\n"
        "for _ in range(3):\n"
        "    policy.kept = [policy(torch.randn(8, 4, device='cuda')).log_softmax(-1)]\n"
        "    policy.kept[0].sum().backward()\n"
        "    optimizer.step()\n"
    )
    _, report = launched("python", str(script))
    assert sum(r[COUNT] for r in report.tables[0].rows) == 3
