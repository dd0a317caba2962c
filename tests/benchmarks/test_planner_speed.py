"""What a plan costs: points screened, estimated and played, and layouts for `memory`; never gates.

    pytest tests/benchmarks/test_planner_speed.py -m benchmark --benchmark-enable -s

Llama 3 70B on up to 512 H100 under DeepSpeed. CPU seconds of a warm process, but for ``raysim
memory``, which is a whole process from its start. Yardsticks: the ZeRO paper's sum as a Python
loop; where it is installed, DeepSpeed's own estimator. ``test_peer_layouts`` has other peers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import raysim
from raysim.kernel.simulation import collector_at_ease
from raysim.planner.default_space import OFFLOAD
from raysim.planner.estimate import estimate_point
from raysim.planner.screen import screen_of
from raysim.planner.space import Point, Space
from raysim.planner.trials import try_point
from raysim.scenario.load import Scenario
from tests.benchmarks.alone import command_s
from tests.benchmarks.table import best_cpu_s, row

pytestmark = pytest.mark.benchmark

JOB: dict[str, Any] = {
    "name": "llama-70b",
    "cluster": {"node": "hgx-h100-8", "nodes": 64},
    "model": {"from": "scenarios/llama3_70b_goodput/config.json"},
    "jobs": [{"train": {
        "deepspeed": {
            "bf16": {"enabled": True}, "zero_optimization": {"stage": 3},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        },
        "seq_len": 8192, "global_batch_tokens": "8Mi", "tokens": "100G",
    }}],
}  # fmt: skip
SPACE = Space(
    {
        "train.zero_stage": (1, 2, 3), "train.micro_batch": (1, 2),
        "train.activation_checkpointing": ("none", "full"),
    }
)  # fmt: skip
LAYOUTS = Space({
    "train.zero_stage": (0, 1, 2, 3), "cluster.nodes": tuple(range(1, 65)),
    "train.micro_batch": tuple(range(1, 33)), "train.activation_checkpointing": ("none", "full"),
    OFFLOAD: ("none", "cpu"),
})  # fmt: skip
"""32,768 of them, each another."""
PARAMETERS = 70_553_706_496


def each_s(work: Callable[[Point], object], points: Sequence[Point], rounds: int = 3) -> float:
    """CPU seconds of a point, of the quickest round."""

    def all_of_them() -> None:
        for point in points:
            work(point)

    return best_cpu_s(lambda: all_of_them, rounds) / len(points)


def per_s(layout_s: float) -> str:
    rate = 1 / layout_s
    return f"{rate:,.0f} layouts/s" if rate >= 100 else f"{rate:.1f} layouts/s"


def as_in_the_paper(point: Point) -> bool:
    """Rajbhandari et al. 2020, table 1: whether model states are within 80 GB."""
    stage, ranks = point.choice["train.zero_stage"], 8 * point.choice["cluster.nodes"]
    weights, gradients, states = 2.0, 2.0, 12.0
    weights = weights / ranks if stage > 2 else weights
    gradients = gradients / ranks if stage > 1 else gradients
    states = states / ranks if stage else states
    return PARAMETERS * (weights + gradients + states) <= 80e9


def test_points_per_second(benchmark: Any) -> None:
    scenario = raysim.load(JOB)
    assert isinstance(scenario, Scenario)
    points, layouts = list(SPACE.points()), list(LAYOUTS.points())
    screen = screen_of(scenario, LAYOUTS)
    assert screen is not None
    with collector_at_ease():
        paper_s = each_s(as_in_the_paper, layouts)
        screened_s = each_s(screen, layouts)
        estimated_s = each_s(lambda p: estimate_point(scenario, p), points)
        played_s = each_s(lambda p: try_point(scenario, p, ()), points, rounds=1)
    row("plan, screened", f"{len(layouts):,} layouts of Llama 3 70B", len(layouts) * screened_s,
        per_s(screened_s), paper_s / screened_s,
        "the ZeRO paper's sum, as a Python loop")  # fmt: skip
    for name, spent_s in (("plan, estimated", estimated_s), ("plan, played", played_s)):
        row(name, f"{len(points)} layouts of Llama 3 70B", len(points) * spent_s, per_s(spent_s))
    benchmark.pedantic(lambda: None, rounds=1)


def test_layouts_by_deepspeed_s_estimator(benchmark: Any) -> None:
    stage3 = pytest.importorskip("deepspeed.runtime.zero.stage3")
    scenario = raysim.load(JOB)
    screen = screen_of(scenario, LAYOUTS)
    assert screen is not None
    layouts = [p for p in LAYOUTS.points() if p.choice["train.zero_stage"] == 3]

    def theirs(point: Point) -> None:
        stage3.estimate_zero3_model_states_mem_needs(
            PARAMETERS, 1_050_673_152, num_gpus_per_node=8,
            num_nodes=point.choice["cluster.nodes"],
            cpu_offload=point.choice[OFFLOAD] == "cpu",
            cpu_offload_params=False, zero_init=True,
        )  # fmt: skip

    theirs_s, ours_s = each_s(theirs, layouts), each_s(screen, layouts)
    row("plan, beside DeepSpeed", f"{len(layouts):,} ZeRO-3 layouts screened",
        len(layouts) * ours_s, per_s(ours_s), theirs_s / ours_s,
        "DeepSpeed's estimate_zero3_model_states_mem_needs")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)


def test_will_it_fit_from_a_cold_shell(benchmark: Any) -> None:
    config = "scenarios/llama3_8b_zero3/config.json"
    command = ["-m", "raysim", "memory", config]
    one = ["--zero-stage", "3", "--offload", "none", "--micro-batch", "1"]
    imports_s = command_s(["-c", "import simpy, numpy"])
    for what, options in (("32 layouts", []), ("two layouts", one)):
        taken_s = command_s([*command, *options])
        row("will it fit", f"raysim memory {config}: {what} in a new process", taken_s,
            f"{taken_s:.2f} s", imports_s / taken_s, "import simpy, numpy")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)
