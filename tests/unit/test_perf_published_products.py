"""V100's products and unaligned sizes against EleutherAI's measurements (``fits/layout.py``)."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, median
from zlib import crc32

import pytest

from raysim.hardware import catalog
from raysim.perf.compute import ComputeModel
from raysim.perf.gemm import granule
from raysim.perf.sustained import SUSTAINED

FILE = Path(__file__).parents[2] / "validation/data/published/cookbook_products.json"
DATA = json.loads(FILE.read_text(encoding="utf-8"))
SWEEPS = {(s["gpu"], s["sweep"]): s["rows"] for s in DATA["sweeps"]}
V100 = ComputeModel(catalog.gpu("V100-SXM2-32GB"))
A100 = ComputeModel(catalog.gpu("A100-SXM-40GB"))
HOST_S = {"V100": 19e-6, "A100": 30e-6}
"""What timing one call from the host adds, as the smallest products show."""


def held_out(row: list[float]) -> bool:
    return crc32("x".join(str(int(size)) for size in row[:4]).encode()) % 4 == 0


def seconds(model: ComputeModel, row: list[float], *, linear: bool = False) -> float:
    batch, m, n, k = (int(size) for size in row[:4])
    lead = None if linear else granule(n, k) if batch > 1 else granule(n)
    return model.gemm_s(float(batch * m), n, k, "fp16", batch, lead=lead)


def off(model: ComputeModel, gpu: str, sweep: str, rows: list[list[float]]) -> list[float]:
    linear = sweep.startswith("vocab")
    return [
        abs(seconds(model, row, linear=linear) / (row[4] * 1e-6 - HOST_S[gpu]) - 1) for row in rows
    ]


@pytest.mark.parametrize(("sweep", "limit"), [("mm_ksweep_high", 0.03), ("mm_ksweep_low", 0.07)])
def test_single_products_of_v100(sweep: str, limit: float) -> None:
    rows = [r for r in SWEEPS["V100", sweep] if held_out(r) and granule(r[2], r[3]) >= 8]
    assert len(rows) > 10
    assert fmean(off(V100, "V100", sweep, rows)) < limit


def test_batched_products_of_v100_are_slower_than_single_ones() -> None:
    rows = [r for r in SWEEPS["V100", "bmm_bsweep"] if r[0] > 1 and r[2] >= 2048]
    errors = off(V100, "V100", "bmm_bsweep", rows)
    assert len(rows) > 12
    assert fmean(errors) < 0.06
    one = seconds(V100, [1, 4096, 4096, 4096])
    assert seconds(V100, [8, 4096, 4096, 4096]) > 1.25 * 8 * one


@pytest.mark.parametrize(
    ("gpu", "sweep", "limit"),
    [
        ("A100", "vocab_h_sweep", 0.09), ("A100", "vocab_v_sweep", 0.09),
        ("A100", "mm_ksweep_low", 0.15), ("V100", "mm_ksweep_low", 0.15),
    ],
)  # fmt: skip
def test_unaligned_sizes(gpu: str, sweep: str, limit: float) -> None:
    rows = [r for r in SWEEPS[gpu, sweep] if held_out(r) and granule(r[2], r[3]) < 8]
    rows = [r for r in rows if r[2] >= 256]
    assert len(rows) > 20
    assert fmean(off({"V100": V100, "A100": A100}[gpu], gpu, sweep, rows)) < limit


@pytest.mark.parametrize("sweep", ["attention_key_query_prob", "attention_prob_times_values"])
def test_products_of_attention_with_heads_that_are_no_multiple_of_eight(sweep: str) -> None:
    """Not fitted: of A100, dimensions 130 to 256; the time is the slowest of 200 calls."""
    rows = [r for r in SWEEPS["A100", sweep] if 128 < min(r[2], r[3]) < 256]
    unaligned = [r for r in rows if granule(r[2], r[3]) < 8]
    assert len(unaligned) > 40
    assert median(off(A100, "A100", sweep, unaligned)) < 0.12


def test_v100_is_measured_and_its_pcie_card_is_not() -> None:
    for name, basis in (("V100-SXM2-16GB", "measured"), ("V100-PCIe-16GB", "assumed")):
        model = ComputeModel(catalog.gpu(name), sustained_share=None)
        model.gemm_s(1024, 1024, 1024, "fp16")
        assert model.provenance["gemm.fp16"].basis == basis
        assert "cookbook" in model.provenance["sustained_share"].source


def test_long_loops_of_v100_keep_the_share_that_training_does() -> None:
    """Calibration: batched products, loops of 250 calls that take a minute or ten seconds."""
    rows = [r for s in ("bmm_bsweep", "bmm_msweep") for r in SWEEPS["V100", s]]
    large = [r for r in rows if r[0] > 1 and min(r[1:4]) >= 2048]
    rates = [(250e-6 * r[4], r[0] * r[1] * r[2] * r[3] / r[4]) for r in large]
    hot = median(rate for loop_s, rate in rates if loop_s >= 60)
    cool = median(rate for loop_s, rate in rates if loop_s <= 10)
    assert hot / cool == pytest.approx(SUSTAINED["volta"], abs=0.001)


HEADS, TOKENS, LENGTH = 128, 4 * 2048, 2048
TRAINED = ComputeModel(catalog.gpu("A100-SXM-40GB"), sustained_share=None, gpus=1)
LAYERS = {int(hidden) // HEADS: times for hidden, *times in DATA["layers"]}
"""By head dimension: milliseconds of attention, MLP and layer, forward."""


def test_feed_forward_of_a_layer_as_in_training() -> None:
    """Not fitted: 245 TFLOP/s of one A100 in loops of seconds; MPT's are the slowest of eight."""
    ratios = []
    for dim in range(64, 160, 8):
        hidden = dim * HEADS
        up, down = ((4 * hidden, hidden), (hidden, 4 * hidden))
        products = sum(TRAINED.gemm_s(float(TOKENS), n, k, "fp16") for n, k in (up, down))
        ratios.append(
            (products + TRAINED.memory_s(4.0 * TOKENS * 4 * hidden)) * 1e3 / LAYERS[dim][1]
        )
    assert median(ratios) == pytest.approx(1.01, abs=0.02)
    assert max(ratios) < 1.05
    assert min(ratios) > 0.97


