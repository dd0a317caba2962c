"""Curves of collectives inside one node from NCCL measurements: makes ``perf/tables/nccl.csv``.

    python nccl_curves.py FOLDER --table raysim/perf/tables/nccl.csv \
        --sample validation/data/published/nccl_one_node.json
    python nccl_curves.py FOLDER --search 400

``FOLDER/<system>/nccl.parquet`` are AIConfigurator's tables (Apache-2.0): columns ``op_name``,
``nccl_dtype``, ``num_gpus``, ``message_size`` in elements, ``latency`` in ms.

Times of one collective jump where NCCL changes protocol or algorithm, and at the same sizes on
related systems; smooth curves blur that, and single rows are noisy. So ``log(time)`` of every
(system, collective, ranks) over ``log2(bytes)`` is one draw of a Gaussian process whose curves
are correlated: between systems, collectives and rank counts. A number drawn from each row's name
keeps ``HELD`` of the rows away from everything here; they judge the curves. Hyperparameters: random
search (``--search``) for the least error on rows left out one at a time, and two data types at a
time, of the others.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

SYSTEMS = {
    "a100": "a100_sxm", "h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm",
    "gb200": "gb200", "l40s": "l40s",
}  # fmt: skip
RING_ONLY = "all_reduce_int8"
"""NVLS reduces no int8: on 8 such GPUs these rows ride the ring, a curve of their own."""
OPS = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter", RING_ONLY)
REDUCING = (1, 3, 4)
NVLS_SYSTEMS = ("h100", "h200", "b200")
HELD = 0.15
KNOTS = 2.0 ** np.arange(9, 30)
LARGE = 21
"""log2 of 2 MiB."""

SOURCE = "AIConfigurator systems data (Apache-2.0), nccl tables, NCCL 2.27 and 2.29"
METHOD = (
    "microseconds at powers of two of the full buffer in bytes, 16-bit data: mean of a Gaussian "
    "process over log(time) whose curves are correlated between systems, collectives and rank "
    "counts (validation/programs/nccl_curves.py), made to rise; log-log linear between knots, "
    "linear beyond the last; int8 all-reduces on 8 H100, H200, B200 are apart: NVLS takes no int8"
)
HELD_OUT = (
    "chosen by a hash of their names, none of them fitted (hyperparameters: a search over the "
    "others that began where one over another six sevenths had ended; "
    "validation/data/published/nccl_one_node.json); mean absolute percent, "
    "all sizes / 2 MiB and more"
)
SAMPLE = (
    "NCCL collectives inside one node: collective, ranks, data type, bytes of the full buffer, "
    "microseconds; all_reduce_int8: int8 where NVLS would take 16-bit data"
)
CHOICE = (
    "one row in seven, by a hash of its name; no other part of the tables is kept, and the curves "
    "of raysim/perf/tables/nccl.csv were fitted without these"
)


@dataclass(frozen=True)
class Kernel:
    """Variances of log(time), lengths in doublings of size, correlations, noise."""

    smooth_var: float = 1.173
    smooth_len: float = 11.17
    bend_var: float = 0.02
    bend_len: float = 0.978
    jump_var: float = 0.00297
    jump_len: float = 0.196
    int8_var: float = 0.00216
    int8_len: float = 4.585
    """What int8 costs beyond 16 bits in collectives that reduce."""
    hopper_corr: float = 0.9955
    blackwell_corr: float = 0.9949
    nvlink_corr: float = 0.109
    pcie_corr: float = 0.0847
    gather_scatter_corr: float = 0.9338
    ring_only_corr: float = 0.896
    op_corr: float = 0.285
    rank_corr: float = 0.397
    """Per doubling of ranks."""
    shared: float = 0.9979
    """Share of a curve's variance that is correlated with others at all."""
    noise: float = 0.0272
    pcie_noise: float = 0.0974
    pcie_noise_8: float = 1.162
    """Factor on it for 8 cards: two sockets."""


@dataclass(frozen=True)
class Rows:
    """Rows as columns: system, collective, log2(ranks), int8, log2(bytes), log(us), draw."""

    system: np.ndarray
    op: np.ndarray
    ranks: np.ndarray
    int8: np.ndarray
    size: np.ndarray
    log_us: np.ndarray
    draw: np.ndarray

    def pick(self, mask: np.ndarray) -> Rows:
        """Those rows."""
        return Rows(*(getattr(self, f.name)[mask] for f in fields(self)))


def read(folder: Path) -> Rows:
    """All rows of the six systems."""
    found = []
    for i, (system, name) in enumerate(SYSTEMS.items()):
        for r in pq.read_table(folder / name / "nccl.parquet").to_pylist():
            op = r["op_name"].replace("alltoall", "all_to_all")
            ranks, int8 = r["num_gpus"], r["nccl_dtype"] == "int8"
            size = r["message_size"] * (1 if int8 else 2)
            text = f"{system} {op} {ranks} {r['nccl_dtype']} {float(np.log2(size))}"
            draw = int(hashlib.sha256(text.encode()).hexdigest(), 16) % 1000 / 1000
            if op == "all_reduce" and int8 and ranks == 8 and system in NVLS_SYSTEMS:
                op = RING_ONLY
            us = np.log(r["latency"] * 1e3)
            found.append((i, OPS.index(op), np.log2(ranks), int8, np.log2(size), us, draw))
    columns = list(zip(*found, strict=True))
    kinds = (int, int, float, float, float, float, float)
    return Rows(*(np.array(c, dtype=k) for c, k in zip(columns, kinds, strict=True)))


