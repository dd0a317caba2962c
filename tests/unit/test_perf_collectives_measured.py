"""Collectives against measured rows that fixed none of their constants."""

from __future__ import annotations

import json
import re
from functools import cache
from math import expm1, log
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from raysim.hardware import catalog
from raysim.perf import tables
from raysim.perf.collectives import GroupShape, collective

PUBLISHED = Path(__file__).parents[2] / "validation" / "data" / "published"
LARGE = 2 * 2**20
GPUS = {
    "a100": "A100-SXM-80GB", "h100": "H100-SXM-80GB", "h200": "H200-SXM-141GB", "b200": "B200",
    "gb200": "GB200", "l40s": "L40S",
}  # fmt: skip


@cache
def published(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PUBLISHED / name).read_text(encoding="utf-8"))
    return found


def one_node(system: str, ranks: int) -> GroupShape:
    gpu = catalog.gpu(GPUS[system])
    pcie = system == "l40s"
    return GroupShape(
        ranks=ranks, nodes=1, ranks_per_node=ranks, architecture=gpu.architecture,
        fabric="pcie" if pcie else "nvswitch", gpu=gpu,
        intra_bytes_per_s=24.5e9 if pcie else gpu.scale_up_bytes_per_s,
        nic=catalog.nic("ib-ndr-400"), inter_bytes_per_s=float("inf"), inter_latency_s=0.0,
    )  # fmt: skip


def held_out(system: str) -> tuple[float, float]:
    """Mean absolute percent on the rows kept away: all sizes, and 2 MiB and more."""
    every, large = [], []
    for op, ranks, _, size, us in published("nccl_one_node.json")["rows"][system]:
        if op == "all_reduce_int8":
            continue
        off = 100 * abs(collective(op, size, one_node(system, ranks)).seconds * 1e6 / us - 1)
        every.append(off)
        if size >= LARGE:
            large.append(off)
    assert len(large) >= 10
    return mean(every), mean(large)


@pytest.mark.parametrize("system", GPUS)
def test_curves_inside_a_node_on_rows_kept_away(system: str) -> None:
    """8 L40S over two sockets scatter by 20-60 % from one measurement to the next."""
    every, large = held_out(system)
    assert every <= (8.0 if system == "l40s" else 4.0)
    assert large <= (9.0 if system == "l40s" else 3.5)


def test_the_table_states_the_error_it_has() -> None:
    stated = re.findall(r"(\w+) ([\d.]+)/([\d.]+)", tables.meta("nccl")["held out"])
    assert [name for name, _, _ in stated] == list(GPUS)
    for name, every, large in stated:
        assert held_out(name) == pytest.approx((float(every), float(large)), abs=0.1)


def across(case: dict[str, Any]) -> GroupShape:
    gpu, nic = catalog.gpu(case["gpu"]), catalog.nic(case["nic"])
    return GroupShape(
        ranks=case["nodes"] * case["gpus_per_node"], nodes=case["nodes"],
        ranks_per_node=case["gpus_per_node"], architecture=gpu.architecture, fabric="nvswitch",
        gpu=gpu, intra_bytes_per_s=gpu.scale_up_bytes_per_s, nic=nic,
        inter_bytes_per_s=case["nics"] * nic.bytes_per_s, inter_latency_s=2 * nic.latency_s,
    )  # fmt: skip


def off(case: dict[str, Any], *, large: bool) -> list[float]:
    """log(predicted / measured) by row."""
    shape = across(case)
    return [
        log(collective(case["op"], size, shape).seconds * 1e6 / us)
        for size, us in case["rows"]
        if (size >= LARGE) == large
    ]


def mean_percent(role: str, *, large: bool) -> float:
    """Mean over tables of their mean absolute percent."""
    cases = [c for c in published("nccl_multi_node.json")["cases"] if c["role"] == role]
    errors = [off(c, large=large) for c in cases]
    return mean(100 * mean(abs(expm1(e)) for e in of) for of in errors if of)


def test_between_nodes_on_tables_that_fixed_nothing() -> None:
    """Before the fill of pipelines was modelled: 20 and 20 %."""
    assert mean_percent("validation", large=True) <= 13.6
    assert mean_percent("validation", large=False) <= 14.3


def test_between_nodes_on_the_tables_that_were_fitted() -> None:
    assert mean_percent("calibration", large=True) <= 6.7
    assert mean_percent("calibration", large=False) <= 21.0


@pytest.mark.parametrize(
    "case", published("nccl_multi_node.json")["cases"], ids=lambda case: case["name"]
)
def test_no_point_between_nodes_is_off_by_more_than_a_factor_of_two(case: dict[str, Any]) -> None:
    if case["name"] == "oci_jp_a100_all_reduce":
        pytest.skip("its fabric gives 87 of 200 GB/s; the same shape elsewhere 126 and more")
    assert max(abs(e) for large in (True, False) for e in off(case, large=large)) < log(2)


def test_a_message_inside_a_node_is_half_of_two_ranks_all_to_all() -> None:
    """The other half stays: NCCL sends and receives with the one peer in both."""
    for system in GPUS:
        pair = one_node(system, 2)
        for size in (1 << 12, 1 << 20, 1 << 24):
            message, both = (
                collective("send_recv", size, pair),
                collective("all_to_all", 2 * size, pair),
            )
            assert message.seconds == pytest.approx(both.seconds)
            assert message.basis == "interpolated"


def test_a_long_message_has_twice_the_channels() -> None:
    """Per channel at most 16 MiB: below 256 MiB two B200 exchange 332 GB/s, beyond twice that."""
    pair = one_node("b200", 2)
    at = {mib: collective("send_recv", mib * 2**20, pair) for mib in (64, 256, 4096)}
    assert at[64].size_bytes / at[64].seconds == pytest.approx(300e9, rel=0.05)
    assert at[256].size_bytes / at[256].seconds == pytest.approx(332e9, rel=0.05)
    assert at[4096].size_bytes / at[4096].seconds == pytest.approx(660e9, rel=0.1)


def test_trees_over_four_nodes_have_half_of_the_nics() -> None:
    """NVLSTree's plateau: 187 of 8 x 50 GB/s on 4 nodes, 250 on 2 (nccl-tests issue 309)."""
    cases = {c["name"]: c for c in published("nccl_multi_node.json")["cases"]}
    for name, measured in (("dell_h100_4_all_reduce", 187e9), ("dell_h100_2_all_reduce", 250e9)):
        cost = collective("all_reduce", 2**33, across(cases[name]))
        assert 2**33 / cost.seconds == pytest.approx(measured, rel=0.06)
