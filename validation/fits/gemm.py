"""Fit of ``raysim/perf/tables/gemm.csv``, ``gemm_grid.csv`` and ``gemm_planes.csv``.

    python validation/fits/gemm.py ROOT [--choose] [--residual]

ROOT holds AIConfigurator's tables. A quarter of the shapes is held out of everything; ``--choose``
compares parts of the residual and ridges by cross-validation within the other three; ``--residual``
keeps the table's constants.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kernels import FOLDERS, Floats, folds, held_out, others, percent, read, simplex

from raysim.perf import tables
from raysim.perf.gemm import SPLIT_K_MIN, TENSOR_SPLITS, TILES, GemmConstants, gemm_seconds

SEED = 20250101
KS = (32, 64, 128, 256, 512, 768, 1024, 2048, 4096, 6144, 8192, 16384, 65536)
TERMS = {
    "grid": {
        "m": (1, 2, 32, 256, 1024, 4096, 8192, 32768),
        "n": (32, 256, 1024, 4096, 12288, 65536),
        "k": (32, 256, 1024, 4096, 12288, 65536),
    },
    "nk": {
        "n": (32, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 65536),
        "k": KS,
    },
    "waves": {
        "waves": (
            1 / 128, 1 / 32, 1 / 8, 1 / 4, 1 / 2, 0.75, 0.9, 1, 1.1, 1.5, 1.9, 2, 2.1, 2.5, 3, 3.1,
            4, 6, 16, 64,
        ),
        "k": KS,
    },
}  # fmt: skip
"""Knots of the three parts of the residual: all sides, (n, k), and waves of 128 x 128 tiles."""
SETS = {
    "grid": ("grid",), "grid nk": ("grid", "nk"), "grid waves": ("grid", "waves"),
    "all": ("grid", "nk", "waves"),
}  # fmt: skip
CHOSEN, RIDGE = "all", 0.1
RIDGES = {("b200", "bf16"): 0.5, ("gb200", "bf16"): 0.5}
"""Where cross-validation prefers another."""
NAMES = (
    "efficiency", "memory_efficiency", "k_half", "tile_exponent", "quantisation", "sharpness",
    "fixed_s", "split_s", "slowdown", "slowdown_s", "cast_passes",
)  # fmt: skip
START = np.array([0.85, 0.8, 130, 0.3, 0.2, 2.5, 2.5e-6, 2.5e-6, 0.1, 5e-4, 3.0])
LOW = np.array([0.3, 0.3, 1, 0, 0, 1.2, 5e-7, 0, 0, 1e-6, 0])
HIGH = np.array([1.05, 1.0, 1500, 2, 1, 8, 9e-6, 9e-6, 0.6, 5e-3, 8])
UNITS = np.array([1, 1, 1, 1, 1, 1, 1e-6, 1e-6, 1, 1e-3, 1])
"""The search is in logarithms above 1e-4 of these."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Measured products: sizes, seconds, and which rows are held out."""

    m: Floats
    n: Floats
    k: Floats
    seconds: Floats
    held: np.ndarray
    keys: list[tuple[int, ...]]

    def at(self, where: np.ndarray) -> Rows:
        """Some of them."""
        keys = [self.keys[i] for i in np.flatnonzero(where)]
        m, n, k, seconds = (a[where] for a in (self.m, self.n, self.k, self.seconds))
        return Rows(m, n, k, seconds, self.held[where], keys)


def rows_of(root: Path, system: str, dtype: str) -> Rows:
    """bf16: torch's linear under two frameworks; fp8: vLLM's CUTLASS with its cast."""
    table = read(root, system, "gemm")
    table = table[table["gemm_dtype"] == {"bf16": "bfloat16"}.get(dtype, dtype)]
    if dtype == "fp8":
        table = table[table["framework"] == "VLLM"]
    m, n, k = (table[c].to_numpy(float) for c in "mnk")
    keys = [(int(a), int(b), int(c)) for a, b, c in zip(m, n, k, strict=True)]
    return Rows(m, n, k, table["seconds"].to_numpy(), held_out(keys, SEED), keys)


