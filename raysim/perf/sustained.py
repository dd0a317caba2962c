"""What products keep of their isolated rates in a long run: power caps the clocks, GPUs differ."""

from __future__ import annotations

from functools import lru_cache

from raysim.hardware.specs import GpuSpec, Provenance
from raysim.perf.borrowed import GEFORCE, HALF_RATE, borrow, measured_system
from raysim.perf.jitter import expected_slowest

SUSTAINED = {"volta": 0.964, "ampere": 0.882, "hopper": 0.832, "blackwell": 0.70}
"""Share of isolated rates that products keep in a training run: power caps the clocks.

Ampere and Hopper: fitted with ``TRITON_BACKWARD`` by least squares on five single-node rows per GPU
of MosaicML's MPT throughput tables (``validation/data/published/llmfoundry_mpt.json``, ``use:
calibration``; ``validation/fits/sustained.py``), on top of the tables of isolated kernels and of
what FSDP's own passes take: refitted when those change. The other rows there are for validation.
Blackwell: the median over 232 products longer than 1 ms that were measured in long loops on one of
eight B200 (0.70; their source's ``b200_kernels.json``), not a training step. Volta: batched
products in loops of a minute and more over those in loops of ten seconds and less
(``cookbook_products.json``, ``fits/layout.py``), not a training step either; the same rule says
0.894 of A100."""
_SOURCE = {
    "volta": "batched products in long and short loops on a V100, EleutherAI's cookbook",
    "blackwell": "products longer than 1 ms in long loops on one B200, SimuMax v1.2",
}
WATTS_PER_FLOPS = {"b200": 1000.0 / 2250e12, "gb200": 1200.0 / 2500e12}
"""Power limit over the bf16 peak of Blackwell's parts with tables. What power caps grows with it:
B300 and GB300, of the same peaks under limits of 1,100 and 1,400 W, keep so much more (measured
rates of one model on B200, B300 and GB300 go with these limits within 3 %)."""
MEASURED_HOT = frozenset({"blackwell"})
"""Where fused attention in such loops is as fast as in isolation: it keeps its rates."""
SUSTAINED_ELSEWHERE = 0.81
"""The mean of Ampere and Hopper, for GPUs without such rows."""
SUSTAINED_GPUS = {"volta": 1, "blackwell": 1}
"""How many GPUs the slowest of which keeps that share: loops ran on one, MPT on those of a node."""
NODE_GPUS = 8
HOT_TABLES = {"gb200": "b200"}
"""Whose table that share is over, where it is not the GPU's own: GB200 was throttled in part while
it was measured (products of 1 to 10 TFLOP reach 820 to 1,930 TFLOP/s under vLLM, 1,500 under
TensorRT-LLM as B200's do), and would lose the same twice."""
GPU_CV = 0.015
"""Coefficient of variation of products' time between GPUs of one kind: a step takes the slowest's.

Five clusters of V100, MI60 and RTX 5000, all but a tenth of their GPUs: 8 % on average (Sinha et
al., SC22, arXiv 2208.11035; single ones up to 1.5 times the median), taken as the span of a box
plot's whiskers, 5.4 standard deviations. Of newer GPUs assumed. Power management is what makes the
difference, so that what waits for memory has none."""
DIFFER = Provenance(
    basis="assumed",
    source="GPUs of one kind differ by 1.5 % at products: 8 % between whiskers of SGEMM on five "
    "older clusters (arXiv 2208.11035)",
)


@lru_cache(maxsize=64)
def slowest_of(gpus: int) -> float:
    """By what the slowest of so many GPUs takes longer for products than the mean."""
    return expected_slowest([(1.0, gpus)], GPU_CV)


def sustained(gpu: GpuSpec, gpus: int = NODE_GPUS) -> tuple[float, Provenance]:
    """Share of isolated rates in a long training run on so many GPUs, and where it is from."""
    lent = borrow(gpu)
    if lent in (HALF_RATE, GEFORCE):
        return 1.0 / slowest_of(gpus), Provenance(basis="assumed", source=lent.why)
    like = slowest_of(SUSTAINED_GPUS.get(gpu.architecture, NODE_GPUS)) / slowest_of(gpus)
    share = SUSTAINED.get(gpu.architecture)
    if share is None:
        source = "mean of A100 and H100 in MosaicML's MPT runs"
        return SUSTAINED_ELSEWHERE * like, Provenance(basis="assumed", source=source)
    fitted = f"fitted on five single-node MPT runs on {gpu.architecture}, MosaicML llm-foundry"
    known = Provenance(basis="measured", source=_SOURCE.get(gpu.architecture, fitted))
    if gpu.architecture == "blackwell":
        watts = gpu.tdp_w / gpu.flops_per_s["bf16"] / WATTS_PER_FLOPS[measured_system(gpu)[0]]
        if watts != 1.0:
            share = min(1.0, share * watts)
            known = Provenance(basis="assumed", source=f"{known.source}, by the power limit")
    return share * like, known
