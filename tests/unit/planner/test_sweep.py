"""Sweeps: the same from every runner, gone on with, unharmed by what dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from raysim.planner import pool
from raysim.planner.pool import processes, serial
from raysim.planner.space import Space, space_of
from raysim.planner.store import Store
from raysim.planner.sweep import sweep
from tests.unit.planner.parts import NODES, SPACE, scenario

WIDE = {**SPACE, "train.activation_checkpointing": ["none", "full"]}


@pytest.fixture(scope="module")
def whole():
    said = scenario(**{"targets.gpu_mem_peak": "<= 90%"})
    space = space_of(said, WIDE)
    return said, space, sweep(said, space, serial, limits=said.targets)


def test_every_point_is_tried_once_and_told(whole):
    _, space, found = whole
    assert found.complete
    assert [t.number for t in found.trials] == list(range(space.size))
    assert {t.status for t in found.trials} == {"ok"}
    frame = found.frame
    assert list(frame.columns[:4]) == list(WIDE)
    assert (frame.gpus == frame[NODES] * 4).all()


def test_processes_find_the_same(whole):
    said, space, found = whole
    assert sweep(said, space, processes(2), limits=said.targets) == found


def test_an_interrupted_sweep_goes_on(whole, tmp_path):
    said, space, found = whole

    def interrupted(task, points):
        for count, trial in enumerate(serial(task, points)):
            if count == 5:
                raise KeyboardInterrupt
            yield trial

    first = sweep(said, space, interrupted, limits=said.targets, store=Store(tmp_path))
    assert len(first.trials) == 5
    assert not first.complete
    tried = []

    def counted(task, points):
        for trial in serial(task, points):
            tried.append(trial.number)
            yield trial

    again = sweep(said, space, counted, limits=said.targets, store=Store(tmp_path))
    assert again == found
    assert tried == list(range(5, space.size))
    nothing = sweep(said, space, serial, limits=said.targets, store=Store(tmp_path))
    assert nothing == found


def _dies_once(point):
    """In a child: the third point kills its process, the first time."""
    marker = Path(os.environ["RAYSIM_TEST_MARKER"])
    if point.number == 3 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return _TRY(point)


_TRY = pool._try


def test_a_killed_process_changes_nothing(whole, tmp_path, monkeypatch):
    said, space, found = whole
    monkeypatch.setenv("RAYSIM_TEST_MARKER", str(tmp_path / "died"))
    monkeypatch.setattr(pool, "_try", _dies_once)
    assert sweep(said, space, processes(2), limits=said.targets) == found
    assert (tmp_path / "died").exists()


def _dies(_point):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_point_that_always_kills_is_a_trial_that_failed(monkeypatch):
    monkeypatch.setattr(pool, "_try", _dies)
    monkeypatch.setattr(pool, "MOST_ATTEMPTS", 1)
    monkeypatch.setattr(pool, "FEW", 0)
    found = sweep(scenario(), Space({"train.micro_batch": (1, 2)}), processes(2))
    assert [t.status for t in found.trials] == ["failed", "failed"]


@pytest.mark.parametrize(("worth_s", "elsewhere"), [(0.0, 2), (1e9, 0)])
def test_processes_start_by_themselves_where_what_is_left_takes_long(
    worth_s, elsewhere, monkeypatch
):
    given = []

    def by_pool(count, task, points):
        given.extend(points)
        return pool.serial(task, points)

    monkeypatch.setattr(pool, "WORTH_S", worth_s)
    monkeypatch.setattr(pool, "_cores", lambda: 8)
    monkeypatch.setattr(pool, "_by_pool", by_pool)
    space = Space({"train.micro_batch": (1, 2, 4)})
    found = sweep(scenario(), space, processes(None))
    assert found == sweep(scenario(), space, serial)
    assert len(given) == elsewhere


def test_what_cannot_be_is_a_trial_too():
    said = scenario()
    space = Space({"train.micro_batch": (4, 4096), "train.deepspeed.train_batch_size": (16,)})
    ok, refused = sweep(said, space, serial).trials
    assert ok.status == "ok"
    assert refused.status == "refused"
    assert "4096" in refused.why
