"""What the other GPUs of a ``DataParallel`` hold while the first one takes a step.

Real counterpart: ``torch/nn/parallel/{replicate,parallel_apply,_functions}.py`` of torch 2.13. A
forward broadcasts the weights to each GPU, which keeps them with the activations of its share until
backward, and then all its gradients, which are summed on the first GPU at once; after that nothing
but cuBLAS's workspaces. Of outputs that are gathered it has its share where it makes them, and of
their gradient; what a loss takes of all is on the first GPU, as the optimizer's states are.
"""

from __future__ import annotations

from dataclasses import replace

from raysim.hardware.specs import GpuSpec
from raysim.training.memory.peaks import RankMemory, rank_memory, workspaces
from raysim.training.program import Program

_OF_THE_FIRST = ("optimizer_state", "bucket")


def held_by_copies(program: Program, gpu: GpuSpec, *, gathers: bool) -> RankMemory:
    """Of one of them, by the first GPU's program: through its first micro-batch.

    ``gathers``: the loss is of outputs, which the first GPU has of all.
    """
    left_out = frozenset((*_OF_THE_FIRST, *(("logits",) if gathers else ())))
    found = rank_memory(_of_a_copy(program, left_out), None, gpu, (), explain=False)
    return replace(found, kept_bytes=sum(workspaces(program, gpu)))


def _of_a_copy(program: Program, left_out: frozenset[str]) -> Program:
    end = program.backward_ends[0]
    changes = [
        (number, event, at)
        for number, (event, at) in enumerate(zip(program.memory, program.memory_at, strict=True))
        if event.category not in left_out and (number < program.set_up or at < end)
    ]
    return Program(
        rank=program.rank, ops=program.ops[:end], micro_batches=program.micro_batches[:end],
        memory=[event for _, event, _ in changes], memory_at=[at for *_, at in changes],
        initial=[event for event in program.initial if event.category not in left_out],
        set_up=sum(number < program.set_up for number, *_ in changes),
        step_changes=[len(changes)], step_ends=[end], backward_ends=[end],
        multiplies=program.multiplies,
    )  # fmt: skip
