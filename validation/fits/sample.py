"""A small sample of rows that no fit saw, for the tests: ``tests/data/kernels/*.csv``.

python validation/fits/sample.py ROOT FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from attention import KERNELS, Cores
from gemm import rows_of
from kernels import FOLDERS

from raysim.perf import tables

SOURCE = "AIConfigurator systems data (Apache-2.0), newest version per framework"
PER_TABLE = 60


def sample(held: np.ndarray) -> np.ndarray:
    """Positions of some of the rows held out."""
    at = np.flatnonzero(held)
    return np.sort(np.random.default_rng(1).permutation(at)[:PER_TABLE])


def main() -> None:
    """Write both files."""
    root, folder = Path(sys.argv[1]), Path(sys.argv[2])
    products, cores = [], []
    for system in FOLDERS:
        for row in tables.rows("gemm", system):
            rows = rows_of(root, system, row["dtype"])
            for i in sample(rows.held):
                shape = ",".join(map(str, rows.keys[i]))
                products.append(f"{system},{row['dtype']},{shape},{rows.seconds[i] * 1e6:.4g}")
    for system in KERNELS:
        c = Cores(root, system)
        cores += [
            f"{system},{','.join(map(str, c.keys[i]))},{c.seconds[i] * 1e6:.4g}"
            for i in sample(c.held & (c.length >= 512))
        ]
    head = [f"# source: {SOURCE}", "# what: random rows of the quarter held out of every fit"]
    save(folder / "gemm.csv", [*head, "system,dtype,m,n,k,us", *products])
    columns = "system,batch,q_len,heads,kv_heads,head_dim,window,us"
    save(folder / "attention.csv", [*head, columns, *cores])


def save(path: Path, lines: list[str]) -> None:
    """One file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, ""]), encoding="ascii")


if __name__ == "__main__":
    main()
