"""DeepSpeed's 1F1B and GPipe, instruction by instruction."""

from __future__ import annotations

import pytest

from raysim.training.pipeline.schedule import (
    Do,
    Instruction,
    gpipe_schedule,
    num_pipe_buffers,
    train_schedule,
)

SHORT = {
    Do.LOAD_MICRO_BATCH: "L", Do.FORWARD_PASS: "F", Do.BACKWARD_PASS: "B",
    Do.SEND_ACTIVATION: "sendA", Do.RECV_ACTIVATION: "recvA", Do.SEND_GRAD: "sendG",
    Do.RECV_GRAD: "recvG", Do.REDUCE_TIED_GRADS: "tied", Do.REDUCE_GRADS: "reduce",
    Do.OPTIMIZER_STEP: "step",
}  # fmt: skip


def write(step: list[Instruction]) -> str:
    return " ".join(
        SHORT[i.do] + ("" if i.micro_batch is None else str(i.micro_batch)) for i in step
    )


def test_two_stages_and_four_micro_batches() -> None:
    """The vector of DeepSpeed's schedule, with buffer ids resolved to micro-batches."""
    first = [write(s) for s in train_schedule(0, 2, 4)]
    assert first == [
        "L0 F0", "sendA0", "L1 F1", "recvG0 sendA1 B0", "L2 F2", "recvG1 sendA2 B1", "L3 F3",
        "recvG2 sendA3 B2", "", "recvG3 B3 tied reduce step",
    ]  # fmt: skip
    second = [write(s) for s in train_schedule(1, 2, 4)]
    assert second == [
        "", "recvA0 L0 F0", "B0", "sendG0 recvA1 L1 F1", "B1", "sendG1 recvA2 L2 F2", "B2",
        "sendG2 recvA3 L3 F3", "B3", "sendG3 tied reduce step",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "stages", "micro_batches", "buffers"),
    [(0, 4, 8, 4), (3, 4, 8, 2), (0, 4, 1, 2), (0, 16, 256, 16), (15, 16, 256, 2), (0, 8, 3, 3)],
)
def test_pipe_buffers(stage: int, stages: int, micro_batches: int, buffers: int) -> None:
    assert num_pipe_buffers(stage, stages, micro_batches) == buffers


@pytest.mark.parametrize("schedule", [train_schedule, gpipe_schedule])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (1, 4), (2, 1), (4, 2), (5, 9)])
def test_neighbours_exchange_in_the_same_order(
    schedule: object, stages: int, micro_batches: int
) -> None:
    """Each stage computes every micro-batch once; what one sends, the next receives in turn."""
    assert callable(schedule)
    todo = [
        [i for step in schedule(stage, stages, micro_batches) for i in step]
        for stage in range(stages)
    ]

    def order(stage: int, do: Do) -> list[int | None]:
        return [i.micro_batch for i in todo[stage] if i.do == do]

    for stage in range(stages):
        assert sorted(order(stage, Do.FORWARD_PASS)) == list(range(micro_batches))  # type: ignore[type-var]
        assert sorted(order(stage, Do.BACKWARD_PASS)) == list(range(micro_batches))  # type: ignore[type-var]
        last = stage == stages - 1
        if not last:
            assert order(stage, Do.SEND_ACTIVATION) == order(stage + 1, Do.RECV_ACTIVATION)
            assert order(stage, Do.RECV_GRAD) == order(stage + 1, Do.SEND_GRAD)
        assert bool(order(stage, Do.LOAD_MICRO_BATCH)) == (stage == 0 or last)


def test_one_forward_one_backward_holds_no_more_than_its_buffers() -> None:
    for stages, micro_batches in [(2, 8), (4, 8), (8, 3)]:
        for stage in range(stages):
            held = most = 0
            for step in train_schedule(stage, stages, micro_batches):
                for i in step:
                    held += (i.do == Do.FORWARD_PASS) - (i.do == Do.BACKWARD_PASS)
                    most = max(most, held)
            assert most == min(stages - stage, micro_batches)
            assert most <= num_pipe_buffers(stage, stages, micro_batches)
