"""Fit of ``raysim/perf/tables/layout.csv`` and of V100's row of ``gemm.csv``; writes both.

    python validation/fits/layout.py

From fp16 products of V100 and A100 that were timed one by one from the host
(``data/published/cookbook_products.json``). What unaligned sizes cost is the time of the next
aligned size of the same sweep over theirs: no model comes in, and tiles are as many. V100's
constants are fitted on aligned single products together with what the host adds to a call; what
such timings cannot tell apart (bandwidth, shortest kernel, a split's second kernel) is A100's, and
``k_half``, a latency, too: in steps along k it is as much shorter as a multiprocessor is slower. A
quarter of the shapes, by a hash of their sizes, is held out of everything.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from zlib import crc32

import numpy as np
from kernels import Floats, others, percent, simplex

from raysim.perf import tables
from raysim.perf.gemm import GemmConstants, gemm_seconds, granule

DATA = Path(__file__).parents[1] / "data/published/cookbook_products.json"
FOLDER = Path(tables.__file__).parent / "tables"
BORROWED = ("memory_efficiency", "sharpness", "fixed_s", "split_s")
FITTED = ("efficiency", "tile_exponent", "quantisation")
PEAK, MEMORY, SMS = 125e12, 900e9, 80
"""Of V100, by its datasheet."""
START, LOW, HIGH = (np.array(x) for x in ([0.75, 0.3, 0.5, 20], [0.5, 0, 0, 5], [1, 2, 1, 60]))
"""Of the search over ``FITTED`` and the host's microseconds."""
WIDE = 256
"""Columns from which these sweeps are bound by tensor cores."""
BATCHED_SIDE = 512
"""Batched products with shorter sides are mostly the host's time, at its slowest of 200."""
HOPPER = 0.69
"""A SwiGLU width of 10,922 reaches 273 TFLOP/s and 10,944 reaches 398 (ml-engineering)."""
CALLS, COOL_S, HOT_S = 250, 10.0, 60.0
"""Calls of a batched measurement; loops up to this long, and from this long on."""


@dataclass(frozen=True, slots=True)
class Row:
    """One product: its sizes and its time."""

    gpu: str
    sweep: str
    batch: int
    m: int
    n: int
    k: int
    seconds: float

    @property
    def held(self) -> bool:
        """Whether no fit sees it; by a hash, so that a shape is on one side in every sweep."""
        return crc32(f"{self.batch}x{self.m}x{self.n}x{self.k}".encode()) % 4 == 0


@dataclass(frozen=True, slots=True)
class Kept:
    """The share of the aligned rate that an unaligned size keeps."""

    kind: str
    share: float
    held: bool


def rows() -> list[Row]:
    """Every product of the file."""
    sweeps = json.loads(DATA.read_text(encoding="utf-8"))["sweeps"]
    return [Row(s["gpu"], s["sweep"], *r[:4], r[4] * 1e-6) for s in sweeps for r in s["rows"]]


