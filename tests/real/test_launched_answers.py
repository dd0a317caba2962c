"""Scripts that train nothing: their forwards take time and memory, whatever they run under."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.real
torch = pytest.importorskip("torch")

from raysim.hardware import catalog  # noqa: E402
from tests.real.test_launched_scripts import launched  # noqa: E402

GPU = catalog.node("dgx-h100").gpu
assert GPU is not None


def test_a_forward_takes_what_its_products_take() -> None:
    """Eight of 8192 x 4096 x 4096, with gradients on, off, and in inference mode."""
    least_s = 8 * 2 * 8192 * 4096**2 / GPU.flops_per_s["fp16"]
    took = []
    for under in ("grad", "no_grad", "inference"):
        lines, report = launched("python", "answers.py", "products", under)
        took.append(float(lines[0]))
        assert report.text.startswith("3 forwards")
        assert report.metrics["gpu_forwards"] == 3
        assert report.metrics["gpu_mem_peak_bytes"] > 8 * 4096**2 * 2
    assert took == pytest.approx([took[0]] * 3, rel=0.01)
    assert least_s < took[0] < 2 * least_s


def test_a_batch_norm_that_evaluates_reads_once_and_writes() -> None:
    lines, _ = launched("python", "answers.py", "norms", "no_grad")
    least_s = 2 * 256 * 64 * 112**2 * 4 / GPU.memory_bytes_per_s
    assert least_s < float(lines[0]) < 1.25 * least_s


def test_every_rank_of_several_answers_on_a_gpu_of_its_own() -> None:
    alone = launched("python", "answers.py", "products", "no_grad")[0]
    both = launched("torchrun", "--nproc-per-node", "2", "answers.py", "products", "no_grad")[0]
    assert [float(s) for s in both] == pytest.approx([float(alone[0])] * 2, rel=0.05)


def test_a_model_that_does_not_fit_says_so() -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"256\.\d+ GiB are needed"):
        launched("python", "answers.py", "large", "no_grad")
