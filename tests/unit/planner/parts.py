"""A scenario that plays in a tenth of a second, and trials made by hand."""

from __future__ import annotations

from typing import Any

import raysim
from raysim.planner.trials import Trial
from raysim.scenario.load import Scenario

NODES = "cluster.gpu-group.replicas"
SPACE: dict[str, list[Any]] = {
    "train.zero_stage": [1, 3], "train.micro_batch": [4, 8], NODES: [1, 2],
}  # fmt: skip


def scenario(**changes: Any) -> Scenario:
    return raysim.load("scenarios/bert_mrpc_zero3", changes)


def trial(number: int, **said: Any) -> Trial:
    metrics = said.pop("metrics", {"usd": 10.0 + number, "tokens_per_s": 100.0, "days": 1.0})
    return Trial(
        number=number, choice=said.pop("choice", {NODES: number}),
        status=said.pop("status", "ok"), gpus=said.pop("gpus", 8), metrics=metrics, **said,
    )  # fmt: skip
