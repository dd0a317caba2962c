"""Recorded collectives of real ZeRO++ and Twin-Flow steps, and raysim's of the same steps.

The record is ``validation/data/deepspeed_cpu/zeropp.json``, of ``tests/real/zeropp_steps.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raysim.training.plan import TrainingPlan
from raysim.training.program import Op, Program
from raysim.training.settings.deepspeed import OffloadOptimizer, ZeroConfig
from raysim.training.settings.parallel import Mesh
from tests.deepspeed_reference import gpt
from tests.training_parts import cluster, plan, programs

Heard = tuple[str, int, int]
"""Operation, bytes of the whole buffer, ranks of the group."""


def heard(case: dict[str, Any]) -> list[Heard]:
    """What the real step did."""
    return [(op, size, n) for _, op, size, n, times in case["collectives"] for _ in range(times)]


def case_plan(case: dict[str, Any]) -> TrainingPlan:
    """The step of a case."""
    config = case["config"]
    zero = dict(config["zero_optimization"])
    if "offload_optimizer" in zero:
        zero["offload_optimizer"] = OffloadOptimizer(**zero["offload_optimizer"])
    p = plan(
        gpt(**case["model"]),
        mesh=Mesh(dp=case["ranks"]),
        micro_batch=config["train_micro_batch_size_per_gpu"],
        gradient_accumulation_steps=config["gradient_accumulation_steps"],
        precision="bf16",
    )
    return replace(p, zero=ZeroConfig(**zero))


def steady(program: Program) -> list[Op]:
    """Operations of the last optimizer step."""
    begin = program.step_ends[-2] if len(program.step_ends) > 1 else 0
    return program.ops[begin:]


def group_ranks(group: str, ranks: int) -> int:
    """Size of a communicator."""
    kind, _, rest = group.partition(":")
    if kind == "dp":
        return ranks
    sizes = [int(part) for part in rest.split(":")]
    return sizes[0] if kind == "dp_shard" else (ranks if len(sizes) == 1 else sizes[0]) // sizes[-1]


def compiled(case: dict[str, Any]) -> list[Heard]:
    """What raysim's program does in the same step."""
    ranks, local = case["ranks"], case["local"]
    where = cluster(nodes=ranks // local, gpus=local)
    ops = steady(programs(case_plan(case), where, steps=3)[0])
    return [
        (op.call.op, op.call.size_bytes, group_ranks(op.call.group, ranks))
        for op in ops
        if op.call is not None
    ]