class Products:
    """``raysim.perf.gemm`` over many shapes at once; ``check`` holds both equal."""

    def __init__(self, rows: Rows, row: dict[str, str]) -> None:
        self.rows, self.row = rows, row
        self.peak, self.memory = float(row["peak_flops_per_s"]), float(row["memory_bytes_per_s"])
        self.sms, self.size = int(row["sm_count"]), 1 if row["dtype"] == "fp8" else 2
        m, n, k = (a[:, None, None] for a in (rows.m, rows.n, rows.k))
        high, wide, self.area = (np.array(a)[None, :, None] for a in zip(*TILES, strict=True))
        self.split = np.array(TENSOR_SPLITS.slices, dtype=float)[None, None, :]
        share = np.ceil(m / high) * np.ceil(n / wide) * self.split / self.sms
        never = (self.split > 1) & ((share > TENSOR_SPLITS.waves) | (k < self.split * SPLIT_K_MIN))
        self.share, self.whole, self.never = share, np.ceil(share), never
        self.depth = k / self.split
        self.moved = self.size * (rows.m * rows.k + rows.k * rows.n) + 2 * rows.m * rows.n

    def seconds(self, x: Floats) -> Floats:
        """Of all shapes, for constants in the order of ``NAMES``."""
        c = dict(zip(NAMES, x, strict=True))
        part = self.share + c["quantisation"] * (self.whole - self.share)
        waves = np.where(self.whole <= 1, self.whole, part)
        work = self.area * (32768 / self.area) ** c["tile_exponent"]
        rate = self.peak * c["efficiency"] / self.sms
        tried = 2 * waves * work * (self.depth + c["k_half"]) / rate
        tried += (self.split > 1) * c["split_s"]
        compute = np.where(self.never, np.inf, tried).min(axis=(1, 2))
        compute *= 1 + c["slowdown"] * compute / (compute + c["slowdown_s"])
        memory = self.moved / (self.memory * c["memory_efficiency"])
        high, low = np.maximum(compute, memory), np.minimum(compute, memory)
        joined = high * (1 + (low / high) ** c["sharpness"]) ** (1 / c["sharpness"])
        cast = c["cast_passes"] * 3 * self.rows.m * self.rows.k / self.memory
        return c["fixed_s"] + joined + cast

    def fit(self) -> Floats:
        """Constants that minimise the mean absolute log error, from two starts."""
        free = np.arange(len(NAMES) - (self.row["dtype"] != "fp8"))
        full, target = np.where(np.arange(len(NAMES)) < len(free), START, 0), self.rows.seconds

        def of(z: Floats) -> Floats:
            full[free] = z * UNITS[free]
            return full

        def loss(z: Floats) -> float:
            return float(np.abs(np.log(self.seconds(of(z)) / target)).mean())

        low, high = LOW[free] / UNITS[free], HIGH[free] / UNITS[free]
        before = np.array([float(self.row.get(name) or START[i]) for i, name in enumerate(NAMES)])
        starts = (a[free] / UNITS[free] for a in (START, before))
        found = [simplex(loss, start, low, high, steps=250) for start in starts]
        return of(min(found, key=loss)).copy()

    def present(self) -> Floats:
        """Constants of the table."""
        return np.array([float(self.row[name]) for name in NAMES])

    def check(self, x: Floats) -> None:
        """The same numbers as ``gemm_seconds``."""
        given = dict(zip(NAMES, map(float, x), strict=True))
        c = GemmConstants(
            peak_flops_per_s=self.peak, memory_bytes_per_s=self.memory, sm_count=self.sms,
            element_bytes=self.size, **given,
        )  # fmt: skip
        own, theirs = self.seconds(x), self.rows
        for i in range(0, len(own), 97):
            shape = (theirs.m[i], int(theirs.n[i]), int(theirs.k[i]))
            np.testing.assert_allclose(own[i], gemm_seconds(c, *shape), rtol=1e-6)


