"""torch's memory trackers beside raysim's ledger: recorded rows of ``measure.torch_memory``.

An unsharded model (``world`` 1) is played as DDP of one rank: parameters, gradients before the
step, optimizer states, what autograd saved when forward ends, and the peak. A model under
``fully_shard`` is played as FSDP2: the shards of all three, the parameters that are whole when
forward ends, and the peak with the collectives' buffers in it. (Of parameters that are whole at the
peak torch's tracker calls those just being gathered activations.)
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysim.kernel.simulation import Simulation
from raysim.training.program import Program
from raysim.training.tower import simulate
from raysim.validate.points import Point
from raysim.validate.training_cases import host
from raysim.validate.training_plans import model_of, plan_of

DATA = Path("data/torch_memory/torch_memory.json")
STEP_COUNTER_BYTES = 4
"""torch's AdamW counts the steps of each parameter in an fp32 scalar."""
BUFFERS = "All Gather + Reduce Scatter"
"""Two of torch's categories, inputs and outputs of collectives, which raysim has as one."""
Bytes = dict[tuple[str, str], int]
"""When, and torch's category, to bytes."""


def torch_memory_points(validation: Path) -> Iterator[Point]:
    """Every recorded number that raysim has too; nothing where nothing was recorded."""
    if not (validation / DATA).exists():
        return
    for name, known in json.loads((validation / DATA).read_text(encoding="utf-8"))["cases"].items():
        case = known["case"]
        for world, theirs in known["bytes"].items():
            for (when, category), predicted in ledger(case, int(world)).items():
                there = "" if when != "peak" or category == "Total" else " at the peak"
                yield Point(
                    family="torch_memory", name=f"{name} world {world} {category}{there}",
                    role="validation", unit="bytes", predicted=predicted,
                    measured=measured(theirs, when, category),
                )  # fmt: skip


def measured(theirs: Mapping[str, Mapping[str, int]], when: str, category: str) -> int:
    """What torch counts under a category, or under several joined by a plus."""
    return sum(theirs[when].get(part, 0) for part in category.split(" + "))


def ledger(case: Mapping[str, Any], world: int) -> Bytes:
    """What raysim says to a case of ``measure.torch_memory`` on so many ranks."""
    return _unsharded(case) if world == 1 else _sharded(case, world)


def _program(case: Mapping[str, Any], engine: str, world: int) -> Program:
    """Two optimizer steps of the case's first rank."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": case["micro_batch"], "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
    }  # fmt: skip
    if case["dtype"] == "bfloat16":
        config["bf16"] = {"enabled": True}
    named = {"name": case["name"], "engine": engine, "ranks": world, "model": case["model"]}
    plan = plan_of(named | {"seq": case["seq"], "config": config, "fsdp": case.get("fsdp", {})})
    plan = replace(plan, keeps_output=True)  # as ``measure.torch_memory`` does
    outcome = simulate(plan, host(world), simulation=Simulation(), steps=2)
    return outcome.timelines[0].program


def _tensors(case: Mapping[str, Any]) -> int:
    return sum(p.tied_to is None for layer in model_of(case).layers for p in layer.body.parameters)


def _unsharded(case: Mapping[str, Any]) -> Bytes:
    program = _program(case, "ddp", 1)
    held, saved = program.step_held[-1], _held_before(program, "backward")
    return {
        ("step", "Parameter"): held["parameter"],
        ("step", "Optstate"): held["optimizer_state"] + STEP_COUNTER_BYTES * _tensors(case),
        ("backward", "Gradient"): _held_before(program, "optimizer")["gradient"],
        ("forward", "Activation"): saved["activation"] + _logits_bytes(case),
        ("peak", "Total"): _fullest(program)[1],
    }


def _logits_bytes(case: Mapping[str, Any]) -> int:
    """The output in the weights' dtype, and what the loss saves of it in fp32."""
    each = 4 + (2 if case["dtype"] == "bfloat16" else 4)
    return int(case["micro_batch"] * case["seq"] * case["model"]["vocab_size"] * each)


def _sharded(case: Mapping[str, Any], world: int) -> Bytes:
    program = _program(case, "fsdp2", world)
    held, saved = program.step_held[-1], _held_before(program, "backward")
    fullest, total = _fullest(program)
    return {
        ("step", "Sharded Param"): held["parameter"],
        ("backward", "Sharded Grad"): _held_before(program, "optimizer")["gradient"],
        ("step", "OptState"): held["optimizer_state"] + STEP_COUNTER_BYTES * _tensors(case),
        ("forward", "Unsharded Param"): saved["gathered_parameter"],
        ("forward", "Activation"): saved["activation"] + _logits_bytes(case),
        ("peak", BUFFERS): fullest["communication"],
        ("peak", "Total"): total,
    }


def _held_before(program: Program, category: str) -> dict[str, int]:
    """Bytes by category when the last step's first operation of ``category`` is about to run."""
    last = range(program.step_ends[-2], program.step_ends[-1])
    begins = next(i for i in last if program.ops[i].category == category)
    held: dict[str, int] = defaultdict(int)
    for event, position in zip(program.memory, program.memory_at, strict=True):
        if position < begins:
            held[event.category] += event.delta_bytes
    return held


def _fullest(program: Program) -> tuple[dict[str, int], int]:
    """Bytes by category when most are held, and how many those are."""
    held: dict[str, int] = defaultdict(int)
    fullest: dict[str, int] = held
    now = most = 0
    for event in program.memory:
        held[event.category] += event.delta_bytes
        now += event.delta_bytes
        if now > most:
            most, fullest = now, held.copy()
    return fullest, most
