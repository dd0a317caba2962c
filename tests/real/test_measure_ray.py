"""Measuring real Ray: a few rows on one node, and on two."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.measure import ray_core
from raysim.measure.ray_core import calls, objects, processes, threads
from raysim.measure.session import Budget, Session
from raysim.measure.table import read_rows

pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.xdist_group("real clusters"),
]
pytest.importorskip("ray")

OPS = {
    "put_fresh", "actor_call_sync", "call_with_returns", "kv_put", "placement_group_create",
    "work_grpc_task_sync", "work_worker_start",
}  # fmt: skip


def test_rows_of_real_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All on the cluster of two nodes, since starting one takes longest."""
    modules = (objects, calls, processes, threads)
    every = [p for module in modules for p in module.probes(quick=True)]
    few = [p for p in every if p.point().parameters["op"] in OPS]
    few += objects.transfers(quick=True)
    for module in modules:
        monkeypatch.setattr(module, "probes", lambda **_: [])
    monkeypatch.setattr(objects, "transfers", lambda **_: few)
    monkeypatch.setattr(objects, "spills", lambda **_: [])
    monkeypatch.setattr(processes, "actors", lambda **_: [])
    monkeypatch.setattr("raysim.measure.session.POINT_S", 0.2)
    session = Session(folder=tmp_path, budget=Budget(120), command="", quick=True)
    ray_core.measure(session)
    rows = read_rows(tmp_path / "ray_core.csv")
    assert session.left_out == []
    assert {row.parameters["op"] for row in rows} == OPS | {"transfer"}
    # A thread's work is what is left when its idle work is taken off: a short look may find none.
    assert all(0 <= row.low <= row.value <= row.high for row in rows)
    assert all(row.low > 0 for row in rows if not row.parameters["op"].startswith("work_grpc"))