class Residual:
    """Log factors at knots of several terms, fitted by robust ridge regression, and added."""

    def __init__(self, rows: Rows, sms: int, terms: tuple[str, ...]) -> None:
        waves = np.ceil(rows.m / 128) * np.ceil(rows.n / 128) / sms
        sizes = {"m": rows.m, "n": rows.n, "k": rows.k, "waves": waves}
        parts = [self._basis(TERMS[term], sizes) for term in terms]
        self.basis = np.concatenate(parts, axis=1)
        self.ends = np.cumsum([part.shape[1] for part in parts])[:-1]

    @staticmethod
    def _basis(term: dict[str, tuple[float, ...]], sizes: dict[str, Floats]) -> Floats:
        """Share of every row in every knot, linear in log2 along each axis."""
        places = []
        for name, knots in term.items():
            at = np.log2(np.array(knots, float))
            x = np.clip(np.log2(sizes[name]), at[0], at[-1])
            i = np.clip(np.searchsorted(at, x, side="right") - 1, 0, len(at) - 2)
            places.append((i, (x - at[i]) / (at[i + 1] - at[i])))
        shape = tuple(len(knots) for knots in term.values())
        basis = np.zeros((len(sizes["m"]), int(np.prod(shape))))
        for corner in np.ndindex(*[2] * len(shape)):
            pairs = list(zip(places, corner, strict=True))
            flat = np.ravel_multi_index([i + bit for (i, _), bit in pairs], shape)
            each = [w if bit else 1 - w for (_, w), bit in pairs]
            basis[np.arange(len(basis)), flat] += np.prod(each, axis=0)
        return basis

    def fit(self, left: Floats, rows: np.ndarray, ridge: float) -> Floats:
        """Log factors from some rows; reweighted so that the absolute error is what counts."""
        x, target = self.basis[rows], left[rows]
        weight = np.ones(len(x))
        for _ in range(6):
            square = x.T @ (x * weight[:, None]) + ridge * np.eye(x.shape[1])
            g = np.linalg.solve(square, x.T @ (weight * target))
            weight = 0.05 / np.maximum(np.abs(target - x @ g), 0.02)
        return np.log(1 + np.round(100 * np.expm1(g)) / 100)  # as the table holds it

    def factor(self, g: Floats) -> Floats:
        """The factor at every shape."""
        return np.exp(self.basis @ g)

    def cells(self, g: Floats) -> list[np.ndarray]:
        """Percent of each term."""
        return np.split(np.round(100 * np.expm1(g)).astype(int), self.ends)


def choose(train: Rows, sms: int, left: Floats) -> dict[str, float]:
    """Error of each set of terms and ridge on two folds left out in turn."""
    fold, found = folds(train.keys, 4, SEED + 1), {}
    for name, terms in SETS.items():
        residual = Residual(train, sms, terms)
        for ridge in (0.1, 0.5, 2.0):
            errors = []
            for out in range(2):
                g, test = residual.fit(left, fold != out, ridge), fold == out
                errors.append(percent(residual.factor(g)[test], np.exp(left[test])))
            found[f"{name} {ridge}"] = round(float(np.mean(errors)), 2)
    return found


def main() -> None:
    """Fit every system and data type of the present table and rewrite the three tables."""
    root, choosing = Path(sys.argv[1]), "--choose" in sys.argv
    lines, grid_lines, plane_lines = [], [], []
    for system in FOLDERS:
        for row in tables.rows("gemm", system):
            rows = rows_of(root, system, row["dtype"])
            train = rows.at(~rows.held)
            products = Products(sampled(train), row)
            fitted = products.present() if "--residual" in sys.argv else products.fit()
            x = np.array([float(f"{v:.4g}") for v in fitted])
            products.check(x)
            if choosing:
                left = np.log(train.seconds / Products(train, row).seconds(x))
                print(system, row["dtype"], choose(train, products.sms, left), flush=True)
                continue
            plain = Products(rows, row).seconds(x)
            residual = Residual(rows, products.sms, SETS[CHOSEN])
            g = residual.fit(
                np.log(rows.seconds / plain), ~rows.held, RIDGES.get((system, row["dtype"]), RIDGE)
            )
            lines.append(described(rows, row, x, plain, plain * residual.factor(g)))
            print(lines[-1], flush=True)
            name = f"{system},{row['dtype']}"
            terms = dict(zip(SETS[CHOSEN], residual.cells(g), strict=True))
            grid = TERMS["grid"]
            cells = terms["grid"].reshape(*(len(k) for k in grid.values()))
            for i, j in np.ndindex(*cells.shape[:2]):
                sizes = f"{grid['m'][i]},{grid['n'][j]}"
                grid_lines.append(",".join([name, sizes, *map(str, cells[i, j])]))
            for term in ("nk", "waves"):
                knots = next(iter(TERMS[term].values()))
                for knot, values in zip(knots, terms[term].reshape(len(knots), -1), strict=True):
                    head = [name, term, f"{knot:g}"]
                    plane_lines.append(",".join([*head, *map(str, values)]))
    if not choosing:
        write(lines, grid_lines, plane_lines)