def systems_corr(k: Kernel) -> np.ndarray:
    """Correlation of curves between systems."""
    corr = np.full((6, 6), k.nvlink_corr)
    corr[1, 2] = corr[2, 1] = k.hopper_corr
    corr[3, 4] = corr[4, 3] = k.blackwell_corr
    corr[5, :] = corr[:, 5] = k.pcie_corr
    np.fill_diagonal(corr, 1.0)
    return corr


def ops_corr(k: Kernel) -> np.ndarray:
    """Correlation of curves between collectives."""
    corr = np.full((5, 5), k.op_corr)
    corr[0, 3] = corr[3, 0] = k.gather_scatter_corr
    corr[1, 4] = corr[4, 1] = k.ring_only_corr
    np.fill_diagonal(corr, 1.0)
    return corr


def covariance(a: Rows, b: Rows, k: Kernel) -> np.ndarray:
    """Prior covariance of log(time) between rows."""
    away = a.size[:, None] - b.size[None]
    systems = systems_corr(k)[a.system][:, b.system]
    like = systems * ops_corr(k)[a.op][:, b.op]
    like = like * k.rank_corr ** np.abs(a.ranks[:, None] - b.ranks[None])
    own = (systems == 1) & (a.op[:, None] == b.op) & (a.ranks[:, None] == b.ranks)
    like = k.shared * like + (1 - k.shared) * own
    middle = 19.0
    line = 4.0 + 0.25 * np.outer(a.size - middle, b.size - middle)
    curve = (
        line
        + k.smooth_var * np.exp(-0.5 * (away / k.smooth_len) ** 2)
        + k.bend_var * np.exp(-0.5 * (away / k.bend_len) ** 2)
        + k.jump_var * np.exp(-np.abs(away) / k.jump_len)
    )
    reduce = np.isin(a.op, REDUCING)[:, None] & (a.op[:, None] == b.op)
    heavier = np.outer(a.int8, b.int8) * reduce * np.where(systems == 1, 1.0, 0.7)
    return like * curve + heavier * k.int8_var * np.exp(-0.5 * (away / k.int8_len) ** 2)


def noisy(a: Rows, k: Kernel) -> np.ndarray:
    """Covariance of measured rows with themselves."""
    cov = covariance(a, a, k)
    pcie = k.pcie_noise * np.where(a.ranks == 3, k.pcie_noise_8, 1.0)
    cov[np.diag_indices(len(a.size))] += np.where(a.system == 5, pcie, k.noise) ** 2
    return cov


def left_out(a: Rows, k: Kernel, *, by_point: bool) -> np.ndarray:
    """Relative error at every row predicted without it, or without both data types of its point."""
    inverse = np.linalg.inv(noisy(a, k))
    weights = inverse @ (a.log_us - a.log_us.mean())
    if not by_point:
        return np.abs(np.expm1(-weights / np.diag(inverse)))
    points: dict[tuple[float, ...], list[int]] = {}
    for i, key in enumerate(zip(a.system, a.op, a.ranks, a.size, strict=True)):
        points.setdefault(key, []).append(i)
    off = np.empty(len(a.size))
    for rows in points.values():
        off[rows] = np.linalg.solve(inverse[np.ix_(rows, rows)], weights[rows])
    return np.abs(np.expm1(-off))


def by_system(a: Rows, error: np.ndarray) -> dict[str, tuple[float, float]]:
    """Mean percent of all sizes, and of 2 MiB and more."""
    found = {}
    for i, name in enumerate(SYSTEMS):
        here = a.system == i
        large = here & (a.size >= LARGE)
        found[name] = (100 * float(error[here].mean()), 100 * float(error[large].mean()))
    return found


def score(a: Rows, k: Kernel) -> float:
    """Mean percent over systems, both sizes, both ways of leaving out."""
    ways = [by_system(a, left_out(a, k, by_point=way)) for way in (True, False)]
    return float(np.mean([pair for way in ways for pair in way.values()]))


def search(a: Rows, tries: int) -> Kernel:
    """Random steps from the hyperparameters above; a correlation stays below one."""
    rng = np.random.default_rng(0)
    best = Kernel()
    least = score(a, best)
    for _ in range(tries):
        change = {}
        names = [f.name for f in fields(Kernel)]
        for name in rng.choice(names, size=int(rng.integers(1, 4)), replace=False):
            value = getattr(best, name)
            if name.endswith("_corr") or name == "shared":
                odds = np.log(value / (1 - value)) + rng.normal() * 0.5
                change[name] = float(1 / (1 + np.exp(-odds)))
            else:
                change[name] = float(value * np.exp(rng.normal() * 0.4))
        found = score(a, replace(best, **change))
        if found < least:
            least, best = found, replace(best, **change)
            print(f"{least:.3f}", asdict(best), flush=True)
    return best


