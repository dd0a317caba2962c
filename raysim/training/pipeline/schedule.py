"""Pipeline schedules as per-stage instruction lists.

``train_schedule`` is DeepSpeed's ``TrainSchedule`` (1F1B with blocking pairwise exchange),
instruction for instruction (``deepspeed/runtime/pipe/schedule.py``), and ``inference_schedule`` its
``InferenceSchedule``. ``gpipe_schedule`` runs all forwards, then all backwards. A schedule knows
nothing of time or bytes. Other schedules are orders of passes (``orders``), to which ``pipelines``
adds what is sent and received.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, unique


@unique
class Do(Enum):
    """What one pipeline instruction does; the names are DeepSpeed's.

    The two halves of a backward pass are those of zero-bubble schedules (Qi et al. 2023).
    """

    LOAD_MICRO_BATCH = "LoadMicroBatch"
    FORWARD_PASS = "ForwardPass"  # noqa: S105 (not a password)
    BACKWARD_PASS = "BackwardPass"  # noqa: S105 (not a password)
    BACKWARD_INPUT = "BackwardInput"
    """Gradients of the stage's inputs, which the stage before waits for."""
    BACKWARD_WEIGHT = "BackwardWeight"
    """Gradients of its weights, which nobody waits for until the optimizer step."""
    SEND_ACTIVATION = "SendActivation"
    RECV_ACTIVATION = "RecvActivation"
    SEND_GRAD = "SendGrad"
    RECV_GRAD = "RecvGrad"
    AWAIT_GRAD = "AwaitGrad"
    """The next pass waits for a gradient that the one after it needs."""
    REDUCE_TIED_GRADS = "ReduceTiedGrads"
    REDUCE_GRADS = "ReduceGrads"
    OPTIMIZER_STEP = "OptimizerStep"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; ``micro_batch`` is None for the three at the end of the batch."""

    do: Do
    micro_batch: int | None = None
    chunk: int = 0
    """Which of the rank's stages."""


END_OF_BATCH = (Do.REDUCE_TIED_GRADS, Do.REDUCE_GRADS, Do.OPTIMIZER_STEP)
_END = tuple(Instruction(do) for do in END_OF_BATCH)
BACKWARDS = (Do.BACKWARD_PASS, Do.BACKWARD_INPUT)
"""What counts as a micro-batch's backward pass, and makes a gradient for the stage before."""
PASSES = (Do.FORWARD_PASS, *BACKWARDS, Do.BACKWARD_WEIGHT)


def num_pipe_buffers(stage: int, stages: int, micro_batches: int) -> int:
    """Activation buffers of a stage: micro-batches in flight, at least two."""
    return max(2, min(stages - stage, micro_batches))


def step_to_micro_batch(step: int, stage: int, stages: int) -> tuple[int, bool]:
    """The micro-batch that ``stage`` handles at ``step`` (valid or not), and whether forward.

    Forward where step and stage have the same parity, backward elsewhere.
    """
    half = step // 2
    if step % 2 == stage % 2:
        return half - stage // 2, True
    if step % 2 == 0:
        return half - stages + (stage + 1) // 2, False
    return half - stages + 1 + stage // 2, False


def train_schedule(stage: int, stages: int, micro_batches: int) -> Iterator[list[Instruction]]:
    """DeepSpeed's 1F1B: one list of instructions per schedule step, 2(M + S - 1) steps."""

    def valid(micro_batch: int) -> bool:
        return 0 <= micro_batch < micro_batches

    first, last = stage == 0, stage == stages - 1
    total = 2 * (micro_batches + stages - 1)
    previous = -1
    for step in range(total):
        current, forward = step_to_micro_batch(step, stage, stages)
        todo: list[Instruction] = []
        if forward:
            if valid(previous) and not first:
                todo.append(Instruction(Do.SEND_GRAD, previous))
            if valid(current) and not first:
                todo.append(Instruction(Do.RECV_ACTIVATION, current))
        else:
            if valid(current) and not last:
                todo.append(Instruction(Do.RECV_GRAD, current))
            if valid(previous) and not last:
                todo.append(Instruction(Do.SEND_ACTIVATION, previous))
        if valid(current):
            if forward and (first or last):
                todo.append(Instruction(Do.LOAD_MICRO_BATCH, current))
            todo.append(Instruction(Do.FORWARD_PASS if forward else Do.BACKWARD_PASS, current))
        if step == total - 1:
            todo.extend(_END)
        previous = current
        yield todo


def inference_schedule(stage: int, stages: int, micro_batches: int) -> Iterator[list[Instruction]]:
    """DeepSpeed's evaluation: one list of instructions per schedule step, M + S - 1 steps.

    Even stages send a micro-batch before they receive the next, odd ones after.
    """

    def valid(micro_batch: int) -> bool:
        return 0 <= micro_batch < micro_batches

    first, last = stage == 0, stage == stages - 1
    for step in range(micro_batches + stages - 1):
        current, previous = step - stage, step - stage - 1
        todo: list[Instruction] = []
        if valid(current) and (first or last):
            todo.append(Instruction(Do.LOAD_MICRO_BATCH, current))
        pair: list[Instruction] = []
        if valid(previous) and not last:
            pair.append(Instruction(Do.SEND_ACTIVATION, previous))
        if valid(current) and not first:
            pair.append(Instruction(Do.RECV_ACTIVATION, current))
        todo += pair if stage % 2 == 0 else reversed(pair)
        if valid(current):
            todo.append(Instruction(Do.FORWARD_PASS, current))
        yield todo


def gpipe_schedule(stage: int, stages: int, micro_batches: int) -> Iterator[list[Instruction]]:
    """All forwards in order, then all backwards in reverse order (Huang et al. 2019)."""
    first, last = stage == 0, stage == stages - 1
    for m in range(micro_batches):
        todo = [] if first else [Instruction(Do.RECV_ACTIVATION, m)]
        if first or last:
            todo.append(Instruction(Do.LOAD_MICRO_BATCH, m))
        todo.append(Instruction(Do.FORWARD_PASS, m))
        if not last:
            todo.append(Instruction(Do.SEND_ACTIVATION, m))
        yield todo
    for m in reversed(range(micro_batches)):
        todo = [] if last else [Instruction(Do.RECV_GRAD, m)]
        todo.append(Instruction(Do.BACKWARD_PASS, m))
        if not first:
            todo.append(Instruction(Do.SEND_GRAD, m))
        yield todo
    yield list(_END)