def sampled(rows: Rows) -> Rows:
    """3,000 random rows: enough for the constants."""
    chosen = np.random.default_rng(SEED + 2).permutation(len(rows.m))[:3000]
    return rows.at(np.isin(np.arange(len(rows.m)), chosen))


def described(rows: Rows, row: dict[str, str], x: Floats, plain: Floats, whole: Floats) -> str:
    """The line of ``gemm.csv``: constants, and errors on the rows held out."""
    held = rows.held
    large = np.minimum(np.minimum(rows.m, rows.n), rows.k) >= 512
    error = np.abs(whole / rows.seconds - 1) * 100
    errors = [percent(plain[held], rows.seconds[held]), error[held].mean()]
    errors += [error[held & large].mean(), np.median(error[held])]
    head = [row[c] for c in ("system", "dtype", "peak_flops_per_s", "memory_bytes_per_s")]
    counts = [str(int((~held).sum())), str(int(held.sum()))]
    values = [row["sm_count"], *(f"{v:.4g}" for v in x)]
    return ",".join([*head, *values, *counts, *(f"{e:.1f}" for e in errors)])


SOURCE = "AIConfigurator systems data (Apache-2.0), newest version per framework; gemm tables"
METHOD = (
    "constants of raysim.perf.gemm by Nelder-Mead on the mean absolute log error of 3,000 "
    "training rows; validation/fits/gemm.py"
)
HELD = (
    "a random quarter of the shapes (numpy default_rng(20250101)), used for nothing else; errors "
    "are percent on them: mean of the constants alone, mean with gemm_grid.csv and "
    "gemm_planes.csv, mean with them for all sides >= 512, median; parts and ridge of the residual "
    "by cross-validation on the others"
)
NOISE = (
    "B200's fp8 rows hold a random 6 % that ran 2.3 to 8 times slower than their neighbours, and "
    "GB200's do not: its median error says more than its mean"
)
LEFT = (
    "what gemm.csv's constants leave, percent of time to add, at coarse knots of m, n (rows) and k "
    "(columns); robust ridge regression on the training rows together with gemm_planes.csv, linear "
    "in log2 between knots"
)
PLANES = (
    "what is multiplied on top of gemm_grid.csv: over n and k (nk), over waves of 128 x 128 tiles "
    "on the SMs and k (waves); fitted together with it"
)


def write(lines: list[str], grid_lines: list[str], plane_lines: list[str]) -> None:
    """The three tables with their heads."""
    columns = ["system", "dtype", "peak_flops_per_s", "memory_bytes_per_s", "sm_count", *NAMES]
    columns += ["rows_fitted", "rows_held_out", "error_constants_percent", "error_percent"]
    columns += ["error_large_percent", "error_median_percent"]
    text = f"{SOURCE}: torch linear for bf16 (two frameworks), CUTLASS fp8 linear with its cast"
    head = [f"# source: {text}", "# date: 2026-11", f"# method: {METHOD}"]
    heads, theirs = others("gemm")
    head += [f"# held out: {HELD}", f"# noise: {NOISE}", *heads]
    save("gemm", [*head, ",".join(columns), *lines, *theirs])
    knots = ",".join(f"k{k}" for k in TERMS["grid"]["k"])
    head = [f"# source: {SOURCE}", "# date: 2026-11"]
    save("gemm_grid", [*head, f"# method: {LEFT}", f"system,dtype,m,n,{knots}", *grid_lines])
    knots = ",".join(f"k{k}" for k in KS)
    top = f"system,dtype,plane,knot,{knots}"
    save("gemm_planes", [*head, f"# method: {PLANES}", top, *plane_lines])


def save(name: str, lines: list[str]) -> None:
    """One table."""
    folder = Path(tables.__file__).parent / "tables"
    (folder / f"{name}.csv").write_text("\n".join([*lines, ""]), encoding="ascii")


if __name__ == "__main__":
    main()
