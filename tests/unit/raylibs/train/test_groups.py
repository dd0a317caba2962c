"""Starts of a worker group: what happens in which order, who gets which rank, what never starts."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.raycore.scripts import Script, now
from raysim.raycore.tasks import TaskError
from raysim.raylibs.train.config import FailureConfig
from raysim.raylibs.train.context import TrainContext
from raysim.raylibs.train.loop import SetUp, TrainLoop
from raysim.units import to_seconds
from tests.train_parts import loop, play, trainer, users


def one_step(**changes: Any) -> TrainLoop:
    return loop(steps=1, checkpoint_every=None, **changes)


def test_a_start_is_processes_then_imports_then_the_process_group() -> None:
    def startup(workers: int, gpus: int) -> float:
        spec = trainer(one_step(), workers=workers, import_core_s=3.0, process_group_s=2.0)
        return play(spec, nodes=1, gpus=gpus).parts_s()["startup"]

    alone, four = startup(1, 4), startup(4, 4)
    assert alone > 3.0
    assert four == pytest.approx(alone + 2.0, abs=0.1)  # one rank has nobody to meet
    # Sixteen cores: twice as many ranks share them two by two.
    assert startup(32, 32) > startup(16, 16) + 3.0


def test_set_up_is_part_of_the_start_and_weights_share_the_way_from_the_store() -> None:
    def startup(**more: float) -> float:
        return play(trainer(one_step(set_up=SetUp(**more)))).parts_s()["startup"]

    nothing = startup()
    assert startup(wait_s=5.0) == pytest.approx(nothing + 5.0, abs=0.01)
    assert startup(core_s=1.0) == pytest.approx(nothing + 1.0, abs=0.01)
    # Two nodes read 20 GB each, of a store that gives 5 GB/s in all.
    assert startup(read_bytes=20e9) == pytest.approx(nothing + 2 * 20 / 5, abs=0.05)


def test_ranks_are_contiguous_on_as_few_nodes_as_can_be() -> None:
    places: dict[int, tuple[int, int, int, int]] = {}
    began: list[int] = []

    def body(context: TrainContext) -> Script:
        began.append((yield now()))
        places[context.rank] = (
            context.process.me.node_id, context.node_rank, context.local_rank,
            context.local_world_size,
        )  # fmt: skip

    played = play(users(body, workers=6), nodes=3)
    assert played.outcome.ok
    nodes = [places[rank][0] for rank in range(6)]
    assert len(set(nodes)) == 2
    assert nodes == sorted(nodes, key=nodes.index)  # a node's ranks follow each other
    first = nodes.count(nodes[0])
    assert [places[rank][1:] for rank in range(6)] == [
        *((0, i, first) for i in range(first)), *((1, i, 6 - first) for i in range(6 - first)),
    ]  # fmt: skip
    # init_process_group is a barrier: functions start together, as fast as calls go out.
    assert max(began) - min(began) < 10_000_000


def test_what_a_function_returns_is_rank_0s() -> None:
    def body(context: TrainContext) -> Script:
        yield now()
        return f"rank {context.rank} of {context.world_size}"

    assert play(users(body)).outcome.return_value == "rank 0 of 2"


@pytest.mark.parametrize(("gpu", "teardown_s"), [(True, 35.0), (False, 0.0)])
def test_one_rank_that_raises_ends_them_all(*, gpu: bool, teardown_s: float) -> None:
    def body(context: TrainContext) -> Script:
        yield now()
        if context.rank:
            return TaskError("TASK_EXECUTION_EXCEPTION", "ValueError: no")
        yield from context.sync.ask("broadcast_from_rank_zero", 0, 2, None)

    played = play(users(body, gpu=gpu))
    assert (played.outcome.ok, played.outcome.cause) == (False, "worker")
    assert "ValueError" in played.outcome.error.message
    # Rank 0 hangs: destroy_process_group of NCCL waits for 30 s, hooks for 5 s more; gloo's closes
    # the connections at once (real torch 2.13, two processes, one of them in an all-reduce).
    assert played.parts_s()["teardown"] == pytest.approx(teardown_s, abs=0.1)


def missing(sim: Any, faults: Any) -> None:
    """A node is not there at first."""
    sim.at("1200ms", faults.kill_raylet, 1)
    sim.at("330s", faults.restart_node, 1)


def test_what_does_not_fit_asks_again_every_minute_until_it_does() -> None:
    played = play(faults=missing)
    assert played.outcome.ok
    assert played.record.group_waits == 5
    states = [(to_seconds(at), state) for at, state in played.record.states]
    assert [state for _, state in states] == [
        "INITIALIZING", "SCHEDULING", "RESCHEDULING", "SCHEDULING", "RUNNING", "SHUTTING_DOWN",
        "FINISHED",
    ]  # fmt: skip
    assert states[2][0] - states[1][0] == pytest.approx(60.0, abs=0.01)  # the first of them
    assert played.parts_s()["waiting"] == pytest.approx(330.0, abs=10.0)
    assert len(played.record.attempts) == 1


@pytest.mark.parametrize(("limit", "ok"), [(4, False), (5, True)])
def test_starts_that_fail_use_up_their_own_budget(limit: int, ok: bool) -> None:
    few = FailureConfig(max_failures=9, controller_failure_limit=limit)
    played = play(trainer(failures=few), faults=missing)
    assert played.outcome.ok == ok
    if not ok:
        assert played.outcome.cause == "start"
        assert played.record.group_waits == limit + 1
        assert played.states()[-2:] == ["SHUTTING_DOWN", "ERRORED"]
        assert played.record.attempts == []


@pytest.mark.parametrize("workers", [8, (6, 8)])
def test_a_run_that_waits_for_ever_is_given_up(workers: Any) -> None:
    def lose(sim: Any, faults: Any) -> None:
        sim.at("60s", faults.kill_raylet, 1)

    spec = trainer(workers=workers, failures=FailureConfig(max_failures=-1), patience_s=7200.0)
    played = play(spec, faults=lose)
    assert not played.outcome.ok
    assert "waited 2 h" in played.outcome.error.message
    assert played.record.kept_steps() == 40
    assert played.parts_s()["waiting"] == pytest.approx(7200.0, abs=70.0)
