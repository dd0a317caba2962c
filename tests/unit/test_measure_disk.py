"""The disk's table, on whatever disk the tests run on."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from raysim.measure import disk
from raysim.measure.session import Budget, Session, Unavailable
from raysim.measure.table import read_rows
from raysim.units import MIB


def test_every_row_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    session = Session(folder=tmp_path, budget=Budget(10), command="", quick=True)
    disk.measure(session)
    rows = {
        (r.parameters["op"], r.parameters["cache"]): r for r in read_rows(tmp_path / "disk.csv")
    }
    left_out = {tuple(text.split()[1:3]) for text in session.left_out}
    assert len(rows) + len(left_out) == 7  # O_DIRECT is not everywhere
    assert {("create", "cached"), ("fsync", "cached"), ("write", "cached")} <= set(rows)
    assert rows["write", "cached"].unit == "B/s"
    assert 1e5 < rows["write", "cached"].value < 1e12
    assert {p.name for p in tmp_path.iterdir()} == {"disk.csv", "meta.yaml"}


def test_a_full_disk_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * MIB))
    (write,) = [
        p
        for p in disk.points(tmp_path, quick=True)
        if (p.parameters["op"], p.parameters["cache"]) == ("write", "cached")
    ]
    with pytest.raises(Unavailable, match="a quarter of the 2097152 bytes"):
        write.measure(1.0)
    assert list(tmp_path.iterdir()) == []
