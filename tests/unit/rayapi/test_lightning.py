"""What Lightning needs of processes and names, without Lightning."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from raysim.rayapi.lightning.ranks import OwnRank
from raysim.rayapi.train import lightning
from raysim.scenario.launchers import launcher_of


def test_each_process_has_its_own_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("lightning_utilities.core.rank_zero")
    module.rank_zero_only = SimpleNamespace(rank=5)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    first, second = OwnRank(), OwnRank()
    monkeypatch.setenv("LOCAL_RANK", "3")
    first.enter()
    assert module.rank_zero_only.rank == 3  # until a Trainer has set it
    module.rank_zero_only.rank = 1
    first.leave()
    assert module.rank_zero_only.rank == 5
    monkeypatch.setenv("RANK", "7")
    second.enter()
    assert module.rank_zero_only.rank == 7
    second.leave()
    first.enter()
    assert module.rank_zero_only.rank == 1
    first.leave()
    assert module.rank_zero_only.rank == 5


def test_without_the_package_ray_s_words_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lightning, "find_spec", lambda _: None)
    lightning._environment.cache_clear()
    with pytest.raises(ModuleNotFoundError, match="isn't installed"):
        _ = lightning.RayLightningEnvironment
    with pytest.raises(AttributeError):
        _ = lightning.RayNothing


@pytest.mark.parametrize(
    ("line", "launcher"),
    [
        ("import lightning as L", "python"),
        ("from pytorch_lightning import Trainer\nimport torch.distributed", "python"),
        ("import lightning_utilities", ""),
        ("import ray, lightning", ""),
    ],
)
def test_a_script_with_lightning_is_run_by_python(line: str, launcher: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{line}\n")
    assert launcher_of(script)[0] == launcher