def kept(own: list[Row], host_s: float) -> list[Kept]:
    """Shares of one sweep's unaligned sizes, and what kind of unaligned each is."""
    along_k = own[0].sweep == "vocab_v_sweep"
    sizes = {r.k if along_k else r.n: r for r in own}
    whole, found = 16 if along_k else 8, []
    for size, row in sizes.items():
        aligned = sizes.get(-(-size // whole) * whole)
        if size % whole and aligned is not None and size >= WIDE:
            narrow = "half" if size % 8 == 0 else "both" if along_k else "narrow"
            share = (aligned.seconds - host_s) / (row.seconds - host_s)
            found.append(Kept("odd" if size % 2 else narrow, share, row.held))
    return found


def medians(found: list[Kept]) -> tuple[dict[str, float], float]:
    """Of each kind over rows that are not held out; mean error of these, in percent, on others."""
    said = {
        kind: round(median(f.share for f in found if f.kind == kind and not f.held), 3)
        for kind in sorted({f.kind for f in found})
    }
    return said, 100 * fmean(abs(said[f.kind] / f.share - 1) for f in found if f.held)


def constants(x: Floats, theirs: dict[str, str]) -> GemmConstants:
    """V100's, of what is fitted and of what is A100's."""
    given = dict(zip(FITTED, map(float, x[:3]), strict=True))
    slower = (given["efficiency"] * PEAK / SMS) / (
        float(theirs["efficiency"]) * float(theirs["peak_flops_per_s"]) / int(theirs["sm_count"])
    )
    return GemmConstants(
        peak_flops_per_s=PEAK, memory_bytes_per_s=MEMORY, sm_count=SMS, element_bytes=2,
        k_half=float(f"{float(theirs['k_half']) * slower:.4g}"),
        **given, **{name: float(theirs[name]) for name in BORROWED},
    )  # fmt: skip


def seconds(x: Floats, theirs: dict[str, str], products: list[Row]) -> Floats:
    """Of every product, with what the host adds."""
    c = constants(x, theirs)
    each = [gemm_seconds(c, r.batch * r.m, r.n, r.k, groups=r.batch, lead=64) for r in products]
    return np.array(each) + x[3] * 1e-6


def hot_share(own: list[Row]) -> float:
    """Rate of batched products in long loops over that in short ones, sides of 2,048 and more."""
    large = [r for r in own if r.batch > 1 and min(r.m, r.n, r.k) >= 2048]
    rates = [(CALLS * r.seconds, r.batch * r.m * r.n * r.k / r.seconds) for r in large]
    hot = median(rate for loop_s, rate in rates if loop_s >= HOT_S)
    return hot / median(rate for loop_s, rate in rates if loop_s <= COOL_S)


def main() -> None:
    """Fit, print and write."""
    every = rows()
    theirs = tables.rows("gemm", "a100")[0]
    volta = [r for r in every if r.gpu == "V100" and granule(r.n, r.k) >= 8]
    single = [r for r in volta if r.sweep.startswith("mm")]
    fitted, unseen = ([r for r in single if r.held is held] for held in (False, True))
    target, left_out = (np.array([r.seconds for r in some]) for some in (fitted, unseen))

    def loss(x: Floats) -> float:
        return float(np.abs(np.log(seconds(x, theirs, fitted) / target)).mean())

    x = np.array([float(f"{v:.4g}") for v in simplex(loss, START, LOW, HIGH, steps=200)])
    said = seconds(x, theirs, unseen)
    large = np.array([min(r.m, r.n, r.k) >= BATCHED_SIDE for r in unseen])
    errors = [percent(said, left_out)] * 2
    errors += [percent(said[large], left_out[large]), np.median(abs(said / left_out - 1)) * 100]
    c = constants(x, theirs)
    cells = [c.efficiency, c.memory_efficiency, c.k_half, c.tile_exponent, c.quantisation]
    cells += [c.sharpness, c.fixed_s, c.split_s, 0, c.slowdown_s, 0]
    words = [f"v100,fp16,{PEAK:g},{MEMORY:g},{SMS}", *(f"{v:.4g}" for v in cells)]
    words += [f"{len(fitted)},{len(unseen)}", *(f"{e:.1f}" for e in errors)]
    line = ",".join(words)
    print(line, f"host {x[3]:.0f} us")

    batched = [r for r in volta if r.batch > 1 and min(r.m, r.n, r.k) >= BATCHED_SIDE]
    ratio = seconds(x, theirs, batched) / np.array([r.seconds for r in batched])
    held = np.array([r.held for r in batched])
    share = float(np.median(ratio[~held]))
    print(f"batched {share:.3f}: {percent(ratio[held] / share, np.ones(held.sum())):.1f} %")
    write(line, layouts(every, x[3] * 1e-6, share))
    for gpu in ("V100", "A100"):
        own = [r for r in every if r.gpu == gpu and r.sweep.startswith("bmm")]
        print(gpu, f"long loops of batched products over short ones: {hot_share(own):.3f}")


def layouts(every: list[Row], host_s: float, batched: float) -> list[str]:
    """Lines of ``layout.csv``."""

    def of(gpu: str, *sweeps: str) -> list[list[Row]]:
        return [[r for r in every if (r.gpu, r.sweep) == (gpu, name)] for name in sweeps]

    (small,) = of("A100", "mm_m_sweep")
    a100_host_s = min(r.seconds for r in small)  # these fill nothing
    sweeps = of("A100", "mm_ksweep_low", "vocab_h_sweep", "vocab_v_sweep")
    found = [f for own in sweeps for f in kept(own, a100_host_s)]
    a100, a100_error = medians(found)
    volta = [f for own in of("V100", "mm_ksweep_low") for f in kept(own, host_s)]
    v100, v100_error = medians(volta)
    both = round(v100["narrow"] * a100["both"] / a100["narrow"], 3)
    cells = {
        "v100": (1, v100["narrow"], both, a100["odd"], f"{batched:.3f}", len(volta)),
        "a100": (a100["half"], a100["narrow"], a100["both"], a100["odd"], 1, len(found)),
        "h100": (1, HOPPER, HOPPER, a100["odd"], 1, 1),
    }
    errors = (f"{v100_error:.1f}", f"{a100_error:.1f}", "")
    return [
        ",".join(map(str, (name, *own, error)))
        for (name, own), error in zip(cells.items(), errors, strict=True)
    ]


SOURCE = (
    "EleutherAI's cookbook, fp16 products timed from the host (Apache-2.0; validation/data/"
    "published/cookbook_products.json)"
)
METHOD = (
    "share of the aligned rate kept: medians over unaligned sizes of the time of the next aligned "
    "one over theirs; batched: of 2 to 64 products of sides >= 512 over gemm.csv's single ones; "
    "validation/fits/layout.py"
)
ASSUMED = (
    "v100's both is its narrow times A100's ratio, its odd A100's; h100's narrow and both are one "
    "SwiGLU width of ml-engineering, its odd A100's; 1: not measured, or nothing lost"
)
HELD = "a quarter of the shapes, by crc32 of their sizes; mean absolute percent on them"


def write(line: str, layout_lines: list[str]) -> None:
    """Both tables."""
    columns = "system,half,narrow,both,odd,batched,rows,error_percent"
    head = [f"# source: {SOURCE}", "# date: 2026-11", f"# method: {METHOD}"]
    head += [f"# assumed: {ASSUMED}", f"# held out: {HELD}", columns]
    (FOLDER / "layout.csv").write_text("\n".join([*head, *layout_lines, ""]), encoding="ascii")
    path = FOLDER / "gemm.csv"
    text = path.read_text(encoding="ascii").splitlines()
    heads, lines = others("gemm")
    plain = [row for row in text if row not in (*heads, *lines)]
    at = next(i for i, row in enumerate(plain) if not row.startswith("#"))
    plain.insert(at, f"# v100: {SOURCE}; validation/fits/layout.py")
    path.write_text("\n".join([*plain, line, ""]), encoding="ascii")


if __name__ == "__main__":
    main()
