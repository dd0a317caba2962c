"""The description of this machine, and of GPUs as ``nvidia-smi`` prints them."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from raysim.measure import machine


def test_this_machine_is_described_without_its_name(tmp_path: Path) -> None:
    here = machine.describe(tmp_path)
    assert here.cores == len(os.sched_getaffinity(0))
    assert 2**28 < here.memory_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert here.versions["python"] == platform.python_version()
    assert str(tmp_path) not in str(here)
    assert platform.node() not in str(here) or platform.node() in here.cpu.lower()


def test_gpus_are_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf 'NVIDIA H200, 143771, 570.86.15\\n%.0s' 1 2\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(machine, "installed", lambda _: None)
    here = machine.describe()
    gpu = machine.Gpu(name="NVIDIA H200", memory_bytes=143771 * 2**20, driver="570.86.15")
    assert here.gpus == (gpu, gpu)
    assert machine.slug(here) == "nvidia-h200-2gpu"


def test_a_driver_that_fails_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert machine.describe().gpus == ()


def test_a_busy_machine_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([[500, 0, 400, 70, 30, 0, 0, 0], [540, 0, 410, 90, 40, 0, 0, 20]])
    monkeypatch.setattr(machine, "_cpu_ticks", lambda: next(ticks))
    assert machine.busy_share(0.0) == pytest.approx(0.7)
    monkeypatch.undo()
    assert 0.0 <= machine.busy_share(0.1) <= 1.0
