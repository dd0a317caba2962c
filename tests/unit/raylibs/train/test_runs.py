"""Runs on small clusters: where the time goes, what a failure costs, what an elastic group does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.raylibs.train.advice import advice
from raysim.raylibs.train.config import FailureConfig
from raysim.raylibs.train.loop import CheckpointSpec, ConstantStep, UploadMode
from raysim.raylibs.train.records import RunRecord
from raysim.raylibs.train.shards import ConstantRate
from tests.train_parts import CHECKPOINT, Played, loop, play, trainer

S = 10**9


def wall_s(played: Played) -> float:
    return (played.record.end_ns - played.record.begin_ns) / S


def test_a_run_is_its_start_its_steps_and_its_saves() -> None:
    played = play()
    assert played.outcome.ok
    assert played.states() == ["INITIALIZING", "SCHEDULING", "RUNNING", "SHUTTING_DOWN", "FINISHED"]
    parts = played.parts_s()
    assert parts["steps"] == 60.0
    # Each of three saves: 1 GB per rank at 1 GB/s, then 8 GB at 2 GB/s from each of two nodes.
    assert parts["checkpoints"] == pytest.approx(3 * (1 + 2), abs=0.02)
    assert sum(parts.values()) == pytest.approx(wall_s(played), abs=0.01)


@pytest.mark.parametrize(
    ("mode", "stall_s"), [("SYNC", 9.0), ("ASYNC", 3 * 1 + 2), ("NO_UPLOAD", 3)]
)
def test_what_a_save_holds_up(mode: UploadMode, stall_s: float) -> None:
    # Asynchronous uploads take the steps' time; the last is waited for at the end.
    spec = replace(CHECKPOINT, mode=mode)
    assert play(trainer(loop(checkpoint=spec))).parts_s()["checkpoints"] == pytest.approx(
        stall_s, abs=0.05
    )


def test_rank_0_alone_writes_a_gathered_checkpoint() -> None:
    gathered = replace(CHECKPOINT, writers="rank0", gather_s=4.0)
    parts = play(trainer(loop(checkpoint=gathered))).parts_s()
    # 4 s to gather, 8 s to save, 4 s to upload over one node's 2 GB/s.
    assert parts["checkpoints"] == pytest.approx(3 * (4 + 8 + 4), abs=0.05)


@pytest.mark.parametrize(("keep", "stored"), [(None, 24e9), (1, 8e9), (2, 16e9)])
def test_num_to_keep_bounds_what_is_stored(keep: int | None, stored: float) -> None:
    assert play(trainer(keep=keep)).record.stored_bytes == pytest.approx(stored)


def test_a_worker_that_dies_costs_the_steps_since_the_last_checkpoint() -> None:
    played = play(
        trainer(failures=FailureConfig(max_failures=1)),
        faults=lambda sim, faults: sim.at("60s", faults.kill_some_worker, 1),
    )
    assert played.outcome.ok
    first, second = played.record.attempts
    assert (first.resume_step, second.resume_step, second.done_step) == (0, 40, 60)
    parts = played.parts_s()
    assert parts["lost"] == pytest.approx(first.done_step - 40, abs=3.5)
    assert parts["detection"] < 2.1  # the controller polls every 2 s
    assert parts["load"] == pytest.approx(1.0 + 8 / 5, abs=0.1)
    assert sum(parts.values()) == pytest.approx(wall_s(played), abs=0.01)


def test_without_failures_allowed_the_run_ends_with_the_error() -> None:
    played = play(faults=lambda sim, faults: sim.at("60s", faults.kill_some_worker, 1))
    assert not played.outcome.ok
    assert played.states()[-1] == "ERRORED"
    assert played.outcome.error.error_type == "ACTOR_DIED"
    assert played.record.kept_steps() == 40


def test_a_lost_node_is_waited_for() -> None:
    def fail(sim, faults) -> None:
        sim.at("60s", faults.kill_raylet, 1)
        sim.at("200s", faults.restart_node, 1)

    played = play(trainer(failures=FailureConfig(max_failures=1)), faults=fail)
    assert played.outcome.ok
    assert 100 < played.parts_s()["waiting"] < 145


def test_an_elastic_run_goes_on_with_whom_it_has() -> None:
    def fail(sim, faults) -> None:
        sim.at("60s", faults.kill_raylet, 1)

    spec = trainer(
        loop(step=ConstantStep(step_s=1.0, world_size=8)), workers=(4, 8),
        failures=FailureConfig(max_failures=1),
    )  # fmt: skip
    played = play(spec, faults=fail)
    assert played.outcome.ok
    assert [a.world_size for a in played.record.attempts] == [8, 4]
    # The batch is the group's: half as many ranks take twice as long.
    assert played.parts_s()["steps"] == pytest.approx(40 + 20 * 2, abs=0.01)


def test_an_elastic_run_grows_when_the_node_is_back() -> None:
    def fail(sim, faults) -> None:
        sim.at("40s", faults.kill_raylet, 1)
        sim.at("150s", faults.restart_node, 1)

    spec = trainer(loop(steps=400), workers=(4, 8), failures=FailureConfig(max_failures=1))
    sizes = [a.world_size for a in play(spec, faults=fail).record.attempts]
    assert sizes == [8, 4, 8]


def test_a_loop_that_hears_of_a_preemption_saves_before_it() -> None:
    def take(sim, faults) -> None:
        sim.at("80s", faults.preempt, 1, "30s")
        sim.at("300s", faults.restart_node, 1)

    deaf, hears = (
        play(trainer(loop(steps=120, checkpoint_every=60, on_preemption=how)), faults=take)
        for how in ("ignore", "checkpoint")
    )
    assert deaf.outcome.ok
    assert hears.outcome.ok
    # step 60 was saved at 73 s, and the watcher looks every 5 s
    assert hears.parts_s().get("lost", 0.0) + 7 < deaf.parts_s()["lost"]


def test_reports_faster_than_the_poll_go_at_its_pace_and_are_warned_of() -> None:
    fast = loop(step=ConstantStep(step_s=0.1), report_every=1, checkpoint_every=None)
    played = play(trainer(fast))
    # A queue of one result, emptied every 2 s.
    parts = played.parts_s()
    assert parts["steps"] + parts["reports"] == pytest.approx(60 * 2.0, rel=0.05)
    found = [w.code for w in advice(trainer(fast), played.record, [{"CPU": 16.0, "GPU": 4.0}] * 2)]
    assert "report-faster-than-poll" in found


@settings(max_examples=40, deadline=None)
@given(
    steps=st.integers(1, 50), step_s=st.sampled_from([0.1, 1.0, 3.3]),
    every=st.sampled_from([None, 7, 20]), report=st.sampled_from([None, 1, 5]),
    mode=st.sampled_from(["SYNC", "ASYNC", "NO_UPLOAD"]),
    writers=st.sampled_from(["all", "rank0"]), workers=st.integers(1, 8),
    batches=st.sampled_from([None, 0.5, 2.0, 20.0]),
    how=st.sampled_from(["ignore", "checkpoint"]),
    what=st.sampled_from(["nothing", "kill", "preempt"]), at=st.integers(5, 60),
)  # fmt: skip
def test_in_bulk_is_what_ranks_do_one_by_one(
    steps: int, step_s: float, every: int | None, report: int | None, mode: UploadMode,
    writers: Any, workers: int, batches: float | None, how: Any, what: str, at: int,
) -> None:  # fmt: skip
    if what != "nothing":  # a poll apart, one may have ended when the other is hit
        batches = report = None
    a_loop = loop(
        steps=steps, step=ConstantStep(step_s=step_s), checkpoint_every=every, report_every=report,
        checkpoint=CheckpointSpec(
            total_bytes=4e9, save_bytes_per_s=1e9, load_bytes_per_s=1e9, mode=mode, writers=writers
        ),
        dataset=None if batches is None else ConstantRate(batches_per_s=batches),
        on_preemption=how,
    )  # fmt: skip

    def faults(sim: Any, faults: Any) -> None:
        if what == "kill":
            sim.at(f"{at}s", faults.kill_some_worker, 0)
        elif what == "preempt":
            sim.at(f"{at}s", faults.preempt, 1, "15s")
            sim.at(f"{at + 100}s", faults.restart_node, 1)

    bulk, each = (
        play(
            trainer(a_loop, workers=workers, in_bulk=alike, failures=FailureConfig(max_failures=2)),
            faults=faults,
        )
        for alike in (True, False)
    )
    assert bulk.outcome.ok
    assert each.outcome.ok
    assert bulk.record.kept_steps() == each.record.kept_steps() == steps
    assert len(bulk.record.attempts) == len(each.record.attempts)
    assert [s.cause for s in bulk.record.stops] == [s.cause for s in each.record.stops]
    assert bulk.record.stored_bytes == pytest.approx(each.record.stored_bytes)
    pauses = 2 + len(each.record.saved)  # in which two batches are made ahead
    ahead_s = 0.0 if batches is None else pauses * 2 / batches
    assert wall_s(bulk) == pytest.approx(wall_s(each), rel=0.02, abs=2.1 + ahead_s)


def test_one_seed_gives_one_run() -> None:
    noisy = trainer(loop(step_cv=0.1))
    first, again = (play(noisy, seed=3) for _ in range(2))
    assert first.record.end_ns == again.record.end_ns
    assert first.record.states == again.record.states


def test_a_restart_costs_so_many_events_per_worker() -> None:
    def events(kills: int) -> int:
        def kill(sim: Any, faults: Any) -> None:
            for i in range(kills):
                sim.at(f"{i + 1}h", faults.kill_some_worker, 1)

        a_loop = loop(steps=5_000, step=ConstantStep(step_s=5.0), checkpoint_every=360)
        spec = trainer(a_loop, workers=64, failures=FailureConfig(max_failures=-1))
        played = play(spec, nodes=9, gpus=8, faults=kill, until="12h")
        assert played.outcome.ok
        assert len(played.record.attempts) == kills + 1
        return played.cluster.sim.log.events

    # Processes, imports, calls and deaths of 64 workers, all heard of by nine nodes: 173 each.
    assert (events(3) - events(0)) / 3 / 64 < 200


def test_a_hundred_times_the_steps_are_no_more_events() -> None:
    # What a long run costs to play follows from its saves and failures, not from its steps.
    few, many = (
        play(trainer(loop(steps=n, checkpoint_every=n // 4, report_every=n // 8)), until="40h")
        for n in (1_000, 100_000)
    )
    assert many.outcome.ok
    events = [p.cluster.sim.log.events for p in (few, many)]
    polls = (many.record.end_ns - few.record.end_ns) / S / 3600  # idle processes meet by the hour
    assert events[1] < 1.5 * events[0] + 2_000 * polls


def test_work_between_waits_for_data_belongs_to_the_step_that_follows_it() -> None:
    record = RunRecord()
    record.phase(0, "startup")
    record.began(10, 1, 0)
    for begin_ns in (10, 40):  # of each step: a wait, work, another wait, more work
        for at_ns, phase in ((0, "data"), (5, "steps"), (15, "data"), (20, "steps")):
            record.phase(begin_ns + at_ns, phase)
        record.stepped(begin_ns + 30, 1)
    record.phase(70, "data")
    record.phase(80, "steps")  # a step that never ends
    record.state(100, "FINISHED")
    record.ended(100)
    parts = record.parts_ns()
    assert (parts["steps"], parts["data"], parts["lost"]) == (2 * 20, 2 * 10 + 10, 20)
