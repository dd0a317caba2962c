"""Threads' work per call on the emulator, and constants fitted on accounts of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.calibrate.fit import fit
from raysim.calibrate.parameters import parameters
from raysim.calibrate.rows import Measured
from raysim.measure.ray_core.activities import ACTIVITIES, ROLES
from raysim.validate.replayed import Against
from raysim.validate.work import ThreadWork, measured_work

MACHINE = Against(
    folder=Path(), hardware={"cores": 2, "memory_bytes": 4_000_000_000}, versions={"ray": "2.60.0"}
)
FREE = {"cold_factor": 1.0}


def test_a_call_costs_each_thread_what_its_messages_cost() -> None:
    work = ThreadWork(against=MACHINE, activities=("actor_burst", "task_sync"), known=FREE)
    values = {"submit_actor_task_ns": 1e6, "execute_ns": 2e6, "execute_task_ns": 3e6}
    found = work(values)
    assert found["actor_burst", "executor"] == pytest.approx(2e-3)
    assert found["task_sync", "executor"] == pytest.approx(5e-3)
    more = work({**values, "submit_actor_task_ns": 5e6})
    grown = more["actor_burst", "submit"] - found["actor_burst", "submit"]
    assert grown == pytest.approx(4e-3, rel=1e-3)
    assert more["task_sync", "submit"] == pytest.approx(found["task_sync", "submit"])
    assert work({**values, "grpc_work_ns": 1e5})["actor_burst", "grpc"] == pytest.approx(
        2e-4, rel=0.05
    )  # a call and its answer


def test_every_role_works_in_some_activity() -> None:
    found = ThreadWork(against=MACHINE)({})
    assert found.keys() == {(what, role) for what in ACTIVITIES for role in ROLES}
    for role in ROLES:
        assert max(found[what, role] for what in ACTIVITIES) > 1e-6, role


def test_constants_come_back_from_accounts_that_they_make() -> None:
    true = {
        "submit_task_ns": 80_000,
        "execute_ns": 150_000,
        "io_reply_ns": 90_000,
        "pin_ns": 90_000,
    }
    work = ThreadWork(against=MACHINE, activities=("task_burst", "task_sync", "put"))
    rows = [
        Measured(key=key, role="calibration", value=seconds, repetitions=5)
        for key, seconds in work(true).items()
        if seconds > 0
    ]
    found = fit(parameters(list(true)), work, rows).values
    assert found == pytest.approx(true, rel=0.05)  # what few rows tell is drawn to what is known


def test_rows_of_accounts_are_read_but_for_what_others_drown(tmp_path: Path) -> None:
    assert measured_work(tmp_path) == []
    table = """\
op,count,bytes,informs,value,unit,repetitions,low,high
work_idle,1,0,node_idle_cores,0.1,cores,3,0.1,0.1
work_executor_task_sync,300,0,execute_ns,0.0006,s,5,0.0005,0.0007
work_executor_io_task_sync,300,0,io_message_ns,0.0001,s,5,0.0001,0.0001
work_store_task_sync,300,0,plasma_request_ns,0.000001,s,5,0.000001,0.000001
"""
    (tmp_path / "ray_core.csv").write_text(table)
    rows = {row.key: row.value for row in measured_work(tmp_path)}
    assert rows == {("task_sync", "executor"): 0.0006, ("task_sync", "executor_io"): 0.0001}
