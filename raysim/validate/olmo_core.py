"""OLMo-core's table of pre-training speed, predicted: FSDP2, compiled blocks, bf16 and float8.

``validation/data/published/olmo_core.json`` says what ran. No row fixed a constant.

Simplified: modules are transformers' Qwen 3 with as many keys as queries: as many norms, of one
head where OLMo's are of all, and before a branch where OLMo's stand behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from raysim.hardware import catalog
from raysim.kernel.simulation import Simulation
from raysim.models.huggingface import build
from raysim.models.table import Body, Model, Operator, Saved
from raysim.training.plan import TrainingPlan
from raysim.training.settings.deepspeed import Optimizer
from raysim.training.settings.fp8 import Fp8Settings
from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome, simulate
from raysim.validate.job import OLD_SDPA
from raysim.validate.points import Point
from raysim.validate.published import PUBLISHED, left_points, nodes, ran_point, rate_point

FILE = "olmo_core.json"
FAMILY = "olmo_core"
FLOAT8 = Fp8Settings(
    library="torchao", recipe="tensorwise", float8_all_gather=True, precomputes_scales=True
)
# 16-bit passes over the logits, forward and backward. Both: a cast to fp32 (3), a copy without the
# last position (4); backward into zeros (6), a cast (3).
FUSED_LOSS = (7 + 2, 9 + 4)
"""Triton's kernel reads, and reads and writes."""
LOSS = (7 + 6 + 12, 9 + 8 + 12 + 6)
"""log_softmax (two reads, a write); z-loss by logsumexp, five kernels. Backward: zeros and
log_softmax's, three kernels of logsumexp's, both gradients' sum."""


def olmo_points(validation: Path) -> Iterator[Point]:
    """Rate and verdict of each row, and those left out."""
    held = json.loads((validation / PUBLISHED / FILE).read_text(encoding="utf-8"))
    for row in held["rows"]:
        outcome = played(held, row)
        each = row["global_batch"] * held["seq_len"] / held["gpus"]
        yield rate_point(
            outcome, f"{FAMILY}/{row['precision']}", row["id"], row["tokens_per_s_per_gpu"], each
        )
        yield ran_point(outcome, FAMILY, row["id"])
    yield from left_points(held["left_out"], FAMILY)


def played(held: dict[str, Any], row: dict[str, Any]) -> StepOutcome:
    """One row, simulated."""
    gpus = held["gpus"]
    plan = TrainingPlan(
        model=_model(json.dumps(held["models"][row["model"]]), held["seq_len"], row["fused_loss"]),
        mesh=Mesh(dp=gpus),
        engine="fsdp",
        micro_batch=row["micro_batch"],
        gradient_accumulation_steps=row["global_batch"] // (row["micro_batch"] * gpus),
        precision="fp32",
        optimizer=Optimizer(fused=True),
        fsdp=FsdpSettings(
            param_dtype="bf16", reduce_dtype="fp32", keeps_last=True, sync_every_micro_batch=True
        ),
        fp8=FLOAT8 if row["precision"] == "fp8" else None,
        torch_compile=True,
    )  # fmt: skip
    return simulate(plan, nodes(catalog.node(held["machine"]), 1), simulation=Simulation())


@cache
def _model(config: str, seq_len: int, fused: bool) -> Model:
    model = build(json.loads(config), seq_len=seq_len, attention=OLD_SDPA)
    passes = FUSED_LOSS if fused else LOSS

    def loss(body: Body) -> Body:
        return body.with_operators(change)

    def change(o: Operator) -> Operator:
        if o.kind != "loss":
            return o
        n = o.saves[0].numel
        kept = Saved(name="loss.logits", numel=n, dtype="fp32")
        return replace(
            o, moved=passes[0] * n, moved_backward=passes[1] * n, saves=(kept, o.saves[-1]),
            scratch=(), scratch_backward=(), compiled=False,
        )  # fmt: skip

    return model.with_bodies(loss)
