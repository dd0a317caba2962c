"""What a script's own process does on the CPU between steps takes its time.

Expected times are those of real machines (host_data.csv of H100 and H200 hosts, 2026-11-27, at 0.9
of the reference host), brought to the host here.
"""

from __future__ import annotations

from functools import cache

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.hardware import catalog  # noqa: E402
from raysim.perf.host import REFERENCE_SINGLE_THREAD  # noqa: E402
from raysim.rayapi.shapes import own_work  # noqa: E402
from tests.real.test_launched_scripts import PROGRAMS, launched  # noqa: E402

SAMPLES = 2048


@cache
def step_s(*what: str) -> float:
    """Of most steps."""
    _, report = launched("python", str(PROGRAMS / "host_work.py"), *what)
    return report.metrics["step_seconds"]


def here(measured_s: float) -> float:
    """What takes the measured hosts so long, on the one of the test."""
    speed = catalog.node("dgx-h100").cpu.single_thread / REFERENCE_SINGLE_THREAD
    return measured_s * 0.9 / speed


def test_samples_that_are_indexed_and_stacked_one_by_one_take_the_host() -> None:
    """2.3 us for one of one tensor there, measured; these have three."""
    least_s = SAMPLES * here(2.3e-6)
    assert step_s("asks") + least_s < step_s("tabular", "asks") < step_s("asks") + 4 * least_s


def test_loader_processes_make_batches_beside_the_gpu() -> None:
    alone_s = step_s("tabular", "asks") - step_s("asks")
    assert step_s("tabular", "workers", "asks") - step_s("asks") < alone_s / 2


def test_lists_of_numbers_are_read_one_by_one() -> None:
    """0.1 us a number on a host of 1.3."""
    read_s = SAMPLES * 64 * 0.1e-6 * 1.3
    speed = catalog.node("dgx-h100").cpu.single_thread / REFERENCE_SINGLE_THREAD
    assert step_s("listed", "asks") - step_s("asks") == pytest.approx(read_s / speed, rel=0.5)


def test_sequences_cut_by_hand_take_the_host_and_are_priced_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """7 operators and views for each: 2 to 20 us there; looking at every one took 20 times that."""
    priced = []
    once = own_work.counting_in
    monkeypatch.setattr(own_work, "counting_in", lambda *a: priced.append(a) or once(*a))
    least_s = SAMPLES * here(2e-6)
    assert step_s("asks") + least_s < step_s("cut", "asks") < step_s("asks") + 10 * least_s
    assert len(priced) < SAMPLES


def test_numbers_drawn_on_the_cpu_take_its_thread() -> None:
    """5.5 ns for one of many there, in new memory."""
    drawn_s = 16 * 2**22 * here(5.5e-9)
    more_s = step_s("drawn", "pinned", "asks") - step_s("pinned", "asks")
    pinned_s, copied_s = 16 * 2**22 * 8 / 10e9, 16 * 2**22 * 4 / 50e9
    assert more_s == pytest.approx(drawn_s + pinned_s + copied_s, rel=0.3)


def test_numbers_drawn_on_the_gpu_do_not() -> None:
    assert step_s("there", "asks") < step_s("asks") + 1e-3


def test_memory_that_is_not_pinned_is_copied_when_the_stream_is_done() -> None:
    assert step_s("drawn") > step_s("drawn", "pinned") - 16 * 2**22 * 8 / 10e9


def test_what_other_libraries_compute_is_said_to_be_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    launched("python", str(PROGRAMS / "host_work.py"), "numpy")
    found = capsys.readouterr().err
    assert "numpy compute in a data loader is not known" in found
    assert "raysim.charge" in found


def test_what_the_script_says_of_them_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with_it_s = step_s("numpy", "charged", "asks")
    assert "is not known" not in capsys.readouterr().err
    assert with_it_s - step_s("numpy", "asks") == pytest.approx(SAMPLES * 10e-6, rel=0.1)


def test_what_is_counted_is_counted_again() -> None:
    before = step_s("tabular", "asks")
    step_s.cache_clear()
    assert step_s("tabular", "asks") == before
