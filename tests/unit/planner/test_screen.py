"""What cannot fit is known without playing; what fits is never screened out."""

from __future__ import annotations

import itertools

import pytest

import raysim
from raysim.planner.memory_grid import Grid, base_of
from raysim.planner.pool import serial
from raysim.planner.screen import screen_of, states_bytes
from raysim.planner.space import Space, space_of
from raysim.planner.sweep import sweep
from raysim.planner.trials import try_point
from raysim.training.memory.estimators import zero_paper_bytes
from tests.unit.planner.parts import scenario

LARGE = "scenarios/llama31_70b_zero3_offload"
NODES = "cluster.gpu-worker.replicas"


@pytest.mark.parametrize(("stage", "ranks"), list(itertools.product(range(4), (1, 8, 64))))
def test_it_is_at_most_the_papers_table(stage: int, ranks: int) -> None:
    paper = zero_paper_bytes(7e9, ranks, stage)
    assert states_bytes(7e9, ranks, stage) <= paper * (1 + 1e-12)
    if stage in (0, 3):
        assert states_bytes(7e9, ranks, stage) == pytest.approx(paper)


def test_nothing_that_fits_is_screened_out() -> None:
    said = raysim.load("scenarios/llama3_8b_zero3")
    space = space_of(said, {NODES: [1, 2], "train.zero_stage": [0, 1, 2, 3]})
    screen = screen_of(said, space)
    assert screen is not None
    out = [p for p in space.points() if screen(p) is not None]
    assert [p.choice["train.zero_stage"] for p in out] == [0, 0]
    for point in space.points():
        played = try_point(said, point, ())
        screened = screen(point)
        if screened is not None:
            assert played.status == "out_of_memory"
            assert screened.metrics["memory_peak"] <= played.metrics["memory_peak"]


def test_a_sweep_plays_only_the_rest() -> None:
    said = raysim.load("scenarios/llama3_8b_zero3")
    space = Space({"train.zero_stage": (0, 3), "train.micro_batch": (1, 2)})
    tried = []

    def counted(task, points):
        for trial in serial(task, points):
            tried.append(trial.number)
            yield trial

    found = sweep(said, space, counted)
    assert [t.status for t in found.trials] == ["out_of_memory", "out_of_memory", "ok", "ok"]
    assert "model states alone" in found.trials[0].why
    assert tried == [2, 3]


def test_offloaded_states_do_not_count() -> None:
    kept = raysim.load("scenarios/llama3_8b_zero3")
    zero = {"stage": 1, "offload_optimizer": {"device": "cpu"}}
    away = kept.with_({"train.deepspeed.zero_optimization": zero})
    space = Space({"train.workers": (1,)})
    point = next(space.points())
    assert screen_of(kept, space)(point) is not None
    assert screen_of(away, space)(point) is None


def test_what_the_bound_does_not_know_is_not_screened() -> None:
    said = scenario()
    assert screen_of(said, Space({"train.tensor_parallel": (1, 2)})) is None
    assert screen_of(said, Space({"train.deepspeed.fp16.enabled": (True,)})) is None
    other = raysim.load("scenarios/llama31_8b_fsdp2")
    assert screen_of(other, Space({"train.micro_batch": (1,)})) is None


def test_the_grids_base_is_screened_as_any_scenario() -> None:
    base = base_of(Grid(config=raysim.load("scenarios/llama3_8b_zero3").folder / "config.json"))
    assert screen_of(base, Space({"train.zero_stage": (0, 3)})) is not None


def test_fleets_larger_than_their_cluster_are_not_played() -> None:
    said = raysim.load("scenarios/llm_fleet")
    space = space_of(said)
    screen = screen_of(said, space)
    assert screen is not None
    out = [t for p in space.points() if (t := screen(p)) is not None]
    assert len(out) == 9
    assert out[0].why == "the replicas ask for 16 GPUs, the nodes have 8"
    assert all(
        t.choice["llm.replicas"] * t.choice["llm.engine_kwargs.tensor_parallel_size"]
        > 8 * t.choice["cluster.nodes"]
        for t in out
    )