def rising(values: np.ndarray) -> np.ndarray:
    """The nearest values that never fall (pool adjacent violators)."""
    pools: list[list[float]] = []
    for value in values:
        pools.append([float(value), 1.0])
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            last, before = pools.pop(), pools.pop()
            count = last[1] + before[1]
            pools.append([(last[0] * last[1] + before[0] * before[1]) / count, count])
    return np.array([mean for mean, count in pools for _ in range(int(count))])


def curves(a: Rows, k: Kernel) -> list[tuple[str, str, int, np.ndarray]]:
    """(system, collective, ranks, microseconds at ``KNOTS``) for 16-bit data."""
    middle = a.log_us.mean()
    weights = np.linalg.solve(noisy(a, k), a.log_us - middle)
    found = []
    for i, system in enumerate(SYSTEMS):
        for j, op in enumerate(OPS):
            if op == RING_ONLY:
                continue
            for ranks in (2, 4, 8):
                one = np.ones(len(KNOTS))
                log_ranks = float(np.log2(ranks))
                if not np.any((a.system == i) & (a.op == j) & (a.ranks == log_ranks)):
                    continue
                at = Rows(
                    one.astype(int) * i, one.astype(int) * j, one * log_ranks, 0 * one,
                    np.log2(KNOTS), 0 * one, 0 * one,
                )  # fmt: skip
                mean = covariance(at, a, k) @ weights + middle
                found.append((system, op, ranks, np.exp(rising(mean))))
    return found


def held_error(held: Rows, found: list[tuple[str, str, int, np.ndarray]]) -> np.ndarray:
    """Relative error of the curves, joined straight in log-log, on the rows kept away."""
    known = {(s, o, n): np.log(v) for s, o, n, v in found}
    error = np.full(len(held.size), np.nan)
    names = list(SYSTEMS)
    for i in range(len(error)):
        key = (names[held.system[i]], OPS[held.op[i]], round(2 ** held.ranks[i]))
        if key in known:
            at = np.interp(held.size[i], np.log2(KNOTS), known[key])
            error[i] = abs(np.expm1(at - held.log_us[i]))
    return error


def write_table(path: Path, found: list[tuple[str, str, int, np.ndarray]], stated: str) -> None:
    """The csv with its head."""
    lines = [
        f"# source: {SOURCE}, newest version per framework; half and int8, one node",
        "# date: 2026-11",
        f"# method: {METHOD}",
        f"# held out: {stated}",
        "system,op,ranks," + ",".join(f"b{int(b)}" for b in KNOTS),
    ]
    lines += [",".join((s, o, str(n), *(f"{v:.4g}" for v in vs))) for s, o, n, vs in found]
    path.write_text("\n".join(lines) + "\n", encoding="ascii")


def write_sample(path: Path, held: Rows) -> None:
    """The rows kept away, for tests."""
    rows: dict[str, list[list[object]]] = {name: [] for name in SYSTEMS}
    for i in range(len(held.size)):
        us = float(f"{np.exp(held.log_us[i]):.5g}")
        row = [OPS[held.op[i]], round(2 ** held.ranks[i]), "int8" if held.int8[i] else "half"]
        rows[list(SYSTEMS)[held.system[i]]].append([*row, round(2 ** held.size[i]), us])
    systems = [
        f'  "{name}": [\n' + ",\n".join(f"   {json.dumps(r)}" for r in own) + "\n  ]"
        for name, own in rows.items()
    ]
    head = {"what": SAMPLE, "source": SOURCE, "use": "validation", "choice": CHOICE}
    text = json.dumps(head, indent=1)[:-2] + ',\n "rows": {\n' + ",\n".join(systems) + "\n }\n}\n"
    path.write_text(text, encoding="ascii")


def main() -> None:
    """Fit, write what is asked for, print errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--search", type=int, default=0)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--sample", type=Path)
    asked = parser.parse_args()
    rows = read(asked.folder)
    fitted, held = rows.pick(rows.draw >= HELD), rows.pick(rows.draw < HELD)
    kernel = search(fitted, asked.search)
    for way in (True, False):
        print(
            "by point" if way else "by row",
            by_system(fitted, left_out(fitted, kernel, by_point=way)),
        )
    found = curves(fitted, kernel)
    error = held_error(held, found)
    known = ~np.isnan(error)
    errors = by_system(held.pick(known), error[known])
    stated = "; ".join(f"{name} {every:.1f}/{large:.1f}" for name, (every, large) in errors.items())
    print(known.sum(), stated)
    if asked.table:
        write_table(asked.table, found, f"{known.sum()} rows, {HELD_OUT}: {stated}")
    if asked.sample:
        write_sample(asked.sample, held)


if __name__ == "__main__":
    main()
