"""``report()``: the barrier, the queue of one, the controller's poll, the book of checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raysim.raycore.scripts import Script, now, sleep
from raysim.raylibs.train.checkpoints import CheckpointManager
from raysim.raylibs.train.config import CheckpointConfig
from raysim.raylibs.train.context import TrainContext
from raysim.raylibs.train.loop import ConstantStep
from raysim.raylibs.train.records import RunRecord
from raysim.raylibs.train.reports import Checkpoint, TrainingReport
from tests.train_parts import CHECKPOINT, loop, play, trainer, users

S = 10**9


def test_a_report_waits_for_the_slowest_rank_and_the_next_for_a_poll() -> None:
    done: dict[int, list[float]] = {0: [], 1: []}

    def body(context: TrainContext) -> Script:
        yield sleep(context.rank * 3 * S)
        for _ in range(4):
            yield from context.report({})
            done[context.rank].append((yield now()) / S)

    played = play(users(body))
    assert played.outcome.ok
    assert played.record.reports == 4
    first, second, third, fourth = done[0]
    assert first == pytest.approx(done[1][0], abs=0.01)
    # The queue holds one: the second report waits for the poll that takes the first, and so on.
    assert 0 < second - first < 2.05
    assert (third - second, fourth - third) == pytest.approx((2.0, 2.0), abs=0.02)


def test_checkpoints_are_registered_at_polls_of_two_seconds() -> None:
    saved = play(trainer(loop(steps=100, checkpoint_every=7))).record.saved
    registered = [s.registered_ns / S for s in saved]
    period = registered[1] - registered[0]
    polls = round(period / 2)
    grid = period / polls
    assert grid == pytest.approx(2.0, abs=0.02)
    for at in registered:
        assert (at - registered[0]) / grid == pytest.approx(
            round((at - registered[0]) / grid), abs=0.01
        )
    # Saved (1 s), uploaded (2 s), then as long as the next poll takes to come.
    waits = [(s.registered_ns - s.reported_ns) / S for s in saved]
    assert all(3.0 < wait < 5.1 for wait in waits)


def test_each_rank_uploads_its_own_and_the_whole_is_their_sum() -> None:
    def body(context: TrainContext) -> Script:
        at = yield now()
        part = Checkpoint(
            name="checkpoint_1", step=1, reported_ns=at, size_bytes=(1 + context.rank) * 1e9
        )
        yield from context.report({"loss": 1.0}, part)

    played = play(users(body))
    (saved,) = played.record.saved
    assert saved.size_bytes == 3e9
    # Both ranks on one node, which sends 2 GB/s: 1 GB each in a second, the rest in half.
    assert (saved.registered_ns - saved.reported_ns) / S > 1.5
    assert played.outcome.checkpoint.size_bytes == 3e9
    assert played.outcome.metrics == {"loss": 1.0}


def test_a_report_only_some_ranks_make_never_counts() -> None:
    def body(context: TrainContext) -> Script:
        if context.rank:
            yield from context.report({})
        yield sleep(S)

    played = play(users(body), until="10min")
    assert played.outcome is None  # it waits at the barrier for ever
    assert played.record.reports == 0


def test_metrics_wait_for_the_asynchronous_upload_before_them() -> None:
    slow = replace(CHECKPOINT, total_bytes=80e9, mode="ASYNC")  # 20 s of upload, 10 s of save
    every = {"steps": 40, "checkpoint_every": 20, "checkpoint": slow}
    silent = play(trainer(loop(**every))).parts_s()
    talks = play(trainer(loop(**every, report_every=5))).parts_s()
    assert talks["reports"] > silent["reports"] + 10


def test_a_fast_loop_with_reports_is_as_slow_as_polls_and_without_is_not() -> None:
    fast = {"steps": 300, "step": ConstantStep(step_s=0.1), "checkpoint_every": None}
    each = play(trainer(loop(**fast, report_every=1))).record
    tenth = play(trainer(loop(**fast, report_every=20))).record
    wall_s = [(r.end_ns - r.begin_ns) / S for r in (each, tenth)]
    assert wall_s[0] == pytest.approx(300 * 2.0, rel=0.03)
    assert wall_s[1] < 0.08 * wall_s[0]
    assert (each.reports, tenth.reports) == (300, 15)


def checkpoint(step: int) -> Checkpoint:
    return Checkpoint(name=f"c{step}", step=step, reported_ns=0, size_bytes=1.0)


@pytest.mark.parametrize(
    ("order", "kept", "most"),
    [
        ("max", ["c1", "c2", "c5"], 4),  # the latest beside the two best
        ("min", ["c3", "c5"], 4),
        (None, ["c4", "c5"], 3),  # one is written before another is deleted
    ],
)
def test_the_best_are_kept_and_the_latest(order: Any, kept: list[str], most: int) -> None:
    config = CheckpointConfig(num_to_keep=2)
    if order is not None:
        config = CheckpointConfig(
            num_to_keep=2, checkpoint_score_attribute="score", checkpoint_score_order=order
        )
    manager = CheckpointManager(config, RunRecord())
    for step, score in [(1, 5.0), (2, 9.0), (3, 1.0), (4, None), (5, 4.0)]:
        manager.register(checkpoint(step), {} if score is None else {"score": score}, 0)
    assert sorted(c.name for c, _ in manager.results) == kept
    assert manager.record.stored_bytes == len(kept)
    assert manager.record.most_stored_bytes == most


def test_a_report_counts_when_every_rank_has_made_it() -> None:
    manager = CheckpointManager(CheckpointConfig(), RunRecord())
    manager.begin(2)
    manager.collect({0: TrainingReport(checkpoint=checkpoint(1))}, 10)
    assert manager.latest is None
    manager.collect({0: TrainingReport(), 1: TrainingReport(checkpoint=checkpoint(1))}, 20)
    assert manager.latest is not None
    assert manager.latest[0].size_bytes == 2.0
    manager.begin(2)  # another attempt: the second report of rank 0 is forgotten
    manager.collect({1: TrainingReport(checkpoint=checkpoint(2))}, 30)
    assert manager.record.reports == 1
