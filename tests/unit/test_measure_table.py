"""Measured tables: nothing is lost, nothing is measured twice, nothing is mixed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from raysim.errors import CalibrationError
from raysim.measure.machine import Gpu, Machine, slug
from raysim.measure.table import MeasuredTable, read_meta, read_rows

HERE = Machine(
    cpu="AMD EPYC 7R13 48-Core Processor",
    cores=2,
    memory_bytes=2**34,
    gpus=(),
    disk="nvme, ext4",
    kernel="Linux 6.1",
    versions={"python": "3.11.7", "ray": "2.60.0", "torch": None},
)


def opened(folder: Path, machine: Machine = HERE, columns: tuple[str, ...] = ("op", "size_bytes")):
    return MeasuredTable(folder, "copies", columns, command="raysim measure gpu", machine=machine)


def test_a_row_holds_median_and_percentiles(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        table.add({"op": "put", "size_bytes": 8}, [float(i) for i in range(11)], "s")
    (row,) = read_rows(table.path)
    assert (row.value, row.low, row.high, row.repetitions) == (5.0, 1.0, 9.0, 11)
    assert row.parameters == {"op": "put", "size_bytes": "8"}
    assert table.path.read_text().splitlines() == [
        "op,size_bytes,value,unit,repetitions,low,high",
        "put,8,5,s,11,1,9",
    ]


def test_an_interrupt_keeps_the_rows_and_the_time_taken(tmp_path: Path) -> None:
    def measure() -> None:
        with opened(tmp_path) as table:
            table.add({"op": "put", "size_bytes": 8}, [1.0], "s")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure()
    assert len(read_rows(tmp_path / "copies.csv")) == 1
    assert read_meta(tmp_path)["tables"]["copies"]["seconds"] >= 0


def test_a_row_is_on_the_disk_before_the_table_is_left(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.add({"op": "put", "size_bytes": 8}, [1.0], "s")
    assert len(read_rows(table.path)) == 1


def test_reopening_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        table.add({"op": "put", "size_bytes": 8}, [1.0], "s")
    with opened(tmp_path) as table:
        assert {"size_bytes": 8, "op": "put"} in table
        assert {"size_bytes": 9, "op": "put"} not in table
        table.add({"op": "put", "size_bytes": 9}, [2.0], "s")
    assert [row.value for row in read_rows(table.path)] == [1.0, 2.0]


def test_a_line_cut_in_its_middle_is_dropped(tmp_path: Path) -> None:
    with opened(tmp_path) as table:
        table.add({"op": "put", "size_bytes": 8}, [1.0], "s")
        table.add({"op": "put", "size_bytes": 9}, [2.0], "s")
    table.path.write_text(table.path.read_text()[:-4])
    with opened(tmp_path) as table:
        assert {"op": "put", "size_bytes": 9} not in table
        table.add({"op": "put", "size_bytes": 9}, [3.0], "s")
    assert [row.value for row in read_rows(table.path)] == [1.0, 3.0]


def test_gpus_are_the_same_after_reading_them_back(tmp_path: Path) -> None:
    gpu = Gpu(name="NVIDIA H200", memory_bytes=2**37, driver="570.86.15")
    machine = dataclasses.replace(HERE, gpus=(gpu, gpu))
    for _ in range(2):
        opened(tmp_path, machine)
    assert len(read_meta(tmp_path)["hardware"]["gpus"]) == 2


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"cores": 4}, "hardware.cores"),
        ({"gpus": (Gpu(name="NVIDIA H200", memory_bytes=1, driver="1"),)}, "hardware.gpus"),
        ({"versions": HERE.versions | {"ray": "2.61.0"}}, "versions.ray"),
    ],
)
def test_machines_are_not_mixed(tmp_path: Path, changed: dict, key: str) -> None:
    opened(tmp_path)
    with pytest.raises(CalibrationError, match=rf"meta\.yaml: {key}: was measured with .*--out"):
        opened(tmp_path, dataclasses.replace(HERE, **changed))


def test_other_columns_are_refused(tmp_path: Path) -> None:
    opened(tmp_path)
    with pytest.raises(CalibrationError, match=r"copies\.csv:1: has parameters op, size_bytes"):
        opened(tmp_path, columns=("op", "ranks"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1: the last columns"),
        ("op,value\n", "1: the last columns"),
        ("op,value,unit,repetitions,low,high\nput,fast,s,1,1,1\n", "2: could not convert"),
        ("op,value,unit,repetitions,low,high\nput,1,s\n", "2: not enough values"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(CalibrationError, match=rf"bad\.csv:{said}"):
        read_rows(path)


def test_several_tables_share_one_description(tmp_path: Path) -> None:
    opened(tmp_path)
    MeasuredTable(tmp_path, "disk", ("op",), command="raysim measure disk", machine=HERE)
    meta = read_meta(tmp_path)
    assert set(meta["tables"]) == {"copies", "disk"}
    assert meta["hardware"]["cpu"] == HERE.cpu
    assert meta["versions"]["torch"] is None


@pytest.mark.parametrize(
    ("cpu", "gpus", "name"),
    [
        ("Intel(R) Xeon(R) Processor", [], "intel-xeon-2core"),
        ("AMD EPYC 7R13 48-Core Processor", [], "amd-epyc-7r13-2core"),
        ("Intel(R) Xeon(R) Platinum 8175M CPU @ 2.50GHz", [], "intel-xeon-platinum-8175m-2core"),
        ("any", ["NVIDIA H100 80GB HBM3"] * 8, "nvidia-h100-80gb-hbm3-8gpu"),
    ],
)
def test_folders_are_named_for_the_hardware(cpu: str, gpus: list[str], name: str) -> None:
    found = tuple(Gpu(name=gpu, memory_bytes=1, driver="1") for gpu in gpus)
    assert slug(dataclasses.replace(HERE, cpu=cpu, gpus=found)) == name
