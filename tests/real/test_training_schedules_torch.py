"""Orders of passes against torch's own schedules, action by action, without any process."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.real
schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

from raysim.training.pipeline.pipelines import Pipeline  # noqa: E402
from raysim.training.pipeline.schedule import Do  # noqa: E402
from raysim.training.settings.deepspeed import PipelineSettings, ScheduleName  # noqa: E402

CLASSES: dict[ScheduleName, str] = {
    "interleaved": "ScheduleInterleaved1F1B",
    "looped_bfs": "ScheduleLoopedBFS",
    "zb_h1": "ScheduleInterleavedZeroBubble",
    "zb_v": "ScheduleZBVZeroBubble",
    "dualpipe_v": "ScheduleDualPipeV",
}
CHUNKED = ("interleaved", "looped_bfs", "zb_h1")
MICRO_BATCHES = range(1, 26)


def theirs(name: ScheduleName, ranks: int, chunks: int, micro_batches: int) -> list[list[Any]]:
    """What torch computes per rank; its constructor wants stages of running processes."""
    made = object.__new__(getattr(schedules, CLASSES[name]))
    made.pp_group_size, made._n_microbatches, made.n_local_stages = ranks, micro_batches, chunks
    made._stages = range(chunks)
    made.num_stages = made._num_stages = ranks * chunks
    made.number_of_rounds = max(1, micro_batches // ranks)
    made.microbatches_per_round = micro_batches // made.number_of_rounds
    done = {
        schedules.FORWARD: Do.FORWARD_PASS,
        schedules.FULL_BACKWARD: Do.BACKWARD_PASS,
        schedules.BACKWARD_INPUT: Do.BACKWARD_INPUT,
        schedules.BACKWARD_WEIGHT: Do.BACKWARD_WEIGHT,
    }
    orders = []
    for rank in range(ranks):
        actions = [a for a in made._calculate_single_rank_operations(rank) if a is not None]
        flat = [part for a in actions for part in (a.sub_actions or (a,))]
        orders.append([(done[a.computation_type], a.stage_index, a.microbatch_index) for a in flat])
    return orders


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_orders_are_torchs(name: ScheduleName, ranks: int) -> None:
    compared = 0
    for chunks in (1, 2, 3) if name in CHUNKED else (2,):
        for micro_batches in MICRO_BATCHES:
            rounds = max(1, micro_batches // ranks)
            if micro_batches % rounds or (name == "dualpipe_v" and micro_batches < 2 * ranks):
                continue  # torch refuses them
            group = micro_batches // rounds
            asked = PipelineSettings(
                schedule=name, virtual_stages=chunks, microbatch_group_size_per_vp_stage=group
            )
            p = Pipeline.of(asked, ranks, micro_batches)
            ours = [
                [(a.do, p.layout.stages_of(rank)[a.chunk], a.micro_batch) for a in order]
                for rank in range(ranks)
                if (order := p.order(rank, micro_batches))
            ]
            assert ours == theirs(name, ranks, chunks, micro_batches)
            compared += 1
    # torch refuses fewer than twice as many micro-batches as ranks
    assert compared > (4 if name == "dualpipe_v" else 8)
