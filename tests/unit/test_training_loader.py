"""Batches of loader processes: made while the step before runs, waited for where they are late."""

from __future__ import annotations

import pytest

from raysim.perf.host import REFERENCE_SINGLE_THREAD
from raysim.perf.host_loops import Work
from raysim.training.compiler.feed import Feed, Own
from tests.training_parts import cluster, plan, play


def step_s(feed: Feed) -> float:
    return play(plan(stage=1), feed=feed, steps=6).steady_step_ns / 1e9


ASKS = Own(waits=True)
"""A step whose script asks for its loss: the host does not run ahead."""


def test_the_next_batch_is_made_while_the_step_runs() -> None:
    free_s = step_s(Feed(own=ASKS))
    assert step_s(Feed(own=ASKS, loader_s=free_s / 4)) == pytest.approx(free_s, rel=0.02)


def test_batches_that_take_longer_than_the_step_set_its_pace() -> None:
    batches, free_s = plan(stage=1).gradient_accumulation_steps, step_s(Feed(own=ASKS))
    assert step_s(Feed(own=ASKS, loader_s=3 * free_s)) == pytest.approx(
        3 * free_s * batches, rel=0.02
    )


def test_what_the_process_makes_itself_comes_on_top() -> None:
    free_s = step_s(Feed(own=ASKS))
    batches = plan(stage=1).gradient_accumulation_steps
    speed = cluster().groups[0].node.cpu.single_thread / REFERENCE_SINGLE_THREAD
    loops_s = step_s(Feed(own=ASKS, host_work=Work(loops_s=free_s))) - free_s
    assert loops_s == pytest.approx(batches * free_s / speed, rel=0.02)
