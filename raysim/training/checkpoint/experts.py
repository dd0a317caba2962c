"""Files of a model with DeepSpeed's MoE layers: every expert by itself, and who reads them.

Source: ``_save_moe_checkpoint`` and ``load_moe_state_dict`` of ``deepspeed/runtime/engine.py``,
0.19. The first rank of those that hold an expert writes it; dense weights are the first rank's.
Without ZeRO optimizer states are written twice: by every expert-parallel rank, and beside the dense
weights.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from raysim.models.table import COMPUTE_DTYPE_BYTES
from raysim.training.checkpoint.stored import CheckpointFile, Kind, Stored, master_and_states
from raysim.training.layers.sections import Gradient
from raysim.training.plan import TrainingPlan
from raysim.training.states.zero import FlatGroup, flat_groups

_EXPERT = re.compile(r"(.*?)\.?deepspeed_moe\.experts\.deepspeed_experts\.(\d+)\.")


def partitioned(plan: TrainingPlan, held: Stored, ranks: int) -> tuple[FlatGroup, ...]:
    """What ZeRO-1 and 2 flatten together."""
    trained = [
        Gradient(p.name, n, expert=p.expert, among=p.among)
        for _, ps in held.layers
        for p, n in ps
        if p.trainable
    ]
    return flat_groups(trained, ranks, plan.mesh.expert_ranks if plan.moe_groups else None)


def mixture_files(
    plan: TrainingPlan, kind: Kind, held: Stored, ranks: Sequence[int]
) -> Iterator[CheckpointFile]:
    """All but what partitions of ZeRO write."""
    low = COMPUTE_DTYPE_BYTES[plan.precision]
    if kind == "model":  # the first rank's module, with no experts but its own
        yield _file("mp_rank_00_model_states.pt", ranks[0], held.numel * low, held.largest * low)
        return
    experts = _experts(plan, held)
    counts = Counter(layer for layer, _ in experts)
    for (layer, expert), (numel, among) in experts.items():
        for rank in range(among):
            number = rank * counts[layer] + expert
            name = f"layer_{layer}_expert_{number}_mp_rank_00_model_states.pt"
            yield _file(name, ranks[rank], numel * low, numel * low, among)
    states = 0
    if not plan.zero.stage:
        states = round(sum(held.sizes(trainable=True)) * sum(master_and_states(plan)))
        for rank in range(plan.mesh.ep):
            name = f"expp_rank_{rank}_mp_rank_00_optim_states.pt"
            yield _file(name, ranks[rank], states, held.largest * 4, plan.mesh.ep)
    dense = sum(n for _, ps in held.layers for p, n in ps if not p.expert)
    frozen = sum(held.sizes(trainable=False)) if plan.zero.stage > 1 else 0  # as fragments, again
    size = (dense + frozen) * low + states
    yield _file("mp_rank_00_model_states.pt", ranks[0], size, held.largest * 4)


def holders(plan: TrainingPlan, file: CheckpointFile) -> Sequence[int]:
    """Ranks that read a file of experts: those that hold them; (): it is none."""
    return range(file.rank, plan.mesh.weight_ranks, file.among) if file.among else ()


def _experts(plan: TrainingPlan, held: Stored) -> dict[tuple[int, int], tuple[int, int]]:
    """Elements, and ranks that share the mixture, by its number and the expert's on its rank."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    mixtures: dict[str, int] = {}
    for number, parameters in held.layers:
        for p, numel in parameters:
            match = _EXPERT.match(plan.model.layers[number].full(p.name))
            if match:
                layer = mixtures.setdefault(match[1], len(mixtures))
                key = layer, int(match[2])
                found[key] = found.get(key, (0, 0))[0] + numel, p.among or plan.mesh.ep
    return found


def _file(name: str, rank: int, size_bytes: int, largest: int, among: int = 0) -> CheckpointFile:
    return CheckpointFile(
        name=name, rank=rank, size_bytes=size_bytes, staged_bytes=min(size_bytes, largest),
        among=among,
    )  # fmt: skip