def attention_products_ms(dim: int) -> float:
    rows, heads = float(TOKENS * HEADS), 4 * HEADS
    shapes = ((LENGTH, dim), (dim, LENGTH))
    lead = granule(dim, LENGTH)
    return 1e3 * sum(TRAINED.gemm_s(rows, n, k, "fp16", heads, lead=lead) for n, k in shapes)


def test_even_heads_that_are_no_multiple_of_eight_cost_a_layer_little() -> None:
    """Not fitted: 0.7 % of a forward layer with heads of 146 to 158; raysim says 1.3 %."""
    core = {d: attention - 0.5 * mlp for d, (attention, mlp, _) in LAYERS.items()}
    whole = fmean(core[d] for d in (144, 152, 160))
    unaligned = [d for d in range(146, 160, 2) if d % 8]
    measured = fmean((core[d] - whole) / LAYERS[d][2] for d in unaligned)
    said = fmean(
        (attention_products_ms(d) - attention_products_ms(d - d % 8)) / LAYERS[d][2]
        for d in unaligned
    )
    assert measured == pytest.approx(0.006, abs=0.004)
    assert said == pytest.approx(0.013, abs=0.004)


def test_odd_heads_cost_more() -> None:
    core = {d: attention - 0.5 * mlp for d, (attention, mlp, _) in LAYERS.items()}
    measured = fmean(core[d] - core[d - 1] for d in range(131, 143, 2))
    said = [attention_products_ms(d) - attention_products_ms(d - 1) for d in range(131, 143, 2)]
    assert fmean(said) == pytest.approx(measured, rel=0.25)
