"""Matrix products: roofline corners, waves, alignment, groups, and measured anchors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raysim.errors import CalibrationError
from raysim.hardware import catalog
from raysim.perf.compute import ComputeModel
from raysim.perf.gemm import (
    GemmConstants,
    Layout,
    gemm_seconds,
    group_loads,
)

PLAIN = GemmConstants(
    peak_flops_per_s=1e15, memory_bytes_per_s=1e14, sm_count=100, efficiency=1.0,
    memory_efficiency=1.0, k_half=0.0, tile_exponent=0.0, quantisation=1.0, sharpness=64.0,
    fixed_s=0.0, element_bytes=2,
)  # fmt: skip


def test_compute_bound_corner_is_operations_over_peak() -> None:
    # 100 tiles of 256 x 128 fill 100 SMs in one wave.
    m, n, k = 256 * 10, 128 * 10, 65536
    assert gemm_seconds(PLAIN, m, n, k) == pytest.approx(2 * m * n * k / 1e15, rel=0.01)


def test_memory_bound_corner_is_bytes_over_bandwidth() -> None:
    moved = 2 * (1 * 8192 + 8192 * 8192 + 1 * 8192)
    slow = replace(PLAIN, memory_bytes_per_s=1e12)
    assert gemm_seconds(slow, 1, 8192, 8192) == pytest.approx(moved / 1e12, rel=0.01)


def test_one_tile_more_than_a_wave_costs_a_second_wave() -> None:
    large = replace(PLAIN, tile_exponent=5.0)  # only the largest tile is worth it
    wave = gemm_seconds(large, 256 * 10, 128 * 10, 8192)
    one_more = gemm_seconds(large, 256 * 10, 128 * 10 + 64, 8192)
    assert one_more == pytest.approx(2 * wave, rel=0.05)
    smooth = replace(large, quantisation=0.0)
    assert gemm_seconds(smooth, 256 * 10, 128 * 10 + 64, 8192) < 1.2 * wave


def test_splitting_k_fills_idle_multiprocessors() -> None:
    # One tile, k = 16,384: unsplit it would take 2 * 256 * 128 * k / (1e15 / 100) = 107 us.
    assert gemm_seconds(PLAIN, 256, 128, 16384) < 2 * 256 * 128 * 16384 / 1e13 / 10


LAYOUT = Layout(half=0.9, narrow=0.7, both=0.5, odd=0.25, batched=0.8)
UNALIGNED = replace(PLAIN, layout=LAYOUT, quantisation=0.0)


@pytest.mark.parametrize(
    ("n", "k", "lead", "share"),
    [
        (4096, 4096, None, 1.0),
        (4096, 4104, None, 0.9),  # 8 elements are 16 bytes
        (4104, 4096, None, 1.0),  # the result's rows only
        (4100, 4096, None, 0.7),
        (4096, 4100, None, 0.5),  # rows of both operands
        (4096, 4098, 2, 0.7),  # of one
        (4097, 4096, None, 0.25),
        (4096, 4097, 1, 0.25),
    ],
)
def test_unaligned_sizes_keep_a_share_of_the_rate(
    n: int, k: int, lead: int | None, share: float
) -> None:
    whole, own = (gemm_seconds(c, 1 << 20, n, k, lead=lead) for c in (PLAIN, UNALIGNED))
    assert whole / own == pytest.approx(share, rel=0.02)


def test_fp8_needs_twice_the_alignment() -> None:
    fp8 = replace(UNALIGNED, element_bytes=1)
    assert gemm_seconds(fp8, 1 << 20, 4096, 4096 + 16) < gemm_seconds(fp8, 1 << 20, 4096, 4096 + 8)


def test_products_in_one_kernel_run_at_their_own_rate() -> None:
    one, many = (gemm_seconds(UNALIGNED, 1 << 20, 4096, 4096, groups=g) for g in (1, 8))
    assert one / many == pytest.approx(0.8, rel=0.02)


def test_groups_in_one_kernel_equal_one_product_when_they_fill_tiles() -> None:
    one = gemm_seconds(PLAIN, 2560 * 8, 1280, 16384)
    grouped = gemm_seconds(PLAIN, 2560 * 8, 1280, 16384, groups=8)
    assert grouped == pytest.approx(one, rel=0.02)


def test_many_groups_with_few_rows_read_every_weight() -> None:
    weights = 64 * 4096 * 4096 * 2
    slow = replace(PLAIN, memory_bytes_per_s=1e12)
    assert gemm_seconds(slow, 64, 4096, 4096, groups=64) >= weights / 1e12


def test_splitting_k_pays_for_its_reduction() -> None:
    free = gemm_seconds(PLAIN, 256, 128, 16384)
    assert gemm_seconds(replace(PLAIN, split_s=1e-6), 256, 128, 16384) == pytest.approx(free + 1e-6)
    full = replace(PLAIN, split_s=1.0)  # nobody splits for that
    assert gemm_seconds(full, 256, 128, 16384) <= 2 * 256 * 128 * 16384 / 1e13 * 1.01


def test_loads_are_a_power_law_with_the_given_fullest_group() -> None:
    for imbalance in (1.0, 1.5, 4.0, 8.0):
        loads = group_loads(8, imbalance)
        assert sum(loads) == pytest.approx(8)
        assert loads[0] == pytest.approx(imbalance, rel=1e-6)
        assert list(loads) == sorted(loads, reverse=True)
    with pytest.raises(CalibrationError, match="fullest"):
        group_loads(8, 9.0)


def test_uneven_groups_fill_tiles_less_but_large_ones_hardly() -> None:
    def slower(rows: int) -> float:
        even, uneven = (
            gemm_seconds(PLAIN, rows * 64, 2048, 4096, groups=64, imbalance=i) for i in (1.0, 4.0)
        )
        return uneven / even

    # Measured on H100 and B200 with power-law loads: 1.05 to 1.13 at 64 to 512 rows per expert,
    # 1.00 to 1.03 at 2,048 and more (AIConfigurator moe tables).
    assert 1.0 < slower(128) < 1.5
    assert slower(4096) == pytest.approx(1.0, abs=0.04)


def test_nothing_to_do_takes_no_time() -> None:
    assert gemm_seconds(PLAIN, 0, 128, 128) == 0.0


# Best shapes of ml-engineering's mamf-finder, TFLOP/s; the tables were not fitted to them.
@pytest.mark.parametrize(
    ("gpu", "shape", "tflops"),
    [
        ("A100-SXM-80GB", (1024, 10240, 5120), 271.2),
        ("A100-PCIe-80GB", (2048, 5120, 6144), 252.9),
        ("H100-SXM-80GB", (2048, 2048, 13312), 794.5),
        ("B200", (1792, 16128, 3072), 1745.0),
        ("GB200", (4096, 9728, 2048), 1822.0),
        ("MI300X", (10240, 15360, 8192), 668.4),
    ],
)
def test_best_shapes_of_another_source(
    gpu: str, shape: tuple[int, int, int], tflops: float
) -> None:
    m, n, k = shape
    seconds = ComputeModel(catalog.gpu(gpu)).gemm_s(m, n, k, "bf16")
    assert 2 * m * n * k / seconds / 1e12 == pytest.approx(tflops, rel=0.12)


def test_badly_chosen_ffn_width_costs_what_was_measured_on_h100() -> None:
    model = ComputeModel(catalog.gpu("H100-SXM-80GB"))

    def tflops(width: int) -> float:
        seconds = 2 * model.gemm_s(4096, width, 4096, "bf16")
        return 1 / (seconds + model.gemm_s(4096, 4096, width, "bf16"))

    assert tflops(10922) / tflops(10944) == pytest.approx(272.73 / 398.38, rel=0.05)
