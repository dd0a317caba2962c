"""Collectives between nodes, predicted against nccl-tests, point by point; refits their constants.

    python nccl_across_nodes.py [--points]
    python nccl_across_nodes.py --search 3000

Rows: ``validation/data/published/nccl_multi_node.json``. ``--search`` takes random steps from the
constants in ``raysim/perf/nccl.py`` and ``collectives.py`` that say nccl-tests and prints better
ones: least mean absolute log(predicted / measured) over tables marked calibration, plus a weak
pull to where it starts. NICs are the catalog's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from raysim.hardware import catalog
from raysim.perf import collectives, nccl
from raysim.perf.collectives import CollectiveCost, GroupShape

DATA = Path(__file__).parents[1] / "data" / "published" / "nccl_multi_node.json"
LARGE = 2 * 2**20
PULL = 0.004 / 0.25

Setter = tuple[Callable[[], float], Callable[[float], None]]


def group(case: dict[str, Any]) -> GroupShape:
    """The communicator of one table."""
    gpu, nic = catalog.gpu(case["gpu"]), catalog.nic(case["nic"])
    return GroupShape(
        ranks=case["nodes"] * case["gpus_per_node"], nodes=case["nodes"],
        ranks_per_node=case["gpus_per_node"], architecture=gpu.architecture, fabric="nvswitch",
        gpu=gpu, intra_bytes_per_s=gpu.scale_up_bytes_per_s, nic=nic,
        inter_bytes_per_s=case["nics"] * nic.bytes_per_s, inter_latency_s=2 * nic.latency_s,
    )  # fmt: skip


def costs(case: dict[str, Any]) -> list[CollectiveCost]:
    """One prediction per row."""
    shape = group(case)
    return [collectives.collective(case["op"], size, shape) for size, _ in case["rows"]]


def errors(case: dict[str, Any]) -> np.ndarray:
    """log(predicted / measured) by row."""
    measured = np.array([us for _, us in case["rows"]])
    return np.log(np.array([c.seconds for c in costs(case)]) * 1e6 / measured)


def entry(table: dict[Any, Any], key: Any) -> Setter:
    """A number in a module's dictionary."""
    return lambda: table[key], lambda value: table.__setitem__(key, value)


def pair(table: dict[Any, Any], key: Any, place: int) -> Setter:
    """A number of a pair in a module's dictionary."""

    def put(value: float) -> None:
        both = list(table[key])
        both[place] = value
        table[key] = tuple(both)

    return lambda: table[key][place], put


def constant(module: Any, name: str) -> Setter:
    """A module's number."""
    return lambda: getattr(module, name), lambda value: setattr(module, name, value)


def place(module: Any, name: str, index: int) -> Setter:
    """A number of a module's pair."""
    holder = vars(module)
    return pair(holder, name, index)


SETTERS: dict[str, Setter] = {
    **{f"latency {a}": entry(nccl.LATENCY_SHARE, a) for a in nccl.LATENCY_SHARE},
    **{f"fill {a}": pair(nccl.FILL, a, 0) for a in nccl.FILL},
    **{f"fill most {a}": pair(nccl.FILL, a, 1) for a in nccl.FILL},
    "ll share": constant(nccl, "LL_SHARE"),
    "ll128 tree": entry(nccl.LL128_TREE_SHARE, "ampere"),
    **{
        f"nvls tree {a}": entry(collectives.NVLS_TREE_SHARE, a) for a in collectives.NVLS_TREE_SHARE
    },
    "p2p share": constant(collectives, "P2P_NET_SHARE"),
    "p2p fill": place(collectives, "P2P_FILL", 0),
    "all-to-all once": place(collectives, "ALL_TO_ALL_LATENCY_S", 0),
    "all-to-all per rank": place(collectives, "ALL_TO_ALL_LATENCY_S", 1),
    "efa": constant(collectives, "EFA_PROXY_S"),
}


def score(cases: list[dict[str, Any]], start: dict[str, float]) -> float:
    """What is minimised."""
    collectives.collective.cache_clear()
    for name in ("_fixed", "_wires"):
        vars(collectives)[name].cache_clear()
    fitted = [np.abs(errors(c)).mean() for c in cases if c["role"] == "calibration"]
    away = [np.log(get() / start[name]) for name, (get, _) in SETTERS.items()]
    return float(np.mean(fitted) + PULL * np.sum(np.square(away)))


def search(cases: list[dict[str, Any]], tries: int) -> None:
    """Random steps; the constants are left at the best found, and printed."""
    rng = np.random.default_rng(0)
    start = {name: get() for name, (get, _) in SETTERS.items()}
    least = score(cases, start)
    for _ in range(tries):
        names = [
            str(n) for n in rng.choice(list(SETTERS), size=int(rng.integers(1, 4)), replace=False)
        ]
        before = {name: SETTERS[name][0]() for name in names}
        for name in names:
            SETTERS[name][1](before[name] * float(np.exp(rng.normal() * 0.12)))
        found = score(cases, start)
        if found < least:
            least = found
        else:
            for name in names:
                SETTERS[name][1](before[name])
    score(cases, start)
    for name, (get, _) in SETTERS.items():
        print(f"{name:24s} {start[name]:.4g} -> {get():.4g}")


def percent(off: np.ndarray) -> str:
    """Mean absolute error, or nothing."""
    return f"{100 * float(np.abs(np.expm1(off)).mean()):6.1f}" if len(off) else "      "


def show(cases: list[dict[str, Any]], *, points: bool) -> None:
    """Errors by table and role: below 2 MiB, and from there on."""
    by_role: dict[tuple[str, bool], list[float]] = {}
    for case in cases:
        off, sizes = errors(case), np.array([size for size, _ in case["rows"]])
        large = sizes >= LARGE
        print(f"{case['role']:12s}{case['name']:32s}{percent(off[~large])} {percent(off[large])}")
        for part in (False, True):
            if np.any(large == part):
                mean = float(np.abs(np.expm1(off[large == part])).mean())
                by_role.setdefault((case["role"], part), []).append(mean)
        if points:
            for (size, us), e, c in zip(case["rows"], off, costs(case), strict=True):
                how = f"{c.algorithm} {c.protocol}"
                print(f"    {size:>12d} B {us:>11.1f} us {100 * np.expm1(e):+6.1f} %  {how}")
    for (role, large_part), means in sorted(by_role.items()):
        print(f"{role}, {'2 MiB and more' if large_part else 'less'}: {100 * np.mean(means):.1f} %")


def main() -> None:
    """Errors as they are, or after a search."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", action="store_true")
    parser.add_argument("--search", type=int, default=0)
    asked = parser.parse_args()
    cases = json.loads(DATA.read_text(encoding="utf-8"))["cases"]
    if asked.search:
        search(cases, asked.search)
    show(cases, points=asked.points)


if __name__ == "__main__":
    main()
