"""What tables of a GPU machine say, and ``raysim calibrate`` on steps of one GPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from raysim.calibrate.direct_gpu import gpu_constants
from raysim.calibrate.direct_host import host_speed
from raysim.cli import main
from raysim.errors import CalibrationError
from raysim.hardware import catalog
from raysim.perf.host import LAUNCH_S, REFERENCE_SINGLE_THREAD
from raysim.perf.profile import OWN
from raysim.scenario.profile import load_profile
from raysim.validate import gpu_steps
from raysim.validate.training_cases import profile_of, read_cases

H100 = Path(__file__).parents[2] / "validation/data/nvidia-h100-80gb-hbm3-1gpu/2026-11-26"
GPU = catalog.gpu("H100-SXM-80GB")
SHORT = ("gpt2-short-mb1", "gpt2-foreach-mb4", "gpt2-bf16-mb16", "gpt2-eager-mb8")


def test_the_tables_say_constants() -> None:
    found = {name: c.value for name, c in gpu_constants(H100, GPU, 0.9).items()}
    # 7.04 us less 2.44; 2.99 of 3.35 TB/s; 268 MB in 4.89 ms.
    assert found["launch_s"] == pytest.approx((7.04e-6 - 2.2e-6 / 0.9) * 0.9, rel=0.01)
    assert found["kernel_floor_s"] == pytest.approx(1.97e-6)
    assert found["memory_share"] == pytest.approx(2.99 / 3.35, rel=0.01)
    assert found["pcie_bytes_per_s"] == pytest.approx(2**28 / 4.89e-3, rel=0.01)
    assert set(found) == {
        "launch_s", "kernel_floor_s", "memory_share", "pcie_bytes_per_s", "sustained_share",
    }  # fmt: skip


def test_what_no_table_says_is_left_out(tmp_path: Path) -> None:
    assert set(gpu_constants(tmp_path, GPU, 1.0)) == {"sustained_share"}


def test_two_machines_agree_on_the_reference_host() -> None:
    """An Emerald Rapids Xeon with an H100, and gpt-fast's EPYC with an A100."""
    speed = host_speed(H100)
    assert speed is not None
    xeon = catalog.cpu("2x-xeon-8559c")
    assert xeon.single_thread / speed.value == pytest.approx(REFERENCE_SINGLE_THREAD, rel=0.02)
    assert gpu_constants(H100, GPU, speed.value)["launch_s"].value == pytest.approx(LAUNCH_S)


def test_a_gpu_s_own_steps_give_its_host_and_its_rates_back(tmp_path: Path) -> None:
    """Steps as raysim says that a host of 0.5 and a GPU that keeps 0.9 would take them."""
    data = tmp_path / "data"
    data.mkdir()
    for name in ("meta.yaml", "launch.csv", "host_dispatch.csv"):
        shutil.copy(H100 / name, data)
    cases = [read_cases(H100)[name] for name in SHORT]
    (data / "training_cases.json").write_text(json.dumps(cases))
    tables = gpu_constants(data, GPU, 0.9)
    true = {n: c.value for n, c in tables.items()} | {"host_speed": 0.5, "sustained_share": 0.9}
    seconds = gpu_steps.predict_steps(data, cases, profile_of(true))
    rows = [f"{name},1,{phase},{s},s,8,{s},{s}" for (name, phase), s in seconds.items()]
    head = "case,ranks,phase,value,unit,repetitions,low,high"
    (data / "training_steps_calibration.csv").write_text("\n".join([head, *rows]) + "\n")
    out = tmp_path / "me.yaml"
    assert main(["calibrate", str(data), "--family", "training", "--out", str(out)]) == 0
    found = load_profile(out).training
    assert found["host_speed"].value == pytest.approx(0.5, rel=0.05)
    assert found["sustained_share"].value == pytest.approx(0.9, rel=0.05)
    assert found["launch_s"].value == tables["launch_s"].value


def test_steps_that_nobody_measured_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(H100 / "meta.yaml", tmp_path)
    with pytest.raises(CalibrationError, match="raysim measure step"):
        gpu_steps.step_rows(tmp_path)
    assert main(["calibrate", str(tmp_path), "--family", "training"]) == 2
    assert "raysim measure host" in capsys.readouterr().err


def test_the_h100_s_profile_is_what_its_rows_say() -> None:
    """A host of a virtual machine in a training step is half as fast as in loops."""
    profile = load_profile(H100 / "training_profile.yaml")
    speed = profile.training["host_speed"].value
    assert 0.35 < speed < 0.55
    assert profile.training["host_speed"].prior == 0.9
    case = read_cases(H100)["gpt2-short-mb1"]
    own, fitted = (gpu_steps.predict_steps(H100, [case], p) for p in (OWN, profile))
    measured = 0.01937
    assert abs(next(iter(fitted.values())) / measured - 1) < 0.15
    assert next(iter(own.values())) < 0.62 * measured
